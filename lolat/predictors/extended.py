"""The extended formula: the published one, plus the traffic, weights and operations of whole networks.

A whole network is one call but hundreds of operations, and much of a modern network's time is not
convolution. The terms beyond the six counts are used where points have them (`lolat.counts.EXTRAS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lolat.counts import COLUMNS, FEATURES
from lolat.fitting import fit_relative
from lolat.predictors.formula import Formula, from_coefficients

REQUIRED = FEATURES


@dataclass(frozen=True)
class Extended(Formula):
    """Linear in all counts, plus a constant per call."""

    name: ClassVar[str] = "extended"

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Extended:
        """Read what `to_dict` wrote."""
        return cls(*from_coefficients(document))

    @classmethod
    def fit(
        cls, features: np.ndarray, times: np.ndarray, names: Sequence[str] = COLUMNS
    ) -> Extended:
        """Fit on (points, names) counts and (points,) times in ms."""
        *linear, constant = fit_relative(np.column_stack([features, np.ones(len(times))]), times)
        return cls(tuple(names), tuple(map(float, linear)), float(constant))
