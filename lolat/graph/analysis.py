"""The analysis of a network, made once: its blocks, counts and memory.

reader -> Graph -> `analyze` -> predictor -> prediction -> attribution.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lolat.graph import Graph, cached_on_graph
from lolat.graph.blocks import Block, cut
from lolat.graph.counts import COLUMNS, GraphCounts, count
from lolat.graph.memory import Memory, alive_bytes, largest_fitting, sliced_bytes
from lolat.graph.modes import AMP, DEFAULT_MODE, Mode
from lolat.graph.weights import copied_bytes, weights_bytes


@dataclass(frozen=True, eq=False)
class Analysis:
    """A graph with its counts and its blocks, in network order.

    `owner`: (operations,) index of the block that each operation belongs to.
    """

    graph: Graph
    counts: GraphCounts
    blocks: tuple[Block, ...]
    owner: np.ndarray
    _sums: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    _bytes: dict[tuple[str, str], tuple[int, Any, Any]] = field(default_factory=dict, repr=False)

    def memory(self, batch_size: int, mode: Mode = DEFAULT_MODE) -> Memory:
        """Peak memory of a forward pass at a batch size; `mode`: the device's execution mode."""
        key = mode.dtype if mode.half else "", mode.launch
        if key not in self._bytes:
            copied = np.zeros(len(self.owner), int)
            if mode.dtype == AMP:
                copied = copied_bytes(self.graph)
            slices = sliced_bytes(self.graph, mode) if self.graph.storages else (0, 0)
            tensors = [*alive_bytes(self.graph, mode), slices]
            self._bytes[key] = weights_bytes(self.graph, mode), copied, tensors
        weights, copied, (fixed, scaled, slices) = self._bytes[key]
        if not len(fixed):
            return Memory(weights, 0, "")
        scaled = scaled + slices[int(batch_size > 1)]
        alive = fixed + scaled.astype(float) * batch_size  # integers could overflow
        most = int((copied + alive).argmax())
        weights += int(copied[most])
        return Memory(weights, int(alive[most]), self.graph.operations[most].full_name)

    def largest_batch(self, mode: Mode, available_bytes: float) -> int:
        """The largest batch whose forward pass fits in memory; 0 if none fits."""
        fitting = largest_fitting(lambda n: self.memory(n, mode).total_bytes, available_bytes)
        return self.graph.largest_batch(fitting)

    def block_counts(self, batch_size: int) -> np.ndarray:
        """Counts of each block at a batch size, (blocks, COLUMNS), cached; InputError if one overflows."""
        self.graph.check_batch(batch_size)
        sums = self._sums.get(batch_size)
        if sums is None:
            self.counts.check_size(batch_size, self.graph.name)
            sums = np.zeros((len(self.blocks), len(COLUMNS)), np.int64)
            np.add.at(sums, self.owner, self.counts.at(batch_size))
            self._sums[batch_size] = sums
        return sums


def analyze(network: Graph | Analysis) -> Analysis:
    """Cut a graph into blocks and count it, cached with the graph; an Analysis is returned as it is."""
    return network if isinstance(network, Analysis) else _analysis(network)


@cached_on_graph
def _analysis(graph: Graph) -> Analysis:
    blocks, owner = cut(graph), np.empty(len(graph.operations), np.intp)
    for i, block in enumerate(blocks):
        owner[list(block.operations)] = i
    return Analysis(graph, count(graph), blocks, owner)
