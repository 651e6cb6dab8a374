"""Where an iteration's time goes: its blocks, the update and what comes once for each iteration."""

from __future__ import annotations

from dataclasses import dataclass

from lolat.blocks import cut
from lolat.graph import Graph
from lolat.training.model import Training
from lolat.training.optimizers import optimizer_named

UPDATE, CALL = "update", "call"


@dataclass(frozen=True)
class BlockTime:
    """A part of an iteration: ms, and its share of the whole from 0 to 1."""

    name: str
    iteration_ms: float
    share: float


def iteration_blocks(
    model: Training, graph: Graph, batch_size: int, optimizer: str
) -> tuple[BlockTime, ...]:
    """The blocks of `graph` in its order, then UPDATE and CALL; they add up to an iteration."""
    each, update, rest = model.operation_times(graph, batch_size, optimizer_named(optimizer))
    times = [(b.label, float(each[list(b.operations)].sum())) for b in cut(graph)]
    times += [(UPDATE, update), (CALL, rest)]
    whole = sum(t for _, t in times)
    return tuple(BlockTime(name, t, t / whole if whole else 0.0) for name, t in times)
