"""From how many operations is a deep network better than the formula? docs/results/gpus.md.

    python benchmarks/networks_against_formula.py measure FOLDER --results FILE [--most ROWS]
    python benchmarks/networks_against_formula.py table --results FILE
    python benchmarks/networks_against_formula.py draw --results FILE [--output FIGURE.svg]

FOLDER holds kernels-DEVICE.csv.gz, networks.csv, networks/ and devices.csv of NeuSight's measurements. Each
learner gets the same rows, so many of each operation (linear, bmm, convolutions, all that only moves), and
is judged on operations left out and on whole transformers, eager inference:

- `formula`: `kernels` as `lolat fit` fits it; of a GPU never seen what its data sheet says, whatever rows;
- `paper`: the network of Justus et al. 2018 for each operation, of sizes and, with several GPUs, facts;
- `best`: as our recipe `best`, a network for what the data sheet's formula leaves.

Both are trained and asked by `lolat.mlp`. What FILE has is not done again; all of it takes about an hour
on one core, up to 200 rows some eight minutes.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # the networks are small

from benchmarks.justus_formula import crossing  # noqa: E402
from lolat.devices.fit import fit_kernels, predicted  # noqa: E402
from lolat.devices.sheets import Facts, read_facts  # noqa: E402
from lolat.devices.tables import (  # noqa: E402  # noqa: E402
    Counted,
    TimedNetwork,
    counts_of,
    read_networks,
    read_operations,
)
from lolat.devices.times import Times  # noqa: E402
from lolat.fitting.predictors.kernels import Kernels  # noqa: E402
from lolat.graph import work as c  # noqa: E402
from lolat.graph.modes import Mode  # noqa: E402
from lolat.graph.work import CLASSES, PRODUCTS, Work, work_of  # noqa: E402
from lolat.io.writing import write_bytes  # noqa: E402
from lolat.mlp.layer_model import Perceptron  # noqa: E402
from lolat.mlp.recipes import BEST, FARTHEST, PAPER, Plan  # noqa: E402
from lolat.units import percent  # noqa: E402

SEEN = ("v100-pcie-32gb", "a100-pcie-40gb", "p100-pcie-16gb", "t4")
UNSEEN = (*SEEN, "h100-sxm-80gb")
TWINS = {"a100-pcie-40gb": "a100-pcie-80gb"}  # of the same chip: not among the others
OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "linear": (c.DENSE,),
    "bmm": (c.BATCHED,),
    "conv": (c.CONVOLUTION, c.POINTWISE),
    "moving": (c.ELEMENTS, c.NORM),
}
"""Operation -> the classes that are one: a network for each."""
ONE, OTHERS = "timed on the GPU", "timed on others"
SIZES = {ONE: (50, 200, 1000, 5000), OTHERS: (50, 200, 1000, 5000, 20_000)}
LEARNERS = ("formula", "paper", "best")
DRAWS = 3  # of the rows of a GPU; one of those of others
JUDGED = 300  # operations of each kind that no learner sees
TILES = (32, 128)
FACTS = ("bandwidth_gb_s", "cores", "clock_mhz")
ALONE_MS = 1e-4


@dataclass(frozen=True)
class Device:
    """A GPU: `facts` of the formula, `sheet` (3,) as the paper has them; by operation the `rows` to learn
    from and the `judged` ones; its whole networks.
    """

    facts: Facts
    sheet: np.ndarray
    rows: Mapping[str, Rows]
    judged: Mapping[str, Rows]
    networks: Sequence[tuple[TimedNetwork, Counted]]


@dataclass(frozen=True)
class Rows:
    """Operations timed alone: `work`, (n,) steps, and `ms`, (n,)."""

    work: Work
    ms: np.ndarray

    def take(self, which: np.ndarray) -> Rows:
        """Some of them."""
        return Rows(self.work.take(which), self.ms[which])

    @property
    def times(self) -> Times:
        """As the formula's fit takes them."""
        n = len(self.ms)
        return Times(self.work, np.arange(n), np.ones(n), self.ms, np.zeros(n, bool))


def read_device(folder: Path, name: str) -> Device:
    """What was timed on a GPU."""
    draw = np.random.default_rng(0)
    timed = read_operations(folder / f"kernels-{name}.csv.gz")
    works = [work_of(o.graph, o.batch_size) for o in timed]
    alone = [(w, o.latency_ms) for w, o in zip(works, timed, strict=True) if len(w.kind) == 1]
    everything = Rows(Work.joined([w for w, _ in alone]), np.array([ms for _, ms in alone]))
    rows, judged = {}, {}
    for operation, classes in OPERATIONS.items():
        found = np.flatnonzero(np.isin(everything.work.kind, [CLASSES.index(n) for n in classes]))
        if len(found):
            found = draw.permutation(found)
            judged[operation] = everything.take(found[:JUDGED])
            rows[operation] = everything.take(found[JUDGED:])
    table = read_networks(folder / "networks.csv", name)
    eager = [row for row in table.rows if row.mode == Mode()]
    networks = [
        (row, known)
        for row, known in zip(eager, counts_of(eager), strict=True)
        if isinstance(known, Counted)
    ]
    return Device(
        read_facts(folder / "devices.csv", name), _sheet(folder, name), rows, judged, networks
    )


def _sheet(folder: Path, name: str) -> np.ndarray:
    with open(folder / "devices.csv", newline="") as file:
        row = next(r for r in csv.DictReader(file) if r["device"] == name)
    cores = float(row["multiprocessors"]) * float(row["cores_per_multiprocessor"])
    return np.array([float(row["bandwidth_gb_s"]), cores, float(row["clock_mhz"])])


Answer = Callable[[Work, Device], np.ndarray]
"""Steps of one operation on a device -> (steps,) ms as if each were timed alone."""


@dataclass(frozen=True)
class Learned:
    """What a learner says: `alone`, by operation, of operations; `inside`, (steps,) ms in a network."""

    alone: Mapping[str, Answer]
    inside: Callable[[Work, Device], np.ndarray]


def sheet_formula(device: Device) -> Kernels:
    """What the data sheet alone says."""
    return fit_kernels(Times.of([], np.zeros(0), np.zeros(0, bool)), device.facts)


def of_formula(formula_of: Callable[[Device], Kernels]) -> Learned:
    """Of a formula for each device."""

    def alone(work: Work, device: Device) -> np.ndarray:
        return predicted(formula_of(device), Rows(work, np.ones(len(work.kind))).times)

    return Learned(
        dict.fromkeys(OPERATIONS, alone), lambda work, device: formula_of(device).times(work)[0]
    )


def group(work: Work) -> np.ndarray:
    """(steps,) the operation that a step is taken for: what is no product only moves."""
    names = np.full(len(work.kind), "moving", dtype=object)
    for operation, classes in OPERATIONS.items():
        names[np.isin(work.kind, [CLASSES.index(n) for n in classes])] = operation
    unknown = np.isin(work.kind, [CLASSES.index(n) for n in PRODUCTS]) & (names == "moving")
    names[unknown] = "linear"
    return names


def columns(work: Work, operation: str) -> list[np.ndarray]:
    """What describes a step as the paper would: its sizes, or its bytes and which operation it is."""
    if operation != "moving":
        return [work.number, work.rows, work.columns, work.depth]
    kinds = [work.kind == CLASSES.index(n) for n in OPERATIONS["moving"][1:]]
    return [work.bytes, *kinds]  # other classes that only move are taken for element-wise ones


def features(learner: str, work: Work, operation: str, device: Device) -> np.ndarray:
    """(steps, k) of one device's steps."""
    found = columns(work, operation)
    if learner == "paper":
        found += list(np.broadcast_to(device.sheet[:, None], (len(FACTS), len(work.kind))))
        return np.stack(found, axis=1).astype(float)
    logs = [np.log(one) if one.dtype == float else one for one in found] + [np.log(work.bytes)]
    if operation != "moving":
        logs.append(np.log(work.macs))
        logs += [
            np.log(np.ceil(size / tile) * tile / size)
            for size in (work.rows, work.columns, work.depth)
            for tile in TILES
        ]
    return np.stack(logs, axis=1).astype(float)


def train(
    learner: str, operation: str, parts: Sequence[tuple[Device, Rows]], seed: int
) -> tuple[Answer, Callable[[Work, Device], np.ndarray]]:
    """A network of one operation from rows of devices: (ms alone, of `best` the factor on the formula)."""
    from lolat.mlp.training import KerasNetwork

    x = np.concatenate([features(learner, r.work, operation, d) for d, r in parts])
    ms = np.concatenate([r.ms for _, r in parts])
    if learner == "best":
        base = [of_formula(sheet_formula).alone[operation](r.work, d) for d, r in parts]
        y = np.log(ms / np.concatenate(base))
    else:
        y = ms
    mean, scale = x.mean(axis=0), np.where(np.ptp(x, axis=0) == 0, 1.0, x.std(axis=0))
    several = len(parts) > 1
    plan: Plan = BEST.plan("dense", False) if learner == "best" else PAPER.plan("dense", several)
    for attempt in range(10):
        network = KerasNetwork(plan, (x - mean) / scale, y, plan.epochs, seed + 1000 * attempt)
        while network.done < plan.epochs and not network.dead:
            network.epoch()
        if not network.dead:
            break
    perceptron = Perceptron([network.layers()])

    def output(work: Work, device: Device) -> np.ndarray:
        return perceptron((features(learner, work, operation, device) - mean) / scale)

    if learner == "paper":
        return lambda work, device: np.maximum(output(work, device), ALONE_MS), output

    def factor(work: Work, device: Device) -> np.ndarray:
        return np.exp(np.clip(output(work, device), -FARTHEST, FARTHEST))

    base_of = of_formula(sheet_formula).alone[operation]
    return lambda work, device: base_of(work, device) * factor(work, device), factor


def learn(learner: str, parts: Sequence[tuple[Device, Mapping[str, Rows]]], seed: int) -> Learned:
    """A learner from rows by operation, of one device or several."""
    if learner == "formula":
        if len(parts) > 1:
            return of_formula(sheet_formula)
        ((device, rows),) = parts
        joined = Rows(
            Work.joined([r.work for r in rows.values()]),
            np.concatenate([r.ms for r in rows.values()]),
        )
        formula = fit_kernels(joined.times, device.facts)
        return of_formula(lambda _: formula)
    found, factors = {}, {}
    for operation in OPERATIONS:
        own = [
            (d, rows[operation])
            for d, rows in parts
            if len(rows.get(operation, Rows(Work.none(), np.zeros(0))).ms)
        ]
        if own:
            found[operation], factors[operation] = train(learner, operation, own, seed)

    def inside(work: Work, device: Device) -> np.ndarray:
        ms = sheet_formula(device).times(work)[0]
        names = group(work)
        for operation, answer in found.items():
            which = (names == operation) & (work.bytes > 0)
            if which.any():
                part = work.take(which)
                ms[which] = (
                    answer(part, device)
                    if learner == "paper"
                    else ms[which] * factors[operation](part, device)
                )
        return ms

    return Learned(found, inside)


def judge(learned: Learned, device: Device) -> dict[str, Any]:
    """Errors on operations left out (median) and on whole networks (each)."""
    operations = {
        name: float(np.median(np.abs(learned.alone[name](rows.work, device) / rows.ms - 1.0)))
        for name, rows in device.judged.items()
        if name in learned.alone
    }
    off = [
        float(learned.inside(known.work(row.batch_size), device).sum() / row.latency_ms - 1.0)
        for row, known in device.networks
    ]
    return {"operations": operations, "networks": off}


def drawn(device: Device, number: int, seed: int) -> dict[str, Rows]:
    """So many rows of each operation."""
    draw = np.random.default_rng([seed, number])
    return {
        name: rows.take(draw.permutation(len(rows.ms))[:number])
        for name, rows in device.rows.items()
        if number
    }


def tasks(most: int) -> Iterator[tuple[str, str, str, int, int]]:
    """(setting, device, learner, rows, draw), the quick ones first."""
    for learner in LEARNERS:
        for setting, sizes in SIZES.items():
            for rows in sizes:
                if rows > most:
                    continue
                for device in SEEN if setting == ONE else UNSEEN:
                    for draw in range(DRAWS if setting == ONE else 1):
                        if learner == "formula" and setting == OTHERS and rows != sizes[0]:
                            continue  # the data sheet's, whatever the rows
                        yield setting, device, learner, rows, draw


def read_results(path: Path) -> dict[str, Any]:
    """What has been measured; nothing yet where there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


@click.group()
def main() -> None:
    """The deep network against the formula, on NeuSight's rows."""


results_option = click.option("--results", type=click.Path(path_type=Path), required=True)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@results_option
@click.option("--most", type=int, default=max(SIZES[OTHERS]), help="No more rows than this.")
def measure(folder: Path, results: Path, most: int) -> None:
    """Fit the learners on more and more rows."""
    names = [
        p.name[len("kernels-") : -len(".csv.gz")] for p in sorted(folder.glob("kernels-*.csv.gz"))
    ]
    devices = {name: read_device(folder, name) for name in names}
    for task in tasks(most):
        setting, name, learner, rows, draw = task
        key = "|".join(map(str, task))
        if key in read_results(results):
            continue
        if setting == ONE:
            parts = [(devices[name], drawn(devices[name], rows, draw))]
        else:
            others = [n for n in devices if n not in (name, TWINS.get(name))]
            parts = [(devices[n], shared(devices, others, n, rows)) for n in others]
        found = judge(learn(learner, parts, draw), devices[name])
        everything = read_results(results) | {key: found}
        write_bytes(results, json.dumps(everything, indent=1, sort_keys=True).encode())
        mean = float(np.mean(np.abs(found["networks"])))
        click.echo(f"{key}: networks {percent(mean)}, {found['operations']}")


def shared(
    devices: Mapping[str, Device], others: Sequence[str], name: str, number: int
) -> dict[str, Rows]:
    """A GPU's part of `number` rows of each operation, shared out evenly among those that have it."""
    found = {}
    for operation in OPERATIONS:
        having = [n for n in others if operation in devices[n].rows]
        if name in having:
            at = having.index(name)
            own = number * (at + 1) // len(having) - number * at // len(having)
            found |= {k: v for k, v in drawn(devices[name], own, 0).items() if k == operation}
    return found


Curve = dict[int, list[dict[str, float]]]


def curves(results: Mapping[str, Any], setting: str, what: str) -> dict[str, Curve]:
    """Learner -> rows -> of each draw the mean over the devices: of the networks' mean errors, or of the
    median errors of an operation.
    """
    gathered: dict[str, dict[int, dict[int, list[float]]]] = {}
    for task, found in results.items():
        of, _, learner, rows, draw = task.split("|")
        if of != setting:
            continue
        if what == "networks":
            error = float(np.mean(np.abs(found["networks"])))
        elif what in found["operations"]:
            error = found["operations"][what]
        else:
            continue
        sizes = SIZES[OTHERS] if (learner, of) == ("formula", OTHERS) else (int(rows),)
        for size in sizes:
            gathered.setdefault(learner, {}).setdefault(size, {}).setdefault(int(draw), []).append(
                error
            )
    return {
        learner: {
            rows: [{"mean": float(np.mean(errors))} for errors in by_draw.values()]
            for rows, by_draw in sorted(by_rows.items())
        }
        for learner, by_rows in gathered.items()
    }


def _shown(curve: Curve, rows: int) -> str:
    return percent(float(np.mean([e["mean"] for e in curve[rows]]))) if rows in curve else "-"


@main.command()
@results_option
def table(results: Path) -> None:
    """Print the curves and where they cross."""
    known = read_results(results)
    click.echo(
        "| rows of each operation | "
        + " | ".join(f"{w}: {n}" for w in ("networks", *OPERATIONS) for n in LEARNERS)
        + " |"
    )
    click.echo("| --- |" + " --: |" * (3 * (1 + len(OPERATIONS))))
    for setting, sizes in SIZES.items():
        found = {what: curves(known, setting, what) for what in ("networks", *OPERATIONS)}
        for rows in sizes:
            cells = [_shown(found[w].get(n, {}), rows) for w in found for n in LEARNERS]
            click.echo(f"| {setting}, {rows:,} | {' | '.join(cells)} |")
        cells = []
        for what in found:
            for learner in LEARNERS:
                at = crossing(found[what].get("formula", {}), found[what].get(learner, {}))
                cells.append("-" if at is None or learner == "formula" else f"from {at:,.0f}")
        click.echo(f"| {setting}: better than the formula | {' | '.join(cells)} |")


LOOKS = {
    "formula": ("LoLat's formula", "#0b6e99", "o"),
    "paper": ("the paper's network", "#d1603d", "s"),
    "best": ("a network on the data sheet's formula", "#5b8c3a", "^"),
}


@main.command()
@results_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=ROOT / "docs/figures/networks-against-formula.svg",
)
def draw(results: Path, output: Path) -> None:
    """Draw the curves of whole networks."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from lolat.report.plots import STYLE

    titles = {ONE: "operations of the GPU itself", OTHERS: "operations of other GPUs"}
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        for axes, setting in zip(figure.subplots(1, 2), SIZES, strict=True):
            for learner, curve in curves(read_results(results), setting, "networks").items():
                words, colour, marker = LOOKS[learner]
                means = [[100 * e["mean"] for e in curve[n]] for n in curve]
                axes.plot(
                    list(curve),
                    [np.mean(m) for m in means],
                    marker=marker,
                    ms=5,
                    color=colour,
                    label=words,
                )
                axes.fill_between(list(curve), [min(m) for m in means], [max(m) for m in means],
                                  color=colour, alpha=0.15, lw=0)  # fmt: skip
            axes.set(xscale="log", yscale="log", title=titles[setting],
                     xlabel="rows of each operation", ylabel="mean error, transformers, %")  # fmt: skip
            axes.yaxis.set_ticks((2, 5, 10, 20, 50, 100, 200))
            axes.yaxis.set_ticks((), minor=True)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:,.0f}")
            axes.grid(color="0.92")
        figure.axes[0].legend(frameon=False)
        figure.savefig(output, metadata={"Date": None})
    click.echo(f"drawn: {output}")


if __name__ == "__main__":
    main()
