"""What an iteration is made of: its optimizer and sizes, the terms that its time goes by, its memory."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.graph.analysis import FLOAT_BYTES, NORM_VECTORS, parameters, tensor_bytes
from lolat.graph.counts import COLUMNS, count
from lolat.graph.kinds import FREE, NORMALIZATIONS

# ---- What a training run is asked for with, checked: optimizers and sizes.


@dataclass(frozen=True)
class Optimizer:
    """`slots`: numbers kept for every parameter from one update to the next."""

    name: str
    slots: int

    @property
    def accesses(self) -> int:
        """Elements that an update reads and writes for every parameter.

        It reads the gradient, and reads and writes the parameter and each slot.
        """
        return 3 + 2 * self.slots


_SLOTS = {"sgd": 0, "momentum": 1, "rmsprop": 1, "adagrad": 1, "adam": 2, "adadelta": 2}
OPTIMIZERS = {name: Optimizer(name, slots) for name, slots in _SLOTS.items()}
"""Those known, as TensorFlow and PyTorch have them by default (RMSprop without momentum)."""


def optimizer_named(name: str) -> Optimizer:
    """The optimizer of that name, in capitals or not; InputError for one that is not known."""
    key = name.strip().lower()
    if key not in OPTIMIZERS:
        near = difflib.get_close_matches(key, OPTIMIZERS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"optimizer {name!r}: {hint}expected one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[key]


def check_sizes(batch_size: Any, samples: Any, epochs: Any, validation: Any = None) -> None:
    """InputError unless all are whole numbers from 1 and a batch fits the data.

    `samples` and `validation`, the samples of an evaluation, may be None.
    """
    named = {"batch size": batch_size, "epochs": epochs}
    named |= {} if samples is None else {"samples": samples}
    named |= {} if validation is None else {"validation samples": validation}
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name} {value!r}: expected a whole number from 1")
    if samples is not None and batch_size > samples:
        raise InputError(
            f"a batch of {batch_size} is larger than the data set of {samples} samples; give a smaller "
            "batch size, or more samples",
            code="batch-over-data",
            batch_size=int(batch_size),
            samples=int(samples),
        )


# ---- The terms that a forward or a backward pass goes by, counted operation by operation.
#
# Both work on the same tensors, so one count stands for both; what a device does slowly in training has a
# term of its own (docs/results/training.md says why).

PLAIN = COLUMNS[: COLUMNS.index("pointwise_macs")]
"""Counts that do not tell kinds of operations apart."""
TERMS: Mapping[str, str] = {
    "norm_traffic": "elements of normalizations, which compute the statistics of the batch",
    "flat_norms": "normalizations of tensors without positions, in TensorFlow many small operations each",
    "unrolled": "patches x groups of convolutions in groups of several channels: TensorFlow's backward "
    "pass on a CPU multiplies every channel with all groups",
    "own_patches": "patches of convolutions with as many groups as channels, which it does better (they "
    "are not in `patches` then)",
    "own_groups": "groups of these (not in `groups`)",
    "pointwise": "weights of 1x1 convolutions, whose gradients are written and put into their order",
    "kernels": "weights of other convolutions, the same",
    "wide_depthwise": "multiply-accumulates of depthwise convolutions of kernels larger than NARROW, for "
    "whose backward pass libraries have no fast way",
}
"""Beside PLAIN, which training has too. A dropout, free in a forward pass alone, is an operation here that
reads, and writes its result and its mask."""
PASS_TERMS = (*PLAIN, *TERMS)
OF_DROPOUT = 3  # elements moved for each
NARROW = 3  # kernels up to this are fast
RECURRENT = frozenset({"lstm", "gru", "simple_rnn"})


def iterations(samples: int, batch_size: int, drop_last: bool) -> int:
    """Iterations of an epoch."""
    return samples // batch_size if drop_last else -(-samples // batch_size)


_AT = {term: column for column, term in enumerate(PASS_TERMS)}


def pass_rows(graph: Graph, batch_size: int) -> np.ndarray:
    """(operations, PASS_TERMS) float64: what a pass at `batch_size` is made of."""
    rows = np.zeros((len(graph.operations), len(PASS_TERMS)))
    rows[:, : len(PLAIN)] = count(graph).at(batch_size)[:, : len(PLAIN)]
    for row, operation in zip(rows, graph.operations, strict=True):
        if operation.kind == "dropout":
            read = graph.tensors[operation.inputs[0]].elements(batch_size)
            for term, more in (("ops", 1.0), ("serial", 1.0), ("traffic", OF_DROPOUT * read)):
                row[_AT[term]] += more
        elif operation.kind in NORMALIZATIONS and operation.inputs:
            row[_AT["norm_traffic"]] = row[_AT["traffic"]]
            if len(graph.tensors[operation.inputs[0]].shape) == 2:
                row[_AT["flat_norms"]] = row[_AT["ops"]]
        elif "kernel" in operation.attributes and "in_channels" in operation.attributes:
            _convolution_terms(operation, row)
    return rows


def _convolution_terms(operation: Operation, row: np.ndarray) -> None:
    """Fill in what only convolutions have."""
    kind, a = operation.kind, operation.attributes
    pointwise = kind == "conv" and all(n == 1 for n in a["kernel"])
    row[_AT["pointwise" if pointwise else "kernels"]] = row[_AT["weights"]]
    if kind == "depthwise_conv" and max(a["kernel"]) > NARROW:
        row[_AT["wide_depthwise"]] = row[_AT["flops"]]
    elif kind == "grouped_conv" and a["groups"] < a["in_channels"]:
        row[_AT["unrolled"]] = row[_AT["patches"]] * a["groups"]
    elif kind == "grouped_conv":
        for term in ("patches", "groups"):
            row[_AT[f"own_{term}"]], row[_AT[term]] = row[_AT[term]], 0.0


def variables(graph: Graph) -> int:
    """Tensors that an optimizer updates: kernels, biases, tables, the vectors of normalizations."""
    weights = count(graph).at(1)[:, COLUMNS.index("weights")]
    return sum(_variables(o, int(w)) for o, w in zip(graph.operations, weights, strict=True))


def _variables(operation: Operation, weights: int) -> int:
    if operation.kind in NORM_VECTORS:
        return NORM_VECTORS[operation.kind]
    if not weights:
        return 0
    a = operation.attributes
    if operation.kind not in RECURRENT:
        return 1 + bool(a.get("bias"))
    # A kernel for the input, one for the state. Keras has all biases in one tensor, and its reader says no
    # number of them; PyTorch has one for each kernel.
    return 2 + bool(a.get("bias")) * int(a.get("bias_vectors", 1))


def started(graph: Graph) -> int:
    """Operations that a framework traces before the first step; reshapes and their like not counted."""
    return sum(o.kind not in FREE or o.kind == "dropout" for o in graph.operations)


# ---- What it keeps in memory: activations for the backward pass, weights, gradients, slots.

LARGEST_BATCH = 2**24
_OF_INPUT = """
conv grouped_conv depthwise_conv transposed_conv dense matmul attention embedding
multiply divide power square max_pool global_max_pool gelu silu hard_silu mish softplus
erf log leaky_relu prelu
"""
OF_INPUT = frozenset(_OF_INPUT.split()) | NORMALIZATIONS
"""Kinds whose backward pass needs what they read."""
_OF_OUTPUT = """
relu relu6 sigmoid hard_sigmoid tanh softmax log_softmax elu selu exp sqrt rsqrt max_pool
global_max_pool lstm gru simple_rnn attention dropout
"""
OF_OUTPUT = frozenset(_OF_OUTPUT.split())
"""Kinds whose backward pass needs what they wrote (of a dropout, as much: its mask)."""


def kept_bytes(graph: Graph, batch_size: int) -> int:
    """Bytes of what the forward pass leaves for the backward pass, at `batch_size`.

    The inputs of convolutions, dense layers, products, normalizations and pools, and the results of
    activations and max pools (`OF_INPUT`, `OF_OUTPUT`), each tensor once; a reshaped tensor is the one
    that it is a view of.
    """
    same: dict[int, int] = {}
    kept: set[int] = set()
    for operation in graph.operations:
        if operation.kind in FREE and operation.kind != "dropout" and operation.inputs:
            root = same.get(operation.inputs[0], operation.inputs[0])
            same.update((t, root) for t in operation.outputs)
        if operation.kind in OF_INPUT:
            kept.update(same.get(t, t) for t in operation.inputs)
        if operation.kind in OF_OUTPUT:
            kept.update(operation.outputs)
    return sum(tensor_bytes(graph.tensors[t], batch_size) for t in kept)


def working_bytes(graph: Graph, batch_size: int) -> int:
    """Bytes of the gradients alive at once in the backward pass: of the largest operation's tensors."""
    return max(
        (
            sum(tensor_bytes(graph.tensors[t], batch_size) for t in {*o.inputs, *o.outputs})
            for o in graph.operations
            if o.kind not in FREE
        ),
        default=0,
    )


def memory_bytes(graph: Graph, batch_size: int, optimizer: Optimizer) -> int:
    """Estimate of the peak memory of an iteration.

    Kept activations + gradients of the largest operation + parameters x (themselves, their gradient,
    the optimizer's slots) x 4 bytes. Without the framework's own memory, a library's workspace and what
    an allocator wastes.
    """
    of_parameters = parameters(graph) * (2 + optimizer.slots) * FLOAT_BYTES
    return kept_bytes(graph, batch_size) + working_bytes(graph, batch_size) + of_parameters


def largest_batch(graph: Graph, optimizer: Optimizer, available_bytes: float) -> int:
    """The largest batch whose iteration is foreseen to fit into `available_bytes`; 0 where none does."""
    least, most = 0, 1
    while memory_bytes(graph, most, optimizer) <= available_bytes:
        if most > LARGEST_BATCH:  # a network without tensors that grow with the batch
            return LARGEST_BATCH
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        fits = memory_bytes(graph, middle, optimizer) <= available_bytes
        least, most = (middle, most) if fits else (least, middle)
    return least
