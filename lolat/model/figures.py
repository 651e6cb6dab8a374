"""Figures of predicted against measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SMALL_MS = 2.0  # published tables are split here


def errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """The figures that every table shows; None where there is no point of a size."""
    error = np.abs(predicted / measured - 1.0)
    large = measured >= SMALL_MS
    return {
        "points": len(measured),
        "median": float(np.median(error)),
        "within_10_percent": float((error <= 0.1).mean()),
        "median_from_2_ms": float(np.median(error[large])) if large.any() else None,
        "median_below_2_ms": float(np.median(error[~large])) if (~large).any() else None,
    }


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's correlation; None where it is not defined."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def r_squared(predicted: np.ndarray, measured: np.ndarray) -> float | None:
    """1 - residual / total sum of squares, in milliseconds; None for fewer than two networks."""
    total = float(((measured - measured.mean()) ** 2).sum())
    return None if total == 0 else 1.0 - float(((measured - predicted) ** 2).sum()) / total


def figures(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """All figures of one predictor on a set of networks."""
    from scipy.stats import rankdata

    return {
        **errors(predicted, measured),
        "mean": float(np.abs(predicted / measured - 1.0).mean()),
        "bias": float(np.median(predicted / measured - 1.0)),
        "r2": r_squared(predicted, measured),
        "pearson": correlation(predicted, measured),
        "spearman": correlation(rankdata(predicted), rankdata(measured)),
    }


CERTAINTY = 0.95  # of the bounds on how many lie inside


def share_bounds(inside: int, of: int, certainty: float = CERTAINTY) -> tuple[float, float]:
    """Between which shares the true one lies, where `inside` of `of` independent ones were inside.

    Exact, from the binomial distribution (Clopper and Pearson 1934). One network at several batch
    sizes is not independent, so that the bounds are then somewhat too narrow.
    """
    from scipy.stats import binomtest

    bounds = binomtest(inside, of).proportion_ci(certainty, method="exact")
    return float(bounds.low), float(bounds.high)


@dataclass(frozen=True)
class IntervalsKept:
    """How many times were inside their intervals, and between which shares the true one lies."""

    coverage: float
    inside: int
    of: int
    bounds: tuple[float, float]
    certainty: float
    median_width: float


def intervals(rows: Sequence[Any]) -> IntervalsKept | None:
    """How the intervals of `networks` did, rows of an `Evaluation`; None where there are none.

    `median_width`: of (high - low) / prediction, by the default predictor, as the intervals are.
    """
    sure = [r for r in rows if r.interval_ms is not None]
    if not sure:
        return None
    inside = sum(r.inside for r in sure)
    width = float(np.median([r.interval_width for r in sure]))
    bounds = share_bounds(inside, len(sure))
    return IntervalsKept(sure[0].coverage, inside, len(sure), bounds, CERTAINTY, width)
