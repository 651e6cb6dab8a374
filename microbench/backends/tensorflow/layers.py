"""Operations of a Graph as Keras layers: the ones that a Keras network with that operation runs.

A Graph knows what an operation costs, not all that it does: not which axis a concatenation goes along,
not where a slice begins. What is missing is found from the shapes; where several answers fit them
(which of two transpositions, where a slice starts), one is taken that moves as many elements in as
many steps. `tensorflow_moves` has those that only move or fold elements.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

from lolat.errors import MeasuringError
from lolat.graph import Graph
from microbench.backends.tensorflow import moves
from microbench.backends.tensorflow.moves import Call, Maker, Shape

# ---- Normalisations, activations and other operations that keep their operand's shape, as
# Keras layers.


def _activation(name: str) -> Maker:
    return lambda c: c.layer("Activation", name)(c.x)


def _normalisation(name: str, **options: Any) -> Maker:
    return lambda c: c.layer(name, **options)(c.x)


def _batch_norm(c: Call) -> Any:
    """Keras' Normalization, which divides, is one to the Graph; its name tells."""
    if c.operation.name.startswith("normalization"):
        channels = (1.0,) * c.shape[-1]
        return c.layer("Normalization", mean=channels, variance=channels)(c.x)
    return c.layer("BatchNormalization")(c.x)


def _group_norm(c: Call) -> Any:
    groups = next(n for n in (32, 16, 8, 4, 2, 1) if c.shape[-1] % n == 0)
    return c.layer("GroupNormalization", groups=groups)(c.x)


def _function(name: str, *constants: Any) -> Maker:
    """keras.ops' function on the operands; `constants` follow them (a scalar leaves no operand)."""
    return lambda c: getattr(c.keras.ops, name)(*c.inputs, *constants)


def _merge(layer: str, function: str, constant: float) -> Maker:
    """An operation of several operands: Keras' layer, or its function where one is a constant."""

    def make(c: Call) -> Any:
        call = getattr(c.keras.ops, function)
        if len(c.inputs) == 1:
            return call(c.x, constant)
        alike = len({(len(x.shape), *x.shape[:1]) for x in c.inputs}) == 1
        if layer and alike and all(isinstance(x, c.keras.KerasTensor) for x in c.inputs):
            return getattr(c.keras.layers, layer)()(c.inputs)
        result = c.x
        for operand in c.inputs[1:]:
            result = call(result, operand)
        return result

    return make


def _compare(c: Call) -> Any:
    ops = c.keras.ops
    if "bool" in str(c.x.dtype):
        return ops.logical_and(*c.inputs[:2]) if len(c.inputs) > 1 else ops.logical_not(c.x)
    return ops.greater(c.x, c.inputs[1] if len(c.inputs) > 1 else 0)


def _where(c: Call) -> Any:
    """A choice by the first operand, where the Graph has further ones; else a mask."""
    ops = c.keras.ops
    if len(c.inputs) == 1:
        return ops.tril(c.x) if len(c.shape) > 1 else ops.nan_to_num(c.x)
    condition, *rest = c.inputs
    return ops.where(ops.cast(condition, "bool"), rest[0], rest[1] if len(rest) > 1 else 0.0)


_ACTIVATIONS = """
relu relu6 leaky_relu elu selu celu silu sigmoid hard_sigmoid hard_silu gelu tanh softmax log_softmax
softplus softsign mish exponential squareplus hard_tanh log_sigmoid hard_shrink soft_shrink
tanh_shrink sparse_plus sparse_sigmoid sparsemax
"""
_FUNCTIONS = """
erf sqrt rsqrt square absolute negative log exp reciprocal round sign
"""

_ELEMENTWISE: dict[str, Maker] = {
    "batch_norm": _batch_norm,
    "layer_norm": _normalisation("LayerNormalization", epsilon=1e-6),
    "group_norm": _group_norm,
    "instance_norm": _normalisation("GroupNormalization", groups=-1),
    "rms_norm": _normalisation("RMSNormalization"),
    "unit_norm": _normalisation("UnitNormalization"),
    "prelu": _normalisation("PReLU"),
    "rescale": _normalisation("Rescaling", scale=1 / 127.5, offset=-1),
    **{name: _activation(name) for name in _ACTIVATIONS.split()},
    "glu": _function("glu"),
    "threshold": _function("threshold", 0.5, 0.0),
    **{name: _function(name) for name in _FUNCTIONS.split()},
    "trigonometric": _function("sin"),
    "bitwise": _function("bitwise_not"),
    "clip": _function("clip", 0.0, 6.0),
    "scale": _function("multiply", 0.125),
    "add": _merge("Add", "add", 1.5),
    "subtract": _merge("Subtract", "subtract", 1.5),
    "multiply": _merge("Multiply", "multiply", 1.5),
    "divide": _merge("", "divide", 1.5),
    "power": _merge("", "power", 3.0),
    "maximum": _merge("Maximum", "maximum", 0.5),
    "minimum": _merge("Minimum", "minimum", 0.5),
    "average": _merge("Average", "add", 1.5),
    "compare": _compare,
    "where": _where,
    "cast": lambda c: c.keras.ops.cast(c.x, c.outs[0].dtype),
    "one_hot": lambda c: c.keras.ops.one_hot(c.x, c.out[-1]),
    "fill": lambda c: c.keras.ops.ones_like(c.x),
    "identity": lambda c: c.layer("Identity")(c.x),
    "dropout": lambda c: c.layer("Dropout", 0.5)(c.x),
    **dict.fromkeys(("reshape", "flatten", "squeeze", "expand_dims"), lambda c: c.reshape(c.x, c.out)),
}  # fmt: skip
"""Kind of operation -> how it is built."""

# ---- Dense layers, products of two activations, embeddings and recurrent layers, as Keras has
# them.


def _dense(c: Call) -> Any:
    a = c.operation.attributes
    inside, made = a["in_features"], a["out_features"]
    if c.shape[-1] == inside and c.out == (*c.shape[:-1], made):
        return c.layer("Dense", made, use_bias=a["bias"])(c.x)
    rows, own = divmod(prod(c.shape), inside)
    if own == 0 and rows * made == prod(c.out):  # an einsum over or into several axes
        flat = c.reshape(c.x, (rows, inside))
        return c.reshape(c.layer("Dense", made, use_bias=a["bias"])(flat), c.out)
    groups = rows * made // prod(c.out)  # weights of their own for each place along an axis
    if own or groups < 1 or rows % groups or made % groups:
        raise ValueError(f"no product of {inside} features goes from {c.shape} to {c.out}")
    apart = c.reshape(c.x, (rows // groups, groups, inside))
    grouped = c.layer("EinsumDense", "rgi,gio->rgo", (groups, made // groups))(apart)
    return c.reshape(grouped, c.out)


def _embedding(c: Call) -> Any:
    a = c.operation.attributes
    return c.layer("Embedding", a["rows"], a["out_features"])(c.x)


def _recurrent(name: str) -> Maker:
    def make(c: Call) -> Any:
        a = c.operation.attributes
        options = {"use_bias": a["bias"], "return_sequences": a.get("sequences", len(c.out) > 2)}
        if name == "GRU":
            options["reset_after"] = a.get("bias_vectors", 2) == 2
        layer = c.layer(name, a["units"], return_state=len(c.outs) > 1, **options)
        x = c.x
        if len(c.shape) != 3:
            x = c.reshape(x, (c.shape[0], a["timesteps"], a["in_features"]))
        return layer(x, initial_state=c.inputs[1:]) if len(c.inputs) > 1 else layer(x)

    return make


def _matmul(c: Call) -> Any:
    """A product over `contracted`: of matrices, of attention (heads beside the features), of any axes."""
    ops, summed = c.keras.ops, c.operation.attributes["contracted"]
    (left, right), out = c.ins[:2], c.out
    a, b = c.inputs[:2]
    if len(left) > 1 and len(right) > 1 and left[-1] == right[-2] == summed:
        with_rows = (*left[:-1], right[-1])
        if with_rows == out or (len(out) == len(left) and with_rows[-2:] == out[-2:]):
            return ops.matmul(a, b)
    if len(left) == len(right) == 3 and len(out) == 4:
        return _scores(c, summed)
    if len(left) == 4 and len(right) == len(out) == 3 and left[-1] == right[1] == summed:
        return _mixed(c)
    return _any_product(c, summed)


def _scores(c: Call, size: int) -> Any:
    """Queries (batch, steps, heads x size) with keys, as Keras' attention has it."""
    _, heads, steps, others = c.out
    rows = c.shape[0]
    query = c.reshape(c.x, (rows, steps, heads, size))
    key = c.reshape(c.inputs[1], (rows, others, c.ins[1][-1] // size, size))
    return c.keras.ops.einsum("btnh,bsnh->bnts", query, _for_heads(c, key, heads))


def _mixed(c: Call) -> Any:
    """Values (batch, steps, heads x size) weighed by (batch, heads, steps, steps of the values)."""
    rows, heads, steps, others = c.shape
    size = c.out[-1] // heads
    value = c.reshape(c.inputs[1], (rows, others, c.ins[1][-1] // size, size))
    mixed = c.keras.ops.einsum("bnts,bsnh->btnh", c.x, _for_heads(c, value, heads))
    return c.reshape(mixed, (rows, steps, heads * size))


def _for_heads(c: Call, x: Any, heads: int) -> Any:
    """Keys or values of fewer heads than the queries, repeated."""
    own = x.shape[2]
    return x if own == heads else c.keras.ops.repeat(x, heads // own, axis=2)


def _any_product(c: Call, summed: int) -> Any:
    """A batch of products with the elements and the multiplications that the Graph says."""
    left, right, out = (prod(s) for s in (*c.ins[:2], c.out))
    batch, rest = divmod(left * right, out * summed**2)
    if rest or not batch or left % (batch * summed) or right % (batch * summed):
        raise ValueError(f"no product over {summed} of {c.ins} makes {c.out}")
    rows, columns = left // (batch * summed), right // (batch * summed)
    a = c.reshape(c.x, (batch, rows, summed))
    b = c.reshape(c.inputs[1], (batch, summed, columns))
    return c.reshape(c.keras.ops.matmul(a, b), c.out)


_PRODUCTS: dict[str, Maker] = {
    "dense": _dense,
    "matmul": _matmul,
    "embedding": _embedding,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "simple_rnn": _recurrent("SimpleRNN"),
}
"""Kind of operation -> how it is built."""

# ---- tensorflow layers ----------------------------------------


def apply(call: Call) -> list[Any]:
    """The outputs of an operation. Raises ValueError, saying why, where it cannot be built."""
    made = MAKERS.get(call.operation.kind)
    if made is None:
        raise ValueError("there is no layer for this kind")
    found = made(call)
    outputs = list(found) if isinstance(found, (list, tuple)) else [found]
    for output, tensor in zip(outputs, call.outs, strict=True):
        built, grows = tuple(output.shape), int(tensor.batched)
        if len(built) != len(tensor.shape) or any(
            n is not None and n != wanted
            for n, wanted in zip(built[grows:], tensor.shape[grows:], strict=True)
        ):
            raise ValueError(f"from {call.ins} to {tensor.shape}: it came out as {built}")
    return outputs


# ---- convolutions and pools ----------------------------------------------------------------------


def _data_format(shape: Shape, channels: int) -> str:
    last = shape[-1] == channels or shape[1] != channels
    return "channels_last" if last else "channels_first"


def _padded(c: Call, data_format: str) -> Any:
    """The input behind the padding that was folded into the convolution."""
    if "pad_before" not in c.operation.attributes:
        return c.x, c.shape
    return moves.pad_spatial(
        c.keras, c.x, c.shape, c.operation.attributes["pad_before"], data_format
    )


def _fitting(
    c: Call, kind: str, shape: Shape, make: Callable[..., Any], strides: Any, padding: Any
) -> Any:
    """The layer of given strides and padding; where the Graph does not say, the first that fits."""
    spatial = len(shape) - 2
    choices = [(s,) * spatial for s in range(1, 33)] if strides is None else [tuple(strides)]
    for stride, how in product(choices, ("same", "valid") if padding is None else (padding,)):
        layer = make(stride, how)
        try:
            made = tuple(layer.compute_output_shape((None, *shape[1:])))
        except ValueError:
            continue
        if made[1:] == c.out[1:]:
            return layer
    raise ValueError(f"no {kind} of this kernel goes from {shape} to {c.out}")


def _convolution(c: Call) -> Any:
    a, layers, kind = c.operation.attributes, c.keras.layers, c.operation.kind
    kernel, dimensions = tuple(a["kernel"]), f"{len(a['kernel'])}D"
    data_format = _data_format(c.shape, a["in_channels"])
    x, shape = _padded(c, data_format)
    dilation = a.get("dilation") or (1,) * len(kernel)
    common = {"use_bias": a["bias"], "data_format": data_format, "dilation_rate": dilation}
    depthwise = kind == "depthwise_conv" and hasattr(layers, f"DepthwiseConv{dimensions}")

    def make(strides: Shape, padding: str) -> Any:
        if depthwise:
            cls = getattr(layers, f"DepthwiseConv{dimensions}")
            multiplier = a["out_channels"] // a["in_channels"]
            if padding == "causal":  # no such padding here; as much is computed
                padding = "same"
            return cls(kernel, strides, padding, depth_multiplier=multiplier, **common)
        cls = getattr(layers, f"Conv{dimensions}")
        return cls(a["out_channels"], kernel, strides, padding, groups=a["groups"], **common)

    return _fitting(c, kind, shape, make, a.get("strides"), a.get("padding"))(x)


def _transposed(c: Call) -> Any:
    """Where the Graph's size needs an output padding, the first that gives it."""
    a = c.operation.attributes
    kernel = tuple(a["kernel"])
    data_format = _data_format(c.shape, a["in_channels"])
    x, shape = _padded(c, data_format)
    cls = getattr(c.keras.layers, f"Conv{len(kernel)}DTranspose")
    failed: ValueError | None = None
    for extra in (None, *range(max(a.get("strides") or (4,)))):

        def make(strides: Shape, padding: str, extra: int | None = extra) -> Any:
            return cls(
                a["out_channels"], kernel, strides, padding, use_bias=a["bias"],
                output_padding=extra, data_format=data_format,
            )  # fmt: skip

        try:
            return _fitting(c, c.operation.kind, shape, make, a.get("strides"), a.get("padding"))(x)
        except ValueError as error:
            failed = error
    raise failed or ValueError("it has no strides")


def _pool(name: str) -> Maker:
    def make(c: Call) -> Any:
        a = c.operation.attributes
        cls = getattr(c.keras.layers, f"{name}Pooling{len(a['kernel'])}D")
        data_format = _data_format(c.shape, c.out[-1])
        return _fitting(
            c, c.operation.kind, c.shape,
            lambda strides, padding: cls(tuple(a["kernel"]), strides, padding, data_format=data_format),
            a.get("strides"), a.get("padding"),
        )(c.x)  # fmt: skip

    return make


def _global_pool(name: str) -> Maker:
    def make(c: Call) -> Any:
        keep = len(c.out) == len(c.shape)
        first = c.out[1] == c.shape[1] and prod(c.out[1:]) != c.shape[-1]
        data_format = "channels_first" if first else "channels_last"
        return c.layer(f"Global{name}Pooling{{}}", keepdims=keep, data_format=data_format)(c.x)

    return make


def _adaptive_pool(c: Call) -> Any:
    """Average or maximum: the name says, else average."""
    name = "Max" if "max" in c.operation.name.lower() else "Average"
    return c.layer(f"Adaptive{name}Pooling{{}}", c.out[1:-1])(c.x)


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv"), _convolution),
    "transposed_conv": _transposed,
    "max_pool": _pool("Max"),
    "average_pool": _pool("Average"),
    "global_max_pool": _global_pool("Max"),
    "global_average_pool": _global_pool("Average"),
    "adaptive_pool": _adaptive_pool,
    **_PRODUCTS,
    **_ELEMENTWISE,
    **moves.MAKERS,
}
"""Kind of operation -> how it is built."""


def build_graph(keras: Any, graph: Graph, name: str = "block") -> Any:
    """A Keras model of `graph`; MeasuringError names an operation that cannot be built, and says why.

    A tensor that nothing writes and that is no input is a variable, as a layer's own is.
    """
    tensors = graph.tensors
    values: dict[int, Any] = {}
    for i in graph.inputs:
        shape = (None, *tensors[i].shape[1:]) if tensors[i].batched else tensors[i].shape
        values[i] = keras.Input(batch_shape=shape, dtype=tensors[i].dtype)
    for operation in graph.operations:
        for i in operation.inputs:
            if i not in values:
                values[i] = keras.Variable(
                    "ones", shape=tensors[i].shape, dtype=tensors[i].dtype, trainable=False
                )
        call = Call(
            keras,
            operation,
            [values[i] for i in operation.inputs],
            graph.shapes(operation.inputs),
            [tensors[i] for i in operation.outputs],
        )
        try:
            values.update(zip(operation.outputs, apply(call), strict=True))
        except Exception as error:  # whatever Keras raises for what does not fit
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:400]
            raise MeasuringError(
                f"the tensorflow backend cannot build operation {operation.kind!r} "
                f"({operation.full_name!r}): {reason}"
            ) from error
    return keras.Model(
        [values[i] for i in graph.inputs], [values[i] for i in graph.outputs], name=name
    )
