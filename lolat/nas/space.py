"""A search space: positions with choices, and tables of counts that add up to those of any candidate.

A candidate is a row of small integers, one per position:

    space = lolat.nas.spaces.fbnet.space()
    candidates = space.sample(1_000_000)  # (1000000, 22) integers
    space.values(candidates[0])           # {"layer 1": "k3_e1", ...}
    space.network(candidates[0])          # a Graph, for `model.predict`
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from lolat.device.question import as_whole
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS
from lolat.io.progress import Progress
from lolat.io.tables import Table as Cells
from lolat.nas.cost_prior import Pieces, of_tables
from lolat.nas.decomposition import Decomposer, Decomposition, Networks
from lolat.nas.tables import Part, Table, chain, totals
from lolat.units import shortened

MOST_INDEX = 2**63 - 1
CHUNK = 8192  # candidates worked on at a time: their columns stay in a core's cache
ROWS = 4096  # that are copied: they stay in a core's cache

Row = Sequence[int] | np.ndarray  # the integers of one candidate


@dataclass(frozen=True)
class Grid:
    """All rows of integers from 0 to below `sizes`, the last position running fastest."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise InputError(f"choices per position are {self.sizes}; expected some, each from 1")

    @property
    def size(self) -> int:
        """The number of rows; an int of any size."""
        return math.prod(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest signed integer type that holds every choice: int8 up to 128 of them."""
        return np.min_scalar_type(-max(self.sizes))

    def countable(self) -> int:
        """`size`; InputError if an int64 cannot index so many."""
        if self.size > MOST_INDEX:
            raise InputError(
                f"{len(self.sizes)} positions make {float(self.size):.2g} candidates, more than an int64 "
                "can index; draw some of them (Space.sample), or fix some positions"
            )
        return self.size

    def decode(self, indices: Any) -> np.ndarray:
        """(n, positions) integers of candidates by (n,) index; InputError for an index outside."""
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
        """All rows of the last position, and of more positions as long as there are few rows."""
        count = 1
        while count < len(self.sizes) and math.prod(self.sizes[-count - 1 :]) <= ROWS:
            count += 1
        return np.indices(self.sizes[-count:], self.dtype).reshape(count, -1)

    def between(self, start: int, stop: int) -> np.ndarray:
        """`decode` of all indices from `start` to before `stop`, far faster: most positions stay."""
        count, length = self._last.shape
        above = np.arange(start // length, -(-stop // length))
        columns = np.empty((len(self.sizes), len(above), length), self.dtype)
        columns[:-count] = self.decode(above * length).T[:-count, :, None]
        columns[-count:] = self._last[:, None]
        begin = start % length
        return columns.reshape(len(self.sizes), -1)[:, begin : begin + stop - start].T

    def checked(self, candidates: Any) -> np.ndarray:
        """Candidates as an array (n, positions) of integers; InputError names the first wrong row."""
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


class Codec(NamedTuple):
    """`parse`: the integers of a candidate's text, InputError for another text; `write`: the inverse."""

    parse: Callable[[str], Row]
    write: Callable[[Row], str]


def dashes(sizes: Sequence[int]) -> Codec:
    """Candidates as integers below `sizes` with "-" between them: 0-3-1."""

    def parse(arch: str) -> list[int]:
        numbers = [int(n) if re.fullmatch("[0-9]{1,9}", n) else -1 for n in arch.strip().split("-")]
        pairs = zip(numbers, sizes, strict=False)
        if len(numbers) == len(sizes) and all(n in range(size) for n, size in pairs):
            return numbers
        raise InputError(
            f"{shortened(arch)!r} is no candidate; expected {len(sizes)} whole numbers with '-' "
            f"between them, from {write([0] * len(sizes))} to {write([n - 1 for n in sizes])}"
        )

    def write(row: Row) -> str:
        return "-".join(str(int(n)) for n in row)

    return Codec(parse, write)


@dataclass(frozen=True)
class Position:
    """One decision: its name, and the values to choose from, by their integers."""

    name: str
    choices: tuple[Any, ...]


@dataclass(eq=False, repr=False)
class Space:
    """Positions with choices, and the counts of each candidate.

    `fixed`: tables of counts that add up to a candidate's, unless a `decomposer` finds them; `build(values,
    name)`: the whole network from the values chosen; `codec`: text of candidates, integers with "-" between
    them if not given; `prior(space)`: the prior knowledge for a fit to a few measured networks. InputError
    if a position has no choices.
    """

    name: str
    positions: Sequence[Position]
    fixed: Sequence[Table]
    build: Callable[[tuple[Any, ...], str], Graph]
    codec: Codec | None = None
    prior: Callable[[Space], list[Pieces]] | None = None
    decomposer: Decomposer | None = None

    def __post_init__(self) -> None:
        self.grid = Grid(tuple(len(p.choices) for p in self.positions))
        self._codec = self.codec or dashes(self.grid.sizes)

    @classmethod
    def of_parts(
        cls,
        name: str,
        positions: Sequence[Position],
        parts: Sequence[Part],
        codec: Codec | None = None,
        prior: Callable[[Space], list[Pieces]] | None = None,
    ) -> Space:
        """The space of networks that are a chain of parts, each depending on some of the positions."""
        tables = []
        for part in parts:
            choices = [positions[p].choices for p in part.positions]
            tables.append(part.table(choices, part is parts[0], part is parts[-1]))
        return cls(name, positions, tables, partial(chain, tuple(parts)), codec, prior)

    @classmethod
    def from_factory(
        cls,
        function: Callable[..., Any],
        choices: Mapping[str, Sequence[Any]],
        input_size: Any = None,
        tolerance: float = 0.0,
    ) -> Space:
        """The space of the networks that `function` returns: Keras or PyTorch networks, or Graphs.

        `choices`: the values of each keyword argument; `input_size`: as in `lolat.read`; `tolerance`: the
        largest relative error of the sum of a count. The networks are built when they are needed first:
        see `prepare`. InputError if the function does not take the choices.
        """
        positions = [Position(name, tuple(values)) for name, values in choices.items()]
        networks = Networks(function, choices, input_size)
        space = cls(networks.name, positions, (), networks.build)
        space.decomposer = Decomposer(networks, tolerance)
        return space

    def prepare(self, progress: Progress | None = None) -> Decomposition | None:
        """Build the networks that the tables need, unless that was done before.

        Returns the positions that interact; None if no function makes the networks. InputError if the
        function fails, and if the networks do not decompose; it names the positions.
        """
        return self.decomposer.run(progress or Progress()) if self.decomposer else None

    @property
    def decomposition(self) -> Decomposition | None:
        """See `prepare`."""
        return self.prepare()

    @property
    def tables(self) -> Sequence[Table]:
        """Counts that add up to a candidate's."""
        self.prepare()
        return [*self.decomposer.tables.values()] if self.decomposer else self.fixed

    @property
    def size(self) -> int:
        """The number of candidates; an int of any size."""
        return self.grid.size

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the choices, and of ACTS, INP, FLOPs and weights of the first and last candidate."""
        choices = [(p.name, [_plain(value) for value in p.choices]) for p in self.positions]
        ends = [[0] * len(self.grid.sizes), [n - 1 for n in self.grid.sizes]]
        sums = totals([self.network(row) for row in ends], 1, self.name)[:, :4]
        text = json.dumps([choices, sums.tolist()])
        text = re.sub(" at 0x[0-9a-fA-F]+", "", text)  # an object's address says nothing
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def decode(self, indices: Any) -> np.ndarray:
        """(n, positions) integers of the candidates with these indices; see `Grid.decode`."""
        return self.grid.decode(indices)

    def sample(self, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
        """(count, positions) candidates drawn uniformly, which may repeat."""
        return self.grid.sample(count, np.random.default_rng(seed))

    def parse(
        self, archs: Sequence[str], place: Callable[[int], str] = lambda i: f"network {i + 1}"
    ) -> np.ndarray:
        """(n, positions) integers of candidates written as text; InputError names the first wrong one."""
        rows = np.empty((len(archs), len(self.positions)), np.int64)
        for index, arch in enumerate(archs):
            try:
                rows[index] = self._codec.parse(arch)
            except InputError as error:
                raise InputError(f"{place(index)}: {error.message}") from None
        return rows.astype(self.grid.dtype)

    def parse_table(self, table: Cells) -> np.ndarray:
        """(n, positions) integers of a table's column arch; InputError names the line of a wrong one."""
        return self.parse([row["arch"] for row in table], lambda i: table.row(i).where)

    def arch(self, candidate: Row) -> str:
        """A candidate as text; `parse` is the inverse."""
        return self._codec.write(candidate)

    def values(self, candidate: Row) -> dict[str, Any]:
        """The choices of a candidate: name of the position -> value. InputError for no candidate."""
        row = self.grid.checked(np.asarray(candidate)[None])[0]
        return {p.name: p.choices[c] for p, c in zip(self.positions, row, strict=True)}

    def named(self, candidate: Row) -> dict[str, Any]:
        """`values` for JSON: numbers, text, and the names of other values."""
        return {name: _plain(value) for name, value in self.values(candidate).items()}

    def assumptions(self) -> list[Pieces]:
        """The prior knowledge for a fit to measured networks: assumptions on how a device runs them."""
        return self.prior(self) if self.prior else of_tables(self.name, self.tables)

    def network(self, candidate: Row, name: str = "") -> Graph:
        """A candidate's whole network as a Graph. InputError for no candidate."""
        chosen = tuple(self.values(candidate).values())
        return self.build(chosen, name or f"{self.name} {self.arch(candidate)}")

    def counts(self, candidates: Any, batch_size: int = 1) -> np.ndarray:
        """(n, COLUMNS) int64 counts of whole candidates at `batch_size`; errors as of `Grid.checked`."""
        rows = self.grid.checked(candidates)
        total = np.zeros((len(rows), len(COLUMNS)), np.int64)
        for table in self.tables:
            total += table.at(as_whole(batch_size))[tuple(rows[:, p] for p in table.positions)]
        return total


def _plain(value: Any) -> Any:
    """A choice for JSON: a number, a text or None as it is, another value's name."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return getattr(value, "__name__", str(value))
