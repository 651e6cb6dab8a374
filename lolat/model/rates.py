"""Where the time of the networks that a model was learned from goes, at three rates: what people ask first.

The formula's terms are summed up over the points, by what they are of (`lolat.graph.counts.GROUPS`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lolat.fitting.predictors.extended import FAMILY
from lolat.fitting.predictors.kernels import Kernels
from lolat.graph.counts import GROUPS
from lolat.model import Model

PARTS = {
    "flops": "computing", "memory": "moving", "weights": "moving", "patches": "moving", "ops": "starting",
}  # fmt: skip
"""What the time of a count is of (`lolat.graph.counts.GROUPS`) -> one of three parts."""
CONVOLUTIONS = ("pointwise_macs", "spatial_macs", "depthwise_macs", "grouped_macs")
HALF, SINGLE = 2, 4  # bytes of an element


@dataclass(frozen=True)
class Rates:
    """Shares of the time of the networks that a model was learned from, and the rates of each part.

    Shares are of the mean network and add up to 1; `starting` has the call of a network too. A rate is over
    all the time of its part, null where the formula has none: `gmacs_per_s` of all layers,
    `convolution_gmacs_per_s` of the products of convolutions alone, `gb_per_s` of tensors and weights, read
    or written; `operation_us`: what an operation takes beside its work.
    """

    computing: float
    moving: float
    starting: float
    gmacs_per_s: float | None
    convolution_gmacs_per_s: float | None
    gb_per_s: float | None
    operation_us: float | None
    call_ms: float


def rates_of(model: Model) -> Rates | None:
    """The rates of a model's default formula; None where it has no points or goes operation by operation.

    They are over its whole networks, or over all its points where none of them is one.
    """
    document = model.document
    if not model.predictors or isinstance(model.predictor(), Kernels):
        return None
    formula, points = model.predictor(), document["points"]
    points = [p for p in points if p.get("whole")] or points
    used = [name for name in formula.features if name in GROUPS]
    if not points or any(p.get(name) is None for p in points for name in used[:1]):
        return None
    counts = np.array([[p.get(name) or 0 for name in used] for p in points], float)
    ms = counts * [c for n, c in zip(formula.features, formula.slopes, strict=True) if n in used]
    totals = ms.sum(axis=1) + formula.constant
    if not (totals > 0.0).all():
        return None

    part_of = np.array([PARTS[GROUPS[name]] for name in used])

    def share(part: str) -> float:
        of_part = ms[:, part_of == part].sum(axis=1) + formula.constant * (part == "starting")
        return float((of_part / totals).mean())

    def per_ms(number: Sequence[str], takes: np.ndarray) -> float | None:
        """Units of these counts in a millisecond of the terms that `takes` says."""
        time = float(ms[:, takes].sum())
        units = float(counts[:, np.isin(used, number)].sum())
        return units / time if time > 0.0 and units > 0.0 else None

    def of_part(part: str, *families: str) -> float | None:
        """Units of the families in a millisecond of all that the part is made of."""
        return per_ms([n for n in used if FAMILY.get(n) in families], part_of == part)

    size = HALF if document["environment"].get("half") is True else SINGLE
    macs, convolutions = (
        of_part("computing", "flops"),
        per_ms(CONVOLUTIONS, np.isin(used, CONVOLUTIONS)),
    )
    moved, started = of_part("moving", "elements", "weights"), of_part("starting", "ops")
    return Rates(
        computing=share("computing"),
        moving=share("moving"),
        starting=share("starting"),
        gmacs_per_s=macs and macs / 1e6,
        convolution_gmacs_per_s=convolutions and convolutions / 1e6,
        gb_per_s=moved and moved * size / 1e6,
        operation_us=started and 1e3 / started,
        call_ms=formula.constant,
    )
