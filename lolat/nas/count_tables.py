"""Tables of the counts of a network's parts, for each combination of the choices that a part depends on.

A candidate's counts are the sum over its parts. Counts are for one batch size, because thresholds apply to
single operations. Two counts depend on the whole graph: `serial`, the operations on the longest path, is
summed along a chain of parts, and is a maximum inside a cell (`CellTable`); `border`, the graph's own
inputs and outputs, belongs to the first and the last part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from lolat.device.predictors.roofline import Roofline
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import COLUMNS, count
from lolat.graph.layers import Layers
from lolat.graph.work import work_of

SERIAL, BORDER = COLUMNS.index("serial"), COLUMNS.index("border")


class CountTable(Protocol):
    """The counts of a network's part by the choices at `positions`."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions that the part depends on."""
        ...

    def at(self, batch_size: int) -> np.ndarray:
        """Counts, int64: an axis for the choices at each of `positions`, then one for COLUMNS."""
        ...

    def ms(self, formula: Roofline, batch_size: int) -> np.ndarray:
        """Times in ms: an axis for the choices at each of `positions`, then the 4 times of `times_ms`."""
        ...


@dataclass(frozen=True)
class Part:
    """A part of a network, if the network is a chain of parts.

    `positions`: the positions that the part depends on. `shape`: the shape of its input, or a function from
    the chosen values to this shape. `write(layers, x, *values)`: adds the operations for these values, and
    returns the tensor that the next part reads.
    """

    name: str
    positions: tuple[int, ...]
    shape: tuple[int, ...] | Callable[..., tuple[int, ...]]
    write: Callable[..., int]

    def table(
        self, choices: Sequence[Sequence[Any]], first: bool = False, last: bool = False
    ) -> CountTable:
        """The part's table. `choices`: values at each of its positions; `first`, `last`: its place."""
        return FragmentTable(self, tuple(map(tuple, choices)), first, last)


def chain(parts: Sequence[Part], values: Sequence[Any] | Mapping[int, Any], name: str) -> Graph:
    """Build the network of a chain of parts with these values, one for each position."""
    builder = GraphBuilder(name)
    x: int | None = None
    for part in parts:
        chosen = [values[p] for p in part.positions]
        shape = part.shape(*chosen) if callable(part.shape) else part.shape
        if x is None:
            x = builder.input(shape)
        elif builder.tensors[x].shape != shape:
            raise InputError(
                f"part {part.name!r} of {name!r} says that it reads {shape}; the part before it "
                f"writes {builder.tensors[x].shape}"
            )
        x = part.write(Layers(builder, part.name), x, *chosen)
    return builder.build([] if x is None else [x])


@dataclass(frozen=True)
class FragmentTable:
    """The table of a `Part`: a graph is built and counted for each combination of choices."""

    part: Part
    choices: tuple[tuple[Any, ...], ...]
    first: bool = False
    last: bool = False

    @property
    def positions(self) -> tuple[int, ...]:
        """See `CountTable`."""
        return self.part.positions

    @cached_property
    def _graphs(self) -> list[Graph]:
        """The part's graph for each combination of choices."""
        each = (dict(zip(self.positions, v, strict=True)) for v in itertools.product(*self.choices))
        return [chain([self.part], values, self.part.name) for values in each]

    def at(self, batch_size: int) -> np.ndarray:
        """See `CountTable`."""
        counts = totals(self._graphs, batch_size, self.part.name)
        for row, graph in zip(counts, self._graphs, strict=True):
            ends = (*graph.inputs * self.first, *graph.outputs * self.last)
            row[BORDER] = batch_size * sum(graph.tensors[t].elements() for t in ends)
        return counts.reshape(*map(len, self.choices), len(COLUMNS))

    def ms(self, formula: Roofline, batch_size: int) -> np.ndarray:
        """See `CountTable`."""
        times = [times_ms(formula, graph, batch_size) for graph in self._graphs]
        return np.array(times).reshape(*map(len, self.choices), -1)


@dataclass(frozen=True)
class CellTable:
    """The table of a chain of `repeat` equal cells; in a cell, edges with a chosen operation join nodes.

    `edges`: (from node, to node) for each table in `tables` (of one position), sorted by the second node;
    node 0 is the input, the last node the output. Tensors that arrive at a node are added in the order of
    the edges, by one `addition` each (a table without positions).
    """

    edges: tuple[tuple[int, int], ...]
    tables: tuple[CountTable, ...]
    addition: CountTable
    repeat: int = 1

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the edges."""
        return tuple(p for table in self.tables for p in table.positions)

    @property
    def additions(self) -> int:
        """Number of additions in a cell: one for each edge into a node after the node's first edge."""
        return len(self.edges) - max(to for _, to in self.edges)

    def at(self, batch_size: int) -> np.ndarray:
        """See `CountTable`; `serial`: operations on the longest path of each combination."""
        addition = self.addition.at(batch_size)
        each = [along(self.positions, t.positions, t.at(batch_size)) for t in self.tables]
        counts = sum(each) + addition * self.additions
        longest: dict[int, Any] = {0: np.zeros(counts.shape[:-1], np.int64)}
        for (begin, to), edge in zip(self.edges, each, strict=True):
            length = longest[begin] + edge[..., SERIAL]
            if to in longest:
                length = np.maximum(longest[to], length) + addition[SERIAL]
            longest[to] = length
        counts[..., SERIAL] = longest[max(longest)]
        return self.repeat * counts

    def ms(self, formula: Roofline, batch_size: int) -> np.ndarray:
        """See `CountTable`."""
        each = [along(self.positions, t.positions, t.ms(formula, batch_size)) for t in self.tables]
        additions = self.additions * self.addition.ms(formula, batch_size)
        return np.asarray(self.repeat * (sum(each) + additions))


def along(into: Sequence[int], positions: Sequence[int], table: np.ndarray) -> np.ndarray:
    """Give a table over `positions` an axis for each position in `into`; further axes stay last."""
    padded = np.expand_dims(table, tuple(range(len(positions), len(into))))
    return np.moveaxis(padded, range(len(positions)), [into.index(p) for p in positions])


LATENCY, DEVICE, HOST, MORE = range(4)


def times_ms(formula: Roofline, graph: Graph, batch_size: int, whole: bool = False) -> np.ndarray:
    """(4,) ms of a network by a formula that predicts single operations.

    LATENCY: the predicted latency. DEVICE: time to run all operations, for a `whole` network after the
    launch of the first. HOST: time to launch all operations, for a whole network with the run of the last.
    MORE: latency minus the longer of DEVICE and HOST.
    """
    steps = formula.steps(work_of(graph, batch_size, formula.mode))
    device, host = steps.device_ms, float(steps.starts_ms.sum())
    if whole:
        device += float(steps.starts_ms[:1].sum())
        host += float(steps.run_ms[-1:].sum())
    return np.array([steps.latency_ms, device, host, steps.latency_ms - max(device, host)])


def totals(graphs: Sequence[Graph], batch_size: int, name: str) -> np.ndarray:
    """(graphs, COLUMNS) counts at `batch_size`; InputError if a count does not fit in 64 bits."""
    each = [count(graph) for graph in graphs]
    for counts in each:
        counts.check_size(batch_size, name)
    return np.array([c.at(batch_size).sum(axis=0) for c in each])
