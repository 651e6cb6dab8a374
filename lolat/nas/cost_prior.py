"""The prior of the costs of a network's pieces, which add up to its latency.

A piece of a network (a convolution on an edge, a block in a layer, the fixed parts) has a cost: terms with
the device's coefficients, times factors that it shares with similar pieces:

    cost = (a*MACs + b*depthwise MACs + c*traffic + d*weights + e*ops) * exp(sum of its factors)

All coefficients are positive. The prior limits how far apart the coefficients are, and how far a factor is
from 1: few measurements change little, many override it. `lolat.nas.cost_fit` finds the likeliest costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from lolat.errors import InputError
from lolat.graph.counts import COLUMNS
from lolat.nas.count_tables import CountTable, along

COST_TERMS = ("macs", "depthwise", "traffic", "weights", "ops")
MACS, DEPTHWISE, TRAFFIC, WEIGHTS, OPS = range(len(COST_TERMS))
TERM_SPREAD = np.array([1.5, 1.5, 1.5, 1.5, 2.0])
"""Standard deviation of each coefficient's log; at log 0 all terms of an average network cost the same.

It is wide: `ops` is nearly all of the time on a host-bound GPU, and almost none on a phone.
"""
OVERLAP = 4.0  # the exponent of a soft maximum; at equal parts it is 19 % above the larger
_FREE = 50.0  # standard deviation of the scale's logarithm: it may be anything


def work(table: CountTable) -> np.ndarray:
    """(choices of the table ..., COST_TERMS) counts at batch size 1; the traffic includes convolutions."""
    counts = dict(zip(COLUMNS, np.moveaxis(table.at(1).astype(np.float64), -1, 0), strict=True))
    moved = counts["acts"] + counts["inp"] + counts["traffic"]
    depthwise = counts["depthwise_macs"]
    terms = [counts["flops"] - depthwise, depthwise, moved, counts["weights"], counts["ops"]]
    return np.stack(terms, axis=-1)


@dataclass(frozen=True)
class Pieces:
    """The pieces of a space's networks under one assumption on how a device runs them.

    `counts`: a function from (networks, positions) integers to (networks, pieces) occurrences. `terms`:
    (pieces, COST_TERMS) counts, relative to an average network. `members`: for each factor the pieces that
    share it, (pieces,) 0 or 1, and the standard deviation of its logarithm. `log_prior`: prior log
    probability of the assumption. `overlap`: True if launching operations overlaps with running them, so
    that the longer of both counts instead of the sum.
    """

    name: str
    counts: Callable[[np.ndarray], np.ndarray]
    terms: np.ndarray
    members: Sequence[tuple[np.ndarray, float]]
    log_prior: float
    overlap: bool = False

    @cached_property
    def factors(self) -> np.ndarray:
        """(pieces, factors) array: 1 if the piece has the factor, else 0."""
        return np.column_stack([np.asarray(mask, dtype=np.float64) for mask, _ in self.members])

    @cached_property
    def prior_spread(self) -> np.ndarray:
        """(size,) prior standard deviations of the parameters. Their means are 0; the scale is free."""
        return np.array([_FREE, *TERM_SPREAD, *(spread for _, spread in self.members)])

    @property
    def size(self) -> int:
        """Number of parameters: the logarithms of the scale, the coefficients and the factors."""
        return len(self.prior_spread)

    def costs(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((pieces,) costs, (pieces, size) derivatives by the parameters)."""
        terms = self.terms * np.exp(parameters[1 : 1 + len(COST_TERMS)])
        base, parts = _overlapped(terms) if self.overlap else (terms.sum(axis=1), terms)
        scale = np.exp(parameters[0] + self.factors @ parameters[1 + len(COST_TERMS) :])
        costs = base * scale
        slopes = [costs, parts * scale[:, None], costs[:, None] * self.factors]
        return costs, np.column_stack(slopes)

    def latency(self, counts: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((networks,) latencies, (networks, size) derivatives of their logarithms)."""
        costs, slopes = self.costs(parameters)
        times = counts @ costs
        return times, (counts @ slopes) / times[:, None]


def _overlapped(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The soft maximum of ops term and rest: ((pieces,) values, (pieces, COST_TERMS) log derivatives)."""
    start = terms[:, OPS]
    work = terms.sum(axis=1) - start
    largest = np.maximum(np.maximum(start, work), 1e-300)
    power_start = (start / largest) ** OVERLAP
    power_work = (work / largest) ** OVERLAP
    together = np.maximum(power_start + power_work, 1e-300)
    base = largest * together ** (1.0 / OVERLAP)
    base[start + work == 0.0] = 0.0
    # d base / d log start = base * power_start / the sum of both powers; the same for work's terms.
    parts = terms * (base * power_work / together / np.maximum(work, 1e-300))[:, None]
    parts[:, OPS] = base * power_start / together
    return base, parts


def relative(terms: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Divide counts by the counts of an average network; a term that the space lacks stays 0."""
    return terms / np.where(average > 0.0, average, 1.0)


# ---- A space without a prior of its own.

MOST_PIECES = 3000  # the covariance of the costs has this number of rows
_CHOICE, _FIXED = 0.2, 0.5
"""Prior standard deviations of the log factors of a choice at a position, and of the fixed part."""

CountsBy = Mapping[tuple[int, ...], np.ndarray]
"""Positions -> (choices ..., COST_TERMS) counts."""


def pieces_of_tables(name: str, tables: Sequence[CountTable]) -> list[Pieces]:
    """Two assumptions for a space without its own prior; InputError for too many pieces.

    In the first assumption a piece is a combination of a table's choices. In the second each single choice
    is a piece too, and a combination has only the remaining counts.
    """
    parts, fixed = _split(tables)
    alone = dict(parts)
    for key in [k for k in parts if len(k) > 1]:
        for axis, position in enumerate(key):
            least = alone[key].min(axis=tuple(a for a in range(len(key)) if a != axis))
            alone[key] = alone[key] - along(key, (position,), least)
            alone[position,] = alone.get((position,), 0.0) + least
    return [_pieces(name, "parts", parts, fixed), _pieces(name, "choices", alone, fixed)]


def _pieces(name: str, assumption: str, counts: CountsBy, fixed: np.ndarray) -> Pieces:
    """Make the `Pieces` of the space `name`: one for each key of `counts`, and the fixed part."""
    counts = {key: some for key, some in counts.items() if some.any()}
    terms = [some.reshape(-1, len(COST_TERMS)) for some in counts.values()]
    shapes = [(positions, some.shape[:-1]) for positions, some in counts.items()]
    pieces = np.vstack([fixed, *terms])
    if len(pieces) > MOST_PIECES:
        raise InputError(
            f"the space {name} has {len(pieces)} parts by choice; a fit to measured networks takes at most "
            f"{MOST_PIECES}"
        )
    # The choice of each piece at each position, -1 if it does not depend on the position.
    chosen = np.full((len(pieces), 1 + max((p for ps, _ in shapes for p in ps), default=0)), -1)
    first = 1
    for positions, sizes in shapes:
        combinations = np.indices(sizes).reshape(len(sizes), -1).T
        chosen[first : first + len(combinations), list(positions)] = combinations
        first += len(combinations)
    members = [
        (column == choice, _CHOICE) for column in chosen.T for choice in range(column.max() + 1)
    ]
    members = [(np.arange(len(pieces)) == 0, _FIXED), *members]
    average = pieces[0] + sum(each.mean(axis=0) for each in terms)
    return Pieces(assumption, partial(occurrences, shapes), relative(pieces, average), members, 0.0)


def _split(tables: Sequence[CountTable]) -> tuple[dict[tuple[int, ...], np.ndarray], np.ndarray]:
    """Split the tables' counts into counts by choice and a (COST_TERMS,) fixed part, none of them below 0.

    Tables of a function's networks hold changes of counts, which may be negative. So each table is added to
    a table that has all its positions. Then the minimum over its own choices moves to the table that shares
    the most positions with it, until only the fixed part is left.
    """
    left: dict[tuple[int, ...], np.ndarray] = {}
    for table in sorted(tables, key=lambda t: -len(t.positions)):
        into = next((k for k in left if {*table.positions} <= {*k}), table.positions)
        left[into] = left.get(into, 0.0) + along(into, table.positions, work(table))
    split = {}
    while pairs := [(len({*k} & {*other}), k, other) for k in left for other in left if other != k]:
        # Tables whose shared positions only one other table has come first: their sums stay exact.
        others = {k: {p for other in left if other != k for p in other} for k in left}
        _, key, to = max(pairs, key=lambda pair: pair[0] - len(others[pair[1]] & {*pair[1]}))
        counts = left.pop(key)
        own = tuple(axis for axis, p in enumerate(key) if p not in to)
        floor = counts.min(axis=own)
        shared = tuple(p for p in key if p in to)
        split[key] = counts - along(key, shared, floor)
        left[to] = left[to] + along(to, shared, floor)
    for key, counts in left.items():
        fixed = counts.min(axis=tuple(range(len(key))))
        split[key] = counts - fixed
    return split, fixed


def occurrences(
    shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], rows: np.ndarray
) -> np.ndarray:
    """(networks, pieces) array of 0 and 1: 1 for the fixed part and the chosen combination of each table.

    `shapes`: (positions, numbers of choices) of each table.
    """
    columns = [np.ones((len(rows), 1))]
    for positions, sizes in shapes:
        index = np.ravel_multi_index(tuple(rows[:, p] for p in positions), sizes)
        columns.append(np.eye(math.prod(sizes))[index])
    return np.concatenate(columns, axis=1)
