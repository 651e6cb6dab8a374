"""The extended formula: the published one, plus the traffic, weights and operations of whole networks.

A whole network is one call but hundreds of operations, and much of a modern network's time is not
convolution. Where points tell kinds of operations apart (`lolat.graph.counts.KINDS`), so does the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from lolat.arrays import np
from lolat.fitting.least_squares import fit_families, fit_relative, point_weights
from lolat.fitting.predictors.formula import Formula
from lolat.graph.counts import COLUMNS, FEATURES, KINDS
from lolat.io.documents import NotNegative

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
"""A count of work that costs something on top of its family -> the family whose cost is of its size."""
LEFT_OUT = (
    "exps", "gelus", "grouped_macs", "grouped_weights", "dense_elements", "pool_elements",
    "clip_elements", "depthwise_writes", "pool_ops", "norm_ops", "curve_ops", "move_ops",
)  # fmt: skip
"""Counts without which predictions stay as good: other counts of the same operations pay for them
(benchmarks/zoo/ablation.py)."""
TERMS = tuple(n for n in COLUMNS if n not in (*FEATURES, *LEFT_OUT) and (n in FAMILY or n in APART))
"""Of the formula of a device whose points know kinds of operations."""
NUMBERS = len(KINDS) + sum(name in TERMS for name in APART) + 1
"""How many numbers a fit of all TERMS takes from points alone: kinds are drawn to their families."""


class Extended(Formula, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Linear in all counts, plus a constant per call.

    `six_counts`: the same formula fitted on the six counts alone, for who has no others; None where the
    formula has no other terms. `families`: ms per unit of each of KINDS, over all points that it was
    fitted to.
    """

    name: ClassVar[str] = "extended"
    six_counts: Extended | None = None
    families: dict[str, NotNegative] = msgspec.field(default_factory=dict)

    @property
    def of_six_counts(self) -> Formula:
        """The form that is fitted on the six counts, where there is one."""
        return self.six_counts or self

    @classmethod
    def fit(
        cls,
        features: np.ndarray,
        times: np.ndarray,
        names: Sequence[str] = FEATURES,
        whole: np.ndarray | None = None,
        with_six: bool = False,
    ) -> Extended:
        """Fit on (points, names) counts, the six among them, and (points,) times in ms.

        Where `names` has all TERMS, these are the formula's, each drawn to its family, and `with_six` fits
        `six_counts` too; else the six counts. `whole`: (points,), which points are whole networks, which
        count for more.
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
        # A kind that no point has costs what its family does; what comes on top of that is not known.
        known = counts.any(axis=0) | np.array([t in FAMILY for t in terms])
        slopes = np.where(known, costs, 0.0)
        six = cls.fit(of_six, times) if with_six and terms != FEATURES else None
        rates = family_rates(terms, slopes, counts)
        return cls.linear(terms, slopes, constant, families=rates, six_counts=six)


def family_rates(names: Sequence[str], slopes: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Milliseconds per unit of each family: the time of its kinds over their number, in all points.

    `names`: (terms,); `slopes`: (terms,), ms; `counts`: (points, terms).
    """
    rates = {}
    for family in KINDS:
        at = [i for i, name in enumerate(names) if FAMILY.get(name) == family]
        number = counts[:, at].sum()
        rates[family] = float((counts[:, at] @ slopes[at]).sum() / number) if number else 0.0
    return rates
