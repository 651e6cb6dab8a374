"""Fits a device's training time on a table of epochs: the terms are chosen by rows left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lolat.counts import COLUMNS, count
from lolat.fitting import fit_relative, leave_out, require_points
from lolat.graph import Graph
from lolat.training.epochs import Epoch
from lolat.training.features import TERMS, density, epoch_row, iteration_row, iterations
from lolat.training.model import TrainingModel, new_model
from lolat.training.optimizers import optimizer_named

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
