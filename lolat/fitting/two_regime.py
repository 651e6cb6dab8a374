"""Fits the two-regime formula: the upper line, then a breakpoint with a lower line through it."""

from __future__ import annotations

from collections.abc import Sequence

from lolat.arrays import np
from lolat.device.predictors.two_regime import THREE, TwoRegime
from lolat.fitting.least_squares import fit_relative

LEAST_SLOPE = 0.05  # a flatter line would rank small networks by rounding


def fit_two_regime(
    features: np.ndarray, times: np.ndarray, candidates: Sequence[float] = ()
) -> TwoRegime:
    """Fit to (points, 3) counts and (points,) times in ms.

    The upper line is fitted to points that take at least the breakpoint, the lower one to the others.
    `candidates` for the breakpoint, in ms: if not given, quantiles of the times, then the crossing of the
    best one's two lines. The smallest sum of capped relative errors wins. The breakpoint is 0 if all
    candidates leave too few points above.
    """
    tried = candidates or list(np.quantile(times, np.linspace(0.1, 0.6, 11)))
    fits = [_at(features, times, float(c)) for c in tried if _enough(times, float(c))]
    fits = fits or [_at(features, times, 0.0)]
    best = min(fits, key=lambda formula: _loss(formula, features, times))
    for _ in range(0 if candidates else 3):  # each crossing separates the points better
        crossing = _crossing(best, features, times)
        if crossing is None or not _enough(times, crossing):
            break
        other = _at(features, times, crossing)
        if _loss(other, features, times) >= _loss(best, features, times):
            break
        best = other
    return best


def _at(features: np.ndarray, times: np.ndarray, breakpoint_ms: float) -> TwoRegime:
    """The fit with this breakpoint."""
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
    """The time at which a free line through the points below the breakpoint meets the upper one."""
    base = _linear(formula, features)
    below = times < formula.breakpoint_ms
    if below.sum() < 3:
        return None
    design = np.column_stack([base[below], np.ones(int(below.sum()))]) / times[below, None]
    (slope, offset), *_ = np.linalg.lstsq(design, np.ones(len(design)), rcond=None)
    crossing = offset / (1.0 - slope) if abs(1.0 - slope) > 1e-6 else 0.0
    return float(crossing) if crossing > 0.0 else None


def _enough(times: np.ndarray, breakpoint_ms: float) -> bool:
    """True if enough points (a third, and 5) lie above a breakpoint to fit the upper line."""
    return int((times >= breakpoint_ms).sum()) >= max(5, len(times) // 3)


def _slope(base: np.ndarray, times: np.ndarray, breakpoint_ms: float, constant: float) -> float:
    """Slope of the lower line through (breakpoint, breakpoint), by least squares on relative errors.

    It is small enough for `slope * constant + offset >= 0`.
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
