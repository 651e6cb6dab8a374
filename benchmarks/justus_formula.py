"""How many measured layers does a deep network need before it beats a formula? On the data of Justus et al.

    python benchmarks/justus_formula.py measure DATA --results FILE [--learner NAME ...] [--most ROWS]
    python benchmarks/justus_formula.py curves --results FILE
    python benchmarks/justus_formula.py groups DATA
    python benchmarks/justus_formula.py draw --results FILE [--output docs/figures/crossing.svg]

DATA: a folder with justus2018_convolution.csv.gz and justus2018_dense.csv.gz. `measure` fits every learner
on more and more rows and judges it on the same rows left out; what FILE has is not done again, so that it
may be stopped at any time. Each learner sees the first rows of the same permutation. `curves` prints what
FILE has and where learners cross; `groups` fits the formula from 100 rows of each GPU and optimizer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.justus.formula_fit import LayerFormulas  # noqa: E402
from lolat.fitting.predictors.two_regime import TwoRegime  # noqa: E402
from lolat.io.writing import write_bytes  # noqa: E402
from lolat.mlp.devices import DEVICES, known  # noqa: E402
from lolat.mlp.recipes import Devices, expected_ms, find_recipe  # noqa: E402
from lolat.mlp.table import (  # noqa: E402
    LAYERS,
    OPTIMIZERS,
    LayerTable,
    layer_counts,
    read_table,
)
from lolat.mlp.training import learn, split  # noqa: E402
from lolat.units import percent  # noqa: E402

SEED = 0  # of the split; the parts are those of `lolat mlp fit --seed 0` on the same rows
SIZES = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
LARGEST_BATCH = 32  # as the paper's models of convolutions on all GPUs
ONE, ALL = "V100, forward only", "six GPUs, forward and training"
SETTINGS = (ONE, ALL)
LEARNERS = ("lolat", "paper", "best")
PHYSICS = "physics"  # what "best" says without a network: no rows, but constants from the data
DRAWS = ((1000, 5), (10_000, 3))  # so many draws below so many rows, one from there on
NETWORK_DRAWS = ((300, 3),)
GROUP_ROWS = 100

Predict = Callable[[LayerTable], np.ndarray]


def load(data: Path) -> dict[str, LayerTable]:
    """The two tables, convolutions with batches of at most LARGEST_BATCH."""
    tables = {k: read_table(data / f"justus2018_{k}.csv.gz", k) for k in LAYERS}
    convolution = tables["convolution"]
    tables["convolution"] = convolution.select(convolution["batch_size"] <= LARGEST_BATCH)
    return tables


def parts(table: LayerTable, setting: str) -> tuple[LayerTable, LayerTable]:
    """(rows to learn from, rows to judge on) of a setting."""
    if setting == ONE:
        table = table.select((table["gpu"] == "V100") & (table["optimizer"] == "none"))
    found = split(len(table), SEED)
    return table.select(found.train), table.select(found.test)


def fit(learner: str, table: LayerTable, devices: Devices, seed: int) -> Predict:
    """What the learner makes of the rows, as a function of other rows."""
    if learner == "lolat":
        return LayerFormulas.fit(table).predict
    if learner == PHYSICS:
        return lambda other: expected_ms(other, devices)
    return learn(table, find_recipe(learner), devices, seed=seed).predict


def errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    """Mean and median relative error, root mean square error in ms."""
    relative = np.abs(predicted / measured - 1.0)
    return {
        "mean": float(relative.mean()),
        "median": float(np.median(relative)),
        "rmse_ms": float(np.sqrt(np.mean((predicted - measured) ** 2))),
    }


def tasks(
    tables: dict[str, LayerTable], learners: Sequence[str], most: int
) -> Iterator[tuple[str, ...]]:
    """(setting, layer, learner, rows, draw) as text, the quick ones first."""
    yield from ((s, k, PHYSICS, "0", "0") for s in SETTINGS for k in LAYERS)
    for rows in SIZES:
        for setting in SETTINGS:
            for layer in LAYERS:
                there = len(parts(tables[layer], setting)[0])
                used = min(rows, there)
                if rows > most or (used < rows and used < 2 * max(s for s in SIZES if s < rows)):
                    continue
                for learner in learners:
                    limits = DRAWS if learner == "lolat" else NETWORK_DRAWS
                    draws = next((n for below, n in limits if rows <= below), 1)
                    for draw in range(draws):
                        yield setting, layer, learner, str(used), str(draw)


def read_results(path: Path) -> dict[str, Any]:
    """What has been measured; nothing yet where there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


@click.group()
def main() -> None:
    """Learning curves on the data of Justus et al. 2018."""


results_option = click.option("--results", type=click.Path(path_type=Path), required=True)
data_argument = click.argument("data", type=click.Path(path_type=Path, exists=True))


@main.command()
@data_argument
@results_option
@click.option("--learner", "learners", multiple=True, type=click.Choice(LEARNERS), default=LEARNERS)
@click.option("--most", type=int, default=SIZES[-1], help="No more rows than this.")
def measure(data: Path, results: Path, learners: tuple[str, ...], most: int) -> None:
    """Fit the learners on more and more rows."""
    tables = load(data)
    for task in tasks(tables, learners, most):
        setting, layer, learner, rows, draw = task
        if "|".join(task) in read_results(results):
            continue
        pool, judged = parts(tables[layer], setting)
        order = np.random.default_rng([int(draw), len(pool)]).permutation(len(pool))
        start = time.perf_counter()
        # All GPUs of the setting, also those that no row of a few is of: their facts are known.
        devices = known(judged["gpu"].tolist(), DEVICES)
        predict = fit(learner, pool.select(order[: int(rows)]), devices, int(draw))
        seconds = time.perf_counter() - start
        entry = {**errors(predict(judged), judged.times_ms), "seconds": round(seconds, 1)}
        everything = read_results(results) | {"|".join(task): entry}  # another run may have added
        write_bytes(results, json.dumps(everything, indent=1, sort_keys=True).encode())
        click.echo(f"{' · '.join(task)}: {100 * entry['mean']:.1f} %, {seconds:.0f} s")


Curve = dict[int, list[dict[str, float]]]  # rows -> what each draw came to


def curves_of(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Curve]]:
    """The results by (setting, layer), then learner, then rows."""
    found: dict[tuple[str, str], dict[str, Curve]] = {(s, k): {} for s in SETTINGS for k in LAYERS}
    for task, entry in results.items():
        setting, layer, learner, rows, _ = task.split("|")
        found[setting, layer].setdefault(learner, {}).setdefault(int(rows), []).append(entry)
    return found


def middle(curve: Curve, figure: str) -> tuple[np.ndarray, np.ndarray]:
    """(sizes,) rows and the median over the draws of a figure."""
    rows = sorted(curve)
    return np.array(rows), np.array([np.median([e[figure] for e in curve[n]]) for n in rows])


def crossing(one: Curve, other: Curve, figure: str = "mean") -> float | None:
    """Rows from which `other` is and stays better than `one`; None where it does not come to that."""
    rows = np.array(sorted(set(one) & set(other)))
    if not len(rows):
        return None
    gap = np.array([
        np.log(np.median([e[figure] for e in other[n]]) / np.median([e[figure] for e in one[n]]))
        for n in rows
    ])  # fmt: skip
    if gap[-1] >= 0:
        return None
    worse = np.flatnonzero(gap >= 0)
    if not len(worse):
        return float(rows[0])
    i = int(worse[-1])
    share = gap[i] / (gap[i] - gap[i + 1])
    return float(np.exp(np.log(rows[i]) + share * np.log(rows[i + 1] / rows[i])))


@main.command()
@results_option
def curves(results: Path) -> None:
    """Print the curves and where they cross."""
    for (setting, layer), learners in curves_of(read_results(results)).items():
        click.echo(f"\n{layer}, {setting}: mean and median error, RMSE\n")
        names = [n for n in LEARNERS if n in learners]
        click.echo(f"| rows | {' | '.join(names)} |\n| --: |{' --: |' * len(names)}")
        for rows in sorted({n for name in names for n in learners[name]}):
            cells = []
            for name in names:
                draws = learners[name].get(rows)
                figures = (
                    [np.median([e[f] for e in draws]) for f in ("mean", "median", "rmse_ms")]
                    if draws
                    else []
                )
                cells.append(
                    f"{percent(figures[0])}, {percent(figures[1])}, {figures[2]:.3g} ms"
                    if draws
                    else "-"
                )
            click.echo(f"| {rows:,} | {' | '.join(cells)} |")
        for name in names[1:]:
            at = crossing(learners["lolat"], learners[name])
            click.echo(
                f"\n{name} beats lolat from "
                + ("no number on" if at is None else f"{at:,.0f} rows on")
            )
        for entry in learners.get(PHYSICS, {}).get(0, ()):
            click.echo(
                f"best without its network: {percent(entry['mean'])}, {percent(entry['median'])}"
            )


@main.command()
@data_argument
def groups(data: Path) -> None:
    """Fit the formula from GROUP_ROWS rows of each GPU and optimizer; print its errors on other rows."""
    tables = load(data)
    for layer, table in tables.items():
        kinds = ("none", *(o for o in OPTIMIZERS if o != "none"))
        click.echo(f"\n{layer}: median error ({GROUP_ROWS} rows, mean of 5 draws)\n")
        click.echo(
            f"| GPU | {' | '.join(kinds)} | none, two-regime |\n| --- |{' --: |' * (len(kinds) + 1)}"
        )
        for gpu in dict.fromkeys(table["gpu"].tolist()):
            cells = [_group_error(table, gpu, optimizer, "lolat") for optimizer in kinds]
            two = _group_error(table, gpu, "none", "two-regime") if layer == "convolution" else "-"
            click.echo(f"| {gpu} | {' | '.join(cells)} | {two} |")


def _group_error(table: LayerTable, gpu: str, optimizer: str, learner: str) -> str:
    """Median error of a formula fitted on GROUP_ROWS rows of a GPU and optimizer."""
    table = table.select((table["gpu"] == gpu) & (table["optimizer"] == optimizer))
    found = split(len(table), SEED)
    judged = table.select(found.test)
    medians = []
    for draw in range(5):
        order = np.random.default_rng(draw).permutation(found.train)[:GROUP_ROWS]
        rows = table.select(order)
        if learner == "lolat":
            predicted = LayerFormulas.fit(rows).predict(judged)
        else:
            three = TwoRegime.fit(layer_counts(rows)[:, :3], rows.times_ms)
            predicted = three.many(list(layer_counts(judged)[:, :3].T), np.empty(len(judged)))
        medians.append(errors(predicted, judged.times_ms)["median"])
    return percent(float(np.mean(medians)))


LOOKS = {
    "lolat": ("LoLat's formula", "#0b6e99", "o"),
    "paper": ("the paper's network", "#d1603d", "s"),
    "best": ("the recipe best", "#5b8c3a", "^"),
}


@main.command()
@results_option
@click.option(
    "--output", type=click.Path(path_type=Path), default=ROOT / "docs/figures/crossing.svg"
)
def draw(results: Path, output: Path) -> None:
    """Draw the curves."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from lolat.report.plots import STYLE

    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 7.2), layout="constrained")
        panels = figure.subplots(len(SETTINGS), len(LAYERS))
        found = curves_of(read_results(results))
        for axes, ((setting, layer), learners) in zip(panels.flat, found.items(), strict=True):
            for name, (words, colour, marker) in LOOKS.items():
                if name in learners:
                    rows, mean = middle(learners[name], "mean")
                    axes.plot(rows, 100 * mean, marker=marker, ms=5, color=colour, label=words)
                    ends = [
                        [100 * f(e["mean"] for e in learners[name][n]) for n in rows]
                        for f in (min, max)
                    ]
                    axes.fill_between(rows, *ends, color=colour, alpha=0.15, lw=0)
            for entry in learners.get(PHYSICS, {}).get(0, ()):
                axes.axhline(
                    100 * entry["mean"],
                    color="#5b8c3a",
                    lw=1,
                    ls=":",
                    label="best without its network",
                )
            axes.set(xscale="log", yscale="log", ylim=(3, 200), title=f"{layer}: {setting}",
                     xlabel="measured layers", ylabel="mean error on other layers, %")  # fmt: skip
            for axis, ticks in ((axes.xaxis, None), (axes.yaxis, (3, 5, 10, 20, 50, 100, 200))):
                if ticks:
                    axis.set_ticks(ticks)
                    axis.set_ticks((), minor=True)
                axis.set_major_formatter("{x:,.0f}")
            axes.grid(color="0.92")
        panels.flat[0].legend(frameon=False)
        figure.savefig(output, metadata={"Date": None})
    click.echo(f"drawn: {output}")


if __name__ == "__main__":
    main()
