"""What an iteration keeps in memory: activations for the backward pass, weights, gradients, slots."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.analysis import FLOAT_BYTES, parameters, tensor_bytes
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
            "batch size, or more samples"
        )


# ---- memory ----------------------------------------

LARGEST_BATCH = 2**24
_OF_INPUT = """
conv grouped_conv depthwise_conv transposed_conv dense matmul embedding multiply divide power square
max_pool global_max_pool gelu silu hard_silu mish softplus erf log leaky_relu prelu
"""
OF_INPUT = frozenset(_OF_INPUT.split()) | NORMALIZATIONS
"""Kinds whose backward pass needs what they read."""
_OF_OUTPUT = """
relu relu6 sigmoid hard_sigmoid tanh softmax log_softmax elu selu exponential exp sqrt rsqrt max_pool
global_max_pool lstm gru simple_rnn dropout
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
