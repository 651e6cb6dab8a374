"""The extended formula: the published one, plus the traffic, weights and operations of whole networks.

A whole network is one call but hundreds of operations, and much of a modern network's time is not
convolution. Where points tell kinds of operations apart (`lolat.graph.counts.MEMBERS`), so does the
formula.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lolat.device.predictors.formula import Formula
from lolat.graph.counts import COLUMNS, FEATURES, MEMBERS
from lolat.io.documents import NotNegative

FAMILY = {name: family for family, names in MEMBERS.items() for name in names} | {
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
NUMBERS = len(MEMBERS) + sum(name in TERMS for name in APART) + 1
"""How many numbers a fit of all TERMS takes from points alone: kinds are drawn to their families."""


class AdditiveCosts(Formula, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Linear in all counts, plus a constant per call.

    `six_counts`: the same formula fitted on the six counts alone, for who has no others; None where the
    formula has no other terms. `families`: ms per unit of each of MEMBERS, over all points that it was
    fitted to.
    """

    name: ClassVar[str] = "extended"
    six_counts: AdditiveCosts | None = None
    families: dict[str, NotNegative] = msgspec.field(default_factory=dict)

    @property
    def of_six_counts(self) -> Formula:
        """The form that is fitted on the six counts, where there is one."""
        return self.six_counts or self
