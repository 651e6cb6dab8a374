"""FLOPs alone: what a designer who counts only multiply-accumulates predicts. For comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lolat.fitting import fit_relative
from lolat.predictors.formula import Formula

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
