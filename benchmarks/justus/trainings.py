"""The models that the tables of docs/results/index.md need, and what each came to, in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.justus import vgg16
from benchmarks.justus.linear import fit_linear
from lolat.io.writing import write_bytes
from lolat.mlp.devices import DEVICES
from lolat.mlp.layer_model import errors_of
from lolat.mlp.recipes import find_recipe
from lolat.mlp.table import LayerTable, read_table
from lolat.mlp.training import Progress, learn, split

GPUS = ("V100", "P100", "M60", "K80", "K40", "1080ti")
LARGEST_BATCH = 32  # of the authors' models of several GPUs


@dataclass(frozen=True)
class Task:
    """A model to train: on rows of `gpus` (several: batch up to 32), tested on a tenth of the same rows.

    `optimizers`: only rows of these, empty for all. `unseen`: a GPU on all of whose rows it is tested too.
    """

    layer: str
    gpus: tuple[str, ...]
    optimizers: tuple[str, ...] = ()
    unseen: str = ""

    @property
    def name(self) -> str:
        """Its name in the file of results."""
        gpus = "all" if self.gpus == GPUS else ",".join(self.gpus)
        return "/".join([self.layer, gpus, *self.optimizers])

    def rows(self, table: LayerTable, gpus: tuple[str, ...]) -> LayerTable:
        """The rows of a table that the task is about, on these GPUs."""
        mask = np.isin(table["gpu"], gpus)
        if len(self.gpus) > 1:
            mask &= table["batch_size"] <= LARGEST_BATCH
        if self.optimizers:
            mask &= np.isin(table["optimizer"], self.optimizers)
        return table.select(mask)


def alone(layer: str, gpu: str, *optimizers: str) -> Task:
    """A model of one GPU."""
    return Task(layer, (gpu,), optimizers)


def together(layer: str) -> Task:
    """The model of all GPUs."""
    return Task(layer, GPUS)


def without(gpu: str) -> Task:
    """The convolution model of the five other GPUs."""
    return Task("convolution", tuple(g for g in GPUS if g != gpu), unseen=gpu)


@dataclass(frozen=True)
class Data:
    """The folder with the shared measurements; each file is read when it is needed."""

    folder: Path

    @cached_property
    def convolution(self) -> LayerTable:
        """All measured convolutions."""
        return read_table(self.folder / "justus2018_convolution.csv.gz", "convolution")

    @cached_property
    def dense(self) -> LayerTable:
        """All measured dense layers."""
        return read_table(self.folder / "justus2018_dense.csv.gz", "dense")

    def table(self, layer: str) -> LayerTable:
        """The table of a kind of layer."""
        return self.convolution if layer == "convolution" else self.dense


def errors(predicted: np.ndarray, rows: LayerTable) -> dict[str, Any]:
    """The errors of predictions for rows, as `lolat mlp predict` gives them."""
    return errors_of(predicted, rows.times_ms).to_dict()


def measure(
    task: Task, recipe_name: str, seed: int, data: Data, checkpoint: Path, progress: Progress
) -> dict[str, Any]:
    """Trains a task's model and says how far it is off; the split follows from the seed."""
    table = data.table(task.layer)
    rows = task.rows(table, task.gpus)
    parts = split(len(rows), seed)
    train, test = rows.select(parts.train), rows.select(parts.test)
    devices = {name: d for name, d in DEVICES.items() if name in task.gpus}
    model = learn(
        train,
        find_recipe(recipe_name),
        devices,
        seed=seed,
        checkpoint=checkpoint,
        progress=progress,
    )
    checkpoint.unlink(missing_ok=True)
    found: dict[str, Any] = {
        "train_rows": len(train),
        "tries": model.training["tries"],
        "test": errors(model.predict(test), test),
        "linear": errors(fit_linear(train).predict(test), test),
    }
    if len(task.gpus) > 1:
        own = {gpu: test.select(test["gpu"] == gpu) for gpu in task.gpus}
        found["by_gpu"] = {gpu: errors(model.predict(rows), rows) for gpu, rows in own.items()}
    if task.unseen:
        unseen = task.rows(table, (task.unseen,))
        found["unseen"] = errors(model.predict(unseen), unseen)
    if task == alone("convolution", vgg16.GPU):
        found["vgg16_ms"] = {
            optimizer: {str(b): vgg16.predict_ms(model, b, optimizer) for b in vgg16.BATCH_SIZES}
            for optimizer in ("none", "sgd")
        }
    return found


class Results:
    """What trainings came to, by task, recipe and seed, in a JSON file that is written after each one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}
        if path.exists():
            self.found = json.loads(path.read_text(encoding="utf-8"))

    def of(self, task: Task, recipe: str) -> list[Mapping[str, Any]]:
        """What is known of a task by a recipe, one per seed."""
        known = self.found.get(f"{task.name} {recipe}", {})
        return [known[seed] for seed in sorted(known, key=int)]

    def train(self, task: Task, recipe: str, seeds: int, data: Data, progress: Progress) -> None:
        """Trains what is not known yet of a task, for `seeds` seeds."""
        name = f"{task.name} {recipe}"
        for seed in range(seeds):
            if str(seed) in self.found.get(name, {}):
                continue
            progress.note(f"{name}, seed {seed}")
            checkpoint = self.path.with_name(f"{self.path.name}.training.npz")
            found = measure(task, recipe, seed, data, checkpoint, progress)
            # Read again: another process may have trained something else meanwhile.
            self.found = Results(self.path).found
            self.found.setdefault(name, {})[str(seed)] = found
            text = json.dumps(self.found, indent=1, sort_keys=True)
            write_bytes(self.path, text.encode("ascii") + b"\n")
