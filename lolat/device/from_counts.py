"""Latency from counts alone: the formula that answers, for numbers and arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lolat.arrays import np
from lolat.device.predictors.formula import Formula
from lolat.errors import InputError
from lolat.graph.counts import FEATURES
from lolat.units import shortened

if TYPE_CHECKING:
    from lolat.device import Device

MOST_OF_A_COUNT = 1e100
"""A larger count is refused: its latency might overflow."""


def plan(
    model: Device, no_traffic: bool, no_weights: bool, no_ops: bool, predictor: str | None
) -> tuple[Formula, list[int]]:
    """(the formula that answers, the position of each of its counts among the six and a 0).

    The three flags: counts that the caller left out.
    """
    left_out = {"traffic": no_traffic, "weights": no_weights, "ops": no_ops}
    absent = [name for name, is_absent in left_out.items() if is_absent]
    if 0 < len(absent) < 3:
        raise InputError(
            f"predict_counts() lacks {', '.join(absent)}; give only acts, inp, flops (the two-regime "
            "formula answers) or traffic, weights and ops too"
        )
    formula = model.predictor(predictor or "two-regime" if absent else predictor)
    formula = formula.of_six_counts
    if lacking := [name for name in formula.features if name in absent]:
        raise InputError(
            f"predictor {formula.name!r} needs {', '.join(lacking)} too; give all six counts"
        )
    places = {name: place for place, name in enumerate(FEATURES)}
    return formula, [places.get(name, -1) for name in formula.features]


def latencies_ms(formula: Formula, values: list[Any]) -> Any:
    """Latencies in ms from numbers or arrays, broadcast; `values`: one for each feature of the formula.

    InputError for shapes that do not broadcast, and for a value that is no number.
    """
    columns = [_column(n, v) for n, v in zip(formula.features, values, strict=True)]
    try:
        shape = np.broadcast_shapes(*(c.shape for c in columns))
    except ValueError as error:
        raise InputError(
            f"predict_counts() got arrays of different shapes "
            f"({', '.join(str(c.shape) for c in columns)}); expected the same or broadcastable"
        ) from error
    if not shape:
        return formula.one([float(c) for c in columns])
    flat = [float(c) if c.ndim == 0 else np.broadcast_to(c, shape).reshape(-1) for c in columns]
    return formula.many(flat, np.empty(math.prod(shape))).reshape(shape)


def _column(name: str, value: Any) -> np.ndarray:
    """A number or array as an array of numbers; a number must be finite and not negative."""
    try:
        column = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        column = np.empty(0, object)
    is_number = column.dtype.kind in "iuf"
    if not is_number or (column.ndim == 0 and not 0.0 <= float(column) < MOST_OF_A_COUNT):
        raise InputError(
            f"{name} is {shortened(ascii(value))}: expected a number of 0 or more, or an array of them of "
            "one type"
        )
    return column
