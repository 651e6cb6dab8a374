"""Fits a device's training time on a table of epochs: the terms are chosen by rows left out."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lolat.errors import InputError
from lolat.fitting.least_squares import fit_relative, leave_out, require_points
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, count
from lolat.training.model import TrainingModel, new_model
from lolat.training.settings import check_sizes, optimizer_named
from lolat.training.terms import TERMS, density, epoch_row, iteration_row, iterations

# ---- Epochs that somebody timed, from a CSV table: network, batch_size, samples, optimizer,
# epoch_s.

REQUIRED = ("network", "batch_size", "samples", "optimizer", "epoch_s")


@dataclass(frozen=True)
class Epoch:
    """One timed epoch; `line` says where it stands in its table."""

    network: str
    batch_size: int
    samples: int
    optimizer: str
    epoch_s: float
    line: int


def read_epochs(path: str | Path) -> list[Epoch]:
    """The rows of a table; other columns are ignored, names of columns may be in capitals.

    InputError names what is wrong and its line: a missing column, no rows, a number that is none or not
    above 0, a batch larger than the data set, an optimiser that is not known.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = columns = [c.strip().lower() for c in reader.fieldnames or []]
            missing = [c for c in REQUIRED if c not in columns]
            if missing:
                raise InputError(
                    f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
                    f"expected a first line with {','.join(REQUIRED)}"
                )
            found = [
                _epoch(row, f"{path}, line {reader.line_num}", reader.line_num) for row in reader
            ]
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; expected a CSV table with the columns "
            f"{','.join(REQUIRED)}"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV table in UTF-8: {error}") from error
    if not found:
        raise InputError(f"{path} has no rows; expected one per timed epoch")
    return found


def _epoch(row: dict[str, str | None], where: str, line: int) -> Epoch:
    cells = {c: (row[c] or "").strip() for c in REQUIRED}
    if not cells["network"]:
        raise InputError(f"{where}: network is empty; expected such as keras:ResNet50")
    batch_size, samples = (_whole(cells[c], c, where) for c in ("batch_size", "samples"))
    try:
        check_sizes(batch_size, samples, 1)
        optimizer = optimizer_named(cells["optimizer"]).name
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    seconds = _number(cells["epoch_s"])
    if not 1e-9 <= seconds <= 1e12:
        raise _wrong(cells["epoch_s"], "epoch_s", where, "a time above 0, in seconds")
    return Epoch(cells["network"], batch_size, samples, optimizer, seconds, line)


def _whole(text: str, column: str, where: str) -> int:
    value = _number(text)
    if not (1 <= value <= 2**53 and value == int(value)):
        raise _wrong(text, column, where, "a whole number from 1")
    return int(value)


def _number(text: str) -> float:
    """The number that a cell holds, NaN for none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _wrong(text: str, column: str, where: str, expected: str) -> InputError:
    given = f"is {text!r}" if text else "is empty"
    return InputError(f"{where}: {column} {given}; expected {expected}")


# ---- fitting ----------------------------------------

ROOFLINE = ("weighted_ops", "other_ops", "steps", "flops", "traffic", "update")
MOVED = [TERMS.index(t) for t in ("traffic", "conv_elements")]
SETS = (
    ROOFLINE,
    (*ROOFLINE, "norm_ops", "flat_norm_ops", "conv_elements", "norm_positions"),
    TERMS,
)
"""Terms, from few to all; a set needs more rows than it has terms."""
BALANCE = 800
"""No device multiplies more often in the time of moving an element to or from its memory.

An NVIDIA H100 with tensor cores does some 300 (its data sheet). So elements bring that many multiplications
at least along, and a table in which nothing was bound by them does not make them free.
"""
FAR = 0.5  # an error, as a logarithm, beyond which it no longer matters how far a row is off


def fit(
    epochs: Sequence[Epoch], read: Callable[[str], Graph], name: str, drop_last: bool = False
) -> TrainingModel:
    """The model of the device that `epochs` were timed on.

    `read`: NETWORK -> Graph, called once for each network; `drop_last`: whether the epochs left out a last
    batch that is not full. Of SETS the one that predicts left-out networks best is taken. InputError for
    fewer rows than the smallest set needs.
    """
    require_points(len(epochs), len(ROOFLINE))
    graphs = {network: read(network) for network in dict.fromkeys(e.network for e in epochs)}
    rows, same, points = [], [], []
    for e in epochs:
        graph, optimizer = graphs[e.network], optimizer_named(e.optimizer)
        rows.append(epoch_row(graph, e.batch_size, e.samples, optimizer, drop_last))
        same.append(str(iteration_row(graph, 1, optimizer).tolist()))
        total = count(graph).total(e.batch_size)
        points.append(
            {
                "network": e.network, "batch_size": e.batch_size, "samples": e.samples,
                "optimizer": e.optimizer, "epoch_s": e.epoch_s,
                "counts": dict(zip(COLUMNS, total, strict=True)),
                "terms": dict(zip(TERMS, rows[-1].tolist(), strict=True)),
            }
        )  # fmt: skip
    times_ms = np.array([1e3 * e.epoch_s for e in epochs])
    coefficients, residuals = fit_terms(np.array(rows), times_ms, same)
    optimizers = tuple(sorted({e.optimizer for e in epochs}))
    longest = max(
        time / iterations(e.samples, e.batch_size, drop_last)
        for time, e in zip(times_ms.tolist(), epochs, strict=True)
    )
    return new_model(
        name, coefficients, residuals, drop_last, optimizers, points,
        densest=max(map(density, rows)), longest_ms=longest,
        absent=tuple(t for t, total in zip(TERMS, np.array(rows).sum(axis=0), strict=True) if total == 0.0),
    )  # fmt: skip


def fit_terms(
    rows: np.ndarray, times_ms: np.ndarray, networks: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(TERMS,) coefficients from 0, ms, and (epochs,) residuals log(measured / predicted) of left-out rows.

    `rows`: (epochs, TERMS); `networks`: which rows are of the same one, which are left out together.
    """
    flops = TERMS.index("flops")
    rows = rows.copy()
    rows[:, MOVED] += rows[:, [flops]] / BALANCE
    best: tuple[float, list[int], np.ndarray] | None = None
    for terms in SETS:
        columns = [TERMS.index(t) for t in terms]
        if best is not None and len(times_ms) <= len(columns):
            continue
        residuals = _left_out(rows[:, columns], times_ms, networks)
        error = float(np.minimum(np.abs(residuals), FAR).mean())
        if best is None or error < best[0]:
            best = error, columns, residuals
    assert best is not None  # SETS has a first one
    _, columns, residuals = best
    coefficients = np.zeros(len(TERMS))
    coefficients[columns] = fit_relative(rows[:, columns], times_ms)
    coefficients[flops] += coefficients[MOVED].sum() / BALANCE
    return coefficients, np.round(residuals, 6)


def _left_out(features: np.ndarray, times: np.ndarray, networks: Sequence[str]) -> np.ndarray:
    """log(measured / predicted) of each row, by the fit on the other networks' rows."""
    predicted = np.zeros(len(times))
    for kept in leave_out(networks):
        if kept.any():
            predicted[~kept] = features[~kept] @ fit_relative(features[kept], times[kept])
    return np.log(times / np.maximum(predicted, 1e-6 * times))
