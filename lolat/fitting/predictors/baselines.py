"""A roofline as PALEO has it: FLOPs over a peak rate plus bytes over a bandwidth. For comparison.

Qi, Sparks, Talwalkar: PALEO, a performance model for deep neural networks, ICLR 2017. A layer takes the
time to read its inputs, to compute and to write its outputs, one after the other, and a network the sum
of its layers. Sums of quotients by the same two rates are quotients of the sums, so that the totals of a
network or block are enough. (The maximum of compute and memory, layer by layer, would need the layers.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lolat.errors import InputError
from lolat.fitting.least_squares import fit_relative
from lolat.fitting.predictors.formula import Formula

# ---- FLOPs alone: what a designer who counts only multiply-accumulates predicts. For
# comparison.

FEATURES = ("flops",)


@dataclass(frozen=True)
class FlopsOnly(Formula):
    """`t = c*FLOPs + d`, both >= 0.

    With the constant, for without it a small block would be off by the whole cost of a call, and the
    comparison would say nothing about FLOPs.
    """

    name: ClassVar[str] = "flops"

    @classmethod
    def fit(cls, features: np.ndarray, times: np.ndarray) -> FlopsOnly:
        """Fit on (points, 1) multiply-accumulates and (points,) times in ms; see `fit_relative`."""
        slope, constant = fit_relative(np.column_stack([features, np.ones(len(times))]), times)
        return cls(FEATURES, (float(slope),), float(constant))


# ---- paleo ----------------------------------------

MOVED = ("acts", "inp", "traffic", "weights")
"""Elements that are read or written."""
PALEO_FEATURES = ("flops", *MOVED)
ELEMENT_BYTES = 4  # float32


@dataclass(frozen=True)
class Paleo(Formula):
    """`t = FLOPs / peak + bytes / bandwidth`; the rates are per millisecond.

    PALEO takes the rates from data sheets, so it divides them by a platform's percent of peak. Here they
    are the highest that was seen on the device, which has that in it, and nothing else is fitted.
    """

    name: ClassVar[str] = "paleo"
    peak: float = 0.0
    bandwidth: float = 0.0

    @classmethod
    def fit(cls, features: np.ndarray, times: np.ndarray) -> Paleo:
        """Peaks of (points, 5) counts, in the order of FEATURES, and (points,) times in ms.

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
        per_element = ELEMENT_BYTES / bandwidth
        slopes = (1.0 / peak, *(per_element for _ in MOVED))
        return cls(PALEO_FEATURES, slopes, 0.0, peak, bandwidth)
