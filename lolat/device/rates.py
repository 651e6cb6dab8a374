"""Where the time of networks goes on a device, in three parts with their rates: what people ask first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lolat.device import Device
from lolat.device.predictors.additive import FAMILY
from lolat.graph.counts import GROUPS

PARTS = {
    "flops": "computing", "memory": "moving", "weights": "moving", "patches": "moving", "ops": "starting",
}  # fmt: skip
"""The group of a count (`lolat.graph.counts.GROUPS`) -> one of three parts of the time."""
PART_OF = {name: PARTS[group] for name, group in GROUPS.items()}
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


def rates_of(model: Device) -> Rates | None:
    """The rates of a model's default formula; None where it has no points or goes operation by operation.

    They are over its whole networks, or over all its points where none of them is one.
    """
    points = model.document.get("points", [])
    points = [p for p in points if p.get("whole")] or points
    if not points or not model.predictors or model.predictor().by_operation:
        return None
    formula, names = model.predictor(), model.predictor().features
    counts = np.array([[p.get(name) or 0 for name in names] for p in points], float)
    ms = counts * [formula.coefficients[name] for name in names]
    totals = ms.sum(axis=1) + formula.constant
    part, family = (np.array([of.get(name, "") for name in names]) for of in (PART_OF, FAMILY))
    is_convolution = np.isin(names, CONVOLUTIONS)

    def share(name: str) -> float:
        """The share of a part, the mean of the points."""
        of_part = ms[:, part == name].sum(axis=1) + formula.constant * (name == "starting")
        return float((of_part / totals).mean())

    def per_ms(unit: np.ndarray, term: np.ndarray) -> float | None:
        """Units of some counts in a millisecond of some terms; both: (counts,), which."""
        units, time = float(counts[:, unit].sum()), float(ms[:, term].sum())
        return units / time if time > 0.0 and units > 0.0 else None

    macs = per_ms(family == "flops", part == "computing")
    of_convolutions = per_ms(is_convolution, is_convolution)
    moved = per_ms(np.isin(family, ("elements", "weights")), part == "moving")
    started = per_ms(family == "ops", part == "starting")
    size = HALF if model.document["environment"].get("half") is True else SINGLE
    return Rates(
        computing=share("computing"),
        moving=share("moving"),
        starting=share("starting"),
        gmacs_per_s=macs and macs / 1e6,
        convolution_gmacs_per_s=of_convolutions and of_convolutions / 1e6,
        gb_per_s=moved and moved * size / 1e6,
        operation_us=started and 1e3 / started,
        call_ms=formula.constant,
    )
