"""A network looked at once: its blocks, counts, kinds of work and memory, for all that is asked later.

reader -> Graph -> `analyze` -> predictor -> prediction -> attribution: who comes after this reads it, and
neither cuts nor counts again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph, Operation, Tensor
from lolat.graph.blocks import Block, cut
from lolat.graph.counts import COLUMNS, GraphCounts, count
from lolat.graph.kinds import FREE

# ---- Memory: parameters, tensors, and what a forward pass needs at once

FLOAT_BYTES = 4
SIZES = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float16": 2, "bfloat16": 2, "int16": 2,
         "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip

NORM_VECTORS = {
    "batch_norm": 2,
    "layer_norm": 2,
    "group_norm": 2,
    "instance_norm": 2,
    "rms_norm": 1,
}


def parameters(graph: Graph) -> int:
    """How many numbers training changes: kernels, biases, tables, and the vectors of normalizations.

    A layer that is used twice is counted twice: a graph does not say that they share.
    """
    weights = count(graph).at(1)[:, COLUMNS.index("weights")]
    each = zip(graph.operations, weights.tolist(), strict=True)
    return sum(operation_parameters(graph, o, n) for o, n in each)


def operation_parameters(graph: Graph, operation: Operation, weights: int) -> int:
    """What training changes of one operation, whose count of `weights` is known."""
    a = operation.attributes
    if operation.kind == "embedding" and "rows" in a and "out_features" in a:
        return int(a["rows"] * a["out_features"])
    vectors = NORM_VECTORS.get(operation.kind, 0)
    return vectors * channels(graph, operation) if vectors and operation.inputs else weights


def channels(graph: Graph, operation: Operation) -> int:
    """Channels of what a normalization reads; a layer norm has them last, whatever the network."""
    read = operation.inputs[0]
    last = operation.kind in ("layer_norm", "rms_norm")
    return graph.tensors[read].shape[-1 if last else graph.channel_axis(read)]


def tensor_bytes(tensor: Tensor, batch_size: int) -> int:
    """Bytes of a tensor at a batch size."""
    return tensor.elements(batch_size) * SIZES.get(tensor.dtype, FLOAT_BYTES)


# ---- A forward pass: weights, and the tensors that are alive at once.


@dataclass(frozen=True)
class Memory:
    """Bytes of a forward pass: weights, and the most of the tensors that are alive at once, `at` which
    operation.
    """

    weights_bytes: int
    activations_bytes: int
    at: str

    @property
    def total_bytes(self) -> int:
        """Both; without the framework's own memory, a library's workspace and what an allocator wastes."""
        return self.weights_bytes + self.activations_bytes


def alive_bytes(graph: Graph) -> np.ndarray:
    """(2, operations) bytes alive while each operation runs: those that stay, and those of each sample.

    What the operation reads and writes, and what a later one still reads; the inputs all the time,
    as they are the caller's. Nothing is computed in place; what only changes a shape takes nothing.
    """
    of_view: dict[int, int] = {}
    first: dict[int, int] = dict.fromkeys(graph.inputs, 0)
    last: dict[int, int] = {}
    for position, operation in enumerate(graph.operations):
        if operation.kind in FREE and operation.inputs:
            root = of_view.get(operation.inputs[0], operation.inputs[0])
            of_view.update(dict.fromkeys(operation.outputs, root))
        for t in (*operation.inputs, *operation.outputs):
            root = of_view.get(t, t)
            first.setdefault(root, position)
            last[root] = position
    end = len(graph.operations)
    last.update({of_view.get(t, t): end - 1 for t in (*graph.inputs, *graph.outputs)})
    steps = np.zeros((2, end + 1), np.int64)
    for t, begin in first.items():
        tensor = graph.tensors[t]
        size = tensor_bytes(tensor, 1)
        steps[int(tensor.batched), begin] += size
        steps[int(tensor.batched), last[t] + 1] -= size
    return steps.cumsum(axis=1)[:, :end]


def weights_bytes(graph: Graph) -> int:
    """Bytes of the parameters, and of the means and variances that training changes without gradients."""
    norms = [o for o in graph.operations if o.kind == "batch_norm" and o.inputs]
    return (parameters(graph) + sum(2 * channels(graph, o) for o in norms)) * FLOAT_BYTES


# ---- The analysis

MOST_COUNT = 2.0**53  # of an operation: the largest that a float still holds exactly


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

    @cached_property
    def _bytes(self) -> tuple[int, np.ndarray]:
        return weights_bytes(self.graph), alive_bytes(self.graph)

    def memory(self, batch_size: int) -> Memory:
        """What a forward pass needs at a batch size."""
        weights, (fixed, scaled) = self._bytes
        alive = fixed + scaled.astype(float) * batch_size  # no integer that overflows
        if not len(alive):
            return Memory(weights, 0, "")
        most = int(alive.argmax())
        return Memory(weights, int(alive[most]), self.graph.operations[most].full_name)

    def block_counts(self, batch_size: int) -> np.ndarray:
        """(blocks, COLUMNS) at a batch size; kept. InputError where one does not fit in 64 bits."""
        sums = self._sums.get(batch_size)
        if sums is None:
            if float(self.counts.scaled.max(initial=0)) * batch_size > MOST_COUNT:
                why = (
                    f"batch size {batch_size} of {self.graph.name!r}: too large, its counts do not fit "
                    "in 64 bits"
                )
                raise InputError(f"{why}; give a smaller batch size or input size", why=why)
            sums = np.zeros((len(self.blocks), len(COLUMNS)), np.int64)
            np.add.at(sums, self.owner, self.counts.at(batch_size))
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
