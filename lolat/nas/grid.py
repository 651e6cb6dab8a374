"""Which candidates a space has: rows of small integers, each with an index."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lolat.errors import InputError

MOST_INDEX = 2**63 - 1
CHUNK = 8192  # candidates worked on at a time: their columns stay in a core's cache
ROWS = 4096  # of a table that decodes several positions at once: it stays in a core's cache


@dataclass(frozen=True)
class Grid:
    """All rows of integers from 0 to below `sizes`, in the order of an odometer: the last runs fastest."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        """InputError where there is no position, or a position without a choice."""
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
                "can index; draw some of them (Space.sample), or fix some positions"
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

        InputError for an index outside, and where an int64 cannot index the space.
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

        Only the last positions differ from one row to the next.
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
        """Candidates as an array (n, positions) of integers, each within its position's choices.

        InputError otherwise; it names the first wrong row by `place`.
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
