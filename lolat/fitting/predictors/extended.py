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
APART = (
    "patches",
    "groups",
    "maxima",
    "means",
    "exps",
    "gelus",
    "unfolded",
    "border",
    "serial",
    "maps",
)
"""Counts of no family: what some work costs on top of it."""
TERMS = tuple(n for n in COLUMNS if n not in FEATURES and (n in FAMILY or n in APART))
"""Of the formula of a device whose points know kinds of operations."""
ALONE = ("call", "border", "weights", "ops")
"""What a block that is measured alone pays more than inside a network: a call, its ends, weights and
operations that nothing has just used."""
NUMBERS = len(KINDS) + len(APART) + len(ALONE) + 1
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
    formula has no other terms. `alone`: ms per unit of ALONE, by which a block that is measured alone
    takes longer than inside a network; empty where no whole network was measured to tell. `families`: ms
    per unit of each of KINDS, over all points that it was fitted to; its kinds are told beside it.
    """

    name: ClassVar[str] = "extended"
    six: Extended | None = None
    alone: Mapping[str, float] = field(default_factory=dict)
    families: Mapping[str, float] = field(default_factory=dict)

    def alone_ms(self, counts: Mapping[str, int]) -> float:
        """What a block of `counts` takes longer when it is measured alone, ms."""
        return sum(rate * (1 if n == "call" else counts[n]) for n, rate in self.alone.items())

    def to_dict(self) -> dict[str, Any]:
        """The formula as it stands in a model file."""
        document = super().to_dict()
        if self.alone:
            document["alone"] = dict(self.alone)
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
            {n: float(v) for n, v in document.get("alone", {}).items()},
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

        Where `names` has all TERMS, these are the formula's, each kind drawn to its family; else the six
        counts. `whole`: (points,), which points are whole networks; the others pay ALONE where there are
        any.
        """
        if set(TERMS) <= set(names):
            return cls._by_kind(features, times, list(names), whole)
        six = features[:, [list(names).index(name) for name in FEATURES]]
        design = np.column_stack([six, np.ones(len(times))])
        linear = fit_relative(design, times)
        rates = family_rates(FEATURES, linear, six)
        return cls(FEATURES, tuple(map(float, linear[:-1])), float(linear[-1]), families=rates)

    @classmethod
    def _by_kind(
        cls, features: np.ndarray, times: np.ndarray, names: list[str], whole: np.ndarray | None
    ) -> Extended:
        is_whole = np.zeros(len(times), bool) if whole is None else np.asarray(whole, bool)
        parts = [features[:, [names.index(t) for t in TERMS]]]
        # Where branches run side by side, the longest path costs what elsewhere all operations do.
        of = FAMILY | {"serial": "serial"}
        families: list[str | None] = [of.get(t) for t in TERMS]
        extra = ALONE if is_whole.any() and not is_whole.all() else ()
        if extra:
            own = np.column_stack(
                [np.ones(len(times)) if n == "call" else features[:, names.index(n)] for n in extra]
            )
            parts.append(own * ~is_whole[:, None])
            families += [None] * len(extra)
        design = np.column_stack([*parts, np.ones(len(times))])
        coefficients = fit_families(
            design, times, [*families, None], point_weights(times, is_whole)
        )
        linear = tuple(map(float, coefficients[: len(TERMS)]))
        alone = dict(zip(extra, map(float, coefficients[len(TERMS) : -1]), strict=True))
        rates = family_rates(TERMS, coefficients, parts[0])
        return cls(TERMS, linear, float(coefficients[-1]), None, alone, rates)

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
