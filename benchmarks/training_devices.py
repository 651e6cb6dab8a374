"""The tables of docs/training-devices.md and its figure, from the MirroredStrategy study's data.

    python benchmarks/training_devices.py DATA [--update docs/training-devices.md] [--figure FIGURE.svg]

DATA is a folder with cccis2020_epochs.csv, cccis2020_layers.csv and
cccis2020_patch_camelyon_predicted.csv. Everything is computed anew in a second; nothing is trained. With
--ddp, PyTorch's DistributedDataParallel also runs here, over gloo, for a minute: an idle machine, please.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lolat.model_file import write_bytes  # noqa: E402
from lolat.report.plots import STYLE  # noqa: E402
from lolat.training.parallel.layers import (  # noqa: E402
    fit_launch_ms,
    overlapped_ms,
    study_mirrored_ms,
    summed_ms,
)
from lolat.training.parallel.links import Link  # noqa: E402
from lolat.training.parallel.replicas import ParallelIteration, parallel_iteration  # noqa: E402
from lolat.training.parallel.runs import FLOAT_BYTES, Runs, RunsFormula  # noqa: E402
from lolat.training.parallel.scaling import strong_scaling, weak_scaling  # noqa: E402
from lolat.units import percent  # noqa: E402

CORRECTION = 1.5  # the study's
FIGURE_LINK = Link(100, 0.005)
FIGURE_DEVICES = tuple(2**i for i in range(13))  # 1 to 4,096
WEAK_BATCH, STRONG_BATCH = 64, 16384
COLOURS = {"ring": "#0b6e99", "tree": "#d1603d", "one-to-all": "#5b8c3a"}
PATCH, MNIST, CIFAR = "patch_camelyon_cnn", "mnist_cnn", "cifar_cnn"


@dataclass(frozen=True)
class Cnn:
    """A network of the study: 3x3 convolutions, each followed by 2x2 pooling, then dense layers."""

    size: int
    channels: int
    same: bool
    filters: tuple[int, ...]
    units: tuple[int, ...]

    def counts(self) -> tuple[int, int, list[int]]:
        """(ACTS, FLOPs of one sample, numbers in each variable: kernel, bias, kernel ...)."""
        acts = flops = 0
        variables: list[int] = []
        size, width = self.size, self.channels
        for filters in self.filters:
            size -= 0 if self.same else 2
            acts += size * size * filters
            flops += size * size * filters * 9 * width
            variables += [9 * width * filters, filters]
            size, width = size // 2, filters
        width *= size * size
        for units in self.units:
            flops += width * units
            variables += [width * units, units]
            width = units
        return acts, flops, variables


NETWORKS = {
    MNIST: Cnn(28, 1, False, (32, 32), (128, 10)),
    CIFAR: Cnn(32, 3, False, (64, 64, 32), (512, 256, 128, 10)),
    PATCH: Cnn(96, 3, True, (256, 256, 512, 512, 1024, 1024), (1028, 512, 128, 1)),
}


def table_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Epochs:
    """The timed iterations: what each was of, and how long it took."""

    network: np.ndarray
    runs: Runs
    iteration_ms: np.ndarray

    @staticmethod
    def read(data: Path) -> Epochs:
        """cccis2020_epochs.csv."""
        rows = table_of(data / "cccis2020_epochs.csv")
        counts = {name: network.counts() for name, network in NETWORKS.items()}
        of = [counts[row["network"]] for row in rows]
        runs = Runs(
            batch_size=np.array([float(row["batch_per_replica"]) for row in rows]),
            acts=np.array([c[0] for c in of], dtype=float),
            flops=np.array([c[1] for c in of], dtype=float),
            parameters=np.array([sum(c[2]) for c in of], dtype=float),
            variables=np.array([len(c[2]) for c in of], dtype=float),
            devices=np.array([int(row["gpus"]) for row in rows]),
            optimizer=np.array([row["optimizer"] for row in rows]),
        )
        return Epochs(
            np.array([row["network"] for row in rows]),
            runs,
            np.array([float(row["batch_ms"]) for row in rows]),
        )

    def groups(self) -> dict[tuple[str, int, str], np.ndarray]:
        """Rows that differ in batch size alone: indices, smallest batch first."""
        keys = list(
            zip(self.network, map(int, self.runs.devices), self.runs.optimizer, strict=True)
        )
        found = {key: np.array([i for i, k in enumerate(keys) if k == key]) for key in keys}
        return {key: rows[np.argsort(self.runs.batch_size[rows])] for key, rows in found.items()}


def splits(epochs: Epochs) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(what is fitted on, mask of rows to fit, mask of rows to predict)."""
    n = len(epochs.iteration_ms)
    rank, last = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
    for rows in epochs.groups().values():
        rank[rows], last[rows] = np.arange(len(rows)), len(rows) - 1
    even = rank % 2 == 0
    three = (rank == 0) | (rank == last // 2) | (rank == last)
    ends = (rank == 0) | (rank == last)
    several = epochs.runs.devices > 1
    patch, mnist = epochs.network == PATCH, epochs.network == MNIST
    yield "1st, 3rd, 5th ... batch size of each series", even, ~even
    yield "2nd, 4th, 6th ... batch size of each series", ~even, even
    yield "smallest, middle, largest batch of each series", three, ~three
    yield "smallest and largest batch of each series", ends, ~ends
    one = several & (rank == 0)
    for name, words in ((patch, "PatchCamelyon"), (mnist, "MNIST")):
        held = several & name & ~one
        yield f"all but {words} on two GPUs, of which the smallest batch", ~held, held
    for key, words in ((MNIST, "MNIST"), (CIFAR, "CIFAR"), (PATCH, "PatchCamelyon")):
        held = epochs.network == key
        yield f"the other networks; {words} never seen", ~held, held


def errors_of(epochs: Epochs, fit: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Signed relative errors of the rows to predict."""
    formula = RunsFormula.fit(epochs.runs.select(fit), epochs.iteration_ms[fit])
    return formula.predict(epochs.runs.select(test)) / epochs.iteration_ms[test] - 1.0


def shown(errors: np.ndarray) -> str:
    """Median, mean and largest error as cells."""
    size = 100 * np.abs(errors)
    return f"{np.median(size):.1f} % | {np.mean(size):.1f} % | {np.max(size):.1f} %"


def splits_table(epochs: Epochs) -> Iterator[str]:
    """Each split's error on the rows that were not fitted on."""
    yield "| fitted on | rows | predicted | median | mean | largest |"
    yield "| --- | --: | --: | --: | --: | --: |"
    for words, fit, test in splits(epochs):
        yield f"| {words} | {fit.sum()} | {test.sum()} | {shown(errors_of(epochs, fit, test))} |"


def series_table(epochs: Epochs) -> Iterator[str]:
    """The first split, series by series."""
    _, fit, test = next(splits(epochs))
    errors = np.full(len(test), np.nan)
    errors[test] = errors_of(epochs, fit, test)
    yield "| network | GPUs | optimiser | predicted | median | mean | largest |"
    yield "| --- | --: | --- | --: | --: | --: | --: |"
    for (network, devices, optimizer), rows in epochs.groups().items():
        held = rows[test[rows]]
        yield f"| {network} | {devices} | {optimizer} | {len(held)} | {shown(errors[held])} |"


def coefficients_table(epochs: Epochs) -> Iterator[str]:
    """What the first split's formula says of the machine."""
    _, fit, _ = next(splits(epochs))
    formula = RunsFormula.fit(epochs.runs.select(fit), epochs.iteration_ms[fit])
    c = formula.coefficients
    yield "| coefficient | value | that is |"
    yield "| --- | --: | --- |"
    yield f"| call | {c['call']:.2f} ms | one iteration of Keras, whatever the network |"
    yield f"| variable | {c['variable']:.3f} ms | per kernel or bias: launches, update |"
    yield f"| unfused | {c['unfused']:.3f} ms | more per variable with RMSprop |"
    yield f"| acts | {1e6 * c['acts']:.3f} ms per million | forward and backward, per element |"
    yield f"| flops | {1e9 * c['flops']:.3f} ms per billion | the same, per multiply-accumulate |"
    yield f"| weight | {1e6 * c['weight']:.3f} ms per million | gradient and update of a parameter |"
    yield f"| synchronisation | {c['synchronisation']:.2f} ms | MirroredStrategy on two GPUs |"
    yield f"| byte | {1e6 * c['byte']:.3f} ms per MB | a link of {formula.link.gbps:.0f} Gbit/s |"


def study_table(data: Path, epochs: Epochs) -> Iterator[str]:
    """PatchCamelyon on two GPUs: the study's way, as they report it, and the formula without those rows."""
    rows = table_of(data / "cccis2020_patch_camelyon_predicted.csv")
    single: dict[int, list[float]] = {}
    mirrored: dict[int, float] = {}
    for row in rows:
        batch, ms = int(row["batch_per_replica"]), float(row["predicted_ms"])
        if row["strategy"] == "single":
            single.setdefault(batch, []).append(ms)
        else:
            mirrored[batch] = ms
    held = (epochs.network == PATCH) & (epochs.runs.devices > 1)
    fit = ~(held & (epochs.runs.batch_size > 8))  # the smallest batch tells the link
    formula = RunsFormula.fit(epochs.runs.select(fit), epochs.iteration_ms[fit])
    yield "| samples per GPU | measured | the study's way | with its correction | the formula |"
    yield "| --: | --: | --: | --: | --: |"
    for batch in sorted(single):
        row = held & (epochs.runs.batch_size == batch)
        measured = float(epochs.iteration_ms[row][0])
        plain, corrected = (
            float(study_mirrored_ms(single[batch], [mirrored[batch]], by)[0])
            for by in (1.0, CORRECTION)
        )
        ours = float(formula.predict(epochs.runs.select(row))[0])
        cells = [f"{ms:.1f} ms, {100 * (ms / measured - 1):+.1f} %" for ms in (plain, corrected)]
        last = f"{ours:.1f} ms, {100 * (ours / measured - 1):+.1f} %"
        cells.append(f"({last}: fitted on)" if batch == 8 else last)
        yield f"| {batch} | {measured:.1f} ms | {' | '.join(cells)} |"


def layers_table(data: Path, epochs: Epochs) -> Iterator[str]:
    """One GPU from its layers: the plain sum, and a launch fitted on the other network."""
    rows = table_of(data / "cccis2020_layers.csv")
    layers: dict[str, np.ndarray] = {}
    measured: dict[str, np.ndarray] = {}
    for name in (MNIST, CIFAR):
        batches = sorted({int(r["batch_size"]) for r in rows if r["network"] == name})
        layers[name] = np.array(
            [
                [
                    float(r["layer_ms"])
                    for r in rows
                    if r["network"] == name and int(r["batch_size"]) == batch
                ]
                for batch in batches
            ]
        )
        of = (epochs.network == name) & (epochs.runs.devices == 1)
        measured[name] = epochs.iteration_ms[of][np.argsort(epochs.runs.batch_size[of])]
    yield "| network | way | fitted on | predicted | median | mean | largest |"
    yield "| --- | --- | --- | --: | --: | --: | --: |"
    for name, other in ((MNIST, CIFAR), (CIFAR, MNIST)):
        plain = summed_ms(layers[name]) / measured[name] - 1.0
        yield f"| {name} | the study's sum | - | {len(plain)} | {shown(plain)} |"
        every = slice(0, None, 2)
        for words, source, fit, test in (
            (f"{other}", other, slice(None), slice(None)),
            ("every other batch size", name, every, slice(1, None, 2)),
        ):
            alone = float(layers[source][fit].min())
            launch = fit_launch_ms(layers[source][fit], measured[source][fit], alone)
            error = overlapped_ms(layers[name][test], alone, launch) / measured[name][test] - 1.0
            yield f"| {name} | launches or computing | {words} | {len(error)} | {shown(error)} |"


def scaling_iteration(epochs: Epochs, strategy: str):  # type: ignore[no-untyped-def]
    """(samples, devices) -> iteration of the PatchCamelyon network on P100s, over FIGURE_LINK."""
    formula = RunsFormula.fit(epochs.runs, epochs.iteration_ms)
    acts, flops, variables = NETWORKS[PATCH].counts()
    sizes = [FLOAT_BYTES * numbers for numbers in variables]

    def iteration(batch_size: int, devices: int) -> ParallelIteration:
        values = (batch_size, acts, flops, sum(variables), len(variables), 1)
        one = Runs(*(np.array([float(v)]) for v in values), optimizer=np.array(["adam"]))  # type: ignore[misc]
        return parallel_iteration(
            float(formula.predict(one)[0]),
            sizes,
            devices,
            FIGURE_LINK,
            strategy,
            fixed_ms=formula.coefficients["synchronisation"],
        )

    return iteration


def curves(epochs: Epochs):  # type: ignore[no-untyped-def]
    """(words, strategy, points) of each curve."""
    for strategy in COLOURS:
        iteration = scaling_iteration(epochs, strategy)
        yield "weak", strategy, weak_scaling(iteration, WEAK_BATCH, FIGURE_DEVICES)
        yield "strong", strategy, strong_scaling(iteration, STRONG_BATCH, FIGURE_DEVICES)


def scaling_table(epochs: Epochs) -> Iterator[str]:
    """Efficiency at some numbers of devices."""
    picked = (1, 2, 8, 64, 512, 4096)
    yield f"| efficiency with devices | {' | '.join(f'{k:,}' for k in picked)} |"
    yield f"| --- |{' --: |' * len(picked)}"
    for kind, strategy, points in curves(epochs):
        at = {p.devices: p.efficiency for p in points}
        yield f"| {kind}, {strategy} | {' | '.join(f'{percent(at[k])}' for k in picked)} |"


def draw(epochs: Epochs, path: Path) -> None:
    """Speed-up over the number of devices, weak and strong."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        panels = dict(zip(("weak", "strong"), figure.subplots(1, 2, sharey=True), strict=True))
        for kind, strategy, points in curves(epochs):
            panels[kind].plot([p.devices for p in points], [p.speedup for p in points], "o-", ms=3,
                              color=COLOURS[strategy], label=strategy)  # fmt: skip
        titles = {
            "weak": f"weak scaling: {WEAK_BATCH} samples on each",
            "strong": f"strong scaling: {STRONG_BATCH:,} samples shared",
        }
        for kind, axes in panels.items():
            axes.plot(FIGURE_DEVICES, FIGURE_DEVICES, color="0.6", lw=1, label="ideal")
            axes.set(xscale="log", yscale="log", xlabel="devices", title=titles[kind],
                     ylim=(0.05, 6000))  # fmt: skip
            axes.set_xticks([1, 4, 16, 64, 256, 1024, 4096])
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:,g}")
                axis.set_minor_formatter("")
            axes.grid(color="0.93")
        panels["weak"].set_ylabel("samples per second, as a multiple of one device's")
        panels["weak"].legend(frameon=False, loc="upper left")
        figure.suptitle(
            f"PatchCamelyon CNN (19.9 M parameters), P100s, link of {FIGURE_LINK.gbps:g} Gbit/s "
            f"and {1000 * FIGURE_LINK.latency_ms:g} µs, nothing hidden by the backward pass",
            fontsize=10,
        )
        figure.savefig(path, metadata={"Date": None})
    click.echo(f"drawn: {path}")


DDP_NETWORKS = ("conv", "mixed", "dense")
DDP_REPLICAS = (2, 4)
DDP_BATCH, DDP_WARM, DDP_ITERATIONS = 32, 4, 15
DDP_SIZES = (4096, 2**25)  # bytes of the all-reduces that tell the link


def ddp_network(name: str):  # type: ignore[no-untyped-def]
    """(network, a batch): few parameters and much to compute, both, or the other way round."""
    import torch
    from torch import nn

    def convolution(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]

    image, vector = torch.randn(DDP_BATCH, 3, 32, 32), torch.randn(DDP_BATCH, 1024)
    head = [nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    made = {
        "conv": ([*convolution(3, 64), *convolution(64, 64), *head, nn.Linear(1024, 10)], image),
        "mixed": (
            [*convolution(3, 32), *convolution(32, 64), *head, nn.Linear(1024, 2048), nn.ReLU(),
             nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10)],
            image,
        ),
        "dense": (
            [nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
             nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)],
            vector,
        ),
    }  # fmt: skip
    layers, batch = made[name]
    return nn.Sequential(*layers), batch


def ddp_replica(rank: int, replicas: int, folder: str) -> None:
    """One replica, one thread: iterations without and with exchange, and all-reduces; times to a file."""
    import statistics
    import time

    import torch
    from torch import distributed, nn

    def median_ms(call, count: int) -> float:  # type: ignore[no-untyped-def]
        times = []
        distributed.barrier()
        for _ in range(count):
            began = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - began))
        return statistics.median(times[DDP_WARM:])

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=replicas)
    found: dict[str, object] = {}
    for size in DDP_SIZES:
        numbers = torch.zeros(size // FLOAT_BYTES)
        found[str(size)] = median_ms(lambda n=numbers: distributed.all_reduce(n), 20)
    for name in DDP_NETWORKS:
        network, batch = ddp_network(name)
        target = torch.randint(10, (DDP_BATCH,))
        alone_and_together = []
        for module in (network, nn.parallel.DistributedDataParallel(network)):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

            def iteration(m=module, o=optimizer, x=batch, y=target) -> None:  # type: ignore[no-untyped-def]
                o.zero_grad()
                nn.functional.cross_entropy(m(x), y).backward()
                o.step()

            alone_and_together.append(median_ms(iteration, DDP_WARM + DDP_ITERATIONS))
        found[name] = alone_and_together
        found[f"{name} bytes"] = [FLOAT_BYTES * p.numel() for p in network.parameters()]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def ddp_table() -> Iterator[str]:
    """DistributedDataParallel on this machine: measured, and predicted from replicas and link alone."""
    from torch import multiprocessing

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all replicas are on this machine
    yield "| replicas | network | gradients | replica alone | measured | after the pass | in buckets |"
    yield "| --: | --- | --: | --: | --: | --: | --: |"
    for replicas in DDP_REPLICAS:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(ddp_replica, (replicas, folder), nprocs=replicas)
            told = [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(replicas)]
        small, large = (max(t[str(size)] for t in told) for size in DDP_SIZES)
        steps = 2 * (replicas - 1)
        byte_ms = (large - small) / (DDP_SIZES[1] - DDP_SIZES[0]) * replicas / steps
        link = Link(8e-6 / byte_ms, max(small / steps - DDP_SIZES[0] / replicas * byte_ms, 0.0))
        words = f"{replicas} (link {link.gbps:.1f} Gbit/s, {link.latency_ms:.2f} ms)"
        for name in DDP_NETWORKS:
            alone = [t[name][0] for t in told]
            measured = max(t[name][1] for t in told)
            sizes = told[0][f"{name} bytes"]
            # Two thirds of an iteration are its backward pass, in equal parts for all variables.
            backward = [2 / 3 * np.mean(alone) / len(sizes)] * len(sizes)
            cells = [
                parallel_iteration(alone, sizes, replicas, link, "ring", backward_ms=parts)
                for parts in (None, backward)
            ]
            predicted = " | ".join(
                f"{c.iteration_ms:.1f} ms, {100 * (c.iteration_ms / measured - 1):+.0f} %"
                for c in cells
            )
            yield (
                f"| {words} | {name} | {sum(sizes) / 1e6:.1f} MB | {np.mean(alone):.1f} ms "
                f"| {measured:.1f} ms | {predicted} |"
            )


def replaced(text: str, name: str, lines: list[str]) -> str:
    """The page with the lines between the marks of a table; UsageError where it lacks them."""
    first, last = f"<!-- table {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = text.partition(first)
    _, ended, after = rest.partition(last)
    if not (found and ended):
        raise click.UsageError(f"the page lacks the lines {first.strip()} and {last.strip()}")
    return "".join([before, first, *(f"{line}\n" for line in lines), last, after])


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--update", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--ddp", is_flag=True, help="Also run DistributedDataParallel here, for a minute.")
def main(data: Path, update: Path | None, figure: Path | None, ddp: bool) -> None:
    """Print the tables; --update puts them into a page, --figure draws the curves."""
    epochs = Epochs.read(data)
    tables = {
        "splits": list(splits_table(epochs)),
        "series": list(series_table(epochs)),
        "coefficients": list(coefficients_table(epochs)),
        "study": list(study_table(data, epochs)),
        "layers": list(layers_table(data, epochs)),
        "scaling": list(scaling_table(epochs)),
    }
    if ddp:
        tables["ddp"] = list(ddp_table())
    for name, lines in tables.items():
        click.echo("\n".join([f"{name}:", *lines, ""]))
    if update is not None:
        page = update.read_text(encoding="utf-8")
        for name, lines in tables.items():
            page = replaced(page, name, lines)
        write_bytes(update, page.encode())
    if figure is not None:
        draw(epochs, figure)


if __name__ == "__main__":
    main()
