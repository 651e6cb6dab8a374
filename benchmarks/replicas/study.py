"""The MirroredStrategy study's networks and timed iterations, and the formula fitted to some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.replicas.runs import Runs, RunsFormula
from lolat.io.tables import Row, read_table

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


def table_of(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    return list(read_table(path))


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
    yield "| network | GPUs | optimizer | predicted | median | mean | largest |"
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
