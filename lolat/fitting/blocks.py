"""From measured points to a model: fit every predictor, leave blocks out to see how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from lolat.device.domain import Domain, measures_of
from lolat.device.file import made
from lolat.device.intervals import as_dict
from lolat.device.predictors.additive import NUMBERS, TERMS, AdditiveCosts
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.two_regime import FEATURES as THREE
from lolat.device.predictors.two_regime import TwoRegime
from lolat.fitting.additive import fit_additive_costs
from lolat.fitting.cross_validation import cross_validate, errors, leave_out, log_errors
from lolat.fitting.intervals import interval_entry, network_entry
from lolat.fitting.least_squares import require_points
from lolat.fitting.points import Point, blocks_of, known_features, matrix, times
from lolat.fitting.two_regime import fit_two_regime
from lolat.graph.counts import FEATURES

LEAST_NETWORKS = 8  # left out, to say how sure predictions of networks are
Refit = Callable[[np.ndarray], Formula]  # (points,) which to fit on


def model_document(
    name: str,
    device: str,
    points: Sequence[Point],
    environment: Mapping[str, Any],
    noise: Mapping[str, Any],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """A whole model file. InputError where the points are too few."""
    fitted = fit_document(points, "float16" if environment.get("half") is True else "float32")
    return assembled(name, device, environment, warnings, fitted, points, noise)


def assembled(
    name: str,
    device: str,
    environment: Mapping[str, Any],
    warnings: Sequence[str],
    fitted: Mapping[str, Any],
    points: Sequence[Point] = (),
    noise: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A model file; `fitted`: its predictors, default, domain."""
    return {
        **made(name, device, environment),
        "points": [p.to_dict() for p in points],
        "noise": dict(noise or {}),
        "warnings": list(warnings),
        **fitted,
    }


def fit_document(points: Sequence[Point], dtype: str = "float32") -> dict[str, Any]:
    """The fitted part of a model file: predictors, default, domain.

    Every predictor whose counts all points have is fitted on all points; `error` and `residuals`
    (log of measured / predicted) come from fits that leave out one block (all its batch sizes), or one
    family of networks, at a time. Those of the two-regime formula keep the breakpoint that all points
    chose, so its left-out errors are slightly optimistic. The extended formula's form on the six counts has
    its own `error`.
    Where the residuals depend on the number of operations, `interval` says how (`lolat.device.intervals`).
    Raises InputError when the points are too few.
    """
    known, measured = known_features(points), times(points)
    require_points(len({tuple(p.counts[c] for c in THREE) for p in points}), len(THREE) + 1)
    three = matrix(points, THREE)
    two_regime = fit_two_regime(three, measured)
    candidates = [two_regime.breakpoint_ms]
    predictors = {
        TwoRegime.name: _entry(
            two_regime,
            points,
            lambda kept: fit_two_regime(three[kept], measured[kept], candidates=candidates),
            len(THREE),
        )
    }
    knows_kinds = set(TERMS) <= set(known)
    numbers = NUMBERS if knows_kinds else len(FEATURES)
    if set(FEATURES) <= set(known) and len(points) > numbers + 1:
        predictors[AdditiveCosts.name] = _extended_entry(points, known, numbers)
    domain = as_dict(domain_of(points, dtype))
    default = _default({n: e["error"] for n, e in predictors.items()}, knows_kinds)
    return {"predictors": predictors, "default": default, "domain": domain}


def _default(errors: Mapping[str, Mapping[str, Any]], knows_kinds: bool) -> str:
    """The extended formula, unless the two-regime one is better on what was left out of the fits.

    By how much is more than noise: a fifth of the error, or half of it where the points know kinds of
    operations, which whole networks need; and half a percent.
    """
    by_name = [errors.get(name, {}) for name in (TwoRegime.name, AdditiveCosts.name)]
    kind = "networks_left_out" if "networks_left_out" in by_name[1] else "left_out"
    two, extended = (error.get(kind, {}).get("median") for error in by_name)
    if extended is None:
        return AdditiveCosts.name if by_name[1] else TwoRegime.name
    better = two is not None and two + 0.005 < (0.5 if knows_kinds else 0.8) * extended
    return TwoRegime.name if better else AdditiveCosts.name


def _extended_entry(points: Sequence[Point], known: Sequence[str], numbers: int) -> dict[str, Any]:
    """The extended formula's entry, that of its form on the six counts in it."""
    measured, features, six = times(points), matrix(points, known), matrix(points, FEATURES)
    whole = np.array([p.whole for p in points])
    formula = fit_additive_costs(features, measured, known, whole, with_six=True)

    def fit_again(kept: np.ndarray) -> Formula:
        return fit_additive_costs(features[kept], measured[kept], known, whole[kept])

    def fit_six_again(kept: np.ndarray) -> Formula:
        return fit_additive_costs(six[kept], measured[kept], FEATURES)

    entry = _entry(formula, points, fit_again, numbers)
    if formula.six_counts is not None:
        left_out = _left_out_ms(points, fit_six_again, len(FEATURES))
        entry["six_counts"]["error"] = _errors(formula.six_counts, points, left_out)
    return entry


def _entry(formula: Formula, points: Sequence[Point], refit: Refit, numbers: int) -> dict[str, Any]:
    """A predictor's entry: coefficients, and how it does on blocks that it was not fitted on.

    Where the points are of so few blocks that the others cannot be fitted without one (`numbers`: that
    a fit needs), there are no residuals, and predictions have no interval.
    """
    left_out = _left_out_ms(points, refit, numbers)
    entry = formula.to_dict() | {"error": _errors(formula, points, left_out)}
    if left_out is None:
        return entry
    logarithms = log_errors(times(points), left_out)
    entry["residuals"] = [round(float(r), 6) for r in logarithms]
    if "ops" not in known_features(points):
        return entry
    ops, whole = matrix(points, ["ops"])[:, 0], np.array([p.whole for p in points])
    blocks = blocks_of(points)
    if interval := interval_entry(logarithms, ops, leave_out(blocks)):
        entry["interval"] = interval
    families = len({*compress(blocks, whole)})
    if whole.sum() >= LEAST_NETWORKS and families > 1:
        entry["networks"] = network_entry(logarithms[whole], ops[whole], families)
    return entry


def _left_out_ms(points: Sequence[Point], refit: Refit, numbers: int) -> np.ndarray | None:
    """(points,) ms of each point by a fit without its block; None if too few blocks remain for a fit."""
    folds = list(leave_out(blocks_of(points)))
    if min(int(kept.sum()) for kept in folds) <= numbers:
        return None
    return cross_validate(
        iter(folds),
        len(points),
        lambda kept, out: predicted_ms(refit(kept), [*compress(points, out)]),
    )


def _errors(
    formula: Formula, points: Sequence[Point], left_out: np.ndarray | None
) -> dict[str, Any]:
    """An entry's `error`: on its points, on blocks left out, on whole networks among them."""
    measured, whole = times(points), np.array([p.whole for p in points])
    error = {"fitted": errors(predicted_ms(formula, points), measured)}
    if left_out is not None:
        error["left_out"] = errors(left_out, measured)
        if whole.any():
            error["networks_left_out"] = errors(left_out[whole], measured[whole])
    return error


def predicted_ms(formula: Formula, points: Sequence[Point]) -> np.ndarray:
    """(points,) ms that `formula` says of points."""
    return formula.rows(matrix(points, formula.features))


def domain_of(points: Sequence[Point], dtype: str = "float32") -> Domain:
    """The domain spanned by measured points; an empty one where their counts do not tell."""
    if not points or not all(c in p.counts for p in points for c in FEATURES):
        return Domain()
    counts = matrix(points, FEATURES)
    ratios, sizes = (
        {
            k: (float(np.nanmin(v)), float(np.nanmax(v)))
            for k, v in measures.items()
            if (v >= 0).any()
        }
        for measures in measures_of(counts)
    )
    return Domain(frozenset(k for p in points for k in p.kinds), frozenset([dtype]), ratios, sizes)
