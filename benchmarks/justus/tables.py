"""The tables of docs/results/index.md: what the paper says, and what the two recipes came to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.justus import vgg16
from benchmarks.justus.trainings import GPUS, Data, Results, Task, alone, together, without
from lolat.mlp.table import OPTIMIZERS

RECIPES = ("paper", "best")
NOTHING = "–"

# Test RMSE in ms of the models of one GPU.
CONVOLUTION_MS = {
    "V100": 1.73, "P100": 3.32, "M60": 6.07, "K80": 7.84, "K40": 11.90, "1080ti": 2.55,
}  # fmt: skip
DENSE_MS = {
    "V100": 0.048, "P100": 0.033, "M60": 0.031, "K80": 0.145, "K40": 0.167, "1080ti": 0.034,
}  # fmt: skip
TRAINED = tuple(name for name in OPTIMIZERS if name != "none")
FORWARD = alone("convolution", "V100", "none")
BACKWARD = alone("convolution", "V100", *TRAINED)
SGD = alone("convolution", "V100", "sgd")

Lines = Iterator[str]


@dataclass(frozen=True)
class Table:
    """`tasks`: the models it needs; `lines`: the Markdown of it from what is known of them."""

    tasks: Sequence[Task]
    lines: Callable[[Results, Data], Lines]


def mean(values: Iterable[float], show: Callable[[float], str]) -> str:
    """`3.30`, of several seeds `3.30 (3.21–3.41)`: mean and range; a dash where there are none."""
    found = list(values)
    if not found:
        return NOTHING
    shown = show(sum(found) / len(found))
    return shown if len(found) == 1 else f"{shown} ({show(min(found))}–{show(max(found))})"


def ms(value: float) -> str:
    """A time with three digits or so, without its unit."""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def percent(ratio: float) -> str:
    """A ratio as a percentage with one decimal, as the paper gives them."""
    return f"{100 * ratio:.1f} %" if ratio < 1 else f"{100 * ratio:.0f} %"


def row(*cells: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def head(first: str, *others: str) -> Lines:
    """The two rows on top of a table; numbers are to the right."""
    yield row(first, *others)
    yield row("---", *["--:"] * len(others))


def off(found: Sequence[Mapping[str, Any]], part: str = "test", gpu: str = "") -> list[str]:
    """Two cells, RMSE and mean error: of each seed's `part`, or of one GPU in it."""
    errors = [f[part][gpu] if gpu else f[part] for f in found]
    return [
        mean((e["rmse_ms"] for e in errors), ms),
        mean((e["mean_relative_error"] for e in errors), percent),
    ]


OURS = ("paper's model here", "mean error", "`best`", "mean error")


def per_gpu(layer: str, published: Mapping[str, float]) -> Table:
    """One model per GPU."""

    def lines(results: Results, data: Data) -> Lines:
        yield from head("GPU", "paper, RMSE in ms", *OURS)
        for gpu in GPUS:
            cells = [c for recipe in RECIPES for c in off(results.of(alone(layer, gpu), recipe))]
            yield row(gpu, ms(published[gpu]), *cells)

    return Table([alone(layer, gpu) for gpu in GPUS], lines)


def all_gpus(results: Results, data: Data) -> Lines:
    """One model for all GPUs, batch size up to 32."""
    task, dense = together("convolution"), together("dense")
    found = {recipe: results.of(task, recipe) for recipe in RECIPES}
    yield from head("test rows", "paper, RMSE in ms", "mean error", *OURS)

    def cells(part: str, gpu: str = "") -> list[str]:
        return [c for recipe in RECIPES for c in off(found[recipe], part, gpu)]

    yield row("convolutions, all GPUs", "3.88 (notebook 3.66)", "10.9 %", *cells("test"))
    for gpu in GPUS:
        yield row(f"on {gpu}", NOTHING, NOTHING, *cells("by_gpu", gpu))
    linear = off(found["paper"], "linear")
    yield row("linear regression", "27.7", "400 %", *linear, NOTHING, NOTHING)
    cells_dense = [c for recipe in RECIPES for c in off(results.of(dense, recipe))]
    yield row("dense layers, all GPUs", NOTHING, NOTHING, *cells_dense)


def against_linear(results: Results, data: Data) -> Lines:
    """Forward, and forward with backward and update, on a V100."""
    yield from head(
        "rows of the V100", "paper, RMSE in ms", "its linear regression", "paper's model here",
        "linear regression here", "`best`",
    )  # fmt: skip
    for what, task, published in (
        ("forward only", FORWARD, ("0.83", "2.42")),
        ("with backward and update, six optimizers", BACKWARD, ("3.18", "8.95")),
        ("with backward and update, SGD only", SGD, ("3.18", "8.95")),
    ):
        ours, best = (results.of(task, recipe) for recipe in RECIPES)
        yield row(what, *published, off(ours)[0], off(ours, "linear")[0], off(best)[0])


def one_left_out(results: Results, data: Data) -> Lines:
    """Each GPU by a model of the other five, on all of its rows of batch size up to 32."""
    yield from head("predicted from the others", "paper, RMSE in ms", "mean error", *OURS)
    for gpu in GPUS:
        published = ("3.65", "39.6 %") if gpu == "V100" else (NOTHING, NOTHING)
        cells = [c for r in RECIPES for c in off(results.of(without(gpu), r), "unseen")]
        yield row(gpu, *published, *cells)


def network(results: Results, data: Data) -> Lines:
    """VGG-16 on a V100: the sum of its layers against the measured network, by batch size."""
    measured = vgg16.measured_ms(data.folder)
    models = [results.of(alone("convolution", vgg16.GPU), recipe) for recipe in RECIPES]
    yield from head(
        "batch size", "measured, ms", "paper's model here", "off by", "`best`", "off by"
    )
    for optimizer, what in (("none", "forward"), ("sgd", "iteration with SGD")):
        for batch in vgg16.BATCH_SIZES:
            true = measured[optimizer, batch]
            cells = []
            for found in models:
                sums = [f["vgg16_ms"][optimizer][str(batch)] for f in found]
                cells.append(mean(sums, ms))
                cells.append(mean((s / true - 1 for s in sums), signed))
            yield row(f"{what}, {batch}", ms(true), *cells)


def signed(ratio: float) -> str:
    """A difference as a percentage with its sign: +4 %, −12 %."""
    return f"{'−' if ratio < 0 else '+'}{100 * abs(ratio):.0f} %"


TABLES: Mapping[str, Table] = {
    "conv-per-gpu": per_gpu("convolution", CONVOLUTION_MS),
    "dense-per-gpu": per_gpu("dense", DENSE_MS),
    "all-gpus": Table([together("convolution"), together("dense")], all_gpus),
    "linear": Table([FORWARD, BACKWARD, SGD], against_linear),
    "leave-one-gpu-out": Table([without(gpu) for gpu in GPUS], one_left_out),
    "vgg16": Table([alone("convolution", vgg16.GPU)], network),
}
