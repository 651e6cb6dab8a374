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
    """How many times were inside their intervals, which have this coverage."""

    coverage: float
    inside: int
    of: int


def intervals(rows: Sequence[Any]) -> IntervalsKept | None:
    """How the intervals of `networks` did, rows of an `Evaluation`; None where there are none."""
    sure = [r for r in rows if r.interval_ms is not None]
    return IntervalsKept(sure[0].coverage, sum(r.inside for r in sure), len(sure)) if sure else None
