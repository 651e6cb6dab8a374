"""Fitting a device to measured points: every predictor, with its errors on held-out blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from lolat.device.domain import Domain, measures_of
from lolat.device.file import DeviceFile, new_document
from lolat.device.intervals import as_dict
from lolat.device.predictors.additive import FREE_PARAMETERS, TERMS, AdditiveCosts
from lolat.device.predictors.formula import CONSTANT, Formula
from lolat.device.predictors.two_regime import THREE, TwoRegime
from lolat.fitting.cross_validation import (
    cross_validate,
    error_entry,
    folds_of,
    interval_entry,
    log_errors,
    network_entry,
)
from lolat.fitting.least_squares import require_points
from lolat.fitting.linear import fit_additive_costs, fit_two_regime, two_regime_at
from lolat.graph.counts import FEATURES
from lolat.tables.blocks import Point, blocks_of, known_features, matrix, times

LEAST_NETWORKS = 8  # held-out networks that an interval of networks needs
DIRECTIONS = 3
"""Number of directions that `fit_changes` keeps; chosen on the development split of the zoo
(benchmarks/zoo/spreads.py)."""
Refit = Callable[[np.ndarray], Formula]  # fits to the points of a mask, (points,)


def fitted_file(
    name: str,
    device: str,
    points: Sequence[Point],
    environment: Mapping[str, Any],
    noise: Mapping[str, Any],
    warnings: Sequence[str] = (),
) -> DeviceFile:
    """Fit a profile to points; InputError for too few points."""
    fitted = fit_document(points, "float16" if environment.get("half") is True else "float32")
    return DeviceFile(assembled(name, device, environment, warnings, fitted, points, noise))


def assembled(
    name: str,
    device: str,
    environment: Mapping[str, Any],
    warnings: Sequence[str],
    fitted: Mapping[str, Any],
    points: Sequence[Point] = (),
    noise: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document of a profile; `fitted`: its fields `predictors`, `default` and `domain`."""
    return {
        **new_document(name, device, environment),
        "points": [p.to_dict() for p in points],
        "noise": dict(noise or {}),
        "warnings": list(warnings),
        **fitted,
    }


def fit_document(points: Sequence[Point], dtype: str = "float32") -> dict[str, Any]:
    """The fitted part of a profile: predictors, default and domain; InputError for too few points.

    A predictor is fitted if all points have its counts. `error` and `residuals` (log(measured / predicted))
    come from fits that leave out a block with all its batch sizes, or a family of networks. These fits keep
    the breakpoint of the two-regime formula on all points, which makes its errors slightly optimistic.
    `interval` scales the residuals by the number of operations (`lolat.device.intervals`).
    """
    known, measured = known_features(points), times(points)
    require_points(len({tuple(p.counts[c] for c in THREE) for p in points}), len(THREE) + 1)
    three = matrix(points, THREE)
    two_regime = fit_two_regime(three, measured)
    predictors = {
        TwoRegime.name: _entry(
            two_regime,
            points,
            lambda kept: two_regime_at(three[kept], measured[kept], two_regime.breakpoint_ms),
            len(THREE),
        )
    }
    knows_kinds = set(TERMS) <= set(known)
    numbers = FREE_PARAMETERS if knows_kinds else len(FEATURES)
    if set(FEATURES) <= set(known) and len(points) > numbers + 1:
        predictors[AdditiveCosts.name] = _extended_entry(points, known, numbers)
    domain = as_dict(domain_of(points, dtype))
    default = _default({n: e["error"] for n, e in predictors.items()}, knows_kinds)
    return {"predictors": predictors, "default": default, "domain": domain}


def _default(errors: Mapping[str, Mapping[str, Any]], knows_kinds: bool) -> str:
    """The name of the extended formula, unless the two-regime formula has clearly smaller held-out errors.

    Clearly means smaller by 0.5 percentage points and by a fifth. If the points are split by kinds of
    operations, which predictions of whole networks need, it means smaller by half.
    """
    by_name = [errors.get(name, {}) for name in (TwoRegime.name, AdditiveCosts.name)]
    kind = "networks_left_out" if "networks_left_out" in by_name[1] else "left_out"
    two, extended = (error.get(kind, {}).get("median") for error in by_name)
    if extended is None:
        return AdditiveCosts.name if by_name[1] else TwoRegime.name
    better = two is not None and two + 0.005 < (0.5 if knows_kinds else 0.8) * extended
    return TwoRegime.name if better else AdditiveCosts.name


def _extended_entry(points: Sequence[Point], known: Sequence[str], numbers: int) -> dict[str, Any]:
    """The extended formula's entry in a profile; `six_counts` is the entry of a fit to six counts alone."""
    measured, features, six = times(points), matrix(points, known), matrix(points, FEATURES)
    whole = np.array([p.whole for p in points])
    formula = fit_additive_costs(features, measured, known, whole, with_six=True)

    def fit_again(kept: np.ndarray) -> Formula:
        return fit_additive_costs(features[kept], measured[kept], known, whole[kept])

    entry = _entry(formula, points, fit_again, numbers)
    if formula.six_counts is not None:
        fit_six = lambda kept: fit_additive_costs(six[kept], measured[kept])  # noqa: E731
        entry["six_counts"] = _entry(formula.six_counts, points, fit_six, len(FEATURES))
    return entry


def _entry(formula: Formula, points: Sequence[Point], refit: Refit, numbers: int) -> dict[str, Any]:
    """A predictor's entry in a profile: coefficients, errors and residuals.

    If not more than `numbers` points remain without the largest block, the entry has no residuals, and
    predictions have no interval.
    """
    left_out, refits = _left_out(points, refit, numbers)
    entry = formula.to_dict() | errors_of_points(points, predicted_ms(formula, points), left_out)
    if "networks" in entry and isinstance(formula, AdditiveCosts):
        networks = matrix([p for p in points if p.whole], formula.features)
        entry["networks"] |= fit_changes(formula, refits, networks)
    if left_out is not None and "ops" in known_features(points):
        logarithms, ops = log_errors(times(points), left_out), matrix(points, ["ops"])[:, 0]
        if interval := interval_entry(logarithms, ops, folds_of(blocks_of(points))):
            entry["interval"] = interval
    return entry


def errors_of_points(
    points: Sequence[Point], fitted_ms: np.ndarray, left_out_ms: np.ndarray | None
) -> dict[str, Any]:
    """The `error`, `residuals` and `networks` of a predictor's entry in a profile.

    `fitted_ms`: (points,) predictions of the fit to all points. `left_out_ms`: (points,) predictions of
    fits without the point's block; None if too few points remain.
    """
    measured, whole = times(points), np.array([p.whole for p in points])
    entry: dict[str, Any] = {"error": error_entry(measured, fitted_ms, left_out_ms, whole)}
    if left_out_ms is None:
        return entry
    residuals = log_errors(measured, left_out_ms)
    entry["residuals"] = [round(float(r), 6) for r in residuals]
    whole &= _has_measured_kinds(points)
    families = len({*compress(blocks_of(points), whole)})
    if whole.sum() >= LEAST_NETWORKS and families > 1 and "ops" in known_features(points):
        ops = matrix(points, ["ops"])[:, 0]
        entry["networks"] = network_entry(residuals[whole], ops[whole], families)
    return entry


def _has_measured_kinds(points: Sequence[Point]) -> np.ndarray:
    """(points,) mask of the points whose kinds of operations other blocks have too.

    The others are outside the measured range if left out: the error tells nothing of networks inside it.
    """
    of_blocks = {
        (block, kind)
        for block, p in zip(blocks_of(points), points, strict=True)
        for kind in p.kinds
    }
    blocks = Counter(kind for _, kind in of_blocks)
    return np.array([all(blocks[kind] > 1 for kind in p.kinds) for p in points], bool)


def _left_out(
    points: Sequence[Point], refit: Refit, numbers: int
) -> tuple[np.ndarray | None, list[Formula]]:
    """((points,) ms predicted by fits without the point's block, these fits); (None, []) if too few."""
    folds, refits = folds_of(blocks_of(points)), []
    if len(points) - max(Counter(folds.tolist()).values(), default=0) <= numbers:
        return None, []

    def predict(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
        refits.append(refit(kept))
        return predicted_ms(refits[-1], [*compress(points, out)])

    return cross_validate(folds, predict), refits


def fit_changes(
    formula: Formula, refits: Sequence[Formula], networks: np.ndarray, number: int = DIRECTIONS
) -> dict[str, Any]:
    """The `changes` and `typical` of NetworkErrors, from fits that each leave out a block or network.

    `networks`: (networks, features) counts of the predefined networks. The changes are the `number`
    independent directions that change the times of these networks most. The squares of all directions
    sum to the jackknife variance (Efron 1982).
    """
    names = (*formula.features, CONSTANT)
    costs = np.array(
        [[f.coefficients.get(name, 0.0) for name in names] for f in (formula, *refits)]
    )
    relative = (
        np.divide(costs[1:], costs[0], out=np.ones_like(costs[1:]), where=costs[0] > 0.0) - 1.0
    )
    shares = np.column_stack([networks, np.ones(len(networks))]) * costs[0]
    shares /= shares.sum(axis=1, keepdims=True)
    directions = np.linalg.svd(relative * shares.mean(axis=0), full_matrices=False)[0]
    changes = directions[:, :number].T @ relative
    variance = ((shares @ changes.T) ** 2).sum(axis=1)
    named = [
        {name: float(f"{c:.3g}") for name, c in zip(names, row, strict=True) if c}
        for row in changes.tolist()
    ]
    return {"changes": named, "typical": round(float(np.median(variance)), 6)}


def predicted_ms(formula: Formula, points: Sequence[Point]) -> np.ndarray:
    """Times of points predicted by a formula, (points,) ms."""
    return formula.rows(matrix(points, formula.features))


def domain_of(points: Sequence[Point], dtype: str = "float32") -> Domain:
    """The domain of measured points; an empty Domain if a point lacks counts."""
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
