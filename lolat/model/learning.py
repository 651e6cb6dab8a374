"""From measured points to a model: fit every predictor, leave blocks out to see how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lolat.fitting.domain import Domain
from lolat.fitting.intervals import as_dict, interval_entry, network_entry
from lolat.fitting.least_squares import leave_out, require_points
from lolat.fitting.points import Point, known_features, matrix, times
from lolat.fitting.predictors.extended import NUMBERS, TERMS, Extended
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.two_regime import FEATURES as THREE
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.graph.counts import FEATURES
from lolat.model.file import made

SMALL_MS = 2.0  # published tables are split here
LEAST_NETWORKS = 8  # left out, to say how sure predictions of networks are
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
    Where the residuals depend on the number of operations, `interval` says how (`lolat.fitting.intervals`).
    Raises InputError when the points are too few.
    """
    known, measured = known_features(points), times(points)
    require_points(len({tuple(p.counts[c] for c in THREE) for p in points}), len(THREE) + 1)
    three = matrix(points, THREE)
    best = TwoRegime.fit(three, measured)

    def fit_again(kept: np.ndarray) -> Formula:
        return TwoRegime.fit(three[kept], measured[kept], candidates=[best.breakpoint_ms])

    predictors = {TwoRegime.name: _entry(best, points, fit_again, len(THREE))}
    default = TwoRegime.name
    numbers = NUMBERS if set(TERMS) <= set(known) else len(FEATURES)
    if set(FEATURES) <= set(known) and len(points) > numbers + 1:
        predictors[Extended.name] = _extended_entry(points, known, numbers)
        default = Extended.name
    domain = as_dict(Domain.of_points(points, dtype))
    return {"predictors": predictors, "default": default, "domain": domain}


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
    few = any("residuals" not in p for p in fitted["predictors"].values())
    remarks = [*warnings, *([FEW_BLOCKS] if few and FEW_BLOCKS not in warnings else [])]
    return assembled(name, device, environment, remarks, fitted, points, noise)


def assembled(
    name: str,
    device: str,
    environment: Mapping[str, Any],
    warnings: Sequence[str],
    fitted: Mapping[str, Any],
    points: Sequence[Point] = (),
    noise: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A model file of what was `fitted`: predictors, default, domain."""
    return {
        **made(name, device, environment),
        "points": [p.to_dict() for p in points],
        "noise": dict(noise or {}),
        "warnings": list(warnings),
        **fitted,
    }


Refit = Callable[[np.ndarray], Formula]  # (points,) which to fit on


def _extended_entry(points: Sequence[Point], known: Sequence[str], numbers: int) -> dict[str, Any]:
    """The extended formula's entry, that of its form on the six counts in it."""
    measured, features, six = times(points), matrix(points, known), matrix(points, FEATURES)
    whole = np.array([p.whole for p in points])
    formula = Extended.fit_with_six(features, measured, known, whole)

    def fit_again(kept: np.ndarray) -> Formula:
        return Extended.fit(features[kept], measured[kept], known, whole[kept])

    def fit_six_again(kept: np.ndarray) -> Formula:
        return Extended.fit(six[kept], measured[kept], FEATURES)

    entry = _entry(formula, points, fit_again, numbers)
    if formula.six_counts is not None:
        error, _ = _errors(formula.six_counts, points, fit_six_again, len(FEATURES))
        entry["six_counts"]["error"] = error
    return entry


def _entry(formula: Formula, points: Sequence[Point], refit: Refit, numbers: int) -> dict[str, Any]:
    """A predictor's entry: coefficients, and how it does on blocks that it was not fitted on.

    Where the points are of so few blocks that the others cannot be fitted without one (`numbers`: that
    a fit needs), there are no residuals, and predictions have no interval.
    """
    entry = formula.to_dict()
    entry["error"], left_out = _errors(formula, points, refit, numbers)
    if left_out is None:
        return entry
    logarithms = np.log(times(points) / np.maximum(left_out, 1e-9))
    entry["residuals"] = [round(float(r), 6) for r in logarithms]
    if "ops" not in known_features(points):
        return entry
    ops, whole = matrix(points, ["ops"])[:, 0], np.array([p.whole for p in points])
    if interval := interval_entry(logarithms, ops, leave_out([p.name for p in points])):
        entry["interval"] = interval
    if whole.sum() >= LEAST_NETWORKS:
        entry["networks"] = network_entry(logarithms[whole], ops[whole])
    return entry


def _errors(
    formula: Formula, points: Sequence[Point], refit: Refit, numbers: int
) -> tuple[dict[str, Any], np.ndarray | None]:
    """An entry's `error`, and (points,) ms predicted without their blocks; None of too few blocks."""
    measured = times(points)
    error = {"fitted": errors(predicted_ms(formula, points), measured)}
    folds = list(leave_out([p.name for p in points]))
    if min(int(kept.sum()) for kept in folds) <= numbers:
        return error, None  # too few blocks to fit on the others
    left_out = np.empty(len(points))
    for kept in folds:
        others = [p for p, is_kept in zip(points, kept, strict=True) if not is_kept]
        left_out[~kept] = predicted_ms(refit(kept), others)
    error["left_out"] = errors(left_out, measured)
    whole = np.array([p.whole for p in points])
    if whole.any():
        error["networks_left_out"] = errors(left_out[whole], measured[whole])
    return error, left_out


def predicted_ms(formula: Formula, points: Sequence[Point]) -> np.ndarray:
    """(points,) ms that `formula` says of points."""
    return formula.rows(matrix(points, formula.features))
