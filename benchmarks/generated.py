"""How each parameter of the generated networks goes with the time of an epoch: a table and a figure.

    python benchmarks/generated.py DATA --output benchmarks/notes/generated.svg

DATA holds benchmarked_insights_epochs.csv: epoch times of generated networks on one GPU, one parameter
varied at a time. Every network is built again first, and its counts compared with the file's.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter, defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.training_epochs import network_of  # noqa: E402
from lolat.readers import open_network  # noqa: E402
from lolat.report.plots import STYLE, check_plot  # noqa: E402

FILE = "benchmarked_insights_epochs.csv"
COLORS = {"fc": "#0b6e99", "inception": "#d1603d", "resnet": "#5b8c3a", "vgg": "#7b4fa0"}
COLUMNS = 6
COUNTED = ("flops_conv2d", "flops_matmul", "flops_biasadd", "trainable_weights")
# What the study calls a parameter, in the words of docs/reference/generate.md where they differ.
MEANING = {
    "input_shape": "input",
    "output_shape": "output",
    "input_size": "samples",
    "hidden_layers": "width of hidden",
    "hidden_layers_size": "number of hidden",
    "resnet_layers": "layers per stage",
    "inception_layers": "layers per stage",
    "vgg_layers": "layers per stage",
    "vgg_layers_size": "number of stages",
}


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--output", default="generated.svg", show_default=True, help="Figure, .svg or .png.")
def main(data: Path, output: str) -> None:
    """Read the file, check its networks, print the table, draw the figure."""
    check_plot(output)
    with (data / FILE).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    check_networks(rows)
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        point = (float(row["value"]), float(row["epoch_s_median"]))
        groups[row["family"], row["varied"]].append(point)
    click.echo(
        "| family | parameter | runs | from | to | Spearman | Pearson | longest / shortest |"
    )
    click.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    found = [(key, sorted(points), correlations(points)) for key, points in sorted(groups.items())]
    for (family, name), points, (spearman, pearson) in found:
        times = [t for _, t in points]
        click.echo(
            f"| {family} | {named(family, name)} | {len(points)} | {points[0][0]:g} | {points[-1][0]:g} | "
            f"{said(spearman)} | {said(pearson)} | {max(times) / min(times):.3g} |"
        )
    draw(found, output)
    click.echo(f"drawn: {output}")


def named(family: str, parameter: str) -> str:
    """A parameter in the words of docs/reference/generate.md."""
    if family == "fc" and parameter == "hidden_layers":
        return "number of layers"
    return MEANING.get(parameter, parameter)


def said(correlation: float) -> str:
    """A correlation, - where there are too few runs for one."""
    return f"{correlation:.2f}" if math.isfinite(correlation) else "-"


def correlations(points: list[tuple[float, float]]) -> tuple[float, float]:
    """(Spearman, Pearson) of a parameter and the epoch time; nan for fewer than three runs."""
    from scipy.stats import pearsonr, spearmanr

    if len(points) < 3:
        return math.nan, math.nan
    values, times = zip(*points, strict=True)
    return float(spearmanr(values, times).statistic), float(pearsonr(values, times).statistic)


def check_networks(rows: list[dict[str, str]]) -> None:
    """Build the network of every row and compare it with the file's counts; stop where one differs."""
    known: dict[str, list[int]] = {}
    for row in rows:
        spec = network_of(row)
        network = json.dumps({**json.loads(row["config"]), "batch_size": 0, "input_size": 0})
        if network not in known:
            model = open_network(spec).model
            weights = sum(math.prod(w.shape) for w in model.trainable_weights)
            totals = running_totals(operations(model))
            known[network] = [*(totals.get(k, 0) for k in ("Conv2D", "MatMul", "BiasAdd")), weights]
        expected = [int(row[name]) for name in COUNTED]
        if known[network] != expected:
            raise click.ClickException(
                f"{spec}: {COUNTED} are {known[network]}, expected {expected}"
            )
    click.echo(f"{len(rows)} runs of {len(known)} networks, each with the counts of the file\n")


def operations(model: Any) -> Counter[str]:
    """Operations of a network by kind, for one sample, as TensorFlow's profiler of that time counted.

    It takes an element of a pooling for its window, of softmax for 5 and of a reciprocal root for 2, and
    knows neither additions of tensors (AddV2) nor the fused normalisation of images.
    """
    found: Counter[str] = Counter()
    for layer in model.layers:
        kind, shape = type(layer).__name__, tuple(layer.output.shape[1:])
        size = math.prod(shape)
        if kind == "Conv2D":
            window = math.prod(layer.kernel_size) * layer.input.shape[-1]
            found.update(Conv2D=2 * size * window, BiasAdd=size)
        elif kind == "Dense":
            found.update(MatMul=2 * layer.input.shape[-1] * size, BiasAdd=size)
            found["Softmax"] += 5 * size if layer.activation.__name__ == "softmax" else 0
        elif kind == "MaxPooling2D":
            found["MaxPool"] += math.prod(layer.pool_size) * size
        elif kind == "BatchNormalization" and len(shape) == 1:
            found.update(Mul=3 * size, Sub=size, Rsqrt=2 * size)
        elif kind == "GlobalAveragePooling2D":
            found["Mean"] += math.prod(layer.input.shape[1:])
    return found


def running_totals(found: Counter[str]) -> dict[str, int]:
    """What the profiler's list says of each kind: itself and all that are smaller."""
    kinds = sorted(found, key=lambda kind: found[kind])
    return dict(zip(kinds, accumulate(found[kind] for kind in kinds), strict=True))


def draw(
    found: list[tuple[tuple[str, str], list[tuple[float, float]], tuple[float, float]]], path: str
) -> None:
    """One small plot for each parameter, on logarithmic axes, with both correlations."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    lines = math.ceil(len(found) / COLUMNS)
    style: dict[Any, Any] = {**STYLE, "font.size": 8}
    with rc_context(style):
        figure = Figure(figsize=(2.1 * COLUMNS, 1.75 * lines), layout="constrained")
        cells = figure.subplots(lines, COLUMNS, squeeze=False).ravel()
        for axes, ((family, name), points, (spearman, pearson)) in zip(cells, found, strict=False):
            values, times = zip(*points, strict=True)
            axes.plot(values, times, "o-", ms=3, lw=1, color=COLORS[family])
            axes.set_title(f"{family}: {named(family, name)}", loc="left", fontsize=8)
            axes.set(xscale="log", yscale="log", ylim=(min(times) / 2, max(times) * 5))
            axes.text(
                0.04, 0.95, f"Spearman {said(spearman)}\nPearson {said(pearson)}",
                transform=axes.transAxes, va="top", fontsize=7, color="0.3",
            )  # fmt: skip
            axes.set_xticks([values[0], values[-1]], [f"{v:g}" for v in (values[0], values[-1])])
            ends = [min(times), max(times)] if max(times) > 1.5 * min(times) else [min(times)]
            axes.set_yticks(ends, [f"{t:.3g}" for t in ends])
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_minor_locator(NullLocator())
            axes.spines[["top", "right"]].set_visible(False)
        for axes in cells[len(found) :]:
            axes.axis("off")
        figure.supylabel("time of an epoch, seconds")
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


if __name__ == "__main__":
    main()
