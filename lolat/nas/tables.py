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

    @cached_property
    def _counted(self) -> tuple[GraphCounts, np.ndarray]:
        return joined([count(graph) for graph in self._graphs])

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`."""
        shape = tuple(map(len, self.choices))
        counts = totals(*self._counted, math.prod(shape), batch_size, self.part.name)
        counts[:, BORDER] = 0  # of the fragment, which is not the whole
        return counts.reshape(*shape, len(COLUMNS))

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
        along = [
            np.expand_dims(
                table.at(batch_size), tuple(a for a in range(len(self.edges)) if a != axis)
            )
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
            graph = part.graph(values) if output else None
            tensor = graph.tensors[graph.outputs[0]] if graph else None
            elements.append(tensor.elements() if tensor else math.prod(part.shape(*values)))
        return cls(part.positions, np.array(elements, np.int64).reshape(tuple(map(len, choices))))

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`."""
        counts = np.zeros((*self.elements.shape, len(COLUMNS)), np.int64)
        counts[..., BORDER] = batch_size * self.elements
        return counts

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`: nothing."""
        return np.zeros(self.elements.shape)


def joined(counted: Sequence[GraphCounts]) -> tuple[GraphCounts, np.ndarray]:
    """The operations of several graphs one after the other, and (operations,) the graph of each."""
    fixed = [np.empty((0, len(COLUMNS)), np.int64), *(c.fixed for c in counted)]
    scaled = [np.empty((0, len(COLUMNS)), np.int64), *(c.scaled for c in counted)]
    owner = np.repeat(np.arange(len(counted)), [len(c.fixed) for c in counted])
    return GraphCounts(np.concatenate(fixed), np.concatenate(scaled), ()), owner


def totals(
    counted: GraphCounts, owner: np.ndarray, graphs: int, batch_size: int, name: str
) -> np.ndarray:
    """(graphs, COLUMNS) sums of `joined` operations; InputError where a count does not fit in 64 bits."""
    if float(counted.scaled.max(initial=0)) * batch_size > MOST_COUNT:
        raise InputError(
            f"batch size {batch_size} of {name!r}: too large, its counts do not fit in 64 bits; give a "
            "smaller batch size or input size"
        )
    sums = np.zeros((graphs, len(COLUMNS)), np.int64)
    np.add.at(sums, owner, counted.at(batch_size))
    return sums
