"""Fit the intervals of a formula to errors on held-out points: entries of a model file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from lolat.device.intervals import STEEPEST, Interval, Networks, as_dict, logarithms

STEPS = 50  # exponents tried from 0 to STEEPEST
TAIL = 0.1  # share of the points beyond either end of the range in which the scale changes
LEAST_POINTS = 30  # of a scale that depends on the number of operations


def fit_interval(residuals: np.ndarray, ops: np.ndarray) -> Interval:
    """Fit the scale to (points,) `residuals`, log(measured / predicted), of blocks of `ops` operations.

    The exponent, 0 to STEEPEST, maximizes the likelihood of Laplace-distributed residuals whose spread
    is proportional to s. The range leaves TAIL of the points beyond either end. Constant for fewer
    than LEAST_POINTS.
    """
    ends = np.quantile(ops, (TAIL, 1.0 - TAIL), method="nearest")
    low, high = (max(float(end), 1.0) for end in ends)
    if len(ops) < LEAST_POINTS or low == high:
        return Interval()
    return Interval(_exponent(residuals, logarithms(ops, low, high)), (low, high))


def interval_entry(
    residuals: np.ndarray, ops: np.ndarray, folds: Iterable[np.ndarray]
) -> dict[str, Any] | None:
    """The Interval for a model file; None if the scale is constant, as residuals are then the scores.

    `residuals`: (points,), log(measured / predicted) of held-out points; `ops`: (points,), operations;
    `folds`: masks of the points that stayed in each fit. A score's scale is fitted without its fold, so
    that no point influences its own.
    """
    scale = fit_interval(residuals, ops)
    if scale.exponent == 0.0:
        return None
    x = logarithms(ops, *scale.ops)
    scores = np.empty(len(residuals))
    for fitted in folds:
        exponent = _exponent(residuals[fitted], x[fitted])
        scores[~fitted] = np.abs(residuals[~fitted]) * np.exp(exponent * x[~fitted])
    rounded = tuple(round(float(s), 6) for s in scores)
    return as_dict(Interval(scale.exponent, scale.ops, rounded))


def network_entry(residuals: np.ndarray, ops: np.ndarray, families: int) -> dict[str, Any]:
    """The Networks for a model file.

    `residuals`: (networks,), log(measured / predicted); `ops`: (networks,); `families`: their number.
    """
    spread = round(math.sqrt(float((residuals**2).mean())), 6)
    return as_dict(Networks(float(np.quantile(ops, TAIL)), spread, families))


def _exponent(residuals: np.ndarray, x: np.ndarray) -> float:
    """The likeliest exponent, the smallest of equals; `x`: `logarithms`."""
    tried = np.linspace(0.0, STEEPEST, STEPS + 1)
    size = np.maximum(np.abs(residuals), 1e-9)
    # -log likelihood / points at the best scale: mean(log s) + log(mean(|r| / s)), log s = -b * x.
    loss = np.log((size * np.exp(np.outer(tried, x))).mean(axis=1)) - tried * x.mean()
    return round(float(tried[np.argmin(loss)]), 6)
