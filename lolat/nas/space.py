"""A search space: positions with choices, and tables whose sum gives the counts of any candidate.

A candidate is a row of small integers, one for each position:

    space = lolat.nas.spaces.fbnet.space()
    candidates = space.sample(1_000_000)  # (1000000, 22) integers
    space.values(candidates[0])           # {"layer 1": "k3_e1", ...}
    space.network(candidates[0])          # a Graph, for `model.predict`
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from lolat.device.question import as_whole
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS
from lolat.io.paths import AnyPath
from lolat.io.progress import Progress
from lolat.io.tables import Row, Table, column_name, read_table
from lolat.nas.candidates import CandidateNetworks
from lolat.nas.cost_prior import Pieces, pieces_of_tables
from lolat.nas.count_tables import CountTable, Part, chain, totals
from lolat.nas.decomposition import Decomposer, Decomposition
from lolat.nas.grid import Grid
from lolat.parameters import InputSize
from lolat.units import as_number, plural, shortened

CHUNK = 8192  # candidates worked on at a time, so that their columns stay in a core's cache
MOST_APART = 2**20  # candidates of a space whose samples do not repeat
RESERVED = frozenset(["arch", "batch_size", "latency_ms", "low_ms", "high_ms", "score"])
"""Columns in tables of candidates that never hold choices, even if a position has this name."""

AnyCandidate = Sequence[int] | np.ndarray
"""The integers of a candidate: the index of a choice for each position."""


class Codec(NamedTuple):
    """The text form of candidates: `parse` returns integers, or raises InputError; `write` reverses it."""

    parse: Callable[[str], AnyCandidate]
    write: Callable[[AnyCandidate], str]


def dashes(sizes: Sequence[int]) -> Codec:
    """The codec for integers below `sizes` separated by "-": 0-3-1."""

    def parse(arch: str) -> list[int]:
        numbers = [int(n) if re.fullmatch("[0-9]{1,9}", n) else -1 for n in arch.strip().split("-")]
        pairs = zip(numbers, sizes, strict=False)
        if len(numbers) == len(sizes) and all(n in range(size) for n, size in pairs):
            return numbers
        raise InputError(
            f"{shortened(arch)!r} is no candidate; expected {len(sizes)} whole numbers with '-' "
            f"between them, from {write([0] * len(sizes))} to {write([n - 1 for n in sizes])}"
        )

    def write(row: AnyCandidate) -> str:
        return "-".join(str(int(n)) for n in row)

    return Codec(parse, write)


@dataclass(frozen=True)
class Position:
    """A position: its name, and the values to choose from; a candidate's integer is a value's index."""

    name: str
    choices: tuple[Any, ...]

    @property
    def column(self) -> str:
        """The name of the column with its choices in a table."""
        return column_name(self.name)

    @property
    def texts(self) -> list[str]:
        """The choices in the form of cells of a table."""
        return ["" if value is None else str(value) for value in map(_plain, self.choices)]

    def index(self, row: Row) -> int:
        """The index of the choice in the row's cell; InputError unless exactly one choice fits.

        The exact text is tried first, then the text ignoring case, or another form of the number.
        """
        text, fits = row[self.column], [list[int](), list[int]()]
        for number, (value, shown) in enumerate(zip(self.choices, self.texts, strict=True)):
            is_number = isinstance(_plain(value), int | float)
            if text == shown:
                fits[0].append(number)
            elif text.casefold() == shown.casefold() or (is_number and as_number(text) == value):
                fits[1].append(number)
        found = fits[0] or fits[1]
        if len(found) > 1:
            both = " and ".join(repr(self.choices[number]) for number in found)
            raise row.wrong(self.column, f"one choice; it fits {both}: give arch instead")
        if not found:
            raise row.wrong(self.column, f"one of {', '.join(self.texts)}")
        return found[0]


@dataclass(eq=False, repr=False)
class Space:
    """A search space: positions with choices, and the counts of each candidate.

    `fixed`: tables whose sum is a candidate's counts, unless a `decomposer` finds them. `build(values,
    name)`: makes the whole network for the chosen values. `codec`: the text form of candidates; None:
    integers separated by "-". `prior(space)`: returns the prior for a fit to a few measured networks.
    `label`: the name in messages, such as "my_spaces:phone"; files use `name`.

    InputError if a position has no choices, or the same choice twice.
    """

    name: str
    positions: Sequence[Position]
    fixed: Sequence[CountTable]
    build: Callable[[tuple[Any, ...], str], Graph]
    codec: Codec | None = None
    prior: Callable[[Space], list[Pieces]] | None = None
    decomposer: Decomposer | None = None
    label: str = ""

    def __post_init__(self) -> None:
        self.label = self.label or self.name
        for position in self.positions:
            if not position.choices:
                raise InputError(f"position {position.name!r} has no choices; expected some")
            distinct = {(type(c), c) for c in position.choices if _plain(c) is c}
            if len(distinct) < sum(_plain(c) is c for c in position.choices):
                shown = shortened(str(position.choices))
                raise InputError(
                    f"position {position.name!r} has a choice twice: {shown}; expected each once"
                )
        self.grid = Grid(tuple(len(p.choices) for p in self.positions))
        self._codec = self.codec or dashes(self.grid.sizes)

    def __repr__(self) -> str:
        positions = plural(len(self.positions), "position")
        return f"<Space: {self.name}, {positions}, {self.grid.size:,} candidates>"

    @classmethod
    def of_parts(
        cls,
        name: str,
        positions: Sequence[Position],
        parts: Sequence[Part],
        codec: Codec | None = None,
        prior: Callable[[Space], list[Pieces]] | None = None,
    ) -> Space:
        """Make a space of networks that are chains of parts; each part depends on some positions."""
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
        input_size: InputSize = None,
        tolerance: float = 0.0,
    ) -> Space:
        """Make a space of the networks that `function` returns: Keras or PyTorch networks, or Graphs.

        `choices`: keyword argument -> its values; `input_size`: as in `lolat.read`; `tolerance`: the
        largest accepted relative error of a summed count.

        Networks are built when they are first needed, or by `prepare`. InputError if the function does not
        take the choices.
        """
        for name, values in choices.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise InputError(
                    f"position {name!r}: {values!r} is no list of choices; expected one, such as "
                    f"({values!r},)"
                )
        positions = [Position(name, tuple(values)) for name, values in choices.items()]
        choices = {position.name: position.choices for position in positions}
        networks = CandidateNetworks(function, choices, input_size)
        space = cls(networks.name, positions, (), networks.build)
        space.decomposer = Decomposer(networks, tolerance)
        return space

    def prepare(self, progress: Progress | None = None) -> Decomposition | None:
        """Build the networks that the tables need, once, and return the positions that interact.

        Returns None for a space that was not made by `from_factory`. InputError if the function fails, or,
        with the positions, if the networks do not decompose.
        """
        return self.decomposer.run(progress or Progress()) if self.decomposer else None

    @property
    def decomposition(self) -> Decomposition | None:
        """The result of `prepare`."""
        return self.prepare()

    @property
    def tables(self) -> Sequence[CountTable]:
        """Tables whose sum is a candidate's counts."""
        self.prepare()
        return [*self.decomposer.tables.values()] if self.decomposer else self.fixed

    @property
    def size(self) -> int:
        """Number of candidates, an int of any size."""
        return self.grid.size

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the choices and of the counts ACTS, INP, FLOPs and weights.

        For a function's networks the counts of all tables are hashed, else counts of the first and last
        candidate.
        """
        choices = [(p.name, [_plain(value) for value in p.choices]) for p in self.positions]
        ends = [[0] * len(self.grid.sizes), [n - 1 for n in self.grid.sizes]]
        if self.decomposer is None:
            sums = [totals([self.network(row) for row in ends], 1, self.name)[:, :4].tolist()]
        else:
            sums = [table.at(1)[..., :4].tolist() for table in self.tables]
        text = json.dumps([choices, sums])
        text = re.sub(" at 0x[0-9a-fA-F]+", "", text)  # an object's address says nothing
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def decode(self, indices: Any) -> np.ndarray:
        """(n, positions) integers of the candidates with (n,) indices; InputError for an index outside."""
        return self.grid.decode(indices)

    def sample(self, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
        """(count, positions) integers of candidates, drawn uniformly.

        In a space with `count` to MOST_APART candidates none repeats; in a larger space few do.
        """
        random = np.random.default_rng(seed)
        rows = self.grid.sample(count, random)
        if count <= self.size <= MOST_APART:
            return self.grid.decode(self._apart(rows, random))
        return rows

    def _apart(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """(n,) indices of candidates, in which repetitions are replaced by other candidates."""
        indices = np.ravel_multi_index(tuple(rows.T.astype(np.int64)), self.grid.sizes)
        again = np.ones(len(indices), bool)
        again[np.unique(indices, return_index=True)[1]] = False
        others = np.setdiff1d(np.arange(self.size), indices)
        indices[again] = random.permutation(others)[: again.sum()]
        return indices

    def parse(
        self, archs: Sequence[str], place: Callable[[int], str] = lambda i: f"network {i + 1}"
    ) -> np.ndarray:
        """(n, positions) integers of candidates given as text; InputError names the first wrong text."""
        rows = np.empty((len(archs), len(self.positions)), np.int64)
        for index, arch in enumerate(archs):
            try:
                rows[index] = self._codec.parse(arch)
            except InputError as error:
                raise InputError(f"{place(index)}: {error.message}") from None
        return rows.astype(self.grid.dtype)

    def read_table(
        self, path: AnyPath, others: Sequence[str] = (), rows: str | None = None, named: str = ""
    ) -> Table:
        """Read a CSV table with the columns arch and `others`; errors as in `lolat.io.tables.read_table`.

        `named`: names of these columns, for messages. Instead of arch the table may have a column of
        choices for each position; the column arch is then added.
        """
        expected = f"expected a CSV table with the columns {named or ','.join(['arch', *others])}"
        table = read_table(os.fspath(path), others, expected, rows)
        if "arch" in table.names:
            return table
        every = [p.column for p in self.positions]
        missing = [name for name in every if name not in table.names]
        if missing:
            lacks = "arch" if len(missing) == len(every) else f"arch, or {', '.join(missing)}"
            raise InputError(
                f"{table.source} lacks the column {shortened(lacks)}; {expected} (arch is a text such as "
                f"{self.arch([0] * len(every))}), or in place of arch {shortened(', '.join(every))}"
            )
        archs = [self.arch([p.index(row) for p in self.positions]) for row in table]
        columns = [*table.columns, archs]
        return replace(
            table, header=(*table.header, "arch"), names=(*table.names, "arch"), columns=columns
        )

    def parse_table(self, table: Table) -> np.ndarray:
        """(n, positions) integers from a table's column arch; InputError names the line of a wrong cell.

        A cell is also wrong if the row's columns of choices, if all are there, give another candidate: the
        table was written when the choices had another order.
        """
        rows = self.parse([row["arch"] for row in table], lambda i: table.row(i).where)
        others = [(n, p) for n, p in enumerate(self.positions) if p.column not in RESERVED]
        if not all(p.column in table.names for _, p in others):
            return rows
        for n, position in others:
            texts, cells = position.texts, table.cells(position.column)
            for i, (choice, cell) in enumerate(zip(rows[:, n].tolist(), cells, strict=True)):
                if cell != texts[choice] and position.index(table.row(i)) != choice:
                    raise table.row(i).refused(
                        f"arch {table.row(i)['arch']} is {position.name} {texts[choice]}, its column says "
                        f"{cell}: the choices have changed; write the table anew, or leave out arch"
                    )
        return rows

    def arch(self, candidate: AnyCandidate) -> str:
        """A candidate as text; `parse` is the inverse."""
        return self._codec.write(candidate)

    def values(self, candidate: AnyCandidate) -> dict[str, Any]:
        """A candidate's choices: name of the position -> value; InputError if it is not a candidate."""
        row = self.grid.checked(np.asarray(candidate)[None])[0]
        return {p.name: p.choices[c] for p, c in zip(self.positions, row, strict=True)}

    def named(self, candidate: AnyCandidate) -> dict[str, Any]:
        """`values` for JSON: numbers and texts as they are, other values by name."""
        return {name: _plain(value) for name, value in self.values(candidate).items()}

    def assumptions(self) -> list[Pieces]:
        """The prior for a fit to measured networks: assumptions on how a device runs them."""
        return self.prior(self) if self.prior else pieces_of_tables(self.name, self.tables)

    def network(self, candidate: AnyCandidate, name: str = "") -> Graph:
        """A candidate's whole network; InputError if it is not a candidate."""
        chosen = tuple(self.values(candidate).values())
        if self.decomposer:
            return self.decomposer.networks.graph(tuple(map(int, candidate)))
        return self.build(chosen, name or f"{self.name} {self.arch(candidate)}")

    def counts(self, candidates: Any, batch_size: int = 1) -> np.ndarray:
        """(n, COLUMNS) int64 counts of candidates at `batch_size`; InputError names a wrong row."""
        rows = self.grid.checked(candidates)
        total = np.zeros((len(rows), len(COLUMNS)), np.int64)
        for table in self.tables:
            total += table.at(as_whole(batch_size))[tuple(rows[:, p] for p in table.positions)]
        return total


def _plain(value: Any) -> Any:
    """A choice for JSON: a number, a text or None as it is, any other value by name."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return getattr(value, "__name__", str(value))
