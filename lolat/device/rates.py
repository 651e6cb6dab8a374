"""Shares and rates of computing, moving and starting operations on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lolat.device import Device
from lolat.device.predictors.additive import FAMILY
from lolat.graph.counts import GROUPS

PARTS = {
    "flops": "computing", "memory": "moving", "weights": "moving", "patches": "moving", "ops": "starting",
}  # fmt: skip
"""Group of a count (`lolat.graph.counts.GROUPS`) -> one of three parts of the time."""
PART_OF = {name: PARTS[group] for name, group in GROUPS.items()}
CONVOLUTIONS = ("pointwise_macs", "spatial_macs", "depthwise_macs", "grouped_macs")
HALF, SINGLE = 2, 4  # bytes of an element


@dataclass(frozen=True)
class Rates:
    """Shares of the time of a model's measured networks, and the rate of each part.

    Shares are means over networks and add up to 1; `starting` includes the call of a network. A rate is
    over all the time of its part, null if the formula has no such term: `gmacs_per_s` of all layers,
    `convolution_gmacs_per_s` of convolutions alone, `gb_per_s` of tensors and weights, read or written,
    `operation_us` an operation beside its work.
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
    """The rates of a model's default formula, over its networks, or over its blocks if it has no networks.

    None without points, and for a formula by operation.
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
        """The mean share of a part over the points."""
        of_part = ms[:, part == name].sum(axis=1) + formula.constant * (name == "starting")
        return float((of_part / totals).mean())

    def per_ms(unit: np.ndarray, term: np.ndarray) -> float | None:
        """Units of some counts per ms of some terms; both: (counts,) masks."""
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
