"""Counts by choice: of a part of a network for each combination of the choices that it depends on.

A candidate's counts are the sum of its parts' (all columns of `lolat.graph.counts` are sums over
operations;
thresholds are applied operation by operation, so tables are of one batch size), but for two that are a
matter of the whole graph. `serial`, the operations on the longest path, is a sum where parts follow one
another, each with a single tensor in and out, for every path goes through all of them; inside branches it
is a maximum, which `CellTable` takes. `border`, the graph's own inputs and outputs, is `EndTable`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
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

SERIAL = COLUMNS.index("serial")
BORDER = [i for i, column in enumerate(COLUMNS) if column == "border"]  # one, or none


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


class ChainPart(Protocol):
    """A part of a network that is a chain; see `Part`."""

    @property
    def name(self) -> str:
        """Of the module that its operations are in."""
        ...

    @property
    def positions(self) -> tuple[int, ...]:
        """Which positions it depends on."""
        ...

    @property
    def shape(self) -> Callable[..., tuple[int, ...]]:
        """The shape of its input, from the values chosen."""
        ...

    @property
    def write(self) -> Callable[..., int]:
        """Writes it: `write(layers, x, *values)` returns the tensor that the next part reads."""
        ...

    def table(self, choices: Sequence[Sequence[Any]]) -> Table:
        """Its counts by choice; `choices`: the values at each of its positions."""
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
        """The part's table; `choices`: the values at each of its positions."""
        return FragmentTable(self, tuple(map(tuple, choices)))


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
        return [fragment(self.part, values) for values in itertools.product(*self.choices)]

    @cached_property
    def _counted(self) -> tuple[GraphCounts, np.ndarray]:
        """Counts of all combinations' operations, and (operations,) the combination of each."""
        counted = [count(graph) for graph in self._graphs]
        owner = np.repeat(np.arange(len(counted)), [len(c.fixed) for c in counted])
        return join(counted), owner

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`."""
        counted, owner = self._counted
        shape = tuple(map(len, self.choices))
        found = np.zeros((int(np.prod(shape, dtype=np.int64)), len(COLUMNS)), np.int64)
        np.add.at(found, owner, counts_at(counted, batch_size, self.part.name))
        found[:, BORDER] = 0  # of the fragment, which is not the whole
        return found.reshape(*shape, len(COLUMNS))

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`."""
        found = [operations_ms(formula, graph, batch_size) for graph in self._graphs]
        return np.array(found).reshape(tuple(map(len, self.choices)))


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
        each = [table.at(batch_size) for table in self.tables]
        addition = self.addition.at(batch_size)
        nodes = max(to for _, to in self.edges)
        shape = tuple(len(counts) for counts in each)
        found = np.zeros((*shape, len(COLUMNS)), np.int64)
        found += addition * (len(self.edges) - nodes)
        along = []  # each edge's counts, broadcast along its own axis
        for axis, counts in enumerate(each):
            ones = [1] * len(each)
            ones[axis] = len(counts)
            along.append(counts.reshape(*ones, len(COLUMNS)))
            found += along[-1]
        step = int(addition[SERIAL])
        reached: dict[int, Any] = {0: np.zeros(shape, np.int64)}
        for (begin, to), counts in zip(self.edges, along, strict=True):
            length = reached[begin] + counts[..., SERIAL]
            before = reached.get(to)
            reached[to] = length if before is None else np.maximum(before, length) + step
        found[..., SERIAL] = reached[nodes]
        return self.repeat * found

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`."""
        each = [table.ms(formula, batch_size) for table in self.tables]
        found = sum(np.ix_(*each))
        more = len(self.edges) - max(to for _, to in self.edges)
        return np.asarray(self.repeat * (found + more * self.addition.ms(formula, batch_size)))


@dataclass(frozen=True)
class EndTable:
    """The `border` of a chain at its first part (the graph's input) or its last one (its `output`)."""

    part: ChainPart
    choices: tuple[tuple[Any, ...], ...]
    output: bool

    @property
    def positions(self) -> tuple[int, ...]:
        """Which positions the part depends on."""
        return self.part.positions

    @cached_property
    def _elements(self) -> np.ndarray:
        """(combinations,) elements of the input or output at batch size 1."""
        found = []
        for values in itertools.product(*self.choices):
            if self.output:
                graph = fragment(self.part, values)
                found.append(graph.tensors[graph.outputs[0]].elements())
            else:
                found.append(int(np.prod(self.part.shape(*values))))
        return np.array(found, np.int64)

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`."""
        found = np.zeros((len(self._elements), len(COLUMNS)), np.int64)
        found[:, BORDER] = batch_size * self._elements[:, None]
        return found.reshape(*map(len, self.choices), len(COLUMNS))

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`: nothing."""
        return np.zeros(tuple(map(len, self.choices)))


def fragment(part: ChainPart, values: Sequence[Any]) -> Graph:
    """A part alone as a Graph, for these values of its choices."""
    builder = GraphBuilder(part.name)
    x = builder.input(part.shape(*values))
    return builder.build([part.write(Layers(builder, part.name), x, *values)])


def join(counted: Sequence[GraphCounts]) -> GraphCounts:
    """The operations of several graphs one after the other."""
    fixed = [np.empty((0, len(COLUMNS)), np.int64), *(c.fixed for c in counted)]
    scaled = [np.empty((0, len(COLUMNS)), np.int64), *(c.scaled for c in counted)]
    return GraphCounts(np.concatenate(fixed), np.concatenate(scaled), ())


def counts_at(counted: GraphCounts, batch_size: int, name: str) -> np.ndarray:
    """(operations, COLUMNS) at `batch_size`; InputError where a count does not fit in 64 bits."""
    if float(counted.scaled.max(initial=0)) * batch_size > MOST_COUNT:
        raise InputError(
            f"batch size {batch_size} of {name!r}: too large, its counts do not fit in 64 bits; give a "
            "smaller batch size or input size"
        )
    return counted.at(batch_size)
