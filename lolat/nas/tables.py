"""Counts by choice: of a part of a network for each combination of the choices that it depends on.

A candidate's counts are the sum of its parts' (columns of `lolat.graph.counts` are sums over operations;
thresholds are applied operation by operation, so tables are of one batch size), but for two that are a
matter of the whole graph. `serial`, the operations on the longest path, is a sum where parts follow one
another, each with a single tensor in and out, for every path goes through all of them; inside branches it
is a maximum, which `CellTable` takes. `border`, the graph's own inputs and outputs, is `BorderTable`'s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from lolat.errors import InputError
from lolat.fitting.predictors.kernels import Kernels
from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import MOST_COUNT
from lolat.graph.counts import COLUMNS, GraphCounts, count
from lolat.graph.layers import Layers
from lolat.model.prediction import operations_ms

SERIAL, BORDER = COLUMNS.index("serial"), COLUMNS.index("border")


class Table(Protocol):
    """Counts of a part of a network by the choices at `positions`."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Which positions it depends on."""
        ...

    def at(self, batch_size: int) -> np.ndarray:
        """(choices at the first of `positions`, ... at the last, COLUMNS) int64 at `batch_size`."""
        ...

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """The same without COLUMNS: milliseconds, by a formula that takes operations one by one."""
        ...


@dataclass(frozen=True)
class Part:
    """A part of a chain: what it depends on, the shape of its input, and what writes it.

    `shape` and `write` get the values of the choices at `positions`, in this order; `write(layers, x,
    *values)` returns the tensor that the next part reads.
    """

    name: str
    positions: tuple[int, ...]
    shape: Callable[..., tuple[int, ...]]
    write: Callable[..., int]

    def table(self, choices: Sequence[Sequence[Any]]) -> Table:
        """Its counts by choice; `choices`: the values at each of its positions."""
        return FragmentTable(self, tuple(map(tuple, choices)))

    def graph(self, values: Sequence[Any]) -> Graph:
        """The part alone, for these values of its choices."""
        builder = GraphBuilder(self.name)
        x = builder.input(self.shape(*values))
        return builder.build([self.write(Layers(builder, self.name), x, *values)])


@dataclass(frozen=True)
class FragmentTable:
    """The table of a `Part`: a small graph is built and counted for each combination."""

    part: Part
    choices: tuple[tuple[Any, ...], ...]

    @property
    def positions(self) -> tuple[int, ...]:
        """Which positions the part depends on."""
        return self.part.positions

    @cached_property
    def _graphs(self) -> list[Graph]:
        """The part alone, for each combination."""
        return [self.part.graph(values) for values in itertools.product(*self.choices)]

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`."""
        counts = totals(self._graphs, batch_size, self.part.name)
        counts[:, BORDER] = 0  # of the fragment, which is not the whole
        return counts.reshape(*map(len, self.choices), len(COLUMNS))

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`."""
        times = [operations_ms(formula, graph, batch_size) for graph in self._graphs]
        return np.array(times).reshape(tuple(map(len, self.choices)))


@dataclass(frozen=True)
class CellTable:
    """The table of `repeat` equal cells, one behind the other; a cell is nodes joined by chosen edges.

    `edges`: (from node, to node) of each table of `tables` (one position each), ordered by node; node 0
    is the input, the last one the output. What arrives at a node is added up in the order of the edges,
    one `addition` (a table without positions) after the other.
    """

    edges: tuple[tuple[int, int], ...]
    tables: tuple[Table, ...]
    addition: Table
    repeat: int = 1

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the edges."""
        return tuple(p for table in self.tables for p in table.positions)

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`; `serial` is that of the longest path, for each combination."""
        addition = self.addition.at(batch_size)
        nodes = max(to for _, to in self.edges)
        # Each edge's counts along an axis of its own.
        axes = range(len(self.edges))
        along = [
            np.expand_dims(table.at(batch_size), [a for a in axes if a != axis])
            for axis, table in enumerate(self.tables)
        ]
        counts = sum(along) + addition * (len(self.edges) - nodes)
        reached: dict[int, Any] = {0: np.zeros(counts.shape[:-1], np.int64)}
        for (begin, to), edge in zip(self.edges, along, strict=True):
            length = reached[begin] + edge[..., SERIAL]
            if to in reached:
                length = np.maximum(reached[to], length) + addition[SERIAL]
            reached[to] = length
        counts[..., SERIAL] = reached[nodes]
        return self.repeat * counts

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`."""
        each = [table.ms(formula, batch_size) for table in self.tables]
        edges = sum(np.ix_(*each))
        more = len(self.edges) - max(to for _, to in self.edges)
        return np.asarray(self.repeat * (edges + more * self.addition.ms(formula, batch_size)))


@dataclass(frozen=True)
class BorderTable:
    """The `border` of a chain at its first part (the graph's input) or its last one (its output).

    `elements`: of that tensor at batch size 1, with an axis for each of `positions`.
    """

    positions: tuple[int, ...]
    elements: np.ndarray

    @classmethod
    def of(cls, part: Part, choices: Sequence[Sequence[Any]], output: bool) -> BorderTable:
        """That of a part; `choices`: the values at each of its positions."""
        elements = []
        for values in itertools.product(*choices):
            graph = part.graph(values)
            elements.append(
                graph.tensors[(graph.outputs if output else graph.inputs)[0]].elements()
            )
        return cls(part.positions, np.array(elements, np.int64).reshape(tuple(map(len, choices))))

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`."""
        counts = np.zeros((*self.elements.shape, len(COLUMNS)), np.int64)
        counts[..., BORDER] = batch_size * self.elements
        return counts

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`: nothing."""
        return np.zeros(self.elements.shape)


def totals(graphs: Sequence[Graph], batch_size: int, name: str) -> np.ndarray:
    """(graphs, COLUMNS) counts of each at `batch_size`; InputError where one does not fit in 64 bits."""
    each = [count(graph) for graph in graphs]
    fixed, scaled = (
        np.concatenate(c) for c in zip(*((c.fixed, c.scaled) for c in each), strict=True)
    )
    if float(scaled.max(initial=0)) * batch_size > MOST_COUNT:
        raise InputError(
            f"batch size {batch_size} of {name!r}: too large, its counts do not fit in 64 bits; give a "
            "smaller batch size or input size"
        )
    sums = np.zeros((len(graphs), len(COLUMNS)), np.int64)
    owner = np.repeat(np.arange(len(graphs)), [len(c.fixed) for c in each])
    np.add.at(sums, owner, GraphCounts(fixed, scaled, ()).at(batch_size))
    return sums


# ---- Which positions of a space interact, found out by building some of its networks.
#
# The counts of a candidate are taken apart around the first choice of every position, the base (cut-HDMR;
# Rabitz and Alis, 1999): f(base) + what each change does alone + what each pair of changes does beyond that
# + ... Which pairs (triples, fours) there are is found in three steps: neighbors are tried with their last
# choices; candidates that together have every pair of choices of neighbors are built and compared with
# their sums, and one that deviates is reduced to the fewest changes that still do, which get a table of all
# their choices; and so on with random candidates, until there are twenty new ones that need no further
# table. The deviation left is said, and refused above a tolerance.

TOGETHER = 4  # positions whose choices may depend on one another: two widths, kernel, resolution
CHECKED_AT = (1, 8, 64)  # batch sizes, because of the thresholds of some counts
COVERING_CHECKS, FRESH_CHECKS = 100, 20

Row = tuple[int, ...]


@dataclass(frozen=True)
class Decomposition:
    """How a factory's networks were taken apart.

    `together`: names of the positions that have a table in common; `checked`: whole networks that were
    compared with their sums; `deviation`: the largest seen, relative to the network's total of that
    count, and `column`, the count (None where all were exact); `built`: networks built in all.
    """

    together: tuple[tuple[str, ...], ...]
    checked: int
    deviation: float
    column: str | None
    built: int

    def __str__(self) -> str:
        pairs = ", ".join(" with ".join(names) for names in self.together) or "none"
        off = "exact" if self.column is None else f"off by {self.deviation:.2g} of {self.column}"
        return (
            f"{self.built} networks built; positions that interact: {pairs}; {self.checked} whole "
            f"networks against their sums: {off}"
        )


@dataclass
class Networks:
    """Networks of a factory, built once each and counted.

    `choices`: the values per position; `most`: networks that may be built; `done` is called after each.
    """

    make: Callable[[Sequence[Any], str], Graph]
    choices: Sequence[Sequence[Any]]
    name: str
    most: int
    done: Callable[[], object]

    def __post_init__(self) -> None:
        self._graphs: list[Graph] = []
        self._number: dict[Row, int] = {}
        self._ms: tuple[Kernels | None, int, np.ndarray] = (None, 0, np.zeros(0))
        self._totals: dict[int, np.ndarray] = {}  # batch size -> (networks so far, COLUMNS)

    def __len__(self) -> int:
        return len(self._graphs)

    def require(self, more: int, what: str) -> None:
        """InputError where building `more` networks would be too many."""
        if len(self) + more > self.most:
            raise InputError(
                f"{self.name}: {what} takes {len(self) + more} networks, more than {self.most}; give "
                "fewer positions or choices, or a larger most_networks"
            )

    def number(self, row: Row) -> int:
        """Which network a candidate is; it is built where it is new."""
        if row not in self._number:
            self.require(1, "taking its networks apart")
            values = [v[c] for v, c in zip(self.choices, row, strict=True)]
            self._graphs.append(self.make(values, self.name))
            self._number[row] = len(self._graphs) - 1
            self.done()
        return self._number[row]

    def totals(self, batch_size: int) -> np.ndarray:
        """(networks built, COLUMNS) counts of each at `batch_size`."""
        sums = self._totals.get(batch_size, np.zeros((0, len(COLUMNS)), np.int64))
        if len(sums) < len(self):
            more = totals(self._graphs[len(sums) :], batch_size, self.name)
            sums = self._totals[batch_size] = np.concatenate([sums, more])
        return sums

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """(networks built,) milliseconds of each; the last asked for are kept."""
        known, size, times = self._ms
        if known is not formula or size != batch_size or len(times) < len(self):
            times = np.array([operations_ms(formula, graph, batch_size) for graph in self._graphs])
            self._ms = formula, batch_size, times
        return times


@dataclass(frozen=True)
class ChangeTable:
    """What the choices at `positions` do together, beyond what fewer of them do; `numbers`: the networks
    with those choices and the base elsewhere, an axis per position."""

    networks: Networks
    positions: tuple[int, ...]
    numbers: np.ndarray

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`."""
        return self._changes(self.networks.totals(batch_size))

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`."""
        return self._changes(self.networks.ms(formula, batch_size))

    def _changes(self, of_networks: np.ndarray) -> np.ndarray:
        """What is more than with the base's choice at any of the positions."""
        changes = of_networks[self.numbers]
        for axis in range(len(self.positions)):
            changes = changes - changes.take([0], axis)
        return changes


class Finder:
    """Finds which positions interact."""

    def __init__(self, networks: Networks, names: Sequence[str], tolerance: float) -> None:
        self.networks, self.names, self.tolerance = networks, names, tolerance
        self.sizes = [len(v) for v in networks.choices]
        self.tables: dict[tuple[int, ...], ChangeTable] = {}  # what adds up to a candidate's
        self._checks: list[Row] = []

    def run(self, random: np.random.Generator) -> Decomposition:
        """Find the interactions; InputError where they are too many."""
        self.networks.require(1 + sum(n - 1 for n in self.sizes), "a change of each position alone")
        self._add(())
        last = range(len(self.sizes))
        for position in last:
            self._add((position,))
        for pair in itertools.pairwise(last):
            row = tuple(n - 1 if p in pair else 0 for p, n in enumerate(self.sizes))
            if self._deviation(row)[0] > self.tolerance:
                self._add(pair)
        checks = self._checks = list(dict.fromkeys(self._covering(random)))
        while True:
            # A new table may change the sum of a candidate that was right by chance: look at all again.
            while off := [row for row in checks if self._deviation(row)[0] > self.tolerance]:
                self._add(self._reduced(off[0]))
            # Random ones, which no table was made for.
            fresh = [
                tuple(int(random.integers(0, n)) for n in self.sizes) for _ in range(FRESH_CHECKS)
            ]
            checks += fresh
            if all(self._deviation(row)[0] <= self.tolerance for row in fresh):
                break
        worst, column = max(map(self._deviation, checks), key=lambda d: d[0])
        together = [key for key in self.tables if len(key) > 1]
        largest = [k for k in together if not any(set(k) < set(other) for other in together)]
        return Decomposition(
            tuple(tuple(self.names[p] for p in key) for key in largest),
            len(checks), worst, column if worst > 0.0 else None, len(self.networks),
        )  # fmt: skip

    def _covering(self, random: np.random.Generator) -> Iterator[Row]:
        """Candidates that together have each pair of choices of neighbors, up to COVERING_CHECKS."""
        # Even positions go through their choices for each choice of the odd ones, in orders of their own.
        orders = [random.permutation(n) for n in self.sizes]
        even, odd = max(self.sizes[::2]), max(self.sizes[1::2], default=1)
        pairs = random.permutation(even * odd)[:COVERING_CHECKS]
        for a, b in zip(*np.divmod(pairs, odd), strict=True):
            yield tuple(int(o[(b if p % 2 else a) % len(o)]) for p, o in enumerate(orders))

    def _add(self, key: tuple[int, ...]) -> None:
        """Give some positions a table in common, and all fewer of them one each."""
        if key in self.tables:
            return
        for fewer in itertools.combinations(key, len(key) - 1) if key else ():
            self._add(fewer)
        shape = tuple(self.sizes[p] for p in key)
        if len(key) > 1:
            named = " with ".join(self.names[p] for p in key)
            self.networks.require(math.prod(n - 1 for n in shape), f"a table of {named}")
        numbers = np.empty(shape, np.intp)
        for chosen in itertools.product(*map(range, shape)):
            row = [0] * len(self.sizes)
            for position, choice in zip(key, chosen, strict=True):
                row[position] = choice
            numbers[chosen] = self.networks.number(tuple(row))
        self.tables[key] = ChangeTable(self.networks, key, numbers)

    def _deviation(self, row: Row) -> tuple[float, str]:
        """How far the sum for a candidate is off, relative, at worst, and in which count."""
        number = self.networks.number(row)
        worst = (0.0, "")
        for batch_size in CHECKED_AT:
            actual = self.networks.totals(batch_size)[number]
            summed = sum(
                table.at(batch_size)[tuple(row[p] for p in key)]
                for key, table in self.tables.items()
            )
            off = np.abs(summed - actual) / np.maximum(actual, 1)
            at = int(np.argmax(off))
            worst = max(worst, (float(off[at]), COLUMNS[at]))
        return worst

    def _reduced(self, row: Row) -> tuple[int, ...]:
        """The fewest positions whose choices in `row` deviate; InputError where they are too many."""
        kept = [p for p, choice in enumerate(row) if choice]
        for position in list(kept):
            fewer = [p for p in kept if p != position]
            without = tuple(c if p in fewer else 0 for p, c in enumerate(row))
            if self._deviation(without)[0] > self.tolerance:
                kept = fewer
        if len(kept) > TOGETHER:
            off, column = max(map(self._deviation, self._checks), key=lambda d: d[0])
            names = ", ".join(self.names[p] for p in kept)
            raise InputError(
                f"{self.networks.name} does not decompose: {names} change its {column} together (sums are "
                f"off by up to {100 * off:.2g} %), and tables are of {TOGETHER} positions at most; make "
                f"one position of them, or accept it with tolerance={1.2 * off:.2g}"
            )
        return tuple(kept)
