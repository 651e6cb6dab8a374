"""Memory that a network needs, foreseen from its graph, so that what cannot fit is not tried."""

from __future__ import annotations

from itertools import accumulate

from lolat.graph import Graph
from lolat.graph.counts import FEATURES, count

ITEM_BYTES = 4  # float32
OVERHEAD_BYTES = 32 * 2**20  # a compiled function, workspaces of small kernels


def weight_bytes(graph: Graph) -> int:
    """Bytes of the weights of `graph` (float32)."""
    column = FEATURES.index("weights")
    return ITEM_BYTES * int(count(graph).fixed[:, column].sum())


def keep_bytes(graph: Graph, batch_size: int) -> int:
    """Memory that `graph` holds between its runs at `batch_size`: its weights and its inputs."""
    inputs = sum(graph.tensors[i].elements(batch_size) for i in graph.inputs)
    return weight_bytes(graph) + ITEM_BYTES * inputs


def activation_bytes(graph: Graph, batch_size: int) -> int:
    """Largest sum of tensors that are alive at the same time, at `batch_size` (float32)."""
    last_use = {i: len(graph.operations) for i in graph.outputs}
    for position, operation in enumerate(graph.operations):
        for index in operation.inputs:
            last_use.setdefault(index, position)
            last_use[index] = max(last_use[index], position)
    change = [0] * (len(graph.operations) + 2)
    born = dict.fromkeys(graph.inputs, 0)
    for position, operation in enumerate(graph.operations):
        born.update(dict.fromkeys(operation.outputs, position))
    for index, position in born.items():
        size = ITEM_BYTES * graph.tensors[index].elements(batch_size)
        change[position] += size
        change[last_use.get(index, position) + 1] -= size
    return max(accumulate(change))


def peak_bytes(graph: Graph, batch_size: int) -> int:
    """Memory to build and run `graph`: weights (twice while they are made), activations, workspaces.

    A convolution may unfold its input into patches; twice the activations covers what was seen.
    """
    return 2 * weight_bytes(graph) + 2 * activation_bytes(graph, batch_size) + OVERHEAD_BYTES
