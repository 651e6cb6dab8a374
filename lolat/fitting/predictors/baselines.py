"""Formulas that LoLat's own are compared with: FLOPs alone, a roofline as PALEO has it, two free lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lolat.errors import InputError
from lolat.fitting.least_squares import fit_relative
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.two_regime import FEATURES as THREE

FLOPS_FEATURES = ("flops",)
MOVED = ("acts", "inp", "traffic", "weights")
"""Elements that are read or written."""
PALEO_FEATURES = ("flops", *MOVED)
ELEMENT_BYTES = 4  # float32
FEWEST_BELOW = 3  # points that the lower of two lines is fitted to, at least


@dataclass(frozen=True)
class FlopsOnly(Formula):
    """`t = c*FLOPs + d`, both >= 0: what a designer predicts who counts only multiply-accumulates.

    With the constant, for without it a small block would be off by the whole cost of a call, and the
    comparison would say nothing about FLOPs.
    """

    name: ClassVar[str] = "flops"

    @classmethod
    def fit(cls, features: np.ndarray, times: np.ndarray) -> FlopsOnly:
        """Fit on (points, 1) multiply-accumulates and (points,) times in ms; see `fit_relative`."""
        slope, constant = fit_relative(np.column_stack([features, np.ones(len(times))]), times)
        return cls(FLOPS_FEATURES, (float(slope),), float(constant))


@dataclass(frozen=True)
class Paleo(Formula):
    """`t = FLOPs / peak + bytes / bandwidth`; the rates are per millisecond.

    Qi, Sparks, Talwalkar: PALEO, a performance model for deep neural networks, ICLR 2017. A layer takes
    the time to read its inputs, to compute and to write its outputs, one after the other, and a network
    the sum of its layers. Sums of quotients by the same two rates are quotients of the sums, so that the
    totals of a network or block are enough. (The maximum of compute and memory, layer by layer, would
    need the layers.) PALEO takes the rates from data sheets, so it divides them by a platform's percent
    of peak. Here they are the highest that was seen on the device, which has that in it, and nothing else
    is fitted.
    """

    name: ClassVar[str] = "paleo"
    peak: float = 0.0
    bandwidth: float = 0.0

    @classmethod
    def fit(cls, features: np.ndarray, times: np.ndarray) -> Paleo:
        """Peaks of (points, 5) counts, in the order of PALEO_FEATURES, and (points,) times in ms.

        The highest multiply-accumulates and bytes per ms of any point. InputError where no point
        computes or none moves anything.
        """
        bytes_moved = ELEMENT_BYTES * features[:, 1:].sum(axis=1)
        peak = float((features[:, 0] / times).max())
        bandwidth = float((bytes_moved / times).max())
        if peak <= 0.0 or bandwidth <= 0.0:
            what = "multiply-accumulates" if peak <= 0.0 else "elements read or written"
            raise InputError(
                f"a roofline needs points that compute and move data; all have 0 {what}"
            )
        slopes = (1.0 / peak, *[ELEMENT_BYTES / bandwidth] * len(MOVED))
        return cls(PALEO_FEATURES, slopes, 0.0, peak, bandwidth)


@dataclass(frozen=True)
class FreeLines(Formula):
    """`t = a*ACTS + b*INP + c*FLOPs + d`, and `slope*t + offset` below a breakpoint (0: there is none).

    The published two-regime formula without what LoLat asks of it: its two lines need not meet. LoLat's
    own is continuous and increasing, so that a ranking cannot turn round. Without that a fit to the same
    points may be closer, so the comparison shows both.
    """

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
        fits = (cls._at(features, times, float(c)) for c in (0.0, *quantiles))
        # Of equals the first.
        return min(filter(None, fits), key=lambda f: round(f._loss(features, times), 9))

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
        return cls(THREE, tuple(linear), constant, breakpoint, float(slope), float(offset))

    def _loss(self, features: np.ndarray, times: np.ndarray) -> float:
        answers = self.bend(features @ np.asarray(self.coefficients) + self.constant)
        return float(np.minimum(np.abs(answers / times - 1.0), 1.0).sum())
