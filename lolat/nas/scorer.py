"""Latencies of candidates by table look-ups: the milliseconds of every part by choice.

A scorer holds only numpy arrays and the formula's constants, so that it can be pickled to a worker.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.predictors.formula import Formula
from lolat.nas.grid import CHUNK, Grid

DECODED = 16 * CHUNK  # of an index range at a time
MERGED = 8192  # entries of a table that stands for several: 64 KiB
SMALL_INDEX = 2**16 - 1  # entries that a uint16 can index and count

Ranked = tuple[float, int, float]
"""(-value, index, latency in ms): of two, the smaller one is better; of equal values the first."""
Times = tuple[tuple[int, ...], np.ndarray]
"""Positions, and the milliseconds of each combination of their choices."""


@dataclass(frozen=True, kw_only=True)
class Scorer(ABC):
    """Latencies of the candidates of one space, on one device, at one batch size.

    `predictor`: the formula's name, or "samples"; `source`: the same in words.
    """

    grid: Grid
    batch_size: int
    predictor: str
    source: str

    @abstractmethod
    def latency(self, candidates: Any) -> np.ndarray:
        """(n,) milliseconds of (n, positions) integers.

        InputError for a row that is not a candidate; it names the row.
        """

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return self.grid.size

    def chunks(
        self, start: int = 0, stop: int | None = None, length: int = DECODED
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(indices, rows, latencies) of all candidates from `start` to before `stop`, `length` at a time.

        InputError where an int64 cannot index the space, or the range lies outside it.
        """
        size = self.grid.countable()
        end = size if stop is None else stop
        if not 0 <= start <= end <= size:
            raise InputError(f"candidates {start} to {end}: expected a range from 0 to {size}")
        for first in range(start, end, length):
            indices = np.arange(first, min(first + length, end), dtype=np.int64)
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

        `value`: the number to be large, (n,) from (n, positions); without it the fastest are the best. Only
        candidates of at most `max_ms` count. Best first, of equal ones the first; fewer than `k` where
        there are no more. The memory does not depend on the range.
        """
        if k < 1:
            raise InputError(f"best {k}: expected a whole number from 1")
        best: list[Ranked] = []
        for indices, rows, times in self.chunks(start, stop):
            able = times <= max_ms
            values = -times[able] if value is None else np.asarray(value(rows[able]), float)
            best = best_of(best, values, indices[able], times[able], k)
        rows = self.grid.decode(np.array([index for _, index, _ in best], np.int64))
        return rows, np.array([t for *_, t in best]), np.array([-v for v, *_ in best])


def best_of(
    best: Sequence[Ranked], values: np.ndarray, indices: np.ndarray, times: np.ndarray, k: int
) -> list[Ranked]:
    """The `k` best of those before and of a piece, best first; a NaN value is never among them."""
    least = -best[-1][0] if len(best) == k else -math.inf
    able = np.flatnonzero(values >= least)  # false for a NaN
    if len(able) > k:
        least = np.partition(values[able], len(able) - k)[len(able) - k]
        able = able[values[able] >= least]
    order = able[np.lexsort((indices[able], -values[able]))][:k]
    ranked = [(-float(values[i]), int(indices[i]), float(times[i])) for i in order]
    return sorted([*best, *ranked])[:k]


# ---- By the formula of inference: tables of milliseconds, merged.


@dataclass(frozen=True)
class LookUp:
    """A table of milliseconds, flat; its index is made position by position (Horner's method)."""

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
class TableScorer(Scorer):
    """Latencies by table look-ups.

    `formula`: of the model, which may bend the sum; `constant`: milliseconds of the call and of the parts
    that no choice changes.
    """

    look_ups: tuple[LookUp, ...]
    formula: Formula
    constant: float

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
        grid=grid, batch_size=batch_size, look_ups=look_ups, formula=formula, constant=constant,
        predictor=formula.name, source=f"the formula {formula.name}, of inference",
    )  # fmt: skip


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
