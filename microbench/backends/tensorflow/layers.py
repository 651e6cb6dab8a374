"""Operations of a Graph as Keras layers: the ones that a Keras network with that operation runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, ClassVar

from lolat.graph import Graph, Tensor
from microbench.backends import tape as shared
from microbench.backends.shapes import Shape
from microbench.backends.tape import Call, Maker, Tape, build


class KerasTape(Tape):
    """Symbolic Keras tensors of any batch size; images lie as the Graph has them.

    A tensor that nothing writes and that is no input is a variable, as a layer's own is.
    """

    channels_first: ClassVar[bool] = False

    def __init__(self, keras: Any) -> None:
        self.keras: Any = keras
        self.ops: Any = keras.ops
        self.inputs: list[Any] = []
        self.input, self.pad, self.concatenate = self._input, self._pad, self._concatenate
        self.constant = lambda tensor: keras.Variable(
            "ones", shape=tensor.shape, dtype=tensor.dtype, trainable=False
        )
        self.grown = lambda node, shape: node  # which Keras broadcasts
        self.copied = lambda node: node
        self.shape = lambda node: tuple(node.shape)
        self.permute, self.reshape, self.tile = self.ops.transpose, self.ops.reshape, self.ops.tile
        self.index = lambda node, index: node[index]
        self.matmul = self.ops.matmul
        self.dense = lambda node, inside, made, bias: keras.layers.Dense(made, use_bias=bias)(node)
        self.binary = lambda kind, left, right: getattr(self.ops, kind)(left, right)

    def merge(self, kind: str, nodes: Sequence[Any]) -> Any:
        """Keras' layer of all operands, where there is one and they are alike."""
        layer: Any = getattr(self.keras.layers, kind.capitalize(), None)
        alike = len({(len(x.shape), *x.shape[:1]) for x in nodes}) == 1
        if layer is not None and alike and self._are_symbolic(nodes):
            return layer()(nodes)
        return super().merge(kind, nodes)

    def _input(self, tensor: Tensor, shape: Shape) -> Any:
        batch_shape = (None, *shape[1:]) if tensor.batched else shape
        self.inputs.append(self.keras.Input(batch_shape=batch_shape, dtype=tensor.dtype))
        return self.inputs[-1]

    def _concatenate(self, nodes: Sequence[Any], axis: int) -> Any:
        """Keras' layer, or its function where one is a constant."""
        if self._are_symbolic(nodes):
            return self.keras.layers.Concatenate(axis=axis)(nodes)
        return self.ops.concatenate(nodes, axis=axis)

    def _pad(self, node: Any, pairs: Sequence[tuple[int, int]]) -> Any:
        """Keras' layer, where it is of the spatial axes alone."""
        spatial = len(pairs) - 2
        if pairs[0] == pairs[-1] == (0, 0) and spatial in (1, 2, 3):
            layer = getattr(self.keras.layers, f"ZeroPadding{spatial}D")
            return layer(tuple(pairs[1:-1]) if spatial > 1 else pairs[1])(node)
        return self.ops.pad(node, pairs)

    def _are_symbolic(self, nodes: Sequence[Any]) -> bool:
        return all(isinstance(x, self.keras.KerasTensor) for x in nodes)


@contextlib.contextmanager
def standard(keras: Any) -> Iterator[None]:
    """Without what a user's ~/.keras/keras.json says, which is for the user's own networks."""
    config = keras.config
    saved = config.image_data_format(), config.dtype_policy()
    config.set_image_data_format("channels_last")
    config.set_dtype_policy("float32")
    try:
        yield
    finally:
        config.set_image_data_format(saved[0])
        config.set_dtype_policy(saved[1])


def build_graph(keras: Any, graph: Graph) -> Any:
    """A Keras model of `graph` (float32); MeasuringError names an operation that cannot be built."""
    tape = KerasTape(keras)
    with standard(keras):
        outputs, _ = build(graph, tape, MAKERS, "tensorflow")
        return keras.Model(tape.inputs, outputs, name="block")


def _layer(c: Call, name: str, *arguments: Any, **options: Any) -> Any:
    """A Keras layer on the first operand; "{}" in its name becomes "2D" of an image."""
    cls = getattr(c.tape.keras.layers, name.format(f"{len(c.shape) - 2}D"))
    return cls(*arguments, **options)(c.x)


def _plain(name: str, options: Mapping[str, Any]) -> Maker:
    return lambda c: _layer(c, name, **options)


# ---- convolutions and pools ----------------------------------------------------------------------


def _data_format(shape: Shape, channels: int) -> str:
    is_last = shape[-1] == channels or shape[1] != channels
    return "channels_last" if is_last else "channels_first"


def _padded(c: Call, data_format: str) -> tuple[Any, Shape]:
    """The input behind the padding that was folded into the convolution, and its shape."""
    pairs = [(int(p[0]), int(p[1])) for p in c.attributes.get("pad_before", ())]
    if not pairs:
        return c.x, c.shape
    none = (0, 0)
    if len(pairs) == len(c.shape) - 2:  # of the spatial axes
        pairs = [none, *pairs] if data_format == "channels_first" else [*pairs, none]
    pairs = [none, *pairs]
    shape = tuple(n + sum(p) for n, p in zip(c.shape, pairs, strict=True))
    return c.tape.pad(c.x, pairs), shape


def _fitting(c: Call, name: str, x: Any, shape: Shape, **options: Any) -> Any:
    """What a layer makes of `x`; where the Graph does not say strides or padding, the first that fits.

    Where the size of a transposed convolution needs an output padding, the first that gives it.
    """
    a, kernel = c.attributes, tuple(c.attributes["kernel"])
    cls = getattr(c.tape.keras.layers, name.format(f"{len(kernel)}D"))
    strides = [a["strides"]] if a.get("strides") else [(s,) * len(kernel) for s in range(1, 33)]
    paddings = [a["padding"]] if a.get("padding") else ["same", "valid"]
    if name.startswith("Depthwise"):  # has no causal padding; as much is computed
        paddings = ["same" if p == "causal" else p for p in paddings]
    extras: list[dict[str, Any]] = [{}]
    if name.endswith("Transpose"):
        extras += [{"output_padding": n} for n in range(max(a.get("strides") or (4,)))]
    for extra, stride, padding in product(extras, strides, paddings):
        how = {"strides": tuple(stride), "padding": padding, **extra}
        window = "pool_size" if "Pooling" in name else "kernel_size"
        try:
            layer = cls(**{window: kernel}, **how, **options)
            made = tuple(layer.compute_output_shape((None, *shape[1:])))
        except ValueError:
            continue
        if made[1:] == c.out[1:]:
            return layer(x)
    raise ValueError(f"no {c.operation.kind} of this kernel goes from {shape} to {c.out}")


def _convolution(c: Call) -> Any:
    a, kind = c.attributes, c.operation.kind
    data_format = _data_format(c.shape, a["in_channels"])
    x, shape = _padded(c, data_format)
    options: dict[str, Any] = {"use_bias": a["bias"], "data_format": data_format}
    if kind == "transposed_conv":
        return _fitting(c, "Conv{}Transpose", x, shape, filters=a["out_channels"], **options)
    options["dilation_rate"] = a.get("dilation") or (1,) * len(a["kernel"])
    if kind == "depthwise_conv" and len(a["kernel"]) < 3:
        multiplier = a["out_channels"] // a["in_channels"]
        return _fitting(c, "DepthwiseConv{}", x, shape, depth_multiplier=multiplier, **options)
    more = {"filters": a["out_channels"], "groups": a["groups"]}
    return _fitting(c, "Conv{}", x, shape, **more, **options)


def _pool(c: Call) -> Any:
    name = "MaxPooling{}" if c.operation.kind == "max_pool" else "AveragePooling{}"
    return _fitting(c, name, c.x, c.shape, data_format=_data_format(c.shape, c.out[-1]))


def _global_pool(c: Call) -> Any:
    first = c.out[1] == c.shape[1] and prod(c.out[1:]) != c.shape[-1]
    data_format = "channels_first" if first else "channels_last"
    keep = len(c.out) == len(c.shape)
    return _layer(c, "GlobalAveragePooling{}", keepdims=keep, data_format=data_format)


# ---- normalizations, activations -----------------------------------------------------------------


def _softmax(c: Call) -> Any:
    """Along the last axis, unless the Graph says another."""
    if c.axis_or_last % len(c.shape) == len(c.shape) - 1:
        return _layer(c, "Activation", c.operation.kind)
    return getattr(c.tape.ops, c.operation.kind)(c.x, axis=c.axis)


# ---- products ------------------------------------------------------------------------------------


def _matmul(c: Call) -> Any:
    """A product over `contracted`: of attention (heads beside the features), of matrices, of any axes."""
    summed = c.attributes["contracted"]
    (left, right), out = c.ins[:2], c.out
    if len(left) == len(right) == 3 and len(out) == 4:
        # Queries (batch, steps, heads x size) with keys, as Keras' attention has it.
        rows, heads, steps, others = c.shape[0], *out[1:]
        query = c.reshape(c.x, (rows, steps, heads, summed))
        key = _of_heads(c, (rows, others, right[-1] // summed, summed), heads)
        return c.tape.ops.einsum("btnh,bsnh->bnts", query, key)
    if len(left) == 4 and len(right) == len(out) == 3 and left[-1] == right[1] == summed:
        # Values (batch, steps, heads x size) weighed by (batch, heads, steps, steps of the values).
        rows, heads, steps, others = c.shape
        size = out[-1] // heads
        value = _of_heads(c, (rows, others, right[-1] // size, size), heads)
        mixed = c.tape.ops.einsum("bnts,bsnh->btnh", c.x, value)
        return c.reshape(mixed, (rows, steps, heads * size))
    return shared.matmul(c, turn_right=False)


def _of_heads(c: Call, shape: Shape, heads: int) -> Any:
    """Keys or values as (batch, steps, heads, size); of fewer heads than the queries, repeated."""
    x = c.reshape(c.inputs[1], shape)
    return x if shape[2] == heads else c.tape.ops.repeat(x, heads // shape[2], axis=2)


_ACTIVATIONS = "relu relu6 silu sigmoid tanh hard_sigmoid hard_silu gelu"
_LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "batch_norm": ("BatchNormalization", {}),
    "layer_norm": ("LayerNormalization", {"epsilon": 1e-6}),
    "rescale": ("Rescaling", {"scale": 1 / 127.5, "offset": -1}),
    "identity": ("Identity", {}),
    "dropout": ("Dropout", {"rate": 0.5}),
}
MAKERS: dict[str, Maker] = {
    **shared.MAKERS,
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv", "transposed_conv"), _convolution),
    **dict.fromkeys(("max_pool", "average_pool"), _pool),
    "global_average_pool": _global_pool,
    **{kind: _plain(name, options) for kind, (name, options) in _LAYERS.items()},
    **dict.fromkeys(_ACTIVATIONS.split(), lambda c: _layer(c, "Activation", c.operation.kind)),
    "softmax": _softmax,
    "matmul": _matmul,
    "embedding": lambda c: _layer(
        c, "Embedding", c.attributes["rows"], c.attributes["out_features"]
    ),
}
"""Kind of operation -> how it is built."""
