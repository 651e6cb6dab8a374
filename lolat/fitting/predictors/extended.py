"""The extended formula: the published one, plus the traffic, weights and operations of whole networks.

A whole network is one call but hundreds of operations, and much of a modern network's time is not
convolution. Where points tell kinds of operations apart (`lolat.graph.counts.KINDS`), so does the formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from lolat.arrays import np
from lolat.fitting.least_squares import fit_families, fit_relative, point_weights
from lolat.fitting.predictors.formula import Formula, from_coefficients
from lolat.graph.counts import COLUMNS, FEATURES, KINDS

FAMILY = {name: family for family, names in KINDS.items() for name in names} | {
    "acts": "elements", "inp": "elements", "traffic": "elements",
    "flops": "flops", "weights": "weights", "ops": "ops",
}  # fmt: skip
"""The family that a count is of; the six counts are the whole of one, or parts of `elements`."""
APART = {
    "patches": "elements", "unfolded": "elements", "maxima": "elements", "means": "elements",
    "border": "elements", "exps": "elements", "gelus": "elements",
    "groups": "ops", "maps": "ops", "serial": "ops",
}  # fmt: skip
"""What some work costs on top of its family: a count -> the family whose cost is of its size."""
LEFT_OUT = (
    "exps", "gelus", "grouped_macs", "grouped_weights", "dense_elements", "pool_elements",
    "clip_elements", "depthwise_writes", "pool_ops", "norm_ops", "curve_ops", "move_ops",
)  # fmt: skip
"""Counts without which predictions stay as good: what they are of has other counts too, which pay for
them (benchmarks/zoo/ablation.py)."""
TERMS = tuple(n for n in COLUMNS if n not in (*FEATURES, *LEFT_OUT) and (n in FAMILY or n in APART))
"""Of the formula of a device whose points know kinds of operations."""
NUMBERS = len(KINDS) + sum(name in TERMS for name in APART) + 1
"""That a fit of all TERMS finds out of points alone: kinds are drawn to their families."""


def family_rates(
    names: Sequence[str], coefficients: np.ndarray, counts: np.ndarray
) -> dict[str, float]:
    """Milliseconds per unit of each family: the time of its kinds over their number, in all points.

    `names`: (terms,); `coefficients`: (terms, or more), ms; `counts`: (points, terms).
    """
    found = {}
    for family in KINDS:
        at = [i for i, name in enumerate(names) if FAMILY.get(name) == family]
        number = counts[:, at].sum()
        found[family] = float((counts[:, at] @ coefficients[at]).sum() / number) if number else 0.0
    return found


@dataclass(frozen=True)
class Extended(Formula):
    """Linear in all counts, plus a constant per call.

    `six` is the same formula fitted on the six counts alone, for who has no others; None where the
    formula has no other terms. `families`: ms per unit of each of KINDS, over all points that it was
    fitted to; its kinds are told beside it.
    """

    name: ClassVar[str] = "extended"
    six: Extended | None = None
    families: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The formula as it stands in a model file."""
        document = super().to_dict()
        if self.families:
            document["families"] = dict(self.families)
        return document if self.six is None else {**document, "six_counts": self.six.to_dict()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Extended:
        """Read what `to_dict` wrote."""
        six = document.get("six_counts")
        return cls(
            *from_coefficients(document),
            None if six is None else cls.from_dict(six),
            {n: float(v) for n, v in document.get("families", {}).items()},
        )

    @classmethod
    def fit(
        cls,
        features: np.ndarray,
        times: np.ndarray,
        names: Sequence[str] = FEATURES,
        whole: np.ndarray | None = None,
    ) -> Extended:
        """Fit on (points, names) counts, the six among them, and (points,) times in ms.

        Where `names` has all TERMS, these are the formula's, each drawn to its family; else the six
        counts. `whole`: (points,), which points are whole networks, which count for more.
        """
        if set(TERMS) <= set(names):
            counts = features[:, [list(names).index(t) for t in TERMS]]
            return cls.of_terms(TERMS, counts, times, whole)
        six = features[:, [list(names).index(name) for name in FEATURES]]
        design = np.column_stack([six, np.ones(len(times))])
        linear = fit_relative(design, times)
        rates = family_rates(FEATURES, linear, six)
        return cls(FEATURES, tuple(map(float, linear[:-1])), float(linear[-1]), families=rates)

    @classmethod
    def of_terms(
        cls,
        terms: Sequence[str],
        counts: np.ndarray,
        times: np.ndarray,
        whole: np.ndarray | None = None,
    ) -> Extended:
        """Fit a cost for each of `terms`, drawn to its family, on (points, terms) counts; see `fit`."""
        is_whole = np.zeros(len(times), bool) if whole is None else np.asarray(whole, bool)
        families = [FAMILY.get(t) or APART[t] for t in terms]
        coefficients = fit_families(
            np.column_stack([counts, np.ones(len(times))]),
            times,
            [*families, "call"],
            point_weights(is_whole),
        )
        # A kind that no point has costs what its family does; what comes on top of that is not known.
        known = counts.any(axis=0) | np.array([t in FAMILY for t in terms])
        linear = np.where(known, coefficients[:-1], 0.0)
        rates = family_rates(terms, linear, counts)
        return cls(tuple(terms), tuple(map(float, linear)), float(coefficients[-1]), None, rates)

    @classmethod
    def fit_with_six(
        cls,
        features: np.ndarray,
        times: np.ndarray,
        names: Sequence[str] = FEATURES,
        whole: np.ndarray | None = None,
    ) -> Extended:
        """`fit`, and where the formula has other terms than the six counts, `six` too."""
        formula = cls.fit(features, times, names, whole)
        if formula.features == FEATURES:
            return formula
        six = features[:, [list(names).index(name) for name in FEATURES]]
        return replace(formula, six=cls.fit(six, times))
