"""Building a block as a PyTorch module, from the layers that a PyTorch network with these operations has.

A block is written channels last; PyTorch's images are channels first. A tensor stays channels first from
convolution to convolution, and is permuted for an operation along the channels (a dense layer, a layer
norm), as in PyTorch's own ConvNeXt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lolat.graph import Graph

from .. import Shape

CHANNELS_LAST = {"dense", "layer_norm", "softmax", "matmul", "transpose"}
"""Kinds that work along the last axis."""
AS_IT_LIES = {"flatten", "reshape"}
"""Kinds that take elements in the order in which they are stored."""
EITHER = {
    "relu", "relu6", "silu", "sigmoid", "hard_sigmoid", "hard_silu", "gelu", "add", "multiply",
    "scale", "rescale", "concatenate", "dropout",
}  # fmt: skip
"""Kinds that work in either order. All kinds that are not listed need channels first."""
SHARING = {*AS_IT_LIES, "dropout"}
"""Kinds whose result can share memory with their operand."""


@dataclass(frozen=True)
class Value:
    """A node of the FX graph; `shape`: its shape in the block, at batch size 1 and channels last."""

    node: Any
    shape: Shape
    channels_first: bool = False

    @property
    def laid(self) -> Shape:
        """The shape in which the tensor is stored."""
        batch, *places = self.shape
        return (batch, places[-1], *places[:-1]) if self.channels_first else self.shape


@dataclass(frozen=True)
class Construction:
    """An operation to add to an FX graph.

    `result`: its value, without a node yet. `in_place`: True if its first operand may be overwritten.
    """

    torch: Any
    root: Any
    graph: Any
    attributes: Mapping[str, Any]
    operands: list[Value]
    result: Value
    in_place: bool

    @property
    def nodes(self) -> list[Any]:
        """The nodes of the operands."""
        return [value.node for value in self.operands]

    @property
    def channels(self) -> int:
        """The number of channels of the first operand."""
        return self.operands[0].shape[-1]

    def layer(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A layer of torch.nn applied to the first operand; "{}" in the name becomes "2d" for an image."""
        of_rank = name.format(f"{max(1, len(self.operands[0].shape) - 2)}d")
        key = f"layer_{len(self.graph.nodes)}"
        setattr(self.root, key, getattr(self.torch.nn, of_rank)(*arguments, **options))
        return self.graph.call_module(key, (self.nodes[0],))

    def function(self, name: str, *arguments: Any, **options: Any) -> Any:
        """The result of the function torch.`name`."""
        return self.graph.call_function(getattr(self.torch, name), arguments, options)

    def window(self) -> tuple[Any, Any, Shape]:
        """(kernel, strides, padding on both sides) of the spatial axes, which give the result its size."""
        kernels, strides = self.attributes["kernel"], self.attributes["strides"]
        sizes = zip(self.operands[0].shape[1:], self.result.shape[1:], strict=True)
        missing = [
            max(0, (m - 1) * stride + kernel - n)
            for (n, m), kernel, stride in zip(sizes, kernels, strides, strict=False)
        ]
        return kernels, strides, tuple(-(-n // 2) for n in missing)


def block_module(torch: Any, graph: Graph) -> tuple[Any, list[Shape]]:
    """(an nn.Module of `graph`, the shapes of its inputs at batch size 1 as they are stored).

    The weights are random, on torch's default device. The module returns a tuple. FX's code frees a tensor
    after its last use, as a network's own code does. It is a separate code object for each block, so that
    torch.compile treats blocks as different networks. KeyError for a kind that is not in MAKERS.
    """
    root, fx, readers = torch.nn.Module(), torch.fx.Graph(), graph.consumers()
    values: dict[int, Value] = {}
    for number, i in enumerate(graph.inputs):
        shape = graph.tensors[i].shape
        kinds = {graph.operations[at].kind for at in readers.get(i, ())}
        is_image = len(shape) > 3 and not kinds <= CHANNELS_LAST
        values[i] = Value(fx.placeholder(f"x{number}"), shape, is_image)
    shapes = [values[i].laid for i in graph.inputs]
    # Tensors in memory of their own that one operation reads.
    written = {i for o in graph.operations if o.kind not in SHARING for i in o.outputs}
    reusable = {i for i in written - {*graph.outputs} if len(readers.get(i, ())) == 1}
    for o in graph.operations:
        shape = graph.tensors[o.outputs[0]].shape
        operands = [values[i] for i in o.inputs]
        first = _is_channels_first(o.kind, operands, shape)
        if o.kind not in AS_IT_LIES:
            operands = [_permuted(torch, fx, value, first) for value in operands]
        result = Value(None, shape, first and len(shape) > 2)
        in_place = o.inputs[0] in reusable
        node = MAKERS[o.kind](
            Construction(torch, root, fx, o.attributes, operands, result, in_place)
        )
        values[o.outputs[0]] = replace(result, node=node)
    fx.output(tuple(values[i].node for i in graph.outputs))
    return torch.fx.GraphModule(root, fx, "Block").eval(), shapes


def _is_channels_first(kind: str, operands: list[Value], out: Shape) -> bool:
    """True if the result of an operation is stored channels first."""
    if kind in AS_IT_LIES:  # an image of one position is in both orders at once
        return len(out) > 3 and all(n == 1 for n in out[1:-1])
    if kind in EITHER:
        return any(value.channels_first for value in operands)
    return kind not in CHANNELS_LAST


def _permuted(torch: Any, fx: Any, value: Value, channels_first: bool) -> Value:
    """A value permuted so that its channels come first, or last."""
    rank = len(value.shape)
    if value.channels_first is channels_first or (channels_first and rank < 3):
        return value
    order = (0, rank - 1, *range(1, rank - 1)) if channels_first else (0, *range(2, rank), 1)
    node = fx.call_function(torch.permute, (value.node, order))
    return Value(node, value.shape, channels_first)


# ---- How each kind is built


def _convolution(c: Construction) -> Any:
    a, (kernel, strides, padding) = c.attributes, c.window()
    channels = a["in_channels"], a["out_channels"]
    return c.layer(
        "Conv{}", *channels, kernel, strides, padding, a["dilation"], a["groups"], a["bias"]
    )


def _transposed(c: Construction) -> Any:
    """A transposed convolution whose kernel is as large as its stride, so that nothing is padded."""
    a = c.attributes
    channels = a["in_channels"], a["out_channels"]
    return c.layer("ConvTranspose{}", *channels, a["kernel"], a["strides"], bias=a["bias"])


def _global_pool(c: Construction) -> Any:
    pooled = c.layer("AdaptiveAvgPool{}", 1)
    keeps_rank = len(c.result.shape) == len(c.operands[0].shape)
    return pooled if keeps_rank else c.function("flatten", pooled, 1)


def _transpose(c: Construction) -> Any:
    """A transposition with a copy, because a permutation alone shares its operand's memory."""
    view = c.function("permute", c.nodes[0], c.attributes["permutation"])
    return c.function("clone", view, memory_format=c.torch.contiguous_format)


def _concatenate(c: Construction) -> Any:
    axis = 1 if c.result.channels_first else len(c.result.shape) - 1
    return c.function("cat", c.nodes, axis)


def _matmul(c: Construction) -> Any:
    """A product along the last axis of the left operand; the right one is transposed if needed."""
    (left, right), rank = c.nodes, len(c.result.shape)
    if c.operands[1].shape[-2] != c.operands[0].shape[-1]:
        right = c.function("permute", right, (*range(rank - 2), rank - 1, rank - 2))
    return c.function("matmul", left, right)


def _rescale(c: Construction) -> Any:
    """A product and a sum, as in Keras' Rescaling."""
    return c.function("sub", c.function("mul", c.nodes[0], 1 / 127.5), 1.0)


_ACTIVATIONS = {"sigmoid": "Sigmoid", "hard_sigmoid": "Hardsigmoid", "gelu": "GELU"}
_IN_PLACE = {"relu": "ReLU", "relu6": "ReLU6", "silu": "SiLU", "hard_silu": "Hardswish"}
"""Activations that torchvision's networks run in place."""


def _activation(name: str, has_in_place: bool) -> Callable[[Construction], Any]:
    return lambda c: c.layer(name, **({"inplace": True} if has_in_place and c.in_place else {}))


MAKERS: dict[str, Callable[[Construction], Any]] = {
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv"), _convolution),
    "transposed_conv": _transposed,
    "max_pool": lambda c: c.layer("MaxPool{}", *c.window()),
    # The mean excludes the padding, as in Keras and NASNet's ports.
    "average_pool": lambda c: c.layer("AvgPool{}", *c.window(), count_include_pad=False),
    "global_average_pool": _global_pool,
    "batch_norm": lambda c: c.layer("BatchNorm{}", c.channels),
    "layer_norm": lambda c: c.layer("LayerNorm", c.channels),
    "dense": lambda c: c.layer("Linear", c.channels, c.result.shape[-1], bias=c.attributes["bias"]),
    **{kind: _activation(name, False) for kind, name in _ACTIVATIONS.items()},
    **{kind: _activation(name, True) for kind, name in _IN_PLACE.items()},
    "softmax": lambda c: c.layer("Softmax", dim=-1),
    "dropout": lambda c: c.layer("Dropout", 0.5),  # it drops elements only in training
    "flatten": lambda c: c.function("flatten", c.nodes[0], 1),
    "reshape": lambda c: c.function("reshape", c.nodes[0], (-1, *c.result.laid[1:])),
    "transpose": _transpose,
    "concatenate": _concatenate,
    "add": lambda c: c.function("add", *c.nodes),
    "multiply": lambda c: c.function("mul", *c.nodes),
    "scale": lambda c: c.function("mul", c.nodes[0], 0.125),
    "rescale": _rescale,
    "matmul": _matmul,
}
"""Kind of operation -> the function that builds it."""
