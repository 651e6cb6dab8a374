"""What only a whole graph tells of its operations: the longest path, and what goes in and comes out."""

from __future__ import annotations

import numpy as np

from lolat.graph import Graph


def border(graph: Graph, batch_size: int) -> np.ndarray:
    """(operations,) elements of the graph's inputs, where they are first read, and of its outputs."""
    found = np.zeros(len(graph.operations), np.int64)
    ends = set(graph.inputs) | set(graph.outputs)
    for position, operation in enumerate(graph.operations):
        for tensor in (*operation.inputs, *operation.outputs):
            if tensor in ends:
                ends.remove(tensor)
                found[position] += graph.tensors[tensor].elements(batch_size)
    return found


def longest_path(graph: Graph, ops: np.ndarray) -> list[int]:
    """Positions of the operations on the path that starts most operations, in running order.

    `ops`: (operations,) how many each one starts.
    """
    reached: dict[
        int, tuple[int, int]
    ] = {}  # tensor -> (operations so far, position of its writer)
    best: list[tuple[int, int]] = []  # per operation: (operations so far, position before it)
    for position, operation in enumerate(graph.operations):
        before, previous = max(
            (reached[t] for t in operation.inputs if t in reached), default=(0, -1)
        )
        best.append((before + int(ops[position]), previous))
        reached.update((t, (best[-1][0], position)) for t in operation.outputs)
    if not best:
        return []
    position = max(range(len(best)), key=lambda i: best[i][0])
    path = []
    while position >= 0:
        path.append(position)
        position = best[position][1]
    return path[::-1]
