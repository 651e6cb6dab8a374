"""Fitting the two formulas on counts.

The extended formula shrinks the cost of each kind of operation toward its family's cost. The two-regime
formula has an upper line, and a lower line below its breakpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from lolat.arrays import np
from lolat.device.predictors.additive import APART, FAMILY, TERMS, AdditiveCosts
from lolat.device.predictors.two_regime import THREE, TwoRegime
from lolat.fitting.least_squares import fit_families, fit_relative, point_weights
from lolat.graph.counts import FEATURES, MEMBERS

LEAST_SLOPE = 0.05  # on a flatter line, rounding errors would decide the ranking of small networks


def fit_additive_costs(
    features: np.ndarray,
    times: np.ndarray,
    names: Sequence[str] = FEATURES,
    whole: np.ndarray | None = None,
    with_six: bool = False,
) -> AdditiveCosts:
    """Fit the extended formula.

    `features`: (points, names) counts; `times`: (points,), ms; `names`: FEATURES and possibly others;
    `whole`: (points,) mask of whole networks, which weigh more. If all TERMS are among `names`, the formula
    has these terms, each shrunk toward its family; else it has FEATURES. `with_six`: also fit a formula to
    FEATURES alone, as `six_counts`.
    """
    terms = TERMS if set(TERMS) <= set(names) else FEATURES
    counts, of_six = (features[:, [list(names).index(t) for t in x]] for x in (terms, FEATURES))
    design = np.column_stack([counts, np.ones(len(times))])
    if terms == FEATURES:
        *costs, constant = fit_relative(design, times)
    else:
        weights = point_weights(np.zeros(len(times), bool) if whole is None else whole)
        families = [FAMILY.get(t) or APART[t] for t in terms]
        *costs, constant = fit_families(design, times, [*families, "call"], weights)
    # A kind absent from all points gets the cost of its family; an absent term without a family gets 0.
    known = counts.any(axis=0) | np.array([t in FAMILY for t in terms])
    slopes = np.where(known, costs, 0.0)
    six = fit_additive_costs(of_six, times) if with_six and terms != FEATURES else None
    rates = family_rates(terms, slopes, counts)
    return AdditiveCosts.linear(terms, slopes, constant, families=rates, six_counts=six)


def family_rates(names: Sequence[str], slopes: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """The mean cost of each family over all points, in ms per unit.

    `names`: (terms,); `slopes`: (terms,), ms per unit; `counts`: (points, terms).
    """
    rates = {}
    for family in MEMBERS:
        at = [i for i, name in enumerate(names) if FAMILY.get(name) == family]
        number = counts[:, at].sum()
        rates[family] = float((counts[:, at] @ slopes[at]).sum() / number) if number else 0.0
    return rates


# ---- The two-regime formula


def fit_two_regime(features: np.ndarray, times: np.ndarray) -> TwoRegime:
    """Fit the two-regime formula; `features`: (points, 3) counts; `times`: (points,), ms.

    The upper line is fitted to points that take at least the breakpoint, the lower line to the others. The
    breakpoints tried are quantiles of the times, then the time at which the best fit's two lines cross. The
    fit with the smallest sum of capped relative errors wins.
    """
    quantiles = np.quantile(times, np.linspace(0.1, 0.6, 11)).tolist()
    tried = [q for q in quantiles if _enough(times, q)] or [0.0]
    fits = [two_regime_at(features, times, breakpoint_ms) for breakpoint_ms in tried]
    best = min(fits, key=lambda formula: _loss(formula, features, times))
    for _ in range(3):  # a crossing splits the points better than a quantile
        crossing = _crossing(best, features, times)
        if crossing is None or not _enough(times, crossing):
            break
        other = two_regime_at(features, times, crossing)
        if _loss(other, features, times) >= _loss(best, features, times):
            break
        best = other
    return best


def two_regime_at(features: np.ndarray, times: np.ndarray, breakpoint_ms: float) -> TwoRegime:
    """The formula fitted with a given breakpoint in ms; with breakpoint 0 if too few points are above."""
    breakpoint_ms = breakpoint_ms if _enough(times, breakpoint_ms) else 0.0
    above = times >= breakpoint_ms
    design = np.column_stack([features, np.ones(len(times))])
    solution = fit_relative(design[above], times[above])
    *linear, constant = map(float, solution)
    base = design @ solution
    slope = _slope(base, times, breakpoint_ms, constant) if breakpoint_ms else 1.0
    return TwoRegime.linear(THREE, linear, constant, breakpoint_ms=breakpoint_ms, slope=slope)


def _linear(formula: TwoRegime, features: np.ndarray) -> np.ndarray:
    return features @ np.asarray(formula.slopes) + formula.constant


def _loss(formula: TwoRegime, features: np.ndarray, times: np.ndarray) -> float:
    error = np.abs(formula.bend(_linear(formula, features)) / times - 1.0)
    return float(np.minimum(error, 1.0).sum())


def _crossing(formula: TwoRegime, features: np.ndarray, times: np.ndarray) -> float | None:
    """The time in ms at which a line fitted to the points below the breakpoint crosses the upper line.

    None if these points are too few, or if the lines do not cross at a positive time.
    """
    base = _linear(formula, features)
    below = times < formula.breakpoint_ms
    if below.sum() < 3:
        return None
    design = np.column_stack([base[below], np.ones(int(below.sum()))]) / times[below, None]
    (slope, offset), *_ = np.linalg.lstsq(design, np.ones(len(design)), rcond=None)
    crossing = offset / (1.0 - slope) if abs(1.0 - slope) > 1e-6 else 0.0
    return float(crossing) if crossing > 0.0 else None


def _enough(times: np.ndarray, breakpoint_ms: float) -> bool:
    """True if a third of the points, and at least 5, are above a breakpoint."""
    return int((times >= breakpoint_ms).sum()) >= max(5, len(times) // 3)


def _slope(base: np.ndarray, times: np.ndarray, breakpoint_ms: float, constant: float) -> float:
    """The slope of the lower line, fitted to relative errors, through the point (breakpoint, breakpoint).

    `base`: (points,) ms of the upper line; `constant`: the upper line's time without work, ms. The slope is
    limited so that `slope * constant + offset >= 0`.
    """
    below = base < breakpoint_ms
    room = breakpoint_ms - constant
    most = (1.0 - 1e-12) * breakpoint_ms / room if room > 0.0 else np.inf
    if not below.any():
        return float(min(1.0, most))
    run = (base[below] - breakpoint_ms) / times[below]
    rise = (times[below] - breakpoint_ms) / times[below]
    slope = float(run @ rise / max(run @ run, 1e-12))
    return float(np.clip(slope, LEAST_SLOPE, most))
