"""Errors on what a fit has not seen: one cross-validation for every formula and every kind of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SMALL_MS = 2.0  # published tables are split here
LEAST_MS = 1e-9  # a prediction of nothing has a logarithm


def leave_out(names: Sequence[str], most: int = 80) -> Iterator[np.ndarray]:
    """Masks of the rows to keep, each leaving out all rows of one name.

    With more than `most` names (a long table) several are left out at a time, so that the time to
    fit stays bounded.
    """
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    count = min(len(number), most)
    yield from leave_folds_out(np.array([number[name] % count for name in names]))


def leave_folds_out(folds: np.ndarray) -> Iterator[np.ndarray]:
    """Masks of the rows to keep, each leaving out one fold; `folds`: (rows,) numbers."""
    for fold in np.unique(folds):
        yield folds != fold


def draw_folds(names: Sequence[Any], number: int, draw: np.random.Generator) -> list[int]:
    """The fold of each row, one of `number`, drawn at random; rows of one name share a fold."""
    distinct = sorted({*names}, key=str)
    drawn = draw.permutation(len(distinct)) % number
    of = dict(zip(distinct, drawn.tolist(), strict=True))
    return [of[name] for name in names]


def cross_validate(
    kept: Iterator[np.ndarray], rows: int, predict: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """(rows,) ms of each row, predicted by a fit to the rows that are kept when it is left out.

    `kept`: masks (rows,), each row left out by one of them; `predict`: fits to the first mask and returns
    ms of the second, the others.
    """
    predicted = np.empty(rows)
    for mask in kept:
        predicted[~mask] = predict(mask, ~mask)
    return predicted


def log_errors(measured: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """log(measured / predicted) of times in ms."""
    return np.asarray(np.log(measured / np.maximum(predicted, LEAST_MS)))


# ---- Figures of predicted against measured times


def errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """The figures that every table shows; None where no row has that size."""
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
    """All figures of one predictor on a set of networks; those that are not defined are None."""
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
    """The number of times inside their intervals, which have this coverage."""

    coverage: float
    inside: int
    of: int


def intervals(rows: Sequence[Any]) -> IntervalsKept | None:
    """The intervals of `networks`, rows of an `Evaluation`, against their times; None without intervals."""
    sure = [r for r in rows if r.interval_ms is not None]
    return IntervalsKept(sure[0].coverage, sum(r.inside for r in sure), len(sure)) if sure else None
