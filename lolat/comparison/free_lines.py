"""The published two-regime formula without what LoLat asks of it: its two lines need not meet.

LoLat's own (`lolat.predictors.two_regime`) is continuous and increasing, so that a ranking cannot turn
round. Without that a fit to the same points may be closer, so the comparison shows both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lolat.fitting import fit_relative
from lolat.predictors.formula import Formula
from lolat.predictors.two_regime import FEATURES

FEWEST_BELOW = 3  # points that the lower line is fitted to, at least


@dataclass(frozen=True)
class FreeLines(Formula):
    """`t = a*ACTS + b*INP + c*FLOPs + d`, and `slope*t + offset` below a breakpoint (0: there is none)."""

    name: ClassVar[str] = "two-regime-free"
    breakpoint: float = 0.0
    slope: float = 1.0
    offset: float = 0.0

    def bend(self, times: np.ndarray) -> np.ndarray:
        """Apply the lower line, in place."""
        below = times < self.breakpoint
        times[below] = self.slope * times[below] + self.offset
        return times

    def bend_one(self, time: float) -> float:
        """`bend` for one number."""
        return time if time >= self.breakpoint else self.slope * time + self.offset

    @classmethod
    def fit(cls, features: np.ndarray, times: np.ndarray) -> FreeLines:
        """Fit on (points, 3) counts and (points,) times in ms.

        The upper line (coefficients >= 0) on the points from a breakpoint on, the lower one on the
        others, least squares on the relative error. Of no breakpoint and the eleven times from the
        quantile 0.1 to 0.6 that one is taken whose capped relative errors have the smallest sum.
        """
        quantiles = np.quantile(times, np.linspace(0.1, 0.6, 11), method="nearest")
        tried = [0.0, *quantiles]
        fits = [cls._at(features, times, float(c)) for c in tried]
        found = [f for f in fits if f is not None]
        return min(found, key=lambda f: round(f._loss(features, times), 9))  # of equals the first

    @classmethod
    def _at(cls, features: np.ndarray, times: np.ndarray, breakpoint: float) -> FreeLines | None:
        """The fit with this breakpoint; None where too few points lie on either side of it."""
        above = times >= breakpoint
        design = np.column_stack([features, np.ones(len(times))])
        if breakpoint and (above.sum() < design.shape[1] + 1 or (~above).sum() < FEWEST_BELOW):
            return None
        solution = fit_relative(design[above], times[above])
        slope, offset = 1.0, 0.0
        if breakpoint:
            base = (design @ solution)[~above]
            relative = np.column_stack([base, np.ones(len(base))]) / times[~above, None]
            slope, offset = np.linalg.lstsq(relative, np.ones(len(base)), rcond=None)[0]
        *linear, constant = map(float, solution)
        return cls(FEATURES, tuple(linear), constant, breakpoint, float(slope), float(offset))

    def _loss(self, features: np.ndarray, times: np.ndarray) -> float:
        found = self.bend(features @ np.asarray(self.coefficients) + self.constant)
        return float(np.minimum(np.abs(found / times - 1.0), 1.0).sum())
