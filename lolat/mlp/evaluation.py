"""How far predicted times of layers are from measured ones, altogether, by GPU and by optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lolat.mlp.devices import DEVICES, Device, known, merged
from lolat.mlp.layer_model import LayerModel
from lolat.mlp.table import OPTIMIZERS, LayerTable, mapped
from lolat.units import digits, percent, plain

SPREAD = "time_ms_std"


@dataclass(frozen=True)
class Errors:
    """Of n rows: root mean square error, ms, and |predicted / measured - 1|, mean and median.

    `spread`: median over the rows of standard deviation / median of their repeated measurements, below
    which no model can come; None where the table does not have it.
    """

    rows: int
    rmse_ms: float
    mean_relative_error: float
    median_relative_error: float
    spread: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Errors of all rows, and of those of each GPU and each optimizer (none: forward only)."""

    all: Errors
    gpus: Mapping[str, Errors]
    optimizers: Mapping[str, Errors]

    def to_dict(self) -> dict[str, Any]:
        """The errors of all rows, with `gpus` and `optimizers`."""
        groups = asdict(self)
        return {**groups.pop("all"), **groups}

    def lines(self) -> list[str]:
        """A table for people."""
        optimizers = {"forward only" if n == "none" else n: e for n, e in self.optimizers.items()}
        groups = [{"all": self.all}, self.gpus, optimizers]
        width = max(len(plain(name)) for group in groups for name in group)
        heads = ["rows", "RMSE, ms", "mean error", "median"]
        heads += ["spread"] if self.all.spread is not None else []
        lines = [" " * width + "".join(f"{head:>12}" for head in heads)]
        for number, group in enumerate(groups):
            lines += [""] if number else []
            for name, errors in group.items():
                cells = "".join(f"{cell:>12}" for cell in _cells(errors)[: len(heads)])
                lines.append(f"{plain(name):{width}}{cells}")
        return lines


def errors_of(
    predicted_ms: np.ndarray, measured_ms: np.ndarray, std_ms: np.ndarray | None = None
) -> Errors:
    """The errors of n rows, n at least 1; measured times above 0. NaN in `std_ms` (n,) is left out."""
    relative = np.abs(predicted_ms / measured_ms - 1)
    spread = None
    if std_ms is not None and np.isfinite(std_ms).any():
        spread = float(np.nanmedian(std_ms / measured_ms))
    return Errors(
        rows=len(measured_ms),
        rmse_ms=float(np.sqrt(np.mean((predicted_ms - measured_ms) ** 2))),
        mean_relative_error=float(relative.mean()),
        median_relative_error=float(np.median(relative)),
        spread=spread,
    )


def evaluate(
    model: LayerModel, table: LayerTable, devices: Mapping[str, Device] | None = None
) -> Evaluation:
    """The errors of a model on a table with times; `devices` as in `LayerModel.predict`."""
    predicted = model.predict(table, devices)
    everything = merged(DEVICES, model.devices, devices or {})
    return Evaluation(
        all=_part(table, predicted, np.ones(len(table), bool)),
        gpus=_groups(table, predicted, _device_names(table["gpu"], everything), everything),
        optimizers=_groups(table, predicted, table["optimizer"], OPTIMIZERS),
    )


def _device_names(names: np.ndarray, devices: Mapping[str, Device]) -> np.ndarray:
    """(n,) keys of `devices`, so that `v100` and `V100` are one group; all of them are there."""
    return mapped(names, lambda name: next(iter(known([name], devices))), str)


def _groups(
    table: LayerTable, predicted: np.ndarray, names: np.ndarray, order: Iterable[str]
) -> dict[str, Errors]:
    there = set(names.tolist())
    return {n: _part(table, predicted, names == n) for n in order if n in there}


def _part(table: LayerTable, predicted: np.ndarray, rows: np.ndarray) -> Errors:
    std = table[SPREAD][rows] if SPREAD in table else None
    return errors_of(predicted[rows], table.times_ms[rows], std)


def _cells(errors: Errors) -> list[str]:
    return [
        f"{errors.rows:,}",
        digits(errors.rmse_ms),
        percent(errors.mean_relative_error),
        percent(errors.median_relative_error),
        "" if errors.spread is None else percent(errors.spread),
    ]
