"""The published formula: a*ACTS + b*INP + c*FLOPs + d, with another line below a breakpoint.

The answer is `t` from the breakpoint on and `slope * t + offset` below it. Here the two lines meet at
the breakpoint, the lower one rises and is never negative, so that a ranking cannot turn round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lolat.arrays import np
from lolat.fitting.least_squares import fit_relative
from lolat.fitting.predictors.formula import Formula
from lolat.io.documents import NotNegative, Positive

FEATURES = ("acts", "inp", "flops")
LEAST_SLOPE = 0.05  # a flatter line would rank small networks by rounding


class TwoRegime(Formula, frozen=True, kw_only=True, dict=True):
    """The two-regime formula; `offset = breakpoint * (1 - slope)` makes it continuous."""

    name: ClassVar[str] = "two-regime"
    breakpoint_ms: NotNegative
    slope: Positive

    def bend(self, times: np.ndarray) -> np.ndarray:
        """Apply the lower line, in place."""
        below = times < self.breakpoint_ms
        times[below] = self.breakpoint_ms - self.slope * (self.breakpoint_ms - times[below])
        return times

    def bend_one(self, time: float) -> float:
        """`bend` for one number.

        `slope * time + offset`, written so that rounding cannot lift it above the breakpoint.
        """
        if time >= self.breakpoint_ms:
            return time
        return self.breakpoint_ms - self.slope * (self.breakpoint_ms - time)

    def to_dict(self) -> dict[str, Any]:
        """The formula as a model file holds it, with the offset."""
        return super().to_dict() | {"offset_ms": self.breakpoint_ms * (1.0 - self.slope)}

    @classmethod
    def fit(
        cls, features: np.ndarray, times: np.ndarray, candidates: Sequence[float] = ()
    ) -> TwoRegime:
        """Fit on (points, 3) counts and (points,) times in ms.

        The linear part is fitted on the points that take at least the breakpoint, the lower line on
        the others. `candidates` for the breakpoint, in ms: as given, or quantiles of the times and
        where the best of those's two lines would cross. The one with the smallest sum of capped
        relative errors wins; there is none (0) only where all leave too few points above.
        """
        tried = candidates or list(np.quantile(times, np.linspace(0.1, 0.6, 11)))
        fits = [cls._at(features, times, float(c)) for c in tried if _enough(times, float(c))]
        fits = fits or [cls._at(features, times, 0.0)]
        best = min(fits, key=lambda f: f._loss(features, times))
        for _ in range(0 if candidates else 3):  # each crossing shows better what lies below it
            crossing = best._crossing(features, times)
            if crossing is None or not _enough(times, crossing):
                break
            other = cls._at(features, times, crossing)
            if other._loss(features, times) >= best._loss(features, times):
                break
            best = other
        return best

    @classmethod
    def _at(cls, features: np.ndarray, times: np.ndarray, breakpoint_ms: float) -> TwoRegime:
        """The fit with this breakpoint."""
        above = times >= breakpoint_ms
        design = np.column_stack([features, np.ones(len(times))])
        solution = fit_relative(design[above], times[above])
        *linear, constant = map(float, solution)
        base = design @ solution
        slope = _slope(base, times, breakpoint_ms, constant) if breakpoint_ms else 1.0
        return cls.linear(FEATURES, linear, constant, breakpoint_ms=breakpoint_ms, slope=slope)

    def _linear(self, features: np.ndarray) -> np.ndarray:
        return features @ np.asarray(self.slopes) + self.constant

    def _loss(self, features: np.ndarray, times: np.ndarray) -> float:
        error = np.abs(self.bend(self._linear(features)) / times - 1.0)
        return float(np.minimum(error, 1.0).sum())

    def _crossing(self, features: np.ndarray, times: np.ndarray) -> float | None:
        """Where a free line through the points below the breakpoint meets the upper one."""
        base = self._linear(features)
        below = times < self.breakpoint_ms
        if below.sum() < 3:
            return None
        design = np.column_stack([base[below], np.ones(int(below.sum()))]) / times[below, None]
        (slope, offset), *_ = np.linalg.lstsq(design, np.ones(len(design)), rcond=None)
        crossing = offset / (1.0 - slope) if abs(1.0 - slope) > 1e-6 else 0.0
        return float(crossing) if crossing > 0.0 else None


def _enough(times: np.ndarray, breakpoint_ms: float) -> bool:
    """Whether enough points (a third, and 5) lie above a breakpoint to fit the upper line."""
    return int((times >= breakpoint_ms).sum()) >= max(5, len(times) // 3)


def _slope(base: np.ndarray, times: np.ndarray, breakpoint_ms: float, constant: float) -> float:
    """Slope of the lower line through (breakpoint, breakpoint), from the points below it.

    Least squares on the relative error; at most what keeps `slope * constant + offset >= 0`.
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
