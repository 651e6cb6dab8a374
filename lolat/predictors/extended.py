"""The extended formula: the published one, plus the traffic, weights and operations of whole networks.

A whole network is one call but hundreds of operations, and much of a modern network's time is not
convolution. The terms beyond the six counts are used where points have them (`lolat.counts.EXTRAS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lolat.counts import COLUMNS, FEATURES
from lolat.fitting import fit_relative
from lolat.predictors.formula import Formula, from_coefficients


@dataclass(frozen=True)
class Extended(Formula):
    """Linear in all counts, plus a constant per call.

    `six` is the same formula fitted on the six counts alone, for who has no others; None where the
    formula has no other terms.
    """

    name: ClassVar[str] = "extended"
    six: Extended | None = None

    def to_dict(self) -> dict[str, Any]:
        """The formula as it stands in a model file."""
        document = super().to_dict()
        return document if self.six is None else {**document, "six_counts": self.six.to_dict()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Extended:
        """Read what `to_dict` wrote."""
        six = document.get("six_counts")
        return cls(*from_coefficients(document), None if six is None else cls.from_dict(six))

    @classmethod
    def fit(
        cls, features: np.ndarray, times: np.ndarray, names: Sequence[str] = COLUMNS
    ) -> Extended:
        """Fit on (points, names) counts, the six first, and (points,) times in ms."""
        *linear, constant = fit_relative(np.column_stack([features, np.ones(len(times))]), times)
        return cls(tuple(names), tuple(map(float, linear)), float(constant))

    @classmethod
    def fit_with_six(
        cls, features: np.ndarray, times: np.ndarray, names: Sequence[str] = COLUMNS
    ) -> Extended:
        """`fit`, and where `names` has more than the six counts, `six` too."""
        found = cls.fit(features, times, names)
        columns = [i for i, name in enumerate(names) if name in FEATURES]
        if len(columns) == len(names):
            return found
        kept = [names[i] for i in columns]
        return replace(found, six=cls.fit(features[:, columns], times, kept))
