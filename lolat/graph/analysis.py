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
from lolat.graph.counts import COLUMNS, GraphCounts, behaviors, count
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
    return int(
        sum(
            operation_parameters(graph, o, int(w))
            for o, w in zip(graph.operations, weights, strict=True)
        )
    )


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


@dataclass(frozen=True, eq=False)
class Liveness:
    """What is alive while each operation of a graph runs, in the order in which they stand there.

    `fixed`, `scaled`: (operations,) bytes that stay and that grow with the batch: what the operation reads
    and writes, and what a later one still reads; the network's inputs all the time, as they are the
    caller's. Nothing is computed in place; what only changes a shape takes nothing.
    """

    names: tuple[str, ...]
    weights_bytes: int
    fixed: np.ndarray
    scaled: np.ndarray

    @classmethod
    def of(cls, graph: Graph) -> Liveness:
        """Of a graph; a constant that it reads is alive where it is read."""
        of_view: dict[int, int] = {}
        for operation in graph.operations:
            if operation.kind in FREE and operation.inputs:
                root = of_view.get(operation.inputs[0], operation.inputs[0])
                of_view.update(dict.fromkeys(operation.outputs, root))
        end = len(graph.operations)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, operation in enumerate(graph.operations):
            for t in (*operation.inputs, *operation.outputs):
                root = of_view.get(t, t)
                first.setdefault(root, position)
                last[root] = position
        first.update(dict.fromkeys(graph.inputs, 0))
        last.update({of_view.get(t, t): end - 1 for t in (*graph.inputs, *graph.outputs)})
        steps = np.zeros((2, end + 1), np.int64)
        for t, begin in first.items():
            tensor = graph.tensors[t]
            size = tensor_bytes(tensor, 1)
            steps[int(tensor.batched), begin] += size
            steps[int(tensor.batched), last[t] + 1] -= size
        fixed, scaled = steps.cumsum(axis=1)[:, :end]
        names = tuple(o.full_name for o in graph.operations)
        norms = [o for o in graph.operations if o.kind == "batch_norm" and o.inputs]
        # Their mean and variance, which training does not change by gradients.
        running = sum(2 * channels(graph, o) for o in norms)
        return cls(names, (parameters(graph) + running) * FLOAT_BYTES, fixed, scaled)

    def memory(self, batch_size: int) -> Memory:
        """At a batch size."""
        alive = self.fixed + self.scaled.astype(float) * batch_size  # no integer that overflows
        if not len(alive):
            return Memory(self.weights_bytes, 0, "")
        most = int(alive.argmax())
        return Memory(self.weights_bytes, int(alive[most]), self.names[most])


# ---- The analysis

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

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of work that its operations are, as the measured domain knows them; sorted."""
        return tuple(sorted(behaviors(self.graph.operations)))

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """The types of floating point numbers that it computes in."""
        written = (t for o in self.graph.operations for t in o.outputs)
        return frozenset(d for t in written if "float" in (d := self.graph.tensors[t].dtype))

    @cached_property
    def liveness(self) -> Liveness:
        """What is in memory while each operation runs."""
        return Liveness.of(self.graph)

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
