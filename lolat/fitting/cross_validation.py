"""Errors on held-out measurements, and intervals fitted to them, for every formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.device.intervals import STEEPEST, Interval, NetworkErrors, as_dict, logarithms

SMALL_MS = 2.0  # published tables separate smaller times
LEAST_MS = 1e-9  # a prediction of 0 counts as this, which has a logarithm
STEPS = 50  # number of exponents tried from 0 to STEEPEST
TAIL = 0.1  # share of the points at either end, by operations, with a constant scale
LEAST_SCALED_POINTS = 30  # fewer points have a constant scale


def folds_of(names: Sequence[str], most: int = 80) -> np.ndarray:
    """The fold number of each row, (rows,); rows with the same name share a fold.

    There are at most `most` folds, which bounds the time to fit a long table.
    """
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    count = min(len(number), most)
    return np.array([number[name] % count for name in names], int)


def draw_folds(names: Sequence[Any], number: int, draw: np.random.Generator) -> np.ndarray:
    """A random fold, 0 to `number` - 1, for each row, (rows,); rows with the same name share a fold."""
    distinct = sorted({*names}, key=str)
    drawn = draw.permutation(len(distinct)) % number
    of = dict(zip(distinct, drawn.tolist(), strict=True))
    return np.array([of[name] for name in names], int)


def cross_validate(
    folds: np.ndarray, predict: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Predict each row by a fit without the row's fold; returns (rows,), such as times in ms.

    `folds`: (rows,) numbers. `predict(kept, out)`: fits to the rows in the mask `kept`, and returns
    predictions for the rows in the mask `out`.
    """
    found = np.empty(len(folds))
    for fold in np.unique(folds):
        kept = folds != fold
        found[~kept] = predict(kept, ~kept)
    return found


def log_errors(measured: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """log(measured / predicted), from times in ms."""
    return np.asarray(np.log(measured / np.maximum(predicted, LEAST_MS)))


# ---- Figures of predicted against measured times


def error_entry(
    measured: np.ndarray,
    fitted: np.ndarray,
    left_out: np.ndarray | None = None,
    networks: np.ndarray | None = None,
) -> dict[str, Any]:
    """The `error` of a predictor in a profile; all arrays are (times,) ms.

    `fitted`: predictions of the fit to all times. `left_out`: predictions of fits without the time's fold.
    `networks`: (times,) mask of the networks, whose held-out errors are listed separately as well.
    """
    error = {"fitted": error_figures(fitted, measured)}
    if left_out is not None:
        error["left_out"] = error_figures(left_out, measured)
        if networks is not None and networks.any():
            error["networks_left_out"] = error_figures(left_out[networks], measured[networks])
    return error


def error_figures(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """The error figures of every table; a figure for large or small times is None if there are none."""
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
    """All error figures of a predictor on a set of networks; a figure that is undefined is None."""
    from scipy.stats import spearmanr

    relative = predicted / measured - 1.0
    has_rank = len(measured) > 1 and np.ptp(predicted) > 0 and np.ptp(measured) > 0
    return {
        **error_figures(predicted, measured),
        "mean": float(np.abs(relative).mean()),
        "bias": float(np.median(relative)),
        "spearman": float(spearmanr(predicted, measured)[0]) if has_rank else None,
    }


@dataclass(frozen=True)
class IntervalsKept:
    """The number of times `inside` their intervals, the number `of` all times, the intervals' coverage."""

    coverage: float
    inside: int
    of: int


def intervals(rows: Sequence[Any]) -> IntervalsKept | None:
    """Count the times inside their intervals; None if no row has one. `rows`: see `Evaluation.networks`."""
    sure = [r for r in rows if r.interval_ms is not None]
    return IntervalsKept(sure[0].coverage, sum(r.inside for r in sure), len(sure)) if sure else None


# ---- Intervals from the errors of held-out points


def fit_interval(residuals: np.ndarray, ops: np.ndarray) -> Interval:
    """Fit the scale of an Interval; it is constant if there are fewer than LEAST_SCALED_POINTS points.

    `residuals`: (points,), log(measured / predicted); `ops`: (points,) numbers of operations. The exponent,
    0 to STEEPEST, maximizes the likelihood of Laplace-distributed residuals whose spread is proportional to
    the scale. The range of `ops` leaves out the share TAIL of the points at either end.
    """
    ends = np.quantile(ops, (TAIL, 1.0 - TAIL), method="nearest")
    low, high = (max(float(end), 1.0) for end in ends)
    if len(ops) < LEAST_SCALED_POINTS or low == high:
        return Interval()
    return Interval(_exponent(residuals, logarithms(ops, low, high)), (low, high))


def interval_entry(
    residuals: np.ndarray, ops: np.ndarray, folds: np.ndarray
) -> dict[str, Any] | None:
    """The Interval for a profile; None if errors do not depend on `ops`, as residuals alone then suffice.

    `residuals`: (points,), log(measured / predicted) of held-out points; `ops`: (points,) numbers of
    operations; `folds`: (points,) fold numbers. The scale for a point's score is fitted without the point's
    fold.
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
    """The NetworkErrors for a profile.

    `residuals`: (networks,), log(measured / predicted); `ops`: (networks,) numbers of operations;
    `families`: number of families of networks.
    """
    spread = round(math.sqrt(float((residuals**2).mean())), 6)
    return as_dict(NetworkErrors(float(np.quantile(ops, TAIL)), spread, families))


def _exponent(residuals: np.ndarray, x: np.ndarray) -> float:
    """The maximum-likelihood exponent b of residuals whose scale is proportional to exp(-b x).

    `x`: (points,), from `logarithms`.
    """
    tried = np.linspace(0.0, STEEPEST, STEPS + 1)
    size = np.maximum(np.abs(residuals), 1e-9)
    # -log likelihood / points at the best scale: mean(log s) + log(mean(|r| / s)), log s = -b * x.
    loss = np.log((size * np.exp(np.outer(tried, x))).mean(axis=1)) - tried * x.mean()
    return round(float(tried[np.argmin(loss)]), 6)
