"""Errors on held-out measurements: one cross-validation for every formula and every kind of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SMALL_MS = 2.0  # published tables are split here
LEAST_MS = 1e-9  # so that a prediction of 0 has a logarithm


def leave_out(names: Sequence[str], most: int = 80) -> Iterator[np.ndarray]:
    """Masks of the rows to keep; each leaves out all rows of a name.

    With more than `most` names, each leaves out several, which bounds the time to fit a long table.
    """
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    count = min(len(number), most)
    yield from leave_folds_out(np.array([number[name] % count for name in names]))


def leave_folds_out(folds: np.ndarray) -> Iterator[np.ndarray]:
    """Masks of the rows to keep; each leaves out one fold. `folds`: (rows,) numbers."""
    for fold in np.unique(folds):
        yield folds != fold


def draw_folds(names: Sequence[Any], number: int, draw: np.random.Generator) -> list[int]:
    """Draw the fold of each row, below `number`; rows of one name share a fold."""
    distinct = sorted({*names}, key=str)
    drawn = draw.permutation(len(distinct)) % number
    of = dict(zip(distinct, drawn.tolist(), strict=True))
    return [of[name] for name in names]


def cross_validate(
    kept: Iterator[np.ndarray], rows: int, predict: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """(rows,) ms of each row, predicted by a fit without it.

    `kept`: masks (rows,), one of which leaves out each row; `predict`: fits to the rows of a first mask and
    returns ms of the rows of a second one.
    """
    predicted = np.empty(rows)
    for mask in kept:
        predicted[~mask] = predict(mask, ~mask)
    return predicted


def log_errors(measured: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """log(measured / predicted) of times in ms."""
    return np.asarray(np.log(measured / np.maximum(predicted, LEAST_MS)))


# ---- Figures of predicted against measured times


def error_entry(
    measured: np.ndarray,
    fitted: np.ndarray,
    left_out: np.ndarray | None = None,
    networks: np.ndarray | None = None,
) -> dict[str, Any]:
    """The `error` of a predictor in a model file; arguments: (times,), ms.

    `fitted`: predictions by the fit to all times; `left_out`: by fits without each; `networks`: mask of the
    networks, whose held-out errors are listed separately.
    """
    error = {"fitted": errors(fitted, measured)}
    if left_out is not None:
        error["left_out"] = errors(left_out, measured)
        if networks is not None and networks.any():
            error["networks_left_out"] = errors(left_out[networks], measured[networks])
    return error


def errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """The error figures in every table; None if no row has that size."""
    error = np.abs(predicted / measured - 1.0)
    large = measured >= SMALL_MS
    return {
        "points": len(measured),
        "median": float(np.median(error)),
        "within_10_percent": float((error <= 0.1).mean()),
        "median_from_2_ms": float(np.median(error[large])) if large.any() else None,
        "median_below_2_ms": float(np.median(error[~large])) if (~large).any() else None,
    }


def figures(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """All error figures of a predictor on a set of networks; undefined ones are None."""
    from scipy.stats import spearmanr

    relative = predicted / measured - 1.0
    has_rank = len(measured) > 1 and np.ptp(predicted) > 0 and np.ptp(measured) > 0
    return {
        **errors(predicted, measured),
        "mean": float(np.abs(relative).mean()),
        "bias": float(np.median(relative)),
        "spearman": float(spearmanr(predicted, measured)[0]) if has_rank else None,
    }


@dataclass(frozen=True)
class IntervalsKept:
    """The number of times inside their intervals of this coverage, among `of`."""

    coverage: float
    inside: int
    of: int


def intervals(rows: Sequence[Any]) -> IntervalsKept | None:
    """Count the times inside their intervals; None without any. `rows`: networks of an `Evaluation`."""
    sure = [r for r in rows if r.interval_ms is not None]
    return IntervalsKept(sure[0].coverage, sum(r.inside for r in sure), len(sure)) if sure else None
