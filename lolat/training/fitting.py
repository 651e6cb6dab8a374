"""A device's training time from a table of epochs that somebody timed: reading, fitting, the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.fitting.intervals import conformal_quantile
from lolat.fitting.least_squares import fit_relative, leave_out, require_points
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, count
from lolat.io.documents import NotNegative, Number, converted, show
from lolat.io.tables import Row, read_table
from lolat.model.file import FORMAT_VERSION, SCHEMA
from lolat.training.iteration import (
    EPOCH_TERMS,
    IN_EPOCHS,
    OPTIMIZERS,
    TERMS,
    Optimizer,
    check_sizes,
    density,
    epoch_row,
    iteration_row,
    iterations,
    operation_rows,
    optimizer_named,
)
from lolat.training.model import Training
from lolat.units import milliseconds

# ---- Epochs from a CSV table.

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
    """The rows of a table with the columns REQUIRED; others are ignored.

    InputError names what is wrong and its line: a missing column, no rows, a number that is none or not
    above 0, a batch larger than the data set, an optimizer that is not known.
    """
    return [_epoch(row) for row in read_table(path, REQUIRED, rows="timed epoch")]


def _epoch(row: Row) -> Epoch:
    if not row["network"]:
        raise row.wrong("network", "such as keras:ResNet50")
    batch_size, samples = row.whole("batch_size"), row.whole("samples")
    try:
        check_sizes(batch_size, samples, 1)
        optimizer = optimizer_named(row["optimizer"]).name
    except InputError as error:
        raise InputError(f"{row.where}: {error.message}", code=error.code, **error.data) from None
    seconds = row.number("epoch_s", 1e-9, 1e12, "a time above 0, in seconds")
    return Epoch(row["network"], batch_size, samples, optimizer, seconds, row.line)


# ---- The model.

KINDS = ("weighted_ops", "norm_ops", "flat_norm_ops", "conv_elements")
"""Terms that say that a network has a kind of operation; a table without that says nothing of its cost."""
DENSER, LONGER = 1.5, 3.0  # than all rows: beyond that a prediction is warned of


class Domain(msgspec.Struct):
    """What the rows covered.

    `densest`: the most multiply-accumulates for an element moved; `longest_ms`: the longest iteration;
    `absent`: terms that no row has.
    """

    densest: Number
    longest_ms: Number
    absent: list[str]


class EpochSection(msgspec.Struct):
    """`epochs` of a model file. `coefficients_ms`: for each unit of each of EPOCH_TERMS."""

    coefficients_ms: dict[str, NotNegative]
    residuals: list[Number]
    drop_last: bool
    optimizers: list[str]
    domain: Domain


class EpochTraining(Training):
    """Time of an epoch: a formula of the network's counts, the parameters and constants.

    `coefficients`: (EPOCH_TERMS,), from 0.
    """

    def __init__(self, document: dict[str, Any], source: str) -> None:
        """`document`: a valid model file's; ModelFileError, beginning with `source`, where its `epochs` are
        damaged."""
        self.document, self.contents = document, _checked(document["epochs"], source)
        self.name, self.drop_last = str(document["device"]), self.contents.drop_last
        self.residuals = tuple(self.contents.residuals)
        self.optimizers = tuple(self.contents.optimizers)
        named = self.contents.coefficients_ms
        self.coefficients = np.array([named[t] for t in EPOCH_TERMS])
        self.epoch_ms = float(self.coefficients[EPOCH_TERMS.index("epochs")])

    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """An iteration as a whole: epochs do not tell its parts apart."""
        return {"iteration": float(iteration_row(graph, batch_size, optimizer) @ self.coefficients)}

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """See `Training`."""
        whole = iteration_row(graph, batch_size, optimizer) * self.coefficients
        update, rest = (float(whole[EPOCH_TERMS.index(t)]) for t in ("update", "steps"))
        return operation_rows(graph, batch_size) @ self.coefficients, update, rest

    def warnings(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> tuple[str, ...]:
        """What of the network the table's rows do not tell."""
        row = iteration_row(graph, batch_size, optimizer)
        domain = self.contents.domain
        warnings = list(graph.warnings)
        if self.optimizers and optimizer.name not in self.optimizers:
            warnings.append(
                f"no row that the model was fitted on used {optimizer.name}, only "
                f"{', '.join(self.optimizers)}: its update is scaled by what it reads and writes"
            )
        lacking = [
            TERMS[IN_EPOCHS.get(t, t)].partition(",")[0]
            for t in KINDS
            if t in domain.absent and row[EPOCH_TERMS.index(t)] > 0.0
        ]
        if lacking:
            warnings.append(
                f"no row that the model was fitted on has {', '.join(lacking)}: what they cost is not "
                "known, so the network takes longer than said"
            )
        if density(row) > DENSER * domain.densest:
            warnings.append(
                f"the network multiplies {density(row):.0f} times for each element that it moves, "
                f"the rows at most {domain.densest:.0f} times: what multiplying costs is not well known"
            )
        iteration_ms = float(row @ self.coefficients)
        if iteration_ms > LONGER * domain.longest_ms:
            warnings.append(
                f"an iteration of {milliseconds(iteration_ms)} is far longer than those of the rows, "
                f"at most {milliseconds(domain.longest_ms)}"
            )
        return tuple(warnings)

    def half_width(self, graph: Graph, batch_size: int, coverage: float) -> float:
        """See `Training`."""
        return min(conformal_quantile(self.residuals, coverage), 100.0)


def _checked(section: Any, source: str) -> EpochSection:
    contents: EpochSection = converted(section, EpochSection, source, "$.epochs")
    for field, names, known in (
        ("coefficients_ms", contents.coefficients_ms, EPOCH_TERMS),
        ("domain.absent", contents.domain.absent, EPOCH_TERMS),
        ("optimizers", contents.optimizers, OPTIMIZERS),
    ):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ModelFileError(
                f"{source}: `epochs.{field}` has {show(unknown[0])}; expected of {', '.join(known)}"
            )
    missing = [t for t in EPOCH_TERMS if t not in contents.coefficients_ms]
    if missing:
        raise ModelFileError(
            f"{source}: the field `epochs.coefficients_ms.{missing[0]}` is missing"
        )
    if not any(contents.coefficients_ms.values()):
        raise ModelFileError(f"{source}: `epochs.coefficients_ms` are all 0; expected one above 0")
    return contents


# ---- Fitting.

ROOFLINE = ("weighted_ops", "other_ops", "steps", "flops", "traffic", "update")
MOVED = [EPOCH_TERMS.index(t) for t in ("traffic", "conv_elements")]
SETS = (
    ROOFLINE,
    (*ROOFLINE, "norm_ops", "flat_norm_ops", "conv_elements", "norm_positions"),
    EPOCH_TERMS,
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
) -> EpochTraining:
    """The model of the device that `epochs` were timed on.

    `read`: NETWORK -> Graph, called once for each network; `drop_last`: whether the epochs left out a last
    batch that is not full. Of SETS the one that predicts left-out networks best is taken. InputError for
    fewer rows than the smallest set needs.
    """
    require_points(len(epochs), len(ROOFLINE))
    graphs = {network: read(network) for network in dict.fromkeys(e.network for e in epochs)}
    used = [(graphs[e.network], optimizer_named(e.optimizer)) for e in epochs]
    rows = np.array(
        [
            epoch_row(graph, e.batch_size, e.samples, optimizer, drop_last)
            for e, (graph, optimizer) in zip(epochs, used, strict=True)
        ]
    )
    same = [str(iteration_row(graph, 1, optimizer).tolist()) for graph, optimizer in used]
    times_ms = np.array([1e3 * e.epoch_s for e in epochs])
    coefficients, residuals = fit_terms(rows, times_ms, same)
    steps = [iterations(e.samples, e.batch_size, drop_last) for e in epochs]
    section = {
        "coefficients_ms": dict(zip(EPOCH_TERMS, coefficients.tolist(), strict=True)),
        "residuals": residuals.tolist(),
        "drop_last": drop_last,
        "optimizers": sorted({e.optimizer for e in epochs}),
        "domain": {
            "densest": max(map(density, rows)),
            "longest_ms": float(np.max(times_ms / steps)),
            "absent": [t for t, n in zip(EPOCH_TERMS, rows.sum(axis=0), strict=True) if n == 0.0],
        },
        "points": [
            {
                "network": e.network, "batch_size": e.batch_size, "samples": e.samples,
                "optimizer": e.optimizer, "epoch_s": e.epoch_s,
                "counts": dict(zip(COLUMNS, count(graph).total(e.batch_size), strict=True)),
                "terms": dict(zip(EPOCH_TERMS, row.tolist(), strict=True)),
            }
            for e, (graph, _), row in zip(epochs, used, rows, strict=True)
        ],
    }  # fmt: skip
    document = {
        "schema": SCHEMA,
        "version": FORMAT_VERSION,
        "name": name,
        "device": name,
        "environment": {"device": name, "source": "a table of epochs"},
        "epochs": section,
    }
    return EpochTraining(document, name)


def fit_terms(
    rows: np.ndarray, times_ms: np.ndarray, networks: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(EPOCH_TERMS,) coefficients from 0, ms, and (epochs,) log(measured / predicted) of left-out rows.

    `rows`: (epochs, EPOCH_TERMS); `networks`: which rows are of the same one, which are left out together.
    """
    flops = EPOCH_TERMS.index("flops")
    rows = rows.copy()
    rows[:, MOVED] += rows[:, [flops]] / BALANCE
    best_error, columns, residuals = math.inf, list[int](), np.zeros(0)
    for terms in SETS:
        tried = [EPOCH_TERMS.index(t) for t in terms]
        if columns and len(times_ms) <= len(tried):
            continue
        left_out = _left_out(rows[:, tried], times_ms, networks)
        error = float(np.minimum(np.abs(left_out), FAR).mean())
        if error < best_error:
            best_error, columns, residuals = error, tried, left_out
    coefficients = np.zeros(len(EPOCH_TERMS))
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
