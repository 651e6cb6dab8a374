"""A space's tables in milliseconds, by the choices that they depend on, for one model and batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.counts import COLUMNS
from lolat.model import Model
from lolat.nas.space import Position, Space
from lolat.predictors.formula import Formula
from lolat.predictors.two_regime import TwoRegime


@dataclass(frozen=True)
class Milliseconds:
    """Latency of a candidate: `constant` plus an entry of each table, then the formula's `bend`.

    `tables`: positions -> milliseconds, with an axis for each of the positions in this order.
    """

    name: str
    positions: tuple[Position, ...]
    tables: dict[tuple[int, ...], np.ndarray]
    constant: float
    formula: Formula
    batch_size: int


def milliseconds(
    space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
) -> Milliseconds:
    """The tables of `space` on the device of `model`. InputError as `Space.scorer`.

    A position with one choice has no axis: it changes nothing.
    """
    formula = model.predictor(predictor)
    columns = [COLUMNS.index(f) for f in formula.features]
    slopes = np.asarray(formula.coefficients)
    constant = formula.constant
    tables: dict[tuple[int, ...], np.ndarray] = {}
    for table, counts in zip(space.tables, space.table_counts(batch_size), strict=True):
        times = counts[..., columns] @ slopes
        chosen = [a for a, p in enumerate(table.positions) if len(space.positions[p].choices) > 1]
        times = times.reshape([times.shape[a] for a in chosen])
        positions = tuple(table.positions[a] for a in chosen)
        if positions:
            tables[positions] = tables[positions] + times if positions in tables else times
        else:
            constant += float(times)
    return Milliseconds(space.name, space.positions, tables, constant, formula, batch_size)


def bent(formula: Formula, time: Any, where: Callable[[Any, Any, Any], Any]) -> Any:
    """`Formula.bend` on a framework's tensor, by its `where(condition, yes, no)`."""
    if isinstance(formula, TwoRegime):
        below = formula.breakpoint - formula.slope * (formula.breakpoint - time)
        return where(time < formula.breakpoint, below, time)
    return time
