"""Errors on held-out measurements, and intervals by them, for every formula and every kind of data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.device.intervals import STEEPEST, Interval, NetworkErrors, as_dict, logarithms

SMALL_MS = 2.0  # published tables are split here
LEAST_MS = 1e-9  # so that a prediction of 0 has a logarithm
STEPS = 50  # exponents tried from 0 to STEEPEST
TAIL = 0.1  # share of the points beyond either end of the range in which the scale changes
LEAST_SCALED_POINTS = 30  # of a scale that depends on the number of operations


def folds_of(names: Sequence[str], most: int = 80) -> np.ndarray:
    """(rows,) the fold of each row, one for each name.

    With more than `most` names several share a fold, which bounds the time to fit a long table.
    """
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    count = min(len(number), most)
    return np.array([number[name] % count for name in names], int)


def draw_folds(names: Sequence[Any], number: int, draw: np.random.Generator) -> np.ndarray:
    """(rows,) the fold of each row, drawn below `number`; rows of one name share a fold."""
    distinct = sorted({*names}, key=str)
    drawn = draw.permutation(len(distinct)) % number
    of = dict(zip(distinct, drawn.tolist(), strict=True))
    return np.array([of[name] for name in names], int)


def cross_validate(
    folds: np.ndarray, predict: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """(rows,) a figure of each row, such as its ms, by a fit without its fold.

    `folds`: (rows,) numbers; `predict`: fits to the rows of a first mask and returns the figures of the
    rows of a second one.
    """
    found = np.empty(len(folds))
    for fold in np.unique(folds):
        kept = folds != fold
        found[~kept] = predict(kept, ~kept)
    return found


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


# ---- Intervals by errors of held-out points


def fit_interval(residuals: np.ndarray, ops: np.ndarray) -> Interval:
    """Fit the scale to (points,) `residuals`, log(measured / predicted), of blocks of `ops` operations.

    The exponent, 0 to STEEPEST, maximizes the likelihood of Laplace-distributed residuals whose spread
    is proportional to s. The range leaves TAIL of the points beyond either end. Constant for fewer
    than LEAST_SCALED_POINTS.
    """
    ends = np.quantile(ops, (TAIL, 1.0 - TAIL), method="nearest")
    low, high = (max(float(end), 1.0) for end in ends)
    if len(ops) < LEAST_SCALED_POINTS or low == high:
        return Interval()
    return Interval(_exponent(residuals, logarithms(ops, low, high)), (low, high))


def interval_entry(
    residuals: np.ndarray, ops: np.ndarray, folds: np.ndarray
) -> dict[str, Any] | None:
    """The Interval for a model file; None if the scale is constant, as residuals are then the scores.

    `residuals`: (points,), log(measured / predicted) of held-out points; `ops`: (points,), operations;
    `folds`: (points,) numbers. A score's scale is fitted without its fold, so that no point influences its
    own.
    """
    scale = fit_interval(residuals, ops)
    if scale.exponent == 0.0:
        return None
    x = logarithms(ops, *scale.ops)

    def scores(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
        return np.abs(residuals[out]) * np.exp(_exponent(residuals[kept], x[kept]) * x[out])

    rounded = tuple(round(float(s), 6) for s in cross_validate(folds, scores))
    return as_dict(Interval(scale.exponent, scale.ops, rounded))


def network_entry(residuals: np.ndarray, ops: np.ndarray, families: int) -> dict[str, Any]:
    """The NetworkErrors for a model file.

    `residuals`: (networks,), log(measured / predicted); `ops`: (networks,); `families`: their number.
    """
    spread = round(math.sqrt(float((residuals**2).mean())), 6)
    return as_dict(NetworkErrors(float(np.quantile(ops, TAIL)), spread, families))


def _exponent(residuals: np.ndarray, x: np.ndarray) -> float:
    """The likeliest exponent, the smallest of equals; `x`: `logarithms`."""
    tried = np.linspace(0.0, STEEPEST, STEPS + 1)
    size = np.maximum(np.abs(residuals), 1e-9)
    # -log likelihood / points at the best scale: mean(log s) + log(mean(|r| / s)), log s = -b * x.
    loss = np.log((size * np.exp(np.outer(tried, x))).mean(axis=1)) - tried * x.mean()
    return round(float(tried[np.argmin(loss)]), 6)
