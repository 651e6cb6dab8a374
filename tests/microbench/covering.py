"""The predefined blocks that have something new: the same operations at other sizes cannot fail alone."""

from __future__ import annotations

from typing import Any

from lolat.graph import Graph, Operation
from lolat.graph.counts import count
from microbench.blocks import BLOCKS, NETWORKS, REFERENCE_BLOCK, Predefined

WINDOW = ("kernel", "strides", "padding", "dilation", "bias")


def covering(windows: bool = True) -> list[Predefined]:
    """From the one with the least to do on, each with a kind of operation that none before it has.

    `windows`: what is said of its window, and whether strides divide its input, are part of the kind.
    """
    found, seen = [], set()
    graphs = [(b, b.make()) for b in (*BLOCKS, *NETWORKS, REFERENCE_BLOCK)]
    for block, graph in sorted(graphs, key=lambda pair: count(pair[1]).total().flops):
        kinds = {_kind(graph, o, windows) for o in graph.operations}
        if not kinds <= seen:
            found.append(block)
        seen |= kinds
    return found


def _kind(graph: Graph, operation: Operation, windows: bool) -> tuple[Any, ...]:
    said = operation.attributes
    kind = (operation.kind, said.get("groups", 1) > 1)
    if not windows:
        return kind
    shape = graph.tensors[operation.inputs[0]].shape
    left = [n % s for n, s in zip(shape[1:], said.get("strides", ()), strict=False)]
    return (*kind, *(str(said.get(f)) for f in WINDOW), len(shape), str(left))
