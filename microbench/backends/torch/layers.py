"""Operations of a Graph as PyTorch layers: those that a PyTorch network with that operation runs.

Layers that torchvision's networks have in place are in place here, where nothing else reads the operand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lolat.graph import Graph, Tensor
from microbench.backends import tape as shared
from microbench.backends.shapes import Shape, transposed_padding, window
from microbench.backends.tape import Call, Maker, Tape, build

_BINARY = {"subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow"}


class TorchTape(Tape):
    """Collects an FX graph; every step is tried at once on meta tensors, which have a shape and no memory.

    The code that FX generates lets go of a tensor after its last use, as a network's own code does, and is
    a code object of its own, so that torch.compile treats blocks as different networks.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.root: Any = torch.nn.Module()
        self.graph: Any = torch.fx.Graph()
        self.meta: dict[Any, Any] = {}  # node -> what it gives at batch size 1
        self.input, self.constant, self.pad = self._input, self._constant, self._pad
        self.binary = self._binary
        self.shape = lambda node: tuple(self.meta[node].shape)
        self.permute, self.reshape = self._step(torch.permute), self._step(torch.reshape)
        self.copied = self._step(torch.clone, memory_format=torch.contiguous_format)
        self.concatenate = self._step(torch.cat)
        self.tile, self.matmul = self._step(torch.tile), self._step(torch.matmul)
        self.index = self._step(operator.getitem)  # a view, whose copy is left to what reads it
        self.grown = lambda node, shape: self.call(
            for_each_sample, node, next(n for n in self.graph.nodes if n.op == "placeholder")
        )
        self.dense = lambda node, inside, made, bias: self.module(
            "dense", torch.nn.Linear(inside, made, bias=bias), node
        )

    def _step(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return partial(self.call, function, **options)

    def _input(self, tensor: Tensor, shape: Shape) -> Any:
        node = self.graph.placeholder(f"x{len(self.meta)}")
        return self._noted(node, self._empty(shape, tensor.dtype))

    def _constant(self, tensor: Tensor) -> Any:
        """A buffer."""
        name = f"constant_{len(self.meta)}"
        value = self._empty(tensor.shape, tensor.dtype)
        self.root.register_buffer(name, value)
        return self._noted(self.graph.get_attr(name), value)

    def _pad(self, node: Any, pairs: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
        """PyTorch has the pairs of the last axis first."""
        amounts = tuple(n for pair in reversed(pairs) for n in pair)
        return self.call(self.torch.nn.functional.pad, node, amounts, "constant", value)

    def _binary(self, kind: str, left: Any, right: Any) -> Any:
        """torch's function; a limit that is a number is a clamp."""
        if kind in ("maximum", "minimum") and isinstance(right, float):
            return self.function("clamp", left, **{"min" if kind == "maximum" else "max": right})
        return self.function(_BINARY.get(kind, kind), left, right)

    def module(self, kind: str, layer: Any, *nodes: Any) -> Any:
        """The output of a layer (an nn.Module on the meta device), which becomes part of the module."""
        name = f"{kind}_{len(self.meta)}"
        value = layer.eval()(*(self.meta[n] for n in nodes))
        setattr(self.root, name, layer)
        return self._noted(self.graph.call_module(name, nodes), value)

    def function(self, name: str, *arguments: Any, **options: Any) -> Any:
        """The output of torch's function of that name."""
        return self.call(getattr(self.torch, name), *arguments, **options)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The output of a function; nodes among its arguments, or in a list as its first, are operands."""
        value = function(*map(self._meta_of, arguments), **options)
        return self._noted(self.graph.call_function(function, arguments, options), value)

    def _meta_of(self, argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return type(argument)(map(self._meta_of, argument))
        return self.meta[argument] if isinstance(argument, self.torch.fx.Node) else argument

    def _noted(self, node: Any, value: Any) -> Any:
        self.meta[node] = value
        return node

    def _empty(self, shape: Shape, dtype: str) -> Any:
        """float32 where PyTorch has no type of that name."""
        known = getattr(self.torch, dtype, self.torch.float32)
        return self.torch.empty(shape, dtype=known, device="meta")


def for_each_sample(x: Any, like: Any) -> Any:
    """`x` as many times as `like` has samples."""
    return x.expand(like.shape[0] * x.shape[0], *x.shape[1:])


def block_module(torch: Any, graph: Graph, backend: str = "torch") -> tuple[Any, list[Shape]]:
    """(an nn.Module of `graph` on the meta device, the shapes of its inputs at batch size 1).

    The module returns a tuple. MeasuringError names `backend` and an operation that cannot be built.
    """
    tape = TorchTape(torch)
    with torch.device("meta"), torch.no_grad():
        outputs, shapes = build(graph, tape, MAKERS, backend)
    tape.graph.output(tuple(outputs))
    return torch.fx.GraphModule(tape.root, tape.graph, "Block").eval(), shapes


def materialize(torch: Any, module: Any, device: Any) -> Any:
    """A module of the meta device on `device`, with random weights made there, layer by layer."""
    module = module.to_empty(device=device)
    for part in module.modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name.startswith("constant_"):
                buffer.fill_(1)
    return module


def _layer(c: Call, name: str, *arguments: Any, **options: Any) -> Any:
    """A layer of torch.nn on the first operand; "{}" in its name becomes "2d" of an image."""
    cls = getattr(c.tape.torch.nn, name.format(f"{max(1, len(c.shape) - 2)}d"))
    return c.tape.module(c.operation.kind, cls(*arguments, **options), c.x)


# ---- convolutions and pools ----------------------------------------------------------------------


def _convolution(c: Call) -> Any:
    a, w = c.attributes, window(c.attributes, c.shape[2:], c.out[2:])
    x = c.x if w.symmetric else c.tape.pad(c.x, w.pairs)
    layer = getattr(c.tape.torch.nn, f"Conv{len(w.kernel)}d")(
        a["in_channels"], a["out_channels"], w.kernel, w.strides, w.before if w.symmetric else 0,
        w.dilation, a.get("groups", 1), a["bias"],
    )  # fmt: skip
    return c.tape.module("conv", layer, x)


def _transposed(c: Call) -> Any:
    a = c.attributes
    strides, padding, extra = transposed_padding(a, c.shape[2:], c.out[2:])
    return _layer(
        c, "ConvTranspose{}", a["in_channels"], a["out_channels"], tuple(a["kernel"]), strides, padding,
        extra, a.get("groups", 1), a["bias"], a.get("dilation") or 1,
    )  # fmt: skip


def _pool(c: Call) -> Any:
    w = window(c.attributes, c.shape[2:], c.out[2:])
    is_mean = c.operation.kind == "average_pool"
    cls = getattr(c.tape.torch.nn, f"{'Avg' if is_mean else 'Max'}Pool{len(w.kernel)}d")
    # As Keras and NASNet's ports have it: the mean is of what is there.
    options = {"count_include_pad": False} if is_mean else {}
    if w.symmetric and all(2 * p <= k for p, k in zip(w.before, w.kernel, strict=True)):
        return c.tape.module("pool", cls(w.kernel, w.strides, w.before, **options), c.x)
    if not any(w.before) and max(w.after) < max(w.strides):  # the last window ends outside
        layer = cls(w.kernel, w.strides, ceil_mode=True, **options)
        node = c.tape.module("pool", layer, c.x)
        if c.tape.shape(node) == c.out:
            return node
    x = c.tape.pad(c.x, w.pairs, 0.0 if is_mean else float("-inf"))
    return c.tape.module("pool", cls(w.kernel, w.strides), x)


def _global_pool(c: Call) -> Any:
    """An adaptive pool to one position; the axes go where the Graph has none."""
    x = _layer(c, "AdaptiveAvgPool{}", 1)
    return x if len(c.out) == len(c.shape) else c.tape.function("flatten", x, 1)


# ---- the others ----------------------------------------------------------------------------------


def _activation(name: str, in_place: bool) -> Maker:
    return lambda c: _layer(c, name, **({"inplace": True} if in_place and c.reusable else {}))


def _flatten(c: Call) -> Any:
    if len(c.out) == 2 and c.out[0] == c.shape[0]:
        return c.tape.function("flatten", c.x, 1)
    return shared.reshape(c)


_LAYERS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "hard_sigmoid": "Hardsigmoid", "gelu": "GELU"}
_IN_PLACE = {"relu": "ReLU", "relu6": "ReLU6", "silu": "SiLU", "hard_silu": "Hardswish"}

MAKERS: dict[str, Maker] = {
    **shared.MAKERS,
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv"), _convolution),
    "transposed_conv": _transposed,
    **dict.fromkeys(("max_pool", "average_pool"), _pool),
    "global_average_pool": _global_pool,
    "batch_norm": lambda c: _layer(c, "BatchNorm{}", c.shape[1]),
    "layer_norm": lambda c: _layer(c, "LayerNorm", c.shape[-1]),
    **{kind: _activation(name, False) for kind, name in _LAYERS.items()},
    **{kind: _activation(name, True) for kind, name in _IN_PLACE.items()},
    "softmax": lambda c: _layer(c, "Softmax", dim=c.axis_or_last),
    "dropout": lambda c: _layer(c, "Dropout", 0.5),  # nothing but in training
    "embedding": lambda c: _layer(
        c, "Embedding", c.attributes["rows"], c.attributes["out_features"]
    ),
    "flatten": _flatten,
    "attention": lambda c: c.tape.call(
        c.tape.torch.nn.functional.scaled_dot_product_attention, *c.inputs
    ),
}
"""Kind of operation -> how it is built."""
