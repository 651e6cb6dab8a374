"""Building a block as a Keras model, from the layers that a Keras network with these operations has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lolat.graph import Graph, Operation

from .. import Shape


@dataclass(frozen=True)
class Construction:
    """An operation to build; its operands are symbolic tensors, and `out` is the shape of its result."""

    keras: Any
    operation: Operation
    operands: list[Any]
    out: Shape

    @property
    def x(self) -> Any:
        """The first operand."""
        return self.operands[0]

    def layer(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A Keras layer applied to the first operand; "{}" in the name becomes "2D" for an image."""
        cls = getattr(self.keras.layers, name.format(f"{len(self.x.shape) - 2}D"))
        return cls(*arguments, **options)(self.x)


def build_graph(keras: Any, graph: Graph) -> Any:
    """A Keras model of `graph` (float32) with random weights; KeyError for a kind that is not in MAKERS."""
    values = {i: keras.Input(graph.tensors[i].shape[1:]) for i in graph.inputs}
    inputs = list(values.values())
    for operation in graph.operations:
        (out,) = operation.outputs
        operands = [values[i] for i in operation.inputs]
        call = Construction(keras, operation, operands, graph.tensors[out].shape)
        values[out] = MAKERS[operation.kind](call)
    return keras.Model(inputs, [values[i] for i in graph.outputs], name="block")


# ---- How each kind is built


def _convolution(c: Construction) -> Any:
    a = c.operation.attributes
    options = {"strides": a["strides"], "padding": a["padding"], "use_bias": a["bias"]}
    if c.operation.kind == "transposed_conv":
        return c.layer("Conv{}Transpose", a["out_channels"], a["kernel"], **options)
    if c.operation.kind == "depthwise_conv":
        return c.layer("DepthwiseConv{}", a["kernel"], **options)
    return c.layer("Conv{}", a["out_channels"], a["kernel"], groups=a["groups"], **options)


def _pool(c: Construction) -> Any:
    a = c.operation.attributes
    name = "MaxPooling{}" if c.operation.kind == "max_pool" else "AveragePooling{}"
    return c.layer(name, a["kernel"], a["strides"], a["padding"])


def _global_pool(c: Construction) -> Any:
    return c.layer("GlobalAveragePooling{}", keepdims=len(c.out) == len(c.x.shape))


def _reshape(c: Construction) -> Any:
    return c.keras.ops.reshape(c.x, (-1, *c.out[1:]))


def _matmul(c: Construction) -> Any:
    """The product of scores and values, or of queries and keys."""
    ops, (left, right) = c.keras.ops, c.operands
    contracted = c.operation.attributes["contracted"]
    if right.shape[-2] == contracted:
        return ops.matmul(left, right)
    # The keys are reshaped, not transposed: the numbers are wrong, but the work is the same.
    rows, columns = left.shape[-2], right.shape[-2]
    product = ops.matmul(
        ops.reshape(left, (-1, rows, contracted)), ops.reshape(right, (-1, contracted, columns))
    )
    return ops.reshape(product, (-1, *c.out[1:]))


_ACTIVATIONS = ("relu", "relu6", "silu", "sigmoid", "hard_sigmoid", "hard_silu", "gelu", "softmax")

MAKERS: dict[str, Callable[[Construction], Any]] = {
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv", "transposed_conv"), _convolution),
    **dict.fromkeys(("max_pool", "average_pool"), _pool),
    "global_average_pool": _global_pool,
    "batch_norm": lambda c: c.layer("BatchNormalization"),
    "layer_norm": lambda c: c.layer("LayerNormalization", epsilon=1e-6),
    "dense": lambda c: c.layer("Dense", c.out[-1], use_bias=c.operation.attributes["bias"]),
    **dict.fromkeys(_ACTIVATIONS, lambda c: c.layer("Activation", c.operation.kind)),
    "rescale": lambda c: c.layer("Rescaling", 1 / 127.5, -1),
    "dropout": lambda c: c.layer("Dropout", 0.5),
    "reshape": _reshape,
    "flatten": _reshape,
    "transpose": lambda c: c.keras.ops.transpose(c.x, c.operation.attributes["permutation"]),
    "concatenate": lambda c: c.keras.layers.Concatenate(axis=len(c.out) - 1)(c.operands),
    "add": lambda c: c.keras.layers.Add()(c.operands),
    "multiply": lambda c: c.keras.layers.Multiply()(c.operands),
    "scale": lambda c: c.keras.ops.multiply(c.x, 0.125),
    "matmul": _matmul,
}
"""Kind of operation -> the function that builds it."""
