"""Latencies of candidates by table look-ups: the milliseconds of every part by choice.

A scorer holds only numpy arrays and the formula's constants, so that it can be pickled to a worker.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lolat.device.predictors.formula import Formula
from lolat.nas.grid import CHUNK, Grid

DECODED = 16 * CHUNK  # of an index range at a time
MERGED = 8192  # entries of a table that stands for several: 64 KiB
SMALL_INDEX = 2**16 - 1  # entries that a uint16 can index and count

Times = tuple[tuple[int, ...], np.ndarray]
"""Positions, and the milliseconds of each combination of their choices."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Scorer(ABC):
    """Latencies of the candidates of one space, on one device, at one batch size.

    `predictor`: the formula's name, or "samples"; `source`: the same in words.
    """

    grid: Grid
    batch_size: int
    predictor: str
    source: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.source}, batch {self.batch_size}>"

    @abstractmethod
    def latency(self, candidates: Any) -> np.ndarray:
        """(n,) milliseconds of (n, positions) integers.

        InputError for a row that is not a candidate; it names the row.
        """

    def chunks(
        self, start: int = 0, stop: int | None = None, length: int = DECODED
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(indices, rows, latencies) of all candidates from `start` to before `stop`, `length` at a time.

        InputError where an int64 cannot index the space.
        """
        end = self.grid.countable() if stop is None else stop
        for first in range(start, end, length):
            indices = np.arange(first, min(first + length, end), dtype=np.int64)
            rows = self.grid.between(first, first + len(indices))
            yield indices, rows, self.latency(rows)


class Scored(NamedTuple):
    """Candidates: (n,) `indices`, `times` in ms, `values`, of which the largest is best."""

    indices: np.ndarray
    times: np.ndarray
    values: np.ndarray

    @classmethod
    def none(cls) -> Scored:
        """No candidate."""
        return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))

    @classmethod
    def joined(cls, pieces: Sequence[Scored]) -> Scored:
        """The candidates of all pieces."""
        return cls(*map(np.concatenate, zip(*pieces, strict=True)))


def best_of(best: Scored, piece: Scored, k: int) -> Scored:
    """The `k` best of those before and of a piece, best first, of equal ones the smaller index.

    A NaN value is never among them.
    """
    least = best.values[-1] if len(best.values) == k else -math.inf
    able = piece.values >= least  # false for a NaN
    both = Scored.joined([best, Scored(*(column[able] for column in piece))])
    order = np.lexsort((both.indices, -both.values))[:k]
    return Scored(*(column[order] for column in both))


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


@dataclass(frozen=True, kw_only=True, repr=False)
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
        sizes, unsigned = np.asarray(self.grid.sizes), rows.dtype.str.replace("i", "u")
        integer = np.uint16 if max(self.grid.sizes) <= SMALL_INDEX else np.int64
        times = np.full(len(rows), self.constant)
        for start in range(0, len(rows), CHUNK):
            # Unsigned, a negative number is a large one.
            columns = np.ascontiguousarray(rows[start : start + CHUNK].T).view(unsigned)
            if (columns.max(axis=1) >= sizes).any():
                self.grid.checked(rows)
            columns = columns.astype(integer, copy=False)
            for look_up in self.look_ups:
                found = look_up.table.take(look_up.index(columns), mode="clip")
                times[start : start + CHUNK] += found
        self.formula.bend(times)
        return times


@dataclass(frozen=True, kw_only=True, repr=False)
class HostScorer(Scorer):
    """Latencies where a host starts one operation after the other: see `lolat.nas.tables.times_ms`.

    `device`, `host`: the times of which the longer counts; `more`: what the latency is beyond it.
    """

    device: TableScorer
    host: TableScorer
    more: TableScorer

    @classmethod
    def of(cls, device: TableScorer, host: TableScorer, more: TableScorer) -> HostScorer:
        """From tables of the same formula."""
        return cls(
            grid=device.grid, batch_size=device.batch_size, predictor=device.predictor,
            source=device.source, device=device, host=host, more=more,
        )  # fmt: skip

    def latency(self, candidates: Any) -> np.ndarray:
        """See `Scorer`."""
        longer = np.maximum(self.device.latency(candidates), self.host.latency(candidates))
        return longer + np.maximum(self.more.latency(candidates), 0.0)


def compiled(grid: Grid, times: Sequence[Times], formula: Formula, batch_size: int) -> TableScorer:
    """A scorer from tables of milliseconds; neighbors are merged as long as their product stays small."""
    merged: list[Times] = []
    for item in sorted((t for t in times if t[0]), key=lambda t: t[0]):
        before = merged[-1][0] if merged else ()
        union = tuple(dict.fromkeys([*before, *item[0]]))
        if union == before or (before and math.prod(grid.sizes[p] for p in union) <= MERGED):
            merged[-1] = union, _spread(merged[-1], union) + _spread(item, union)
        else:
            merged.append(item)
    look_ups = tuple(
        LookUp(positions, table.shape, np.ascontiguousarray(table.reshape(-1)))
        for positions, table in merged
    )
    constant = formula.constant + sum(float(table) for positions, table in times if not positions)
    return TableScorer(
        grid=grid, batch_size=batch_size, look_ups=look_ups, formula=formula, constant=constant,
        predictor=formula.name, source=f"the formula {formula.name}, of inference",
    )  # fmt: skip


def _spread(times: Times, union: tuple[int, ...]) -> np.ndarray:
    """A table with an axis for each of `union`, of length 1 where it does not depend on it."""
    positions, table = times
    padded = table.reshape(*table.shape, *[1] * (len(union) - len(positions)))
    return np.moveaxis(padded, range(len(positions)), [union.index(p) for p in positions])
