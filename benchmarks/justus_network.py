"""VGG-16 on the V100 from single layers, without what a layer pays only alone: the tables of
docs/results/justus2018.md.

    python benchmarks/justus_network.py layers DATA      the formula on layers left out, on six GPUs
    python benchmarks/justus_network.py vgg16 DATA       the network; nothing is fitted to its times
    python benchmarks/justus_network.py launches DATA    what starting an operation costs alone, by NeuSight

DATA: a folder with justus2018_convolution.csv.gz and justus2018_vgg16_v100.csv, and for `launches` with
neusight/. The formula is `lolat.mlp.networks`; half a minute together.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.justus import vgg16 as network  # noqa: E402
from lolat.io.tables import read_table as read_cells  # noqa: E402
from lolat.mlp.devices import DEVICES  # noqa: E402
from lolat.mlp.networks import BYTES, Alone, Sizes, fit, usable  # noqa: E402
from lolat.mlp.table import LayerTable, read_table  # noqa: E402

GPUS = ("V100", "P100", "1080ti", "M60", "K40", "K80")
FOLDS, HALVES = 5, 10
LARGE = 64  # channels in and out, of a layer as in VGG-16
READ_AND_WRITTEN = 1.25  # elements of a 2x2 pooling for each of its input
SHORTEST_MS = 0.012  # of an operation that runs on the GPU; below, it is the host's alone
INSIDE = re.compile(r"layer_0|_h_0|h_0")  # in the name of an operation of the layer that was traced

data_argument = click.argument("data", type=click.Path(path_type=Path, exists=True))


def rows_of(data: Path, gpu: str) -> LayerTable:
    """The convolutions of a GPU that tell what a layer pays alone."""
    table = read_table(data / "justus2018_convolution.csv.gz", "convolution")
    table = table.select(table["gpu"] == gpu)
    return table.select(usable(table))


def pooled() -> float:
    """Elements that the network's five poolings read and write, of one image: after the last of each
    run of layers of the same size.
    """
    sizes = [(size, outside) for size, _, _, outside, _, _ in network.LAYERS if size > 7]
    last = dict(sizes)
    return READ_AND_WRITTEN * sum(size**2 * channels for size, channels in last.items())


def inside_ms(alone: Alone, batch: int) -> float:
    """The network: its layers without what they pay alone, one call, the poolings, the image turned."""
    layers = alone.parts(network.table(batch, "none")).network.sum()
    image = 2 * network.LAYERS[0][0] ** 2 * network.LAYERS[0][2]
    moved = batch * (pooled() + image) * BYTES / (alone.device.bandwidth / 1e3)
    return float(layers + alone.terms["call"] + alone.terms["move"] * moved)


def row(*cells: object) -> None:
    """A row of a table."""
    click.echo("| " + " | ".join(map(str, cells)) + " |")


@click.group()
def main() -> None:
    """What a layer pays alone, and what of it a network pays."""


def off(errors: np.ndarray, which: np.ndarray) -> str:
    """Median and mean relative error of some rows."""
    found = np.abs(errors[which])
    return f"{100 * np.median(found):.1f} %, {100 * found.mean():.1f} % ({which.sum()})"


@main.command()
@data_argument
def layers(data: Path) -> None:
    """The formula on a fifth of the layers, from the others."""
    row("GPU", "all", "3x3", f"3x3, {LARGE} channels and more", "1x1", "one pixel")
    row("---", *["--:"] * 5)
    for gpu in GPUS:
        table, device = rows_of(data, gpu), DEVICES[gpu]
        fold = np.random.default_rng(0).integers(0, FOLDS, len(table))
        found = np.empty(len(table))
        for i in range(FOLDS):
            alone = fit(table.select(fold != i), device)
            found[fold == i] = alone.parts(table.select(fold == i)).total
        errors, sizes = found / table.times_ms - 1.0, Sizes(table, device)
        large = np.minimum(sizes.work.inside, sizes.work.outside) >= LARGE
        kinds: Iterable[np.ndarray] = (
            np.ones(len(table), bool),
            sizes.small_window,
            sizes.small_window & large,
            (sizes.work.window == 1) & (sizes.work.stride == 1),
            sizes.work.side == 1,
        )
        row(gpu, *(off(errors, which) for which in kinds))


@main.command()
@data_argument
def vgg16(data: Path) -> None:
    """The network by batch size, from all of the V100's layers and from halves of them."""
    table, device = rows_of(data, network.GPU), DEVICES[network.GPU]
    alone = fit(table, device)
    draw = np.random.default_rng(0)
    halves = [
        fit(table.select(draw.permutation(len(table))[: len(table) // 2]), device)
        for _ in range(HALVES)
    ]
    measured = network.measured_ms(data)
    click.echo(f"{len(table)} layers\n")
    row("batch", "measured, ms", "each layer as if alone", "", "the network", "", "from halves",
        "kernels turned", "computing", "bias, activation, pooling", "only alone")  # fmt: skip
    row(*["--:"] * 11)
    for batch in network.BATCH_SIZES:
        true = measured["none", batch]
        parts = alone.parts(network.table(batch, "none"))
        whole, total = parts.total.sum(), inside_ms(alone, batch)
        others = [inside_ms(half, batch) / true - 1 for half in halves]
        row(
            batch, f"{true:.1f}", f"{whole:.1f}", f"{100 * (whole / true - 1):+.0f} %", f"{total:.1f}",
            f"{100 * (total / true - 1):+.1f} %",
            f"{100 * min(others):+.0f} .. {100 * max(others):+.0f} %",
            f"{parts.kernel.sum():.1f}", f"{parts.computing.sum():.1f}",
            f"{total - parts.kernel.sum() - parts.computing.sum() - alone.terms['call']:.1f}",
            f"{parts.alone.sum() - alone.terms['call']:.1f}",
        )  # fmt: skip
    click.echo("\n" + ", ".join(f"{name} {value:.3g}" for name, value in alone.terms.items()))


@main.command()
@data_argument
def launches(data: Path) -> None:
    """The operations of transformers on the V100, each timed alone, against the networks that they are."""
    traced = defaultdict(list)
    for one in read_cells(data / "neusight/operations.csv.gz"):
        traced[_which(one)].append(one)
    row(
        "network",
        "pass",
        "batch",
        "operations, ms",
        "network, ms",
        "on the GPU",
        "more by each, us",
    )
    row("---", "---", *["--:"] * 5)
    for one in read_cells(data / "neusight/networks.csv"):
        found = traced.get(_which(one))
        if not one["device"].startswith("v100") or one["compiled"] != "no" or not found:
            continue
        times = np.array([float(o["forward_ms"]) for o in found])
        at = [i for i, o in enumerate(found) if INSIDE.search(o["name"] + o["target"])]
        often = np.ones(len(times))
        often[min(at) : max(at) + 1] = int(one["layers"])
        whole, total = float(one["forward_ms"]), float(often @ times)
        started = float(often @ (times > SHORTEST_MS))
        row(one["network"], one["pass"], one["batch_size"], f"{total:.1f}", f"{whole:.1f}",
            f"{started:.0f}", f"{1e3 * (total - whole) / started:.0f}")  # fmt: skip


def _which(one: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(one[n] for n in ("device", "network", "pass", "sequence_length", "batch_size"))


if __name__ == "__main__":
    main()
