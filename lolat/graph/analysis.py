"""A network looked at once: its blocks, counts and kinds of work, for all that is asked of it later.

reader -> Graph -> `analyze` -> predictor -> prediction -> attribution: who comes after this reads it, and
neither cuts nor counts again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph, floating_types
from lolat.graph.blocks import Block, cut
from lolat.graph.counts import COLUMNS, GraphCounts, behaviors, count
from lolat.graph.edits import block_kinds
from lolat.graph.memory import Liveness

MOST_COUNT = 2.0**53  # of an operation: the largest that a float still holds exactly
KEPT_BATCH_SIZES = 64


@dataclass(frozen=True, eq=False)
class Analysis:
    """Of a graph: `counts` of its operations; its `blocks` in network order and their `names`; `owner`,
    (operations,), the block of each operation.
    """

    graph: Graph
    counts: GraphCounts
    blocks: tuple[Block, ...]
    names: tuple[str, ...]
    owner: np.ndarray
    _sums: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    _learnable: dict[frozenset[str], Any] = field(default_factory=dict, repr=False)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of work that its operations are, as the measured domain knows them; sorted."""
        return tuple(sorted(behaviors(self.graph.operations)))

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """The types of floating point numbers that it computes in."""
        return frozenset(floating_types(self.graph))

    def learnable(self, dtypes: frozenset[str]) -> tuple[list[frozenset[str]], list[bool]]:
        """Of each block: its kinds of work, and whether a model of `dtypes` can learn of it; kept."""
        if dtypes not in self._learnable:
            self._learnable[dtypes] = block_kinds(self.graph, dtypes)
        found: tuple[list[frozenset[str]], list[bool]] = self._learnable[dtypes]
        return found

    @cached_property
    def liveness(self) -> Liveness:
        """What is in memory while each operation runs."""
        return Liveness.of(self.graph)

    def block_counts(self, batch_size: int) -> np.ndarray:
        """(blocks, COLUMNS) at a batch size; kept. InputError where one does not fit in 64 bits."""
        sums = self._sums.get(batch_size)
        if sums is None:
            if float(self.counts.scaled.max(initial=0)) * batch_size > MOST_COUNT:
                raise InputError(
                    f"batch size {batch_size} of {self.graph.name!r}: too large, its counts do not fit "
                    "in 64 bits; give a smaller batch size or input size"
                )
            sums = np.zeros((len(self.blocks), len(COLUMNS)), np.int64)
            np.add.at(sums, self.owner, self.counts.at(batch_size))
            if len(self._sums) >= KEPT_BATCH_SIZES:
                self._sums.pop(next(iter(self._sums)))
            self._sums[batch_size] = sums
        return sums


def analyze(network: Graph | Analysis) -> Analysis:
    """Cut and count a graph; kept with it, so a second call costs nothing. An analysis is what it is."""
    if isinstance(network, Analysis):
        return network
    analysis: Analysis | None = network.cache.get("analysis")
    # A copy of a graph by another name has its counts and blocks, but is not it.
    if analysis is None or analysis.graph is not network:
        blocks = cut(network)
        owner = np.empty(len(network.operations), np.intp)
        for i, block in enumerate(blocks):
            owner[list(block.operations)] = i
        names = tuple(block.name for block in blocks)
        analysis = Analysis(network, count(network), blocks, names, owner)
        network.cache["analysis"] = analysis
    return analysis
