"""Candidates of a space as rows of small integers, and as indices: which there are, and in what order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lolat.errors import InputError

MOST_INDEX = 2**63 - 1
ROWS = 4096  # of a table that decodes several positions at once: it stays in a core's cache


def nth(index: int) -> str:
    """How a candidate is named in a message, counted from 0 as in the array."""
    return f"row {index}"


@dataclass(frozen=True)
class Grid:
    """All rows of integers from 0 to below `sizes`, in the order of an odometer: the last runs fastest."""

    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many rows there are; an int of any size."""
        return math.prod(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest signed integer type that holds every choice: int8 up to 128 of them."""
        return np.min_scalar_type(-max(self.sizes, default=1))

    def countable(self) -> int:
        """`size`; InputError where an int64 cannot index so many."""
        if self.size > MOST_INDEX:
            raise InputError(
                f"{len(self.sizes)} positions make {float(self.size):.2g} candidates, more than an int64 "
                f"can index ({float(MOST_INDEX):.2g}); search it with samples (--method evolutionary, "
                "Space.sample), or fix some positions"
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
        found = np.empty((len(rest), len(self.sizes)), self.dtype)
        for start, stop, rows in self._groups:
            above = rest // len(rows)
            found[:, start:stop] = rows.take(rest - above * len(rows), axis=0)
            rest = above
        return found

    def encode(self, candidates: Any) -> np.ndarray:
        """(n,) int64 indices of (n, positions) candidates; `decode` is the inverse. Errors as there."""
        self.countable()
        found = np.zeros(len(candidates), np.int64)
        for size, column in zip(self.sizes, self.checked(candidates).T, strict=True):
            found *= size
            found += column
        return found

    def checked(self, candidates: Any, place: Callable[[int], str] = nth) -> np.ndarray:
        """Candidates as an array (n, positions) of integers, each a choice that there is.

        InputError otherwise, which names the first wrong row as `place` says it.
        """
        rows = np.asarray(candidates)
        self.require_shape(rows)
        outside = (rows < 0) | (rows >= np.asarray(self.sizes))
        if outside.any():
            raise self.fault(rows, place)
        return rows

    def require_shape(self, rows: np.ndarray) -> None:
        """InputError unless `rows` is (n, positions) of integers."""
        if rows.ndim != 2 or rows.shape[1] != len(self.sizes) or rows.dtype.kind not in "iu":
            raise InputError(
                f"candidates are an array of shape {rows.shape} and type {rows.dtype}; expected whole "
                f"numbers of shape (candidates, {len(self.sizes)}), one column a position"
            )

    def fault(self, rows: np.ndarray, place: Callable[[int], str] = nth) -> InputError:
        """The error of the first choice that there is not; `rows` has one."""
        outside = (rows < 0) | (rows >= np.asarray(self.sizes))
        row, position = (int(i[0]) for i in np.nonzero(outside))
        return InputError(
            f"{place(row)} has {int(rows[row, position])} at position {position}; expected a choice "
            f"from 0 to {self.sizes[position] - 1}"
        )

    def sample(self, count: int, random: np.random.Generator) -> np.ndarray:
        """(count, positions) candidates, each position drawn alone and uniformly; may repeat."""
        columns = [random.integers(0, size, count) for size in self.sizes]
        return np.stack(columns, axis=1).astype(self.dtype) if columns else np.empty((count, 0))


def grid(sizes: Sequence[int]) -> Grid:
    """A grid; InputError where a position has no choice or there is no position."""
    if not sizes or min(sizes) < 1:
        raise InputError(
            f"choices per position are {list(sizes)}; expected at least one position, each with at "
            "least one choice"
        )
    return Grid(tuple(int(n) for n in sizes))
