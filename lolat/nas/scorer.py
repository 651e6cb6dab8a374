"""Candidates of a space, and their latency by table look-ups: the milliseconds of every part by choice.

A candidate is a row of small integers, and has an index. A scorer is only numpy arrays and the formula's
constants, so that it can be pickled to a worker.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lolat.errors import InputError, arg
from lolat.fitting.predictors.formula import Formula
from lolat.nas.fewshot import NasModel
from lolat.units import plural

# ---- Which candidates there are, and in what order.

MOST_INDEX = 2**63 - 1
ROWS = 4096  # of a table that decodes several positions at once: it stays in a core's cache


@dataclass(frozen=True)
class Grid:
    """All rows of integers from 0 to below `sizes`, in the order of an odometer: the last runs fastest."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        """InputError where a position has no choice or there is no position."""
        if not self.sizes or min(self.sizes) < 1:
            raise InputError(
                f"choices per position are {list(self.sizes)}; expected at least one position, each with "
                "at least one choice"
            )

    @property
    def size(self) -> int:
        """How many rows there are; an int of any size."""
        return math.prod(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest signed integer type that holds every choice: int8 up to 128 of them."""
        return np.min_scalar_type(-max(self.sizes))

    def countable(self) -> int:
        """`size`; InputError where an int64 cannot index so many."""
        if self.size > MOST_INDEX:
            raise InputError(
                f"{len(self.sizes)} positions make {float(self.size):.2g} candidates, more than an int64 "
                f"can index ({float(MOST_INDEX):.2g}); search it with samples "
                f"({arg('method')} evolutionary, Space.sample), or fix some positions"
            )
        return self.size

    @cached_property
    def _groups(self) -> list[tuple[int, int, np.ndarray]]:
        """(first position, one past the last, their rows) of positions that are decoded together."""
        groups = []
        stop = len(self.sizes)
        while stop > 0:
            start = stop - 1
            while start > 0 and math.prod(self.sizes[start - 1 : stop]) <= ROWS:
                start -= 1
            shape = self.sizes[start:stop]
            rows = np.indices(shape).reshape(len(shape), -1).T
            groups.append((start, stop, np.ascontiguousarray(rows, self.dtype)))
            stop = start
        return groups

    def decode(self, indices: Any) -> np.ndarray:
        """(n, positions) integers of the candidates with these indices, (n,) from 0 to below `size`.

        InputError for an index that there is not, and where an int64 cannot index the space.
        """
        size = self.countable()
        rest = np.asarray(indices)
        if rest.ndim != 1 or rest.dtype.kind not in "iu":
            raise InputError(
                f"indices are an array of {rest.ndim} dimensions and type {rest.dtype}; expected whole "
                "numbers in one dimension"
            )
        if len(rest) and not (rest.min() >= 0 and rest.max() < size):
            wrong = int(rest.min()) if rest.min() < 0 else int(rest.max())
            raise InputError(f"no candidate {wrong}: expected an index from 0 to {size - 1}")
        rest = rest.astype(np.int64)
        candidates = np.empty((len(rest), len(self.sizes)), self.dtype)
        for first in range(0, len(rest), CHUNK):
            left, part = rest[first : first + CHUNK], candidates[first : first + CHUNK]
            for start, stop, rows in self._groups:
                above = left // len(rows)
                part[:, start:stop] = rows.take(left - above * len(rows), axis=0)
                left = above
        return candidates

    def between(self, start: int, stop: int) -> np.ndarray:
        """`decode` of all indices from `start` to before `stop`, as columns in memory: far faster.

        Only the last positions differ from each to the next.
        """
        first, _, last = self._groups[0]
        above = np.arange(start // len(last), -(-stop // len(last)))
        columns = np.empty((len(self.sizes), len(above), len(last)), self.dtype)
        columns[:first] = self.decode(above * len(last)).T[:first, :, None]
        columns[first:] = last.T[:, None]
        begin = start % len(last)
        return columns.reshape(len(self.sizes), -1)[:, begin : begin + stop - start].T

    def encode(self, candidates: Any) -> np.ndarray:
        """(n,) int64 indices of (n, positions) candidates; `decode` is the inverse. Errors as there."""
        self.countable()
        indices = np.zeros(len(candidates), np.int64)
        for size, column in zip(self.sizes, self.checked(candidates).T, strict=True):
            indices *= size
            indices += column
        return indices

    def checked(self, candidates: Any, place: Callable[[int], str] = "row {}".format) -> np.ndarray:
        """Candidates as an array (n, positions) of integers, each a choice that there is.

        InputError otherwise, which names the first wrong row as `place` says it.
        """
        rows = np.asarray(candidates)
        self.require_shape(rows)
        outside = (rows < 0) | (rows >= np.asarray(self.sizes))
        if outside.any():
            row, position = (int(i[0]) for i in np.nonzero(outside))
            raise InputError(
                f"{place(row)} has {int(rows[row, position])} at position {position}; expected a choice "
                f"from 0 to {self.sizes[position] - 1}"
            )
        return rows

    def require_shape(self, rows: np.ndarray) -> None:
        """InputError unless `rows` is (n, positions) of integers."""
        if rows.ndim != 2 or rows.shape[1] != len(self.sizes) or rows.dtype.kind not in "iu":
            raise InputError(
                f"candidates are an array of shape {rows.shape} and type {rows.dtype}; expected whole "
                f"numbers of shape (candidates, {len(self.sizes)}), one column a position"
            )

    def sample(self, count: int, random: np.random.Generator) -> np.ndarray:
        """(count, positions) candidates, each position drawn alone and uniformly; may repeat."""
        columns = [random.integers(0, size, count) for size in self.sizes]
        return np.stack(columns, axis=1).astype(self.dtype)


# ---- Their latencies.

CHUNK = 8192  # candidates worked on at a time: their columns stay in a core's cache
DECODED = 16 * CHUNK  # of an index range at a time
MERGED = 8192  # entries of a table that stands for several: 64 KiB
SMALL_INDEX = 2**16 - 1  # entries that a uint16 can index and count

Ranked = tuple[float, int, float]
"""(-value, index, latency in ms): of two, the smaller one is better; of equal values the first."""
Times = tuple[tuple[int, ...], np.ndarray]
"""Positions, and the milliseconds of each combination of their choices."""


@dataclass(frozen=True)
class LookUp:
    """A table of milliseconds, flat, and how its index is made: position by position, Horner's way."""

    positions: tuple[int, ...]
    sizes: tuple[int, ...]
    table: np.ndarray

    def index(self, columns: np.ndarray) -> np.ndarray:
        """(n,) indices into the table from (positions of the space, n) choices, unsigned."""
        integer = np.uint16 if len(self.table) <= SMALL_INDEX else np.int64
        index = columns[self.positions[0]].astype(integer)
        for position, size in zip(self.positions[1:], self.sizes[1:], strict=True):
            index *= size
            index += columns[position]
        return index


@dataclass(frozen=True, kw_only=True)
class Scorer(ABC):
    """Latencies of the candidates of one space, on one device, at one batch size."""

    grid: Grid
    batch_size: int

    @property
    @abstractmethod
    def predictor(self) -> str:
        """What answers: a predictor of the model, or SAMPLED."""

    @property
    @abstractmethod
    def source(self) -> str:
        """What answers, in words."""

    @abstractmethod
    def numbers(self) -> Any:
        """All numbers that the latencies come from, as JSON."""

    @abstractmethod
    def latency(self, candidates: Any) -> np.ndarray:
        """(n,) milliseconds of (n, positions) integers.

        InputError where a row is no candidate, which is named.
        """

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return self.grid.size

    def indices(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(indices, rows, latencies) of all candidates from number `start` to before `stop`, in pieces.

        InputError where an int64 cannot index the space, or the range lies outside it.
        """
        size = self.grid.countable()
        end = size if stop is None else stop
        if not 0 <= start <= end <= size:
            raise InputError(f"candidates {start} to {end}: expected a range from 0 to {size}")
        for first in range(start, end, DECODED):
            indices = np.arange(first, min(first + DECODED, end), dtype=np.int64)
            rows = self.grid.between(first, first + len(indices))
            yield indices, rows, self.latency(rows)

    def best(
        self,
        k: int,
        max_ms: float = math.inf,
        value: Callable[[np.ndarray], np.ndarray] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The `k` best candidates of a range of indices: (k, positions), their latencies, their values.

        `value`: what is to be large, (n,) from (n, positions); the fastest are the best without. Only
        candidates of at most `max_ms` count. Best first, of equal ones the first; fewer than `k` where
        there are no more. The memory does not depend on the range.
        """
        if k < 1:
            raise InputError(f"best {k}: expected a whole number from 1")
        kept: list[Ranked] = []
        for indices, rows, times in self.indices(start, stop):
            able = times <= max_ms
            values = -times[able] if value is None else np.asarray(value(rows[able]), float)
            kept = best_of(kept, values, indices[able], times[able], k)
        rows = self.grid.decode(np.array([index for _, index, _ in kept], np.int64))
        return rows, np.array([t for *_, t in kept]), np.array([-v for v, *_ in kept])


SAMPLED = "samples"


@dataclass(frozen=True, kw_only=True)
class TableScorer(Scorer):
    """Latencies by table look-ups.

    `formula`: of the model, for what it makes of the sum; `constant`: milliseconds of the call and of
    what no choice changes.
    """

    look_ups: tuple[LookUp, ...]
    formula: Formula
    constant: float

    @property
    def predictor(self) -> str:
        """The formula's name."""
        return self.formula.name

    @property
    def source(self) -> str:
        """What answers, in words."""
        return f"the formula {self.formula.name}, of inference"

    def numbers(self) -> Any:
        """The formula's."""
        return [self.formula.name, self.formula.features, self.formula.to_dict()]

    def latency(self, candidates: Any) -> np.ndarray:
        """See `Scorer`."""
        rows = np.asarray(candidates)
        self.grid.require_shape(rows)
        times = np.empty(len(rows))
        for start in range(0, len(rows), CHUNK):
            self._into(times[start : start + CHUNK], rows[start : start + CHUNK], start)
        return times

    def _into(self, out: np.ndarray, rows: np.ndarray, start: int) -> None:
        """Latencies of a few candidates, of which the first is number `start`."""
        columns = np.ascontiguousarray(rows.T)
        # Unsigned, a negative number is a large one.
        columns = columns.view(columns.dtype.str.replace("i", "u"))
        if (columns.max(axis=1) >= np.asarray(self.grid.sizes)).any():
            self.grid.checked(rows, lambda row: f"row {start + row}")
        if columns.dtype.itemsize > 2:
            small = max(self.grid.sizes) <= SMALL_INDEX
            columns = columns.astype(np.uint16 if small else np.uint32)
        out.fill(self.constant)
        for look_up in self.look_ups:
            out += look_up.table.take(look_up.index(columns), mode="clip")
        self.formula.bend(out)


@dataclass(frozen=True)
class Bounds:
    """How sure a latency is, as a `lolat.Prediction` says it; samples have no domain."""

    interval_ms: tuple[float, float]
    coverage: float
    in_domain: None = None


@dataclass(frozen=True, kw_only=True)
class SampledScorer(Scorer):
    """Latencies as `model` has them, at the batch size that its samples were measured with."""

    model: NasModel

    @property
    def predictor(self) -> str:
        """SAMPLED."""
        return SAMPLED

    @property
    def source(self) -> str:
        """What answers, in words."""
        return f"{plural(len(self.model.archs), 'measured network')} of {self.model.space}"

    def numbers(self) -> Any:
        """A word for all numbers of the space's section."""
        return [SAMPLED, hashlib.sha256(repr(self.model.to_section()).encode()).hexdigest()]

    def latency(self, candidates: Any) -> np.ndarray:
        """See `Scorer`."""
        return self.model.latency_ms(self.grid.checked(candidates))

    def bounds(self, candidates: Any, coverage: float) -> tuple[Bounds, ...]:
        """Of each of (n, positions) candidates."""
        low, high = self.model.interval_ms(self.grid.checked(candidates), coverage)
        ends = zip(low.tolist(), high.tolist(), strict=True)
        return tuple(Bounds(interval, coverage) for interval in ends)


def best_of(
    kept: Sequence[Ranked], values: np.ndarray, indices: np.ndarray, times: np.ndarray, k: int
) -> list[Ranked]:
    """The `k` best of those kept and of a piece, best first; a value that is NaN is none."""
    least = -kept[-1][0] if len(kept) == k else -math.inf
    known = np.flatnonzero(values >= least)  # of a NaN it is not
    if len(known) > k:
        least = np.partition(values[known], len(known) - k)[len(known) - k]
        known = known[values[known] >= least]
    order = known[np.lexsort((indices[known], -values[known]))][:k]
    ranked = [(-float(values[i]), int(indices[i]), float(times[i])) for i in order]
    return sorted([*kept, *ranked])[:k]


def compiled(grid: Grid, times: Sequence[Times], formula: Formula, batch_size: int) -> TableScorer:
    """A scorer from tables of milliseconds, merged to few look-ups.

    A table goes into one that depends on all its positions; then neighbors are merged as long as their
    product stays small.
    """
    constant = formula.constant
    whole: list[Times] = []
    for positions, table in sorted(times, key=lambda t: -len(t[0])):
        if not positions:
            constant += float(table)
            continue
        holder = next((i for i, (p, _) in enumerate(whole) if set(positions) <= set(p)), None)
        if holder is None:
            whole.append((positions, table))
        else:
            whole[holder] = _sum(whole[holder], (positions, table), whole[holder][0])
    merged: list[Times] = []
    for item in sorted(whole, key=lambda t: t[0]):
        if merged:
            union = tuple(dict.fromkeys([*merged[-1][0], *item[0]]))
            if math.prod(grid.sizes[p] for p in union) <= MERGED:
                merged[-1] = _sum(merged[-1], item, union)
                continue
        merged.append(item)
    look_ups = tuple(
        LookUp(positions, table.shape, np.ascontiguousarray(table.reshape(-1)))
        for positions, table in merged
    )
    return TableScorer(
        grid=grid,
        batch_size=batch_size,
        look_ups=look_ups,
        formula=formula.bare(),
        constant=constant,
    )


def _sum(a: Times, b: Times, union: tuple[int, ...]) -> Times:
    """Two tables as one of the positions `union`."""
    return union, _spread(a, union) + _spread(b, union)


def _spread(times: Times, union: tuple[int, ...]) -> np.ndarray:
    """A table with an axis for each of `union`, of length 1 where it does not depend on it."""
    positions, table = times
    order = sorted(positions, key=union.index)
    turned = table.transpose([positions.index(p) for p in order])
    sizes = iter(turned.shape)
    return turned.reshape([next(sizes) if p in positions else 1 for p in union])
