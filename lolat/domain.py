"""What was measured: whether a query lies inside it, and what is to be said where it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.counts import FEATURES
from lolat.points import Point, matrix

SLACK = 2.0  # how far outside the measured range still counts as inside, as a factor
NEGLIGIBLE = 0.05  # of a network's time
OUTSIDE_WIDENING = 2.0  # a query outside the domain gets an interval this many times as wide (log)
UNMEASURED_WIDENING = 4.0  # the same for a kind of operation or a data type that no block had


@dataclass(frozen=True)
class Domain:
    """What was measured: kinds of operation, the ratios of a block's counts, its size.

    `ratios` and `sizes` map a name to (smallest, largest); sizes only bound from above, because a
    smaller block is always made of the same things. A query is judged block by block.
    """

    kinds: frozenset[str]
    dtypes: frozenset[str]
    ratios: Mapping[str, tuple[float, float]]
    sizes: Mapping[str, tuple[float, float]]

    @classmethod
    def of_points(cls, points: Sequence[Point], dtype: str = "float32") -> Domain | None:
        """The domain spanned by measured points; None when their counts do not tell."""
        if not points or not all(c in p.counts for p in points for c in FEATURES):
            return None
        counts = matrix(points, FEATURES)
        ratios, sizes = _ratios(counts), _sizes(counts)
        return cls(
            frozenset(k for p in points for k in p.kinds),
            frozenset([dtype]),
            {k: _range(v) for k, v in ratios.items() if np.isfinite(v).any()},
            {k: _range(v) for k, v in sizes.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """The domain as it stands in a model file."""
        return {
            "kinds": sorted(self.kinds),
            "dtypes": sorted(self.dtypes),
            "ratios": {k: list(v) for k, v in self.ratios.items()},
            "sizes": {k: list(v) for k, v in self.sizes.items()},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Domain | None:
        """Read what `to_dict` wrote; None where a model file has no domain."""
        if not document.get("ratios"):
            return None
        return cls(
            frozenset(document.get("kinds", ())),
            frozenset(document.get("dtypes", ())),
            {k: (float(v[0]), float(v[1])) for k, v in document["ratios"].items()},
            {k: (float(v[0]), float(v[1])) for k, v in document.get("sizes", {}).items()},
        )

    def outside(
        self, counts: np.ndarray, names: Sequence[str], shares: np.ndarray | None = None
    ) -> list[str]:
        """What of the blocks lies outside: one remark per measure and side (more, fewer).

        `counts`: (blocks, 6) in the order of FEATURES; `names`: their names; `shares`: (blocks,) of the
        network's time, equal if not given. Blocks that together take less than NEGLIGIBLE of the time
        cannot make the answer wrong and are passed over.
        """
        remarks = []
        weight = np.full(len(names), 1.0 / max(len(names), 1)) if shares is None else shares
        unbounded = (0.0, math.inf)
        for what, values in (_ratios(counts) | _sizes(counts)).items():
            low, high = self.ratios.get(what) or (0.0, self.sizes.get(what, unbounded)[1])
            finite = np.isfinite(values)
            sides = {"more": values > high * SLACK, "fewer": values < low / SLACK}
            for side, beyond in sides.items():
                wrong = finite & beyond
                if wrong.any() and float(weight[wrong].sum()) >= NEGLIGIBLE:
                    first, many = names[int(np.argmax(wrong))], int(wrong.sum())
                    remarks.append(
                        f"{many} of {len(names)} blocks {'has' if many == 1 else 'have'} {side} "
                        f"{what} than any measured block ({'first: ' * (many > 1)}{first!r})"
                    )
        return remarks

    def unmeasured(self, kinds: Sequence[str], dtypes: Sequence[str]) -> list[str]:
        """Remarks on kinds of operation and data types that no measured block had."""
        remarks = []
        strange = sorted(set(kinds) - self.kinds) if self.kinds else []
        if strange:
            remarks.append(f"no measured block has the operation{_s(strange)} {', '.join(strange)}")
        other = sorted(set(dtypes) - self.dtypes)
        if other:
            measured = ", ".join(sorted(self.dtypes))
            remarks.append(f"measured in {measured}, asked for {', '.join(other)}")
        return remarks


def _s(items: Sequence[str]) -> str:
    return "s" if len(items) > 1 else ""


def _range(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return float(finite.min()), float(finite.max())


def _ratios(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Proportions of blocks; NaN where a block has none of either."""
    acts, inp, flops, traffic, _, ops = counts.T
    elements = acts + inp + traffic
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "FLOPs per element": np.where(flops > 0, flops / elements, np.nan),
            "elements per operation": np.where(ops > 0, elements / ops, np.nan),
        }


def _sizes(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Sizes of blocks."""
    acts, inp, flops, traffic, weights, _ = counts.T
    return {"FLOPs": flops, "elements": acts + inp + traffic, "weights": weights}
