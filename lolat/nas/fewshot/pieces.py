"""What a fit of a search space is made of: pieces with a cost each, and what is known of the costs before.

A network's latency is the sum of its pieces' costs (a convolution on an edge, a block in a layer, what
never changes). A cost is the formula's terms, with coefficients of the device, times a factor of its
own, which is 1 unless measurements say otherwise:

    cost = (a*MACs + b*depthwise MACs + c*traffic + d*weights + e*ops) * exp(factors of the piece)

All coefficients are positive. How far apart they may be, and how far a factor may be from 1, is the
prior: few measurements move little, many move everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lolat.graph.counts import COLUMNS
from lolat.nas.tables import Table

TERMS = ("macs", "depthwise", "traffic", "weights", "ops")
MACS, DEPTHWISE, TRAFFIC, WEIGHTS, OPS = range(len(TERMS))
TERM_SPREAD = np.array([1.5, 1.5, 1.5, 1.5, 2.0])
"""Standard deviation of each coefficient's logarithm, around equal shares of an average network.

Wide: on a GPU that waits to be told what to do next `ops` is all of the time, on a phone nearly none.
"""
OVERLAP = 4.0  # the exponent of a soft maximum; at equal parts it is 19 % above the larger
_FREE = 50.0  # a scale may be anything: e**50 times too large or small


def work(table: Table) -> np.ndarray:
    """(choices of the table ..., TERMS) counts at batch size 1; traffic is that of convolutions too."""
    counts = dict(zip(COLUMNS, np.moveaxis(table.at(1).astype(np.float64), -1, 0), strict=True))
    moved = counts["acts"] + counts["inp"] + counts["traffic"]
    depthwise = counts["depthwise_macs"]
    terms = [counts["flops"] - depthwise, depthwise, moved, counts["weights"], counts["ops"]]
    return np.stack(terms, axis=-1)


@dataclass(frozen=True)
class Pieces:
    """Pieces of a space under one assumption on how a device runs its networks.

    `counts(rows)`: (networks, positions) integers into (networks, pieces) how often each occurs.
    `terms`: (pieces, TERMS), a term's counts over those of an average network. `factors`: (pieces,
    factors) 0 or 1, which factors a piece shares; `spread`: (factors,) standard deviations of their
    logarithms. `log_prior`: how likely the assumption is before anything is measured. `overlap`: starting
    operations and their work go on side by side, so the larger counts rather than the sum.
    """

    name: str
    words: str
    counts: Callable[[np.ndarray], np.ndarray]
    terms: np.ndarray
    factors: np.ndarray
    spread: np.ndarray
    log_prior: float
    overlap: bool = False

    @property
    def size(self) -> int:
        """Number of parameters: the scale, the terms' and the factors' logarithms."""
        return 1 + len(TERMS) + len(self.spread)

    @property
    def prior_spread(self) -> np.ndarray:
        """(size,) standard deviations of the parameters; their means are 0, the scale is free."""
        return np.concatenate([[_FREE], TERM_SPREAD, self.spread])

    def costs(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((pieces,) costs, (pieces, size) their derivatives by the parameters)."""
        terms = self.terms * np.exp(parameters[1 : 1 + len(TERMS)])
        base, parts = _overlapped(terms) if self.overlap else (terms.sum(axis=1), terms)
        scale = np.exp(parameters[0] + self.factors @ parameters[1 + len(TERMS) :])
        costs = base * scale
        return costs, np.column_stack(
            [costs, parts * scale[:, None], costs[:, None] * self.factors]
        )

    def latency(self, counts: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((networks,) latencies, (networks, size) derivatives of their logarithms)."""
        costs, slopes = self.costs(parameters)
        times = counts @ costs
        return times, (counts @ slopes) / times[:, None]


def _overlapped(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Soft maximum of the ops term and the rest: ((pieces,), its parts by term (pieces, TERMS))."""
    start = terms[:, OPS]
    work = terms.sum(axis=1) - start
    largest = np.maximum(np.maximum(start, work), 1e-300)
    power_start = (start / largest) ** OVERLAP
    power_work = (work / largest) ** OVERLAP
    together = np.maximum(power_start + power_work, 1e-300)
    base = largest * together ** (1.0 / OVERLAP)
    base[start + work == 0.0] = 0.0
    # d base / d log start = base * share of start in the sum of powers; the same for work's terms.
    parts = terms * (base * power_work / together / np.maximum(work, 1e-300))[:, None]
    parts[:, OPS] = base * power_start / together
    return base, parts


def relative(terms: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Counts by term over those of an average network; a term that the space lacks stays 0."""
    return terms / np.where(average > 0.0, average, 1.0)


def groups(memberships: Sequence[tuple[np.ndarray, float]]) -> tuple[np.ndarray, np.ndarray]:
    """((pieces, factors) 0 or 1, (factors,) spreads) from (mask of pieces, spread) pairs."""
    factors = np.column_stack([np.asarray(mask, dtype=np.float64) for mask, _ in memberships])
    return factors, np.array([spread for _, spread in memberships])
