"""All candidates of a space, as numbered rows of integers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lolat.errors import InputError, arg
from lolat.units import shortened

MOST_INDEX = 2**63 - 1
ROWS = 4096  # rows that are copied at a time, so that they stay in a core's cache


@dataclass(frozen=True)
class Grid:
    """All rows of integers from 0 to below `sizes`; the last position varies fastest."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise InputError(f"choices per position are {self.sizes}; expected some, each from 1")

    @property
    def size(self) -> int:
        """Number of rows, an int of any size."""
        return math.prod(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest signed integer type for all choices: int8 for up to 128 choices per position."""
        return np.min_scalar_type(-max(self.sizes))

    def countable(self) -> int:
        """The `size`; InputError if an int64 cannot index that many candidates."""
        if self.size > MOST_INDEX:
            raise InputError(
                f"{len(self.sizes)} positions make {float(self.size):.2g} candidates, too many to go "
                f"through; give a table of some ({arg('among')}), draw some (Space.sample), or search "
                "(lolat nas search)",
                code="among",
            )
        return self.size

    def decode(self, indices: Any) -> np.ndarray:
        """(n, positions) integers of the candidates with (n,) indices; InputError for an index outside."""
        size = self.countable()
        rest = np.asarray(indices)
        if rest.ndim != 1 or rest.dtype.kind not in "iu" or ((rest < 0) | (rest >= size)).any():
            raise InputError(
                f"indices {shortened(str(indices))}: expected whole numbers from 0 to {size - 1} in one "
                "dimension"
            )
        candidates = np.empty((len(rest), len(self.sizes)), self.dtype)
        for position in reversed(range(len(self.sizes))):
            rest, candidates[:, position] = np.divmod(rest, self.sizes[position])
        return candidates

    @cached_property
    def _last(self) -> np.ndarray:
        """All rows of as many last positions as have at most ROWS rows together."""
        count = 1
        while count < len(self.sizes) and math.prod(self.sizes[-count - 1 :]) <= ROWS:
            count += 1
        return np.indices(self.sizes[-count:], self.dtype).reshape(count, -1)

    def between(self, start: int, stop: int) -> np.ndarray:
        """The rows of all indices from `start` to before `stop`, far faster than by `decode`."""
        count, length = self._last.shape
        above = np.arange(start // length, -(-stop // length))
        columns = np.empty((len(self.sizes), len(above), length), self.dtype)
        columns[:-count] = self.decode(above * length).T[:-count, :, None]
        columns[-count:] = self._last[:, None]
        begin = start % length
        return columns.reshape(len(self.sizes), -1)[:, begin : begin + stop - start].T

    def checked(self, candidates: Any) -> np.ndarray:
        """The candidates as an (n, positions) integer array; InputError names the first wrong row."""
        rows = np.asarray(candidates)
        self.require_shape(rows)
        outside = (rows < 0) | (rows >= np.asarray(self.sizes))
        if outside.any():
            row, position = (int(i[0]) for i in np.nonzero(outside))
            raise InputError(
                f"row {row} has {int(rows[row, position])} at position {position}; expected a choice "
                f"from 0 to {self.sizes[position] - 1}"
            )
        return rows

    def require_shape(self, rows: np.ndarray) -> None:
        """Raise InputError unless `rows` has shape (n, positions) and integers."""
        if rows.ndim != 2 or rows.shape[1] != len(self.sizes) or rows.dtype.kind not in "iu":
            raise InputError(
                f"candidates are an array of shape {rows.shape} and type {rows.dtype}; expected whole "
                f"numbers of shape (candidates, {len(self.sizes)}), one column a position"
            )

    def sample(self, count: int, random: np.random.Generator) -> np.ndarray:
        """(count, positions) integers, drawn uniformly; candidates may repeat."""
        columns = [random.integers(0, size, count) for size in self.sizes]
        return np.stack(columns, axis=1).astype(self.dtype)
