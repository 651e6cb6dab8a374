"""A formula as people read it: families of counts with a rate each."""

from __future__ import annotations

from dataclasses import dataclass

from lolat.fitting.predictors.extended import FAMILY, Extended
from lolat.graph.counts import KINDS, MEANINGS
from lolat.units import milliseconds

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
