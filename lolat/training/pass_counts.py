"""Counts of the work in a training iteration."""

from __future__ import annotations

import numpy as np

from lolat.graph import Graph, Operation
from lolat.graph.backward import backward_of, drops, free_parameters
from lolat.graph.counts import COLUMNS, count
from lolat.graph.kinds import GATES, NORMALIZATIONS, STORED, TRAINED, VIEWS, kind_of

# ---- The terms that the time of a forward or a backward pass depends on, counted operation by operation.
#
# Both passes work on the same tensors, so one count serves both. Work that is slow in training has a term
# of its own (docs/results/index.md says why).

PLAIN = COLUMNS[: COLUMNS.index("pointwise_macs")]
"""Counts of inference that all kinds of operation have."""
TRAINING_TERMS = (
    "norm_traffic",  # elements of normalizations, which compute the statistics of the batch
    "flat_norms",  # normalizations of tensors without positions: in TensorFlow many small operations
    # Patches x groups of convolutions in groups of several channels: TensorFlow's backward pass on a CPU
    # multiplies every channel with all groups. Depthwise convolutions (groups = channels) avoid this.
    "unrolled",
    "own_patches",  # patches of convolutions with as many groups as channels (not in `patches` then)
    "own_groups",  # groups of these (not in `groups`)
    "pointwise",  # weights of 1x1 convolutions, whose gradients are written and put into their order
    "kernels",  # weights of other convolutions, the same
    "wide_depthwise",  # multiply-accumulates of depthwise convolutions whose backward pass is slow
)
PASS_TERMS = (*PLAIN, *TRAINING_TERMS)
OF_KERNELS = ("weights", "pointwise", "kernels")
"""Terms of a backward pass that only the gradients of kernels have."""
DROPOUT_ELEMENTS = 3  # moved for each input element: input, result, mask
NARROW = 3  # kernels up to this size are fast
_COLUMN = {term: column for column, term in enumerate(PASS_TERMS)}


def pass_rows(graph: Graph, batch_size: int) -> np.ndarray:
    """(operations, PASS_TERMS) float64 counts of a pass at `batch_size`.

    A dropout, which is free in inference, counts as an operation that writes its result and its mask.
    """
    rows = np.zeros((len(graph.operations), len(PASS_TERMS)))
    rows[:, : len(PLAIN)] = count(graph).at(batch_size)[:, : len(PLAIN)]
    for row, operation in zip(rows, graph.operations, strict=True):
        if drops(graph, operation):
            read = graph.tensors[operation.inputs[0]].elements(batch_size)
            row[[_COLUMN["ops"], _COLUMN["serial"]]] = 1.0
            row[_COLUMN["traffic"]] = DROPOUT_ELEMENTS * read
        elif operation.kind in NORMALIZATIONS and STORED not in operation.attributes:
            row[_COLUMN["norm_traffic"]] = row[_COLUMN["traffic"]]
            if len(graph.tensors[operation.inputs[0]].shape) == 2:
                row[_COLUMN["flat_norms"]] = row[_COLUMN["ops"]]
        elif "kernel" in operation.attributes and "in_channels" in operation.attributes:
            _count_convolution(operation, row)
    return rows


def _count_convolution(operation: Operation, row: np.ndarray) -> None:
    """Fill in the terms of a convolution."""
    kind, a = operation.kind, operation.attributes
    pointwise = kind == "conv" and all(n == 1 for n in a["kernel"])
    row[_COLUMN["pointwise" if pointwise else "kernels"]] = row[_COLUMN["weights"]]
    if kind == "depthwise_conv" and max(a["kernel"]) > NARROW:
        row[_COLUMN["wide_depthwise"]] = row[_COLUMN["flops"]]
    elif kind == "grouped_conv" and a["groups"] < a["in_channels"]:
        row[_COLUMN["unrolled"]] = row[_COLUMN["patches"]] * a["groups"]
    elif kind == "grouped_conv":
        for term in ("patches", "groups"):
            row[_COLUMN[f"own_{term}"]], row[_COLUMN[term]] = row[_COLUMN[term]], 0.0


# ---- The tensors that an optimizer updates, and the operations that a framework traces.


def variables(graph: Graph) -> int:
    """Number of tensors that an optimizer updates: kernels, biases, tables, vectors of normalizations."""
    weights = count(graph).at(1)[:, COLUMNS.index("weights")].tolist()
    part = backward_of(graph)
    return len(free_parameters(graph)) + sum(
        _variables(o, w) for i, (o, w) in enumerate(zip(graph.operations, weights, strict=True))
        if part.runs[i] and o.attributes.get(TRAINED, 1)
    )  # fmt: skip


def _variables(operation: Operation, weights: int) -> int:
    if kind_of(operation.kind).vectors:
        return operation.vectors
    if not weights:
        return 0
    a = operation.attributes
    if operation.kind not in GATES:
        return 1 + bool(a.get("bias"))
    # One kernel is for the input, one for the state. Keras has all biases in one tensor, and its reader
    # gives no number of them; PyTorch has one tensor for each kernel.
    return 2 + bool(a.get("bias")) * int(a.get("bias_vectors", 1))


def shares(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """(share of each operation's backward pass that runs, repetitions of its forward pass by
    checkpointing).

    Both are (operations,) arrays. An operation with a kernel has two gradients, each half of its backward
    pass.
    """
    part = backward_of(graph)
    back = [part.share(graph, i) for i in range(len(graph.operations))]
    return np.array(back), part.recomputed.astype(float)


def flops(graph: Graph) -> np.ndarray:
    """(operations,) FLOPs of an iteration for one sample: two for each multiply-accumulate, of the forward
    pass and of each gradient that is computed. Work that checkpointing repeats is left out.
    """
    macs = count(graph).at(1)[:, COLUMNS.index("flops")]
    part = backward_of(graph)
    return 2.0 * macs * (1.0 + part.first + part.second)


def backward_rows(graph: Graph, rows: np.ndarray) -> np.ndarray:
    """(operations, PASS_TERMS) counts of the backward pass; `rows`: the counts of the forward pass.

    The counts are those of the forward pass times the share of the backward pass that runs (`shares`);
    backward coefficients are fitted to such counts. Only gradients of trained kernels are written.
    """
    found = rows * shares(graph)[0][:, None]
    own = [_COLUMN[term] for term in OF_KERNELS]
    found[:, own] = rows[:, own] * backward_of(graph).second[:, None]
    return found


def started(graph: Graph) -> int:
    """Number of operations that a framework traces before the first step, without views."""
    return sum(o.kind not in VIEWS or o.kind == "dropout" for o in graph.operations)
