"""Counts and memory of a training iteration."""

from __future__ import annotations

import numpy as np

from lolat.graph import Graph, Operation
from lolat.graph.analysis import parameters, parameters_bytes
from lolat.graph.counts import COLUMNS, count
from lolat.graph.kinds import BOTH, INPUT, NORMALIZATIONS, OUTPUT, VIEWS, kind_of
from lolat.graph.modes import AMP, FLOAT_BYTES, Mode, element_bytes, parameter_bytes
from lolat.io.results import Remark
from lolat.parameters import Optimizer
from lolat.units import byte_size

# ---- The terms that the time of a forward or a backward pass depends on, counted operation by operation.
#
# Both passes work on the same tensors, so one count serves both. Work that is slow in training has a term
# of its own (docs/results/index.md says why).

PLAIN = COLUMNS[: COLUMNS.index("pointwise_macs")]
"""Counts of inference that do not tell kinds of operations apart."""
TRAINING_TERMS = (
    "norm_traffic",  # elements of normalizations, which compute the statistics of the batch
    "flat_norms",  # normalizations of tensors without positions: in TensorFlow many small operations
    # Patches x groups of convolutions in groups of several channels: TensorFlow's backward pass on a CPU
    # multiplies every channel with all groups. Of as many groups as channels it does better.
    "unrolled",
    "own_patches",  # patches of convolutions with as many groups as channels (not in `patches` then)
    "own_groups",  # groups of these (not in `groups`)
    "pointwise",  # weights of 1x1 convolutions, whose gradients are written and put into their order
    "kernels",  # weights of other convolutions, the same
    "wide_depthwise",  # multiply-accumulates of depthwise convolutions whose backward pass is slow
)
PASS_TERMS = (*PLAIN, *TRAINING_TERMS)
DROPOUT_ELEMENTS = 3  # moved for each input element: input, result, mask
NARROW = 3  # kernels up to this size are fast
_COLUMN = {term: column for column, term in enumerate(PASS_TERMS)}


def drops(graph: Graph, operation: Operation) -> bool:
    """Return True if an operation is a dropout with an effect; one of PyTorch without a rate has none."""
    return operation.kind == "dropout" and (
        graph.framework != "torch" or "rate" in operation.attributes
    )


def pass_rows(graph: Graph, batch_size: int) -> np.ndarray:
    """(operations, PASS_TERMS) float64 counts of a pass at `batch_size`.

    A dropout is free in inference; here it is an operation that writes its result and its mask.
    """
    rows = np.zeros((len(graph.operations), len(PASS_TERMS)))
    rows[:, : len(PLAIN)] = count(graph).at(batch_size)[:, : len(PLAIN)]
    for row, operation in zip(rows, graph.operations, strict=True):
        if drops(graph, operation):
            read = graph.tensors[operation.inputs[0]].elements(batch_size)
            row[[_COLUMN["ops"], _COLUMN["serial"]]] = 1.0
            row[_COLUMN["traffic"]] = DROPOUT_ELEMENTS * read
        elif operation.kind in NORMALIZATIONS and operation.inputs:
            row[_COLUMN["norm_traffic"]] = row[_COLUMN["traffic"]]
            if len(graph.tensors[operation.inputs[0]].shape) == 2:
                row[_COLUMN["flat_norms"]] = row[_COLUMN["ops"]]
        elif "kernel" in operation.attributes and "in_channels" in operation.attributes:
            _count_convolution(operation, row)
    return rows


def _count_convolution(operation: Operation, row: np.ndarray) -> None:
    """Fill in the terms of convolutions."""
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

RECURRENT = {"lstm": 7, "gru": 7, "simple_rnn": 1}
"""Kind of recurrent layer -> vectors of a step that its forward pass keeps for the backward pass (gates,
cell, state), as PyTorch's saved_tensors_hooks show; oneDNN's LSTM keeps two to three times as many."""


def variables(graph: Graph) -> int:
    """Count the tensors that an optimizer updates: kernels, biases, tables, vectors of normalizations."""
    weights = count(graph).at(1)[:, COLUMNS.index("weights")]
    return sum(_variables(o, int(w)) for o, w in zip(graph.operations, weights, strict=True))


def _variables(operation: Operation, weights: int) -> int:
    if vectors := kind_of(operation.kind).vectors:
        return vectors
    if not weights:
        return 0
    a = operation.attributes
    if operation.kind not in RECURRENT:
        return 1 + bool(a.get("bias"))
    # One kernel is for the input, one for the state. Keras has all biases in one tensor, and its reader
    # gives no number of them; PyTorch has one tensor for each kernel.
    return 2 + bool(a.get("bias")) * int(a.get("bias_vectors", 1))


def started(graph: Graph) -> int:
    """Count the operations that a framework traces before the first step, without reshapes and the like."""
    return sum(o.kind not in VIEWS or o.kind == "dropout" for o in graph.operations)


# ---- Memory: activations saved for the backward pass, weights, gradients, optimizer states.


def saved_bytes(graph: Graph, batch_size: int, mode: Mode | None = None) -> int:
    """Return the bytes that the forward pass keeps for the backward pass, at `batch_size`.

    These are the tensors that each kind of operation `saves` (`lolat.graph.kinds`), each once, and the
    vectors of each step of a recurrent layer; a view counts as the tensor that it shows.
    """
    viewed: dict[int, int] = {}
    saved: set[int] = set()
    sizes, inside = element_bytes(graph, mode), 0.0
    for operation in graph.operations:
        if operation.kind in VIEWS and operation.inputs and not drops(graph, operation):
            root = viewed.get(operation.inputs[0], operation.inputs[0])
            viewed.update((t, root) for t in operation.outputs)
            continue
        saves = kind_of(operation.kind).saves
        if saves in (INPUT, BOTH):
            saved.update(viewed.get(t, t) for t in operation.inputs)
        if saves in (OUTPUT, BOTH):
            saved.update(operation.outputs)
        if vectors := RECURRENT.get(operation.kind):
            a, read = operation.attributes, graph.tensors[operation.inputs[0]]
            steps = read.elements(batch_size) // a["in_features"]
            inside += vectors * steps * a["units"] * sizes[operation.outputs[0]]
    return int(inside + sum(graph.tensors[t].elements(batch_size) * sizes[t] for t in saved))


LOSS_NUMBERS = 3
"""Numbers in float32 per output of a loss: the output, its log-softmax, its gradient, as PyTorch's
MemTracker shows for cross_entropy."""


def state_bytes(graph: Graph, mode: Mode | None = None) -> float:
    """Return the bytes of a gradient, of an optimizer's state, and of the weight that it updates."""
    autocast = mode is not None and mode.dtype == AMP
    return float(FLOAT_BYTES) if autocast else parameter_bytes(graph, mode)


HALF_BYTES = 2


def loss_bytes(graph: Graph, batch_size: int) -> int:
    """Return the bytes of the loss of all outputs while its gradient is computed."""
    outputs = [graph.tensors[t] for t in set(graph.outputs).difference(graph.kept)]
    numbers = sum(t.elements(batch_size) for t in outputs if t.batched and "float" in t.dtype)
    return LOSS_NUMBERS * FLOAT_BYTES * numbers


def memory_bytes(
    graph: Graph, batch_size: int, optimizer: Optimizer, mode: Mode | None = None,
    several: bool = False,
) -> int:  # fmt: skip
    """Estimate the bytes of an iteration at their peak, without framework, library and allocator.

    Saved activations + the larger of the loss and the gradients of the largest operation + bytes of the
    parameters, their gradients and the optimizer's states. `mode`: float32 if None; autocast saves
    activations in half precision, and weights in float32. `several`: devices exchange gradients, of which
    DistributedDataParallel's buckets are a copy.
    """
    of_element = element_bytes(graph, mode)
    tensors = [{*o.inputs, *o.outputs} for o in graph.operations if o.kind not in VIEWS]
    sizes = [
        sum(graph.tensors[t].elements(batch_size) * of_element[t] for t in each) for each in tensors
    ]
    states = (1 + several + optimizer.states) * state_bytes(graph, mode)
    of_parameters = int(parameters_bytes(graph, mode) + parameters(graph) * states)
    most = int(max(*sizes, loss_bytes(graph, batch_size), 0))
    return saved_bytes(graph, batch_size, mode) + most + of_parameters


def half_remarks(
    graph: Graph, needed: int, optimizer: Optimizer, mode: Mode | None
) -> tuple[str, ...]:
    """Remark on training in half precision alone, with the memory that the usual recipe takes.

    The usual recipe has weights and states in float32 too (ZeRO, Rajbhandari et al. 2020), beside the
    `needed` bytes. Other precisions have no remark.
    """
    if state_bytes(graph, mode) != HALF_BYTES:
        return ()
    each = (
        HALF_BYTES * (2 + optimizer.states),
        2 * HALF_BYTES + FLOAT_BYTES * (1 + optimizer.states),
    )
    mixed = needed + parameters(graph) * (each[1] - each[0])
    return (
        Remark(
            f"weights, gradients and states of {optimizer.name} are taken to be in half precision alone, "
            f"{each[0]} bytes a parameter; with weights and states in float32 besides, as is usual, "
            f"{each[1]} bytes",
            byte_size(mixed),
        ),
    )
