"""The figures of Justus et al. 2018, with this project's models: one command for each.

    lolat mlp fit DATA/justus2018_convolution.csv.gz --layer convolution --only V100 --output CONV_MODEL
    lolat mlp fit DATA/justus2018_dense.csv.gz --layer dense --only V100 --output DENSE_MODEL
    python benchmarks/justus_figures.py scatter DATA CONV_MODEL DENSE_MODEL
    python benchmarks/justus_figures.py vgg16 DATA CONV_MODEL DENSE_MODEL
    python benchmarks/justus_figures.py depth DATA [--results FILE]

The models must be of the V100 and of `lolat mlp fit`'s seed 0, whose test rows are drawn here again.
Figures go to docs/figures/, the numbers to the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.justus.formula_fit import LayerFormulas  # noqa: E402
from benchmarks.justus.vgg16 import measured_ms  # noqa: E402
from lolat.io.writing import write_bytes  # noqa: E402
from lolat.mlp.devices import DEVICES  # noqa: E402
from lolat.mlp.layer_model import LayerModel, read_layer_model  # noqa: E402
from lolat.mlp.networks import network_time  # noqa: E402
from lolat.mlp.recipes import find_recipe  # noqa: E402
from lolat.mlp.table import LAYERS, LayerTable, read_table  # noqa: E402
from lolat.mlp.training import learn, split  # noqa: E402
from lolat.model import load  # noqa: E402
from lolat.report.plots import STYLE  # noqa: E402
from lolat.units import percent  # noqa: E402

GPU = "V100"
FIGURES = ROOT / "docs" / "figures"
HIDDEN = (32, 64, *[128] * 6)  # widths of the paper's networks, first layers first
DEPTHS = (1, 2, 3, 4, 6, 8)
DEPTH_ROWS = 5000
FORMULA_ROWS = 100
SHOWN = 1500  # points of a scatter plot
COLORS = {"measured": "0.25", "lolat": "#0b6e99", "paper": "#d1603d", "best": "#5b8c3a"}


@contextmanager
def drawn(path: Path, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Axes side by side, written to `path` at the end."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(1, columns, squeeze=False)[0]
        figure.savefig(path, metadata={"Date": None})
    click.echo(f"drawn: {path}")


def parts(data: Path, layer: str) -> tuple[LayerTable, LayerTable]:
    """(training, test) rows of the V100, as `lolat mlp fit --only V100` draws them."""
    table = read_table(data / f"justus2018_{layer}.csv.gz", layer)
    table = table.select(table["gpu"] == GPU)
    found = split(len(table), 0)
    return table.select(found.train), table.select(found.test)


def forward(table: LayerTable) -> LayerTable:
    """The rows without an optimizer."""
    return table.select(table["optimizer"] == "none")


data_argument = click.argument("data", type=click.Path(path_type=Path, exists=True))
model_arguments = (
    click.argument("conv_model", type=click.Path(path_type=Path)),
    click.argument("dense_model", type=click.Path(path_type=Path)),
)


@click.group()
def main() -> None:
    """The paper's figures."""


@main.command()
@data_argument
@model_arguments[0]
@model_arguments[1]
def scatter(data: Path, conv_model: Path, dense_model: Path) -> None:
    """Predicted against measured times of left-out layers, forward only: the model and the formula."""
    with drawn(FIGURES / "justus-scatter.svg", 2, (9.6, 4.8)) as panels:
        for axes, layer, path in zip(panels, LAYERS, (conv_model, dense_model), strict=True):
            train, test = parts(data, layer)
            test = forward(test)
            rows = np.random.default_rng(0).permutation(
                np.flatnonzero(train["optimizer"] == "none")
            )
            formula = LayerFormulas.fit(train.select(rows[:FORMULA_ROWS]))
            ends = np.array([test.times_ms.min() / 1.5, test.times_ms.max() * 1.5])
            axes.plot(ends, ends, color="0.5", lw=1)
            model = read_layer_model(path)
            answers = {
                f"LoLat's formula, {FORMULA_ROWS} layers": ("lolat", formula.predict(test)),
                f"recipe {model.recipe}, {model.training['rows']:,} layers": (
                    model.recipe,
                    model.predict(test),
                ),
            }
            for words, (name, predicted) in answers.items():
                error = np.abs(predicted / test.times_ms - 1.0)
                told = f"{words}: mean error {percent(float(error.mean()))}"
                click.echo(f"{layer}: {told}, median {percent(float(np.median(error)))}")
                axes.plot(test.times_ms[:SHOWN], predicted[:SHOWN], ".", ms=3, alpha=0.5,
                          color=COLORS[name], label=told, rasterized=True)  # fmt: skip
            axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, ms",
                     ylabel="predicted, ms", title=f"{layer}: {GPU}, forward only")  # fmt: skip
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
            axes.legend(frameon=False, loc="upper left", markerscale=3, fontsize=8)


@main.command()
@data_argument
@model_arguments[0]
@model_arguments[1]
def vgg16(data: Path, conv_model: Path, dense_model: Path) -> None:
    """VGG-16 on the V100 by batch size: measured, the sum of its layers, LoLat's model of the GPU."""
    from lolat.readers import read

    network = read("keras:VGG16")
    models: dict[str, LayerModel] = dict(
        zip(LAYERS, map(read_layer_model, (conv_model, dense_model)), strict=True)
    )
    lolat = load(f"justus2018-{GPU.lower()}")
    measured = measured_ms(data)
    recipe = models["convolution"].recipe
    click.echo(
        f"| optimizer | batch | measured | recipe {recipe} | | LoLat | |\n| --- |{' --: |' * 6}"
    )
    with drawn(FIGURES / "justus-vgg16.svg", 2, (9.6, 4.2)) as panels:
        for axes, optimizer in zip(panels, ("none", "sgd"), strict=True):
            batches = sorted(b for o, b in measured if o == optimizer)
            times = np.array([measured[optimizer, b] for b in batches])
            summed = np.array(
                [network_time(network, models, GPU, b, optimizer).batch_ms for b in batches]
            )
            formula = np.array([lolat.predict(network, b).latency_ms for b in batches])
            for i, batch in enumerate(batches):
                cells = [f"{summed[i]:.1f} | {100 * (summed[i] / times[i] - 1):+.0f} %"]
                lolats = f"{formula[i]:.1f} | {100 * (formula[i] / times[i] - 1):+.0f} %"
                cells.append(lolats if optimizer == "none" else "- | -")
                click.echo(f"| {optimizer} | {batch} | {times[i]:.1f} | {' | '.join(cells)} |")
            axes.plot(batches, times, "o-", color=COLORS["measured"], label="measured")
            axes.plot(
                batches,
                summed,
                "^-",
                color=COLORS[recipe],
                label=f"sum of layers, recipe {recipe}",
            )
            if optimizer == "none":
                axes.plot(
                    batches, formula, "s-", color=COLORS["lolat"], label="LoLat, justus2018-v100"
                )
            words = "forward only" if optimizer == "none" else "training with SGD"
            axes.set(
                xscale="log",
                yscale="log",
                xlabel="batch size",
                ylabel="ms",
                title=f"VGG-16 on {GPU}: {words}",
            )
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
            axes.set_xticks(batches)
            axes.legend(frameon=False, loc="upper left")


@main.command()
@data_argument
@click.option("--results", type=click.Path(path_type=Path), default=Path("justus-depth.json"))
def depth(data: Path, results: Path) -> None:
    """Error against the number of hidden layers: the paper's recipe, convolutions, forward only."""
    train, test = (forward(t) for t in parts(data, "convolution"))
    train = train.select(np.random.default_rng(0).permutation(len(train))[:DEPTH_ROWS])
    known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    recipe = find_recipe("paper")
    for layers in DEPTHS:
        if str(layers) in known:
            continue
        plan = replace(recipe.plan("convolution", False), hidden=HIDDEN[:layers])
        other = replace(recipe, plan=lambda layer, several, plan=plan: plan)
        error = learn(train, other, {GPU: DEVICES[GPU]}, seed=0).predict(test) - test.times_ms
        known[str(layers)] = {
            "rmse_ms": float(np.sqrt(np.mean(error**2))),
            "mean": float(np.mean(np.abs(error) / test.times_ms)),
        }
        write_bytes(results, json.dumps(known, indent=1).encode())
        click.echo(f"{layers} hidden layers: {known[str(layers)]}")
    rows = sorted(map(int, known))
    with drawn(FIGURES / "justus-depth.svg", 1, (5.6, 3.8)) as (axes,):
        axes.plot(rows, [100 * known[str(n)]["mean"] for n in rows], "s-", color=COLORS["paper"])
        axes.set(xlabel="hidden layers", ylabel="mean error, %", ylim=(0, None),
                 title=f"the paper's recipe: {DEPTH_ROWS:,} convolutions, {GPU}, forward only")  # fmt: skip
        axes.grid(color="0.92")


if __name__ == "__main__":
    main()
