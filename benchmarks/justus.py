"""The layer model beside Justus et al. 2018, on the authors' data, and beside LoLat's formula.

DATA holds justus2018_convolution.csv.gz and justus2018_dense.csv.gz. 80 % of the rows of a task train, 10 %
validate, 10 % test. The outcome of each training is kept in justus2018-results.json in the working
directory; a run that is killed goes on from there. One training of the paper's model takes half a minute
for one GPU and three minutes for six, on one core.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Tables, benchmark, percent
from lolat.fitting.extended import fit_extended
from lolat.graph.counts import FEATURES
from lolat.mlp.devices import DEVICES, known
from lolat.mlp.recipes import RECIPES as TRAINED
from lolat.mlp.table import LayerTable, LayerWork, read_table
from lolat.mlp.training import learn, split

GPUS = ("V100", "P100", "M60", "K80", "K40", "1080ti")
RECIPES = ("paper", "best")
LARGEST_BATCH = 32  # of the authors' models of several GPUs
CONVOLUTION_MS = {
    "V100": 1.73, "P100": 3.32, "M60": 6.07, "K80": 7.84, "K40": 11.90, "1080ti": 2.55,
}  # fmt: skip
DENSE_MS = {"V100": 0.048, "P100": 0.033, "M60": 0.031, "K80": 0.145, "K40": 0.167, "1080ti": 0.034}
"""Test RMSE in ms of the models of one GPU, in the paper."""
KEPT = Path("justus2018-results.json")
ROWS = (100, 1000, 3000, 9000)  # that formula and networks are compared after


@dataclass(frozen=True)
class Task:
    """A model of `gpus` (several: batch up to 32); `unseen`: a GPU that it is tested on as well."""

    layer: str
    gpus: tuple[str, ...]
    unseen: str = ""

    def rows(self, table: LayerTable, gpus: Sequence[str]) -> LayerTable:
        """The rows of a table that the task is about, on these GPUs."""
        mask = np.isin(table["gpu"], gpus)
        if len(self.gpus) > 1:
            mask &= table["batch_size"] <= LARGEST_BATCH
        return table.select(mask)


@cache
def table_of(data: Path, layer: str) -> LayerTable:
    """The measured layers of a kind."""
    return read_table(data / f"justus2018_{layer}.csv.gz", layer)


def errors(predicted: np.ndarray, rows: LayerTable) -> list[float]:
    """[root mean square in ms, mean relative error]."""
    off = predicted - rows.times_ms
    return [float(np.sqrt(np.mean(off**2))), float(np.mean(np.abs(off) / rows.times_ms))]


def trained(data: Path, task: Task, recipe: str, seed: int) -> dict[str, Any]:
    """The errors of a task's model: of test rows, by GPU, of the GPU not seen, of a linear regression."""
    every = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    key = f"{task.layer}/{','.join(task.gpus)} {recipe} {seed}"
    if key in every:
        return every[key]
    table = table_of(data, task.layer)
    rows = task.rows(table, task.gpus)
    train, test = (rows.select(part) for part in split(len(rows), seed))
    devices = known(task.gpus, DEVICES)
    model = learn(train, TRAINED[recipe], devices, seed=seed)
    found = {"test": errors(model.predict(test), test), "linear": errors(linear(train, test), test)}
    for gpu in task.gpus:
        own = test.select(test["gpu"] == gpu)
        found[gpu] = errors(model.predict(own), own)
    if task.unseen:
        unseen = task.rows(table, (task.unseen,))
        found["unseen"] = errors(model.predict(unseen), unseen)
    KEPT.write_text(json.dumps({**every, key: found}, indent=1, sort_keys=True) + "\n")
    return found


def linear(train: LayerTable, test: LayerTable) -> np.ndarray:
    """(n,) ms of the test rows by least squares on sizes and multiply-accumulates, the paper's baseline.

    Neither device, optimizer nor activation is among its features. It may answer below 0.
    """

    def features(table: LayerTable) -> np.ndarray:
        squared = {"input_size", "kernel_size"}
        every = (
            "batch_size input_size kernel_size in_channels out_channels stride use_bias in_features "
            "out_features"
        )
        names = [n for n in every.split() if n in table.columns]
        sizes = [np.asarray(table[n], float) ** (2 if n in squared else 1) for n in names]
        return np.column_stack([*sizes, layer_counts(table)[:, FEATURES.index("flops")]])

    x, y = features(train), train.times_ms
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-12
    solution, *_ = np.linalg.lstsq((x - mean) / scale, y - y.mean(), rcond=None)
    return (features(test) - mean) / scale @ solution + y.mean()


def layer_counts(table: LayerTable) -> np.ndarray:
    """(n, 6) float64: the counts of each row's layer at its batch size, in the order of FEATURES."""
    work, zero = LayerWork(table), np.zeros(len(table))
    activated = table["activation"] != "none"
    convolution = table.layer == "convolution"
    counts = {
        "acts": work.output if convolution else zero,
        "inp": work.input if convolution else zero,
        "flops": work.macs,
        "traffic": 2 * work.output * activated
        + (zero if convolution else work.input + work.output),
        "weights": work.kernel + work.outside * (table["use_bias"] if convolution else 1),
        "ops": 1.0 + activated,
    }
    return np.column_stack([counts[c] for c in FEATURES])


# ---- Tables


def ms(values: Iterable[float]) -> str:
    """`3.30`, of several seeds `3.30 (3.21 to 3.41)`: mean and range, with three digits or so."""
    found = list(values)

    def shown(value: float) -> str:
        return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"

    text = shown(sum(found) / len(found))
    return text if len(found) == 1 else f"{text} ({shown(min(found))} to {shown(max(found))})"


def cells(data: Path, task: Task, seeds: int, part: str = "test") -> list[str]:
    """RMSE and mean error of both recipes."""
    made = []
    for recipe in RECIPES:
        found = [trained(data, task, recipe, seed)[part] for seed in range(seeds)]
        made += [ms(e[0] for e in found), percent(float(np.mean([e[1] for e in found])))]
    return made


HEADS = ("paper, RMSE in ms", "paper's model here", "its mean error", "best", "mean error of best")


@benchmark("justus", "layers", "layers", data="justus2018_*.csv.gz")
def justus(data: Path, seeds: str = "3", only: str = "") -> Tables:
    """The tables of Justus et al. 2018, made again (only=NAME: one of them)."""
    n = int(seeds)

    def per_gpu(layer: str, published: dict[str, float]) -> list[list[str]]:
        return [[g, ms([published[g]]), *cells(data, Task(layer, (g,)), n)] for g in GPUS]

    def all_gpus() -> list[list[str]]:
        task, dense = Task("convolution", GPUS), Task("dense", GPUS)
        rows = [["convolutions, all GPUs", "3.88 (notebook 3.66)", *cells(data, task, n)]]
        rows += [[f"on {gpu}", "-", *cells(data, task, n, gpu)] for gpu in GPUS]
        rows.append(["linear regression", "27.7", *cells(data, task, n, "linear")[:2], "-", "-"])
        return [*rows, ["dense layers, all GPUs", "-", *cells(data, dense, n)]]

    def left_out() -> list[list[str]]:
        tasks = {g: Task("convolution", tuple(o for o in GPUS if o != g), g) for g in GPUS}
        published = {"V100": "3.65"}
        return [[g, published.get(g, "-"), *cells(data, t, n, "unseen")] for g, t in tasks.items()]

    tables = {
        "conv-per-gpu": ("GPU", lambda: per_gpu("convolution", CONVOLUTION_MS)),
        "dense-per-gpu": ("GPU", lambda: per_gpu("dense", DENSE_MS)),
        "all-gpus": ("test rows", all_gpus),
        "leave-one-gpu-out": ("predicted from the others", left_out),
    }
    chosen = {name: made for name, made in tables.items() if only in ("", name)}
    return {name: ((head, *HEADS), make()) for name, (head, make) in chosen.items()}


@benchmark("justus-formula", "layers", "layers", data="justus2018_*.csv.gz")
def justus_formula(data: Path) -> Tables:
    """LoLat's formula of six counts against both recipes, by number of measured layers (V100, forward)."""
    rows = []
    for layer in ("convolution", "dense"):
        table = table_of(data, layer)
        mask = (table["gpu"] == "V100") & (table["optimizer"] == "none")
        some = table.select(mask & (table["batch_size"] <= LARGEST_BATCH))
        pool, test = (some.select(part) for part in split(len(some), 0))
        order = np.random.default_rng(0).permutation(len(pool))
        for number in ROWS:
            seen = pool.select(order[:number])
            formula = fit_extended(layer_counts(seen), seen.times_ms, FEATURES)
            answers = [formula.rows(layer_counts(test))]
            for recipe in RECIPES:
                v100 = known(["V100"], DEVICES)
                answers.append(learn(seen, TRAINED[recipe], v100, seed=0).predict(test))
            off = [percent(errors(answer, test)[1]) for answer in answers]
            rows.append([f"{layer}, {min(number, len(pool)):,} rows", *off])
    return {"rows": (["mean error after", "formula", "paper's network", "best"], rows)}
