"""Builds a block as a PyTorch module: the layers that a PyTorch network of the same operations has.

A block is written channels last, PyTorch's images are channels first. So a tensor lies channels first from
convolution to convolution, and is permuted where an operation works along the channels (a dense layer, a
layer norm), as in PyTorch's own ConvNeXt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lolat.graph import Graph, Operation
from microbench.backends import Shape, check_kinds

CHANNELS_LAST = {"dense", "layer_norm", "softmax", "matmul", "transpose"}
"""Kinds that work along the last axis."""
AS_IT_LIES = {"flatten", "reshape"}
"""Kinds that take the elements in the order in which they lie in memory."""
EITHER = {
    "relu", "relu6", "silu", "sigmoid", "hard_sigmoid", "hard_silu", "gelu", "add", "multiply",
    "scale", "rescale", "concatenate", "dropout",
}  # fmt: skip
"""Kinds that work in both orders. All other kinds need the channels first."""
SHARING = {"flatten", "reshape", "dropout"}
"""Kinds whose result may share its memory with their operand."""


@dataclass(frozen=True)
class Value:
    """A node of the FX graph and its shape at batch size 1, as the block has it (channels last)."""

    node: Any
    shape: Shape
    channels_first: bool = False

    @property
    def laid(self) -> Shape:
        """The shape as the tensor lies in memory."""
        return permuted(self.shape, to_first(self.shape)) if self.channels_first else self.shape


def to_first(shape: Shape) -> Shape:
    """The order of the axes that puts the last one behind the batch."""
    return (0, len(shape) - 1, *range(1, len(shape) - 1))


def to_last(shape: Shape) -> Shape:
    """The order of the axes that puts the second one at the end."""
    return (0, *range(2, len(shape)), 1)


def permuted(shape: Shape, order: Shape) -> Shape:
    """The shape with its axes in another order."""
    return tuple(shape[axis] for axis in order)


class Writer:
    """Writes an FX graph.

    Its generated code frees a tensor after its last use, as a network's own code does. Each block is a code
    object of its own, so that torch.compile treats blocks as different networks.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.root: Any = torch.nn.Module()
        self.graph: Any = torch.fx.Graph()

    def layer(self, layer: Any, node: Any) -> Any:
        """The output of a layer, which becomes a part of the module."""
        name = f"layer_{len(self.graph.nodes)}"
        setattr(self.root, name, layer)
        return self.graph.call_module(name, (node,))

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The output of a function."""
        return self.graph.call_function(function, arguments, options)

    def permute(self, value: Value, channels_first: bool) -> Value:
        """The value with its channels first, or last."""
        rank = len(value.shape)
        if value.channels_first is channels_first or (channels_first and rank < 3):
            return value
        order = (to_first if channels_first else to_last)(value.shape)
        return Value(self.call(self.torch.permute, value.node, order), value.shape, channels_first)


@dataclass(frozen=True)
class Call:
    """An operation to write: its operands, and its result but for the node."""

    writer: Writer
    operation: Operation
    operands: list[Value]
    result: Value
    in_place: bool
    """Whether the memory of the first operand may be overwritten."""

    @property
    def nn(self) -> Any:
        """torch.nn."""
        return self.writer.torch.nn

    @property
    def node(self) -> Any:
        """The first operand."""
        return self.operands[0].node

    @property
    def channels(self) -> int:
        """The number of channels of the first operand."""
        return self.operands[0].shape[-1]

    def layer(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A layer of torch.nn on the first operand; "{}" in its name becomes "2d" of an image."""
        of_rank = name.format(f"{max(1, len(self.operands[0].shape) - 2)}d")
        return self.writer.layer(getattr(self.nn, of_rank)(*arguments, **options), self.node)

    def padding(self) -> Shape:
        """Zeros on both sides of each spatial axis: as many as the size of the result needs.

        PyTorch's networks pad both sides alike.
        """
        a, before, after = (
            self.operation.attributes, self.operands[0].shape[1:-1], self.result.shape[1:-1],
        )  # fmt: skip
        missing = [
            max(0, (m - 1) * stride + kernel - n)
            for n, m, kernel, stride in zip(before, after, a["kernel"], a["strides"], strict=True)
        ]
        return tuple(-(-n // 2) for n in missing)


def block_module(torch: Any, graph: Graph, backend: str = "torch") -> tuple[Any, list[Shape]]:
    """(an nn.Module of `graph`, the shapes of its inputs at batch size 1 as they lie).

    The weights are random and are made on torch's default device. The module returns a tuple.
    MeasuringError names `backend` and an operation that it does not build.
    """
    check_kinds(graph, MAKERS, backend)
    writer, readers = Writer(torch), graph.consumers()
    values: dict[int, Value] = {}
    for number, i in enumerate(graph.inputs):
        shape = graph.tensors[i].shape
        kinds = {graph.operations[at].kind for at in readers.get(i, ())}
        is_image = len(shape) > 3 and not kinds <= CHANNELS_LAST
        values[i] = Value(writer.graph.placeholder(f"x{number}"), shape, is_image)
    shapes = [values[i].laid for i in graph.inputs]
    # Tensors in memory of their own that one operation reads.
    written = {i for o in graph.operations if o.kind not in SHARING for i in o.outputs}
    reusable = {i for i in written - {*graph.outputs} if len(readers.get(i, ())) == 1}
    for operation in graph.operations:
        (out,) = operation.outputs
        operands = [values[i] for i in operation.inputs]
        first = _is_channels_first(operation, operands, graph.tensors[out].shape)
        if operation.kind not in AS_IT_LIES:
            operands = [writer.permute(v, first) for v in operands]
        result = Value(None, graph.tensors[out].shape, first and len(graph.tensors[out].shape) > 2)
        call = Call(writer, operation, operands, result, operation.inputs[0] in reusable)
        values[out] = Value(MAKERS[operation.kind](call), result.shape, result.channels_first)
    writer.graph.output(tuple(values[i].node for i in graph.outputs))
    return torch.fx.GraphModule(writer.root, writer.graph, "Block").eval(), shapes


def _is_channels_first(operation: Operation, operands: list[Value], out: Shape) -> bool:
    """Whether an operation's result lies channels first."""
    if operation.kind in AS_IT_LIES:  # one position: an image already
        return len(out) > 3 and all(n == 1 for n in out[1:-1])
    if operation.kind in EITHER:
        return any(v.channels_first for v in operands)
    return operation.kind not in CHANNELS_LAST


# ---- How each kind is built


def _convolution(c: Call) -> Any:
    a = c.operation.attributes
    return c.layer(
        "Conv{}", a["in_channels"], a["out_channels"], a["kernel"], a["strides"], c.padding(),
        a["dilation"], a["groups"], a["bias"],
    )  # fmt: skip


def _transposed(c: Call) -> Any:
    """Of a kernel as large as the stride: nothing is padded."""
    a = c.operation.attributes
    channels = a["in_channels"], a["out_channels"]
    return c.layer("ConvTranspose{}", *channels, a["kernel"], a["strides"], bias=a["bias"])


def _pool(c: Call) -> Any:
    a = c.operation.attributes
    if c.operation.kind == "max_pool":
        return c.layer("MaxPool{}", a["kernel"], a["strides"], c.padding())
    # The mean of the elements that there are, as Keras and NASNet's ports have it.
    return c.layer("AvgPool{}", a["kernel"], a["strides"], c.padding(), count_include_pad=False)


def _global_pool(c: Call) -> Any:
    pooled = c.layer("AdaptiveAvgPool{}", 1)
    if len(c.result.shape) == len(c.operands[0].shape):
        return pooled
    return c.writer.call(c.writer.torch.flatten, pooled, 1)


def _reshape(c: Call) -> Any:
    return c.writer.call(c.writer.torch.reshape, c.node, (-1, *c.result.laid[1:]))


def _transpose(c: Call) -> Any:
    """A copy: the result of a permutation shares its operand's memory."""
    torch, order = c.writer.torch, c.operation.attributes["permutation"]
    view = c.writer.call(torch.permute, c.node, order)
    return c.writer.call(torch.clone, view, memory_format=torch.contiguous_format)


def _concatenate(c: Call) -> Any:
    axis = 1 if c.result.channels_first else len(c.result.shape) - 1
    return c.writer.call(c.writer.torch.cat, [v.node for v in c.operands], axis)


def _matmul(c: Call) -> Any:
    """Along the last axis of the left operand; the right one is transposed where that fits."""
    left, right = c.operands
    node = right.node
    if right.shape[-2] != left.shape[-1]:
        rank = len(right.shape)
        node = c.writer.call(c.writer.torch.permute, node, (*range(rank - 2), rank - 1, rank - 2))
    return c.writer.call(c.writer.torch.matmul, left.node, node)


def _pair(name: str) -> Callable[[Call], Any]:
    """torch's function of two operands, one after the other."""

    def make(c: Call) -> Any:
        result, *others = (v.node for v in c.operands)
        for other in others:
            result = c.writer.call(getattr(c.writer.torch, name), result, other)
        return result

    return make


def _rescale(c: Call) -> Any:
    """A product and a sum, as Keras' Rescaling."""
    scaled = c.writer.call(c.writer.torch.mul, c.node, 1 / 127.5)
    return c.writer.call(c.writer.torch.sub, scaled, 1.0)


def _activation(name: str, has_in_place: bool) -> Callable[[Call], Any]:
    """torchvision's networks have some activations in place."""
    return lambda c: c.layer(name, **({"inplace": True} if has_in_place and c.in_place else {}))


_ACTIVATIONS = {"sigmoid": "Sigmoid", "hard_sigmoid": "Hardsigmoid", "gelu": "GELU"}
_IN_PLACE = {"relu": "ReLU", "relu6": "ReLU6", "silu": "SiLU", "hard_silu": "Hardswish"}

MAKERS: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv"), _convolution),
    "transposed_conv": _transposed,
    **dict.fromkeys(("max_pool", "average_pool"), _pool),
    "global_average_pool": _global_pool,
    "batch_norm": lambda c: c.layer("BatchNorm{}", c.channels),
    "layer_norm": lambda c: c.layer("LayerNorm", c.channels),
    "dense": lambda c: c.layer(
        "Linear", c.channels, c.result.shape[-1], bias=c.operation.attributes["bias"]
    ),
    **{kind: _activation(name, False) for kind, name in _ACTIVATIONS.items()},
    **{kind: _activation(name, True) for kind, name in _IN_PLACE.items()},
    "softmax": lambda c: c.layer("Softmax", dim=-1),
    "dropout": lambda c: c.layer("Dropout", 0.5),  # nothing but in training
    "flatten": lambda c: c.writer.call(c.writer.torch.flatten, c.node, 1),
    "reshape": _reshape,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "add": _pair("add"),
    "multiply": _pair("mul"),
    "scale": lambda c: c.writer.call(c.writer.torch.mul, c.node, 0.125),
    "rescale": _rescale,
    "matmul": _matmul,
}
"""Kind of operation -> how it is built."""
