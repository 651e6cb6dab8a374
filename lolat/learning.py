"""From measured points to a model: fit every predictor, leave blocks out to see how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lolat.counts import FEATURES
from lolat.domain import Domain
from lolat.fitting import leave_out, require_points
from lolat.intervals import interval_entry
from lolat.points import Point, known_features, matrix, times
from lolat.predictors.extended import Extended
from lolat.predictors.formula import Formula
from lolat.predictors.two_regime import FEATURES as THREE
from lolat.predictors.two_regime import TwoRegime
from lolat.schema import FORMAT_VERSION, SCHEMA

SMALL_MS = 2.0  # published tables are split here
FEW_BLOCKS = (
    "the points are of too few different blocks to say how good the fit is on others; predictions "
    "come without an interval"
)


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


def fit_document(points: Sequence[Point], dtype: str = "float32") -> dict[str, Any]:
    """The fitted part of a model file: predictors, default, domain.

    Every predictor whose counts all points have is fitted on all points; `error` and `residuals`
    (log of measured / predicted) come from fits that leave out one block (all its batch sizes) at a
    time. Those of the two-regime formula keep the breakpoint that all points chose, so its left-out
    errors are slightly optimistic. The extended formula's form on the six counts has its own `error`.
    Where the residuals depend on the number of operations, `interval` says how (`lolat.intervals`).
    Raises InputError when the points are too few.
    """
    known = known_features(points)
    require_points(len(points), len(THREE) + 1)
    measured = times(points)
    three = matrix(points, THREE)
    best = TwoRegime.fit(three, measured)
    again = [best.breakpoint]
    predictors = {
        TwoRegime.name: _entry(
            best, points, three, lambda x, t: TwoRegime.fit(x, t, candidates=again)
        )
    }
    default = TwoRegime.name
    if set(FEATURES) <= set(known) and len(points) > len(known) + 1:
        features = matrix(points, known)
        extended = Extended.fit_with_six(features, measured, known)
        entry = _entry(extended, points, features, lambda x, t: Extended.fit(x, t, known))
        if extended.six is not None:
            entry["six_counts"]["error"], _ = _errors(
                extended.six,
                points,
                matrix(points, FEATURES),
                lambda x, t: Extended.fit(x, t, FEATURES),
            )
        predictors[Extended.name] = entry
        default = Extended.name
    domain = Domain.of_points(points, dtype)
    return {
        "predictors": predictors,
        "default": default,
        "domain": {} if domain is None else domain.to_dict(),
    }


def model_document(
    name: str,
    device: str,
    points: Sequence[Point],
    environment: Mapping[str, Any],
    noise: Mapping[str, Any],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """A whole model file."""
    fitted = fit_document(points, "float16" if environment.get("half") is True else "float32")
    remarks = list(warnings)
    if FEW_BLOCKS not in remarks and any(
        "residuals" not in p for p in fitted["predictors"].values()
    ):
        remarks.append(FEW_BLOCKS)
    return {
        "schema": SCHEMA,
        "version": FORMAT_VERSION,
        "name": name,
        "device": device,
        "points": [p.to_dict() for p in points],
        "environment": dict(environment),
        "noise": dict(noise),
        "warnings": remarks,
        **fitted,
    }


Refit = Callable[[np.ndarray, np.ndarray], Formula]  # (points, features), (points,) ms


def _entry(
    formula: Formula, points: Sequence[Point], features: np.ndarray, refit: Refit
) -> dict[str, Any]:
    """A predictor's entry: coefficients, and how it does on blocks that it was not fitted on.

    Where the points are of so few blocks that the others cannot be fitted without one, there are no
    residuals, and predictions have no interval.
    """
    entry: dict[str, Any] = formula.to_dict()
    entry["error"], left_out = _errors(formula, points, features, refit)
    if left_out is not None:
        logarithms = np.log(times(points) / np.maximum(left_out, 1e-9))
        entry["residuals"] = [round(float(r), 6) for r in logarithms]
        ops = matrix(points, ["ops"])[:, 0] if "ops" in known_features(points) else None
        interval = interval_entry(logarithms, ops, leave_out([p.name for p in points]))
        if interval is not None:
            entry["interval"] = interval
    return entry


def _errors(
    formula: Formula, points: Sequence[Point], features: np.ndarray, refit: Refit
) -> tuple[dict[str, Any], np.ndarray | None]:
    """An entry's `error`, and (points,) ms predicted without their blocks; None of too few blocks."""
    measured = times(points)
    error = {"fitted": errors(answers(formula, features), measured)}
    folds = list(leave_out([p.name for p in points]))
    if min(int(kept.sum()) for kept in folds) <= features.shape[1]:
        return error, None  # too few blocks to fit on the others
    left_out = np.empty(len(points))
    for kept in folds:
        left_out[~kept] = answers(refit(features[kept], measured[kept]), features[~kept])
    error["left_out"] = errors(left_out, measured)
    return error, left_out


def answers(formula: Formula, features: np.ndarray) -> np.ndarray:
    """(points,) latencies, ms, of (points, features) counts."""
    return formula.many(list(features.T), np.empty(len(features)))
