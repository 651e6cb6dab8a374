"""The extended formula: a cost for each unit of each count, and a cost for a call.

Beyond the published counts of convolutions it has traffic, weights and operations, and separate costs for
kinds of operations (`lolat.graph.counts.MEMBERS`) if the points tell them apart.
"""

from __future__ import annotations

from typing import ClassVar, Self

import msgspec

from lolat.device.predictors.formula import Formula
from lolat.graph.counts import COLUMNS, FEATURES, MEMBERS
from lolat.io.documents import NotNegative

FAMILY = {name: family for family, names in MEMBERS.items() for name in names} | {
    "acts": "elements", "inp": "elements", "traffic": "elements",
    "flops": "flops", "weights": "weights", "ops": "ops",
}  # fmt: skip
"""Count -> its family. Each of the six counts is a family of its own or belongs to `elements`."""
APART = {
    "patches": "elements", "unfolded": "elements", "maxima": "elements", "means": "elements",
    "border": "elements", "exps": "elements", "gelus": "elements",
    "repacked": "weights", "groups": "ops", "maps": "ops", "serial": "ops",
}  # fmt: skip
"""Count with an additional cost of its own -> the family whose cost is of a similar size."""
UNUSED_TERMS = (
    "exps", "gelus", "grouped_macs", "grouped_weights", "dense_elements", "pool_elements",
    "clip_elements", "depthwise_writes", "pool_ops", "norm_ops", "curve_ops", "move_ops",
)  # fmt: skip
"""Counts that are left out of the formula, because other counts of the same operations cover them
(benchmarks/zoo/ablation.py)."""
TERMS = tuple(
    n for n in COLUMNS if n not in (*FEATURES, *UNUSED_TERMS) and (n in FAMILY or n in APART)
)
"""The terms of a formula fitted to points whose counts are split by kind of operation."""
FREE_PARAMETERS = len(MEMBERS) + sum(name in TERMS for name in APART) + 1
"""Free parameters of a fit of all TERMS: one per family, one per extra cost, and the constant. Kinds shrink
toward their families and are not counted."""


class AdditiveCosts(Formula, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A linear formula of all counts, plus a constant for a call.

    `six_counts`: the formula fitted on the six counts alone, None if the formula itself has no other terms;
    `families`: ms a unit of each of MEMBERS, as the mean over the points of the fit.
    """

    name: ClassVar[str] = "extended"
    six_counts: AdditiveCosts | None = None
    families: dict[str, NotNegative] = msgspec.field(default_factory=dict)

    def scaled(self, factor: float) -> Self:
        """The formula of a device that takes `factor` times as long; see `Formula.scaled`."""
        return msgspec.structs.replace(
            super().scaled(factor),
            six_counts=self.six_counts and self.six_counts.scaled(factor),
            families={name: factor * ms for name, ms in self.families.items()},
        )

    @property
    def of_six_counts(self) -> Formula:
        """The formula fitted on the six counts."""
        return self.six_counts or self
