"""A formula as people read it: families of counts with a rate each, and where the time of networks goes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lolat.fitting.predictors.extended import FAMILY, Extended
from lolat.graph.counts import GROUPS, KINDS, MEANINGS
from lolat.model import Model
from lolat.units import milliseconds

# ---- Families: how far each kind is from the rate of its family.

FAMILIES = {
    "flops": ("computing", "Multiplying and adding."),
    "elements": ("moving", "Reading and writing tensors."),
    "weights": ("weights", "Reading kernels, once a pass whatever the batch size."),
    "ops": ("operations", "What each operation costs before it does anything."),
}
"""Names and sentences of the families of counts; the fifth is one call of the framework."""
PER = {
    "MACs": (1e9, "GMAC"),
    "elements": (1e6, "million elements"),
    "weights": (1e6, "million weights"),
    "operations": (1.0, "operation"),
    "groups": (1.0, "group"),
}
"""Unit of a count -> the number of them that a rate is of, and its name."""


@dataclass(frozen=True)
class Rate:
    """What a count costs on a device: `ms` for each `per`.

    `name`: of the count (`lolat.graph.counts`); `words`, `why`: its name and sentence in front of people;
    `of_family`: how many times its family's rate, None of a count of no family and where that is free.
    """

    name: str
    words: str
    ms: float
    per: str
    why: str
    of_family: float | None = None

    def __str__(self) -> str:
        """A few words: "8.1 ms a GMAC", "12.3 us an operation"."""
        article = "an" if self.per[0] in "aeio" else "a"
        number = milliseconds(self.ms) if self.ms >= 0.1 else f"{1e3 * self.ms:.3g} us"
        return f"{number} {article} {self.per}"


@dataclass(frozen=True)
class Family:
    """Work that a device does at one rate, and how far its kinds are from that, the dearest first."""

    rate: Rate
    kinds: tuple[Rate, ...]


@dataclass(frozen=True)
class Families:
    """An extended formula: a network takes the sum of its counts times their rates, and one call.

    `besides`: what some work costs on top of its family; `call_ms`: one call of the framework.
    """

    families: tuple[Family, ...]
    besides: tuple[Rate, ...]
    call_ms: float


def families_of(formula: Extended) -> Families:
    """The families and kinds of a formula, as fitted: kinds that cost nothing are there too."""
    families, cost = [], dict(zip(formula.features, formula.slopes, strict=True))
    for family, (words, why) in FAMILIES.items():
        common = formula.families.get(family, 0.0)
        kinds = [_rate(n, ms, common) for n, ms in cost.items() if FAMILY.get(n) == family]
        number, per = PER[MEANINGS[KINDS[family][0]].unit]
        kinds.sort(key=lambda kind: -kind.ms)
        families.append(Family(Rate(family, words, common * number, per, why), tuple(kinds)))
    besides = tuple(_rate(n, ms) for n, ms in cost.items() if n not in FAMILY)
    return Families(tuple(families), besides, formula.constant)


def _rate(name: str, ms: float, common: float = 0.0) -> Rate:
    """The rate of a count that costs `ms` a unit; `common`: its family's."""
    meaning = MEANINGS[name]
    number, per = PER[meaning.unit]
    of_family = ms / common if common > 0.0 else None
    return Rate(name, meaning.words, ms * number, per, meaning.why, of_family)


# ---- Three rates of the networks that a model was learned from: what people ask first.

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


def rates_of(model: Model) -> Rates | None:
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
