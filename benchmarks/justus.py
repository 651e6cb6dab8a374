"""The layer model beside Justus et al. 2018, on the authors' data.

DATA holds justus2018_convolution.csv.gz and justus2018_dense.csv.gz. 80 % of the rows of a GPU train, 10 %
test. The outcome of each training is kept in justus2018-results.json in the working directory; a run that
is killed goes on from there. One training of the paper's model takes half a minute on one core.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.runner import Tables, benchmark, percent
from lolat.io.tables import read_table
from lolat.mlp.recipes import RECIPES as TRAINED
from lolat.mlp.recipes import data_sheets
from lolat.mlp.table import TIME, LayerTable, layers_of
from lolat.mlp.training import learn, split

RECIPES = ("paper", "best")
CONVOLUTION_MS = {
    "V100": 1.73, "P100": 3.32, "M60": 6.07, "K80": 7.84, "K40": 11.90, "1080ti": 2.55,
}  # fmt: skip
DENSE_MS = {"V100": 0.048, "P100": 0.033, "M60": 0.031, "K80": 0.145, "K40": 0.167, "1080ti": 0.034}
"""Test RMSE in ms of the models of one GPU, in the paper."""
KEPT = Path("justus2018-results.json")


@cache
def table_of(data: Path, layer: str) -> LayerTable:
    """The measured layers of a kind."""
    return layers_of(read_table(data / f"justus2018_{layer}.csv.gz"), layer)


def errors(predicted: np.ndarray, rows: LayerTable) -> list[float]:
    """[root mean square in ms, mean relative error]."""
    off = predicted - rows[TIME]
    return [float(np.sqrt(np.mean(off**2))), float(np.mean(np.abs(off) / rows[TIME]))]


def trained(data: Path, layer: str, gpu: str, recipe: str, seed: int) -> list[float]:
    """The errors of a model of one GPU on its test rows."""
    every = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    key = f"{layer}/{gpu} {recipe} {seed}"
    if key not in every:
        rows = table_of(data, layer)
        rows = rows.select(rows["gpu"] == gpu)
        train, test = (rows.select(part) for part in split(len(rows), seed))
        model = learn(train, TRAINED[recipe], data_sheets([gpu]), seed=seed)
        every[key] = errors(model.predict(test), test)
        KEPT.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")
    return every[key]


# ---- Tables


def ms(values: Iterable[float]) -> str:
    """`3.30`, of several seeds `3.30 (3.21 to 3.41)`: mean and range, with three digits or so."""
    found = list(values)

    def shown(value: float) -> str:
        return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"

    text = shown(sum(found) / len(found))
    return text if len(found) == 1 else f"{text} ({shown(min(found))} to {shown(max(found))})"


HEADS = ("paper, RMSE in ms", "paper's model here", "its mean error", "best", "mean error of best")


@benchmark("justus", "layers", "layers", data="justus2018_*.csv.gz")
def justus(data: Path, seeds: str = "3") -> Tables:
    """The models of one GPU of Justus et al. 2018, made again."""

    def row(layer: str, gpu: str, published_ms: float) -> list[str]:
        cells = [gpu, ms([published_ms])]
        for recipe in RECIPES:
            found = [trained(data, layer, gpu, recipe, seed) for seed in range(int(seeds))]
            cells += [ms(e[0] for e in found), percent(float(np.mean([e[1] for e in found])))]
        return cells

    published = {"conv": ("convolution", CONVOLUTION_MS), "dense": ("dense", DENSE_MS)}
    return {
        f"{name}-per-gpu": (("GPU", *HEADS), [row(layer, gpu, of) for gpu, of in times.items()])
        for name, (layer, times) in published.items()
    }
