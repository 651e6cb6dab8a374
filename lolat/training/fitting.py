"""A device's training time from a table of epochs that somebody timed: the fit, and the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.fitting.intervals import conformal_quantile
from lolat.fitting.least_squares import fit_relative, leave_out, require_points
from lolat.graph import Graph
from lolat.graph.analysis import parameters
from lolat.graph.counts import behaviors
from lolat.io.documents import NotNegative, Number, converted
from lolat.io.tables import Table
from lolat.model.file import made
from lolat.training.iteration import PASS_TERMS, Optimizer, check_sizes, optimizer_named, pass_rows
from lolat.training.model import Training

REQUIRED = ("network", "batch_size", "samples", "optimizer", "epoch_s")
TERMS = ("ops", "flat_norms", "flops", "elements", "update", "steps")
"""An iteration's time goes by operations, normalizations of tensors without positions (many operations each
in TensorFlow), multiply-accumulates, elements moved, elements that the update moves, and 1."""
COUNTED = [["ops"], ["flat_norms"], ["flops"], ["acts", "inp", "traffic"]]  # the first four of them
Terms: Any = msgspec.defstruct("Terms", [(term, NotNegative) for term in TERMS])
AGAIN = "fit them again: lolat training fit EPOCHS.csv --output MODEL"
BALANCE = 800.0  # multiplications while an element is moved: more than any device does


def operation_rows(graph: Graph, batch_size: int) -> np.ndarray:
    """(operations, 4) of TERMS; both passes work on the same tensors, so one count stands for both."""
    of = dict(zip(PASS_TERMS, pass_rows(graph, batch_size).T, strict=True))
    return np.array([sum(of[name] for name in names) for names in COUNTED]).T


def epoch_row(graph: Graph, batch_size: int, samples: int, optimizer: Optimizer) -> np.ndarray:
    """(TERMS,) of the iterations of an epoch, the last one of what is left of `samples`."""
    full, rest = divmod(samples, batch_size)
    work, steps = full * operation_rows(graph, batch_size).sum(axis=0), full + bool(rest)
    if rest:
        work += operation_rows(graph, rest).sum(axis=0)
    return np.array([*work, steps * parameters(graph) * optimizer.accesses, steps])


class EpochSection(msgspec.Struct):
    """`epochs` of a model file: ms for each unit of TERMS; log(measured / predicted) of networks left out;
    whether a last batch that was not full was left out; optimizers and kinds of operation of the rows."""

    coefficients_ms: Terms
    residuals: list[Number]
    drop_last: bool
    optimizers: tuple[str, ...]
    kinds: list[str]


class EpochTraining(Training):
    """An epoch by a formula of the network's counts; `coefficients`: (TERMS,) ms."""

    def __init__(self, document: dict[str, Any], source: str) -> None:
        """`document`: a valid model file's; ModelFileError where its `epochs` are damaged."""
        try:
            section = converted(document["epochs"], EpochSection, source, "$.epochs")
        except ModelFileError as error:
            raise ModelFileError(f"{error}; {AGAIN}") from error
        self.section: EpochSection = section
        self.document, self.name, self.drop_last = document, document["device"], section.drop_last
        self.coefficients = np.array(msgspec.structs.astuple(section.coefficients_ms))
        self.residuals, self.optimizers = section.residuals, section.optimizers

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """See `Training`."""
        *work, update, step = self.coefficients.tolist()
        update *= parameters(graph) * optimizer.accesses
        return operation_rows(graph, batch_size) @ work, update, step

    def warnings(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> tuple[str, ...]:
        """What of the network and its training the rows do not tell."""
        found, no_row = list(graph.warnings), "no row that the model was fitted on"
        if optimizer.name not in self.optimizers:
            found.append(f"{no_row} used {optimizer.name}, only {', '.join(self.optimizers)}")
        if strange := sorted(behaviors(graph.operations).difference(self.section.kinds)):
            found.append(f"{no_row} has the operations {', '.join(strange)}")
        return tuple(found)

    def half_width(self, graph: Graph, batch_size: int, coverage: float) -> float:
        """See `Training`."""
        return min(conformal_quantile(self.residuals, coverage), 100.0)


def fit(
    table: Table, read: Callable[[str], Graph], name: str, drop_last: bool = False
) -> EpochTraining:
    """The model of the device that the epochs of `table`, with the columns REQUIRED, were timed on.

    `read`: NETWORK -> Graph, asked once for each; `drop_last`: whether a last batch that was not full was
    left out. InputError for a row that is wrong, by its line, and for too few of them.
    """
    points: list[dict[str, Any]] = []
    rows, same, graphs = [], [], dict[str, Graph]()
    for row in table:
        batch_size, samples = row.whole("batch_size"), row.whole("samples")
        seconds = row.number("epoch_s", 1e-9, 1e12, "a time above 0, in seconds")
        try:
            check_sizes(batch_size, samples, 1)
            network, optimizer = row["network"], optimizer_named(row["optimizer"])
            graph = graphs[network] = graphs.get(network) or read(network)
        except InputError as error:
            raise error.reworded(f"{row.where}: {error.message}") from error
        run = samples - samples % batch_size * drop_last
        rows.append(epoch_row(graph, batch_size, run, optimizer))
        same.append(str(operation_rows(graph, 1).sum(axis=0)))
        told = (network, batch_size, samples, optimizer.name, seconds)
        points.append(dict(zip(REQUIRED, told, strict=True)))
    require_points(len(rows), len(TERMS))
    times_ms = np.array([1e3 * p["epoch_s"] for p in points])
    coefficients, residuals = fit_terms(np.array(rows), times_ms, same)
    section = {
        "coefficients_ms": dict(zip(TERMS, coefficients.tolist(), strict=True)),
        "residuals": residuals.tolist(),
        "drop_last": drop_last,
        "optimizers": sorted({p["optimizer"] for p in points}),
        "kinds": sorted({k for graph in graphs.values() for k in behaviors(graph.operations)}),
        "points": points,
    }
    where = {"device": name, "source": "a table of epochs"}
    return EpochTraining({**made(name, name, where), "epochs": section}, name)


def fit_terms(
    rows: np.ndarray, times_ms: np.ndarray, networks: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(TERMS,) coefficients from 0, ms, and (epochs,) log(measured / predicted) of networks left out.

    `rows`: (epochs, TERMS); `networks`: which rows are of the same one.
    """
    rows, flops, moved = rows.copy(), TERMS.index("flops"), TERMS.index("elements")
    rows[:, moved] += rows[:, flops] / BALANCE  # where they cannot be told apart, neither is free
    predicted = np.zeros(len(times_ms))
    for kept in leave_out(networks):
        if kept.any():
            predicted[~kept] = rows[~kept] @ fit_relative(rows[kept], times_ms[kept])
    coefficients = fit_relative(rows, times_ms)
    coefficients[flops] += coefficients[moved] / BALANCE
    residuals = np.log(times_ms / np.maximum(predicted, 1e-6 * times_ms))
    return coefficients, np.round(residuals, 6)
