"""One rule per Keras layer: how a call of it is written as operations.

A rule gets the reader, the layer, the indices of its inputs, the shapes of its outputs (at batch size
1), the module path and the call; it returns the indices of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

Rule = Callable[[Any, Any, list[int], list[tuple[int, ...]], str, Any], list[int]]

ACTIVATIONS = {
    "relu": "relu", "relu6": "relu6", "leaky_relu": "leaky_relu", "elu": "elu", "selu": "selu",
    "celu": "celu", "silu": "silu", "swish": "silu", "sigmoid": "sigmoid",
    "hard_sigmoid": "hard_sigmoid", "hard_silu": "hard_silu", "hard_swish": "hard_silu",
    "gelu": "gelu", "tanh": "tanh", "softmax": "softmax", "log_softmax": "log_softmax",
    "softplus": "softplus", "softsign": "softsign", "mish": "mish", "exponential": "exponential",
    "glu": "glu", "squareplus": "squareplus", "hard_tanh": "hard_tanh",
    "log_sigmoid": "log_sigmoid", "threshold": "threshold",
}  # fmt: skip
"""Keras' name of an activation function -> the kind of operation."""


def is_builtin(layer: Any) -> bool:
    """Whether the layer's class is Keras' own: a user's class of the same name may do anything."""
    return type(layer).__module__.startswith(("keras.src.layers", "keras.layers"))


def activation(reader: Any, function: Any, source: int, name: str, path: str) -> int:
    """Append the activation `function` (a function, a layer or None) to `source`."""
    if function is None:
        return source
    called = getattr(function, "__name__", None) or type(function).__name__.lower()
    if called in ("linear", "identity"):
        return source
    shape = reader.builder.tensors[source].shape
    kind = ACTIVATIONS.get(called, called)
    max_value = getattr(function, "max_value", None)
    if kind == "relu" and max_value == 6:
        kind = "relu6"
    return int(reader.builder.add(kind, [source], shape, f"{name}_{kind}", path))


def channels(layer: Any, shape: tuple[int, ...]) -> int:
    """Number of channels of an input of `shape`."""
    first = getattr(layer, "data_format", "channels_last") == "channels_first"
    return shape[1 if first else -1]


def with_channels(layer: Any, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`shape` with another number of channels."""
    if getattr(layer, "data_format", "channels_last") == "channels_first":
        return (shape[0], count, *shape[2:])
    return (*shape[:-1], count)


def _convolution_attributes(layer: Any) -> dict[str, Any]:
    return {
        "kernel": tuple(layer.kernel_size),
        "strides": _tuple(layer.strides, len(layer.kernel_size)),
        "dilation": _tuple(layer.dilation_rate, len(layer.kernel_size)),
        "padding": str(layer.padding),
        "bias": bool(layer.use_bias),
    }


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    return (int(value),) * count if isinstance(value, int) else tuple(int(v) for v in value)


def _conv(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inside = channels(layer, r.builder.tensors[ins[0]].shape)
    groups = int(getattr(layer, "groups", 1))
    # Keras runs Conv2D(groups=channels) as a grouped convolution, not as DepthwiseConv2D: ConvNeXt
    # is written so, and takes many times longer than a depthwise kernel would.
    out = r.builder.add(
        "grouped_conv" if groups > 1 else "conv", ins[:1], shapes[0], layer.name, path,
        in_channels=inside, out_channels=int(layer.filters), groups=groups,
        **_convolution_attributes(layer),
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _conv_transposed(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inside = channels(layer, r.builder.tensors[ins[0]].shape)
    out = r.builder.add(
        "transposed_conv", ins[:1], shapes[0], layer.name, path,
        in_channels=inside, out_channels=int(layer.filters), groups=1,
        **_convolution_attributes(layer),
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _depthwise(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inside = channels(layer, r.builder.tensors[ins[0]].shape)
    out = r.builder.add(
        "depthwise_conv", ins[:1], shapes[0], layer.name, path,
        in_channels=inside, out_channels=inside * int(layer.depth_multiplier), groups=inside,
        **_convolution_attributes(layer),
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _separable(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inside = channels(layer, r.builder.tensors[ins[0]].shape)
    between = inside * int(layer.depth_multiplier)
    attributes = _convolution_attributes(layer)
    spatial = len(attributes["kernel"])
    depthwise = r.builder.add(
        "depthwise_conv", ins[:1], with_channels(layer, shapes[0], between),
        f"{layer.name}_depthwise", path,
        in_channels=inside, out_channels=between, groups=inside, **{**attributes, "bias": False},
    )  # fmt: skip
    ones = (1,) * spatial
    out = r.builder.add(
        "conv", [depthwise], shapes[0], f"{layer.name}_pointwise", path,
        in_channels=between, out_channels=int(layer.filters), groups=1, kernel=ones, strides=ones,
        dilation=ones, padding="valid", bias=attributes["bias"],
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _dense(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    out = r.builder.add(
        "dense", ins[:1], shapes[0], layer.name, path,
        in_features=r.builder.tensors[ins[0]].shape[-1], out_features=int(layer.units),
        bias=bool(layer.use_bias),
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def einsum_features(equation: str, kernel: tuple[int, ...]) -> tuple[int, int]:
    """(summed, kept) sizes of the kernel of an einsum such as "abc,cde->abde"."""
    left, result = equation.replace(" ", "").split("->")
    labels = left.split(",")[1].replace("...", "")
    summed = prod(n for label, n in zip(labels, kernel, strict=True) if label not in result)
    return summed, prod(kernel) // summed


def _einsum_dense(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    summed, kept = einsum_features(layer.equation, tuple(layer.kernel.shape))
    bias = layer.bias is not None
    out = r.builder.add(
        "dense", ins[:1], shapes[0], layer.name, path,
        in_features=summed, out_features=kept, bias=bias,
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def attention(
    r: Any, query: int, key: int, value: int, heads: tuple[int, int], name: str, path: str
) -> int:
    """softmax(q k' * scale) v on (batch, ..., steps, heads x size) tensors; `heads`: of q and of k, v.

    Five operations: the scaling of the scores, the two products, the softmax; see docs/counting.md.
    """
    b = r.builder
    q, k, v = (b.tensors[i].shape for i in (query, key, value))
    size = q[-1] // heads[0]
    scores_shape = (*q[:-2], heads[0], q[-2], k[-2])
    scores = b.add("matmul", [query, key], scores_shape, f"{name}_scores", path, contracted=size)
    scaled = b.add("scale", [scores], scores_shape, f"{name}_scale", path)
    weights = b.add("softmax", [scaled], scores_shape, f"{name}_softmax", path)
    out_shape = (*q[:-1], v[-1] // heads[1] * heads[0])
    mixed = b.add("matmul", [weights, value], out_shape, f"{name}_mix", path, contracted=k[-2])
    return int(mixed)


def _multi_head_attention(
    r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any
) -> list[int]:
    query, value = ins[0], ins[1] if len(ins) > 1 else ins[0]
    key = ins[2] if len(ins) > 2 else value
    query_heads = getattr(layer, "num_query_heads", None) or layer.num_heads
    key_heads = getattr(layer, "num_key_value_heads", None) or layer.num_heads
    key_size = getattr(layer, "key_dim", None) or layer.head_dim
    value_size = getattr(layer, "value_dim", None) or key_size
    inner = f"{path}/{layer.name}" if path else layer.name
    bias = bool(getattr(layer, "_use_bias", True))

    def project(source: int, features: int, name: str) -> int:
        shape = r.builder.tensors[source].shape
        flat = (shape[0], prod(shape[1:-1]), features)
        return int(r.builder.add(
            "dense", [source], flat, name, inner,
            in_features=shape[-1], out_features=features, bias=bias,
        ))  # fmt: skip

    mixed = attention(
        r,
        project(query, query_heads * key_size, "query"),
        project(key, key_heads * key_size, "key"),
        project(value, key_heads * value_size, "value"),
        (query_heads, key_heads),
        "attention",
        inner,
    )
    out = project(mixed, shapes[0][-1], "output")
    return [r.view(out, shapes[0], "reshape", inner) if len(shapes[0]) != 3 else out]


def _dot_attention(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    key = ins[2] if len(ins) > 2 else ins[1]
    return [attention(r, ins[0], key, ins[1], (1, 1), layer.name, path)]


def _embedding(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    return [r.builder.add(
        "embedding", ins[:1], shapes[0], layer.name, path, "float32",
        rows=int(layer.input_dim), out_features=int(layer.output_dim),
    )]  # fmt: skip


RECURRENT = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "simple_rnn"}


def _recurrent(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    kind = RECURRENT[type(layer).__name__]
    shape = r.builder.tensors[ins[0]].shape
    out = r.builder.add(
        kind, ins[:1], shapes[0], layer.name, path,
        units=int(layer.units), in_features=shape[-1], timesteps=prod(shape[1:-1]),
        bias=bool(layer.use_bias), sequences=bool(layer.return_sequences),
    )  # fmt: skip
    states = [
        r.view(ins[0], s, f"{layer.name}_state{i}", path) for i, s in enumerate(shapes[1:], start=1)
    ]
    return [out, *states]


def _bidirectional(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inner = f"{path}/{layer.name}" if path else layer.name
    one_way = layer.forward_layer
    if type(one_way).__name__ not in RECURRENT or layer.merge_mode is None:
        return list(r.unknown("Bidirectional", layer.name, ins, shapes, path))
    single = list(shapes[0])
    if layer.merge_mode == "concat":
        single[-1] //= 2
    ways = []
    for way in (layer.forward_layer, layer.backward_layer):
        ways += _recurrent(r, way, ins, [tuple(single)], inner, node)[:1]
    merge = {"concat": "concatenate", "sum": "add", "ave": "average", "mul": "multiply"}
    return [r.builder.add(merge[layer.merge_mode], ways, shapes[0], "merge", inner)]


def _time_distributed(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """The wrapped layer on every step: the steps become part of the batch."""
    import keras

    shape = r.builder.tensors[ins[0]].shape
    merged = r.view(ins[0], (shape[0] * shape[1], *shape[2:]), layer.name, path)
    wrapped = keras.Function(x := keras.KerasTensor((None, *shape[2:])), layer.layer(x))
    r.alive.append(wrapped)
    r.known[id(wrapped.inputs[0])] = merged
    inner = f"{path}/{layer.name}" if path else layer.name
    out = r.follow(wrapped.inputs, wrapped.outputs, inner)[0]
    return [r.view(out, shapes[0], layer.name, path)]


def plain(kind: str) -> Rule:
    """A rule for a layer that is one operation of `kind` without attributes."""

    def rule(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
        return [r.builder.add(kind, ins, shapes[0], layer.name, path)]

    return rule


def _batch_norm(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    return [r.builder.add("batch_norm", ins[:1], shapes[0], layer.name, path)]


def _pool(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    kind = "max_pool" if "Max" in type(layer).__name__ else "average_pool"
    size = layer.pool_size if isinstance(layer.pool_size, tuple) else (layer.pool_size,)
    return [r.builder.add(
        kind, ins, shapes[0], layer.name, path,
        kernel=tuple(size), strides=_tuple(layer.strides or size, len(size)),
        padding=str(layer.padding),
    )]  # fmt: skip


def _pad(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    given = layer.padding
    padding = (
        tuple(tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in given)
        if isinstance(given[0], (tuple, list))
        else (tuple(given),)
    )
    return [r.builder.add("pad", ins, shapes[0], layer.name, path, padding=padding)]


def _activation(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    called = getattr(layer.activation, "__name__", None) or type(layer.activation).__name__.lower()
    kind = ACTIVATIONS.get(called, called)
    if kind == "linear":
        kind = "identity"
    return [r.builder.add(kind, ins[:1], shapes[0], layer.name, path)]


def _relu(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    kind = "relu6" if layer.max_value == 6 else "leaky_relu" if layer.negative_slope else "relu"
    return [r.builder.add(kind, ins, shapes[0], layer.name, path)]


def _reshape_free(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    return [r.view(ins[0], shapes[0], layer.name, path)]


_DIMENSIONS = ("1D", "2D", "3D")


def _each(pattern: str, rule: Rule) -> dict[str, Rule]:
    return {pattern.format(d): rule for d in _DIMENSIONS}


RULES: dict[str, Rule] = {
    **_each("Conv{}", _conv),
    **_each("Conv{}Transpose", _conv_transposed),
    **_each("DepthwiseConv{}", _depthwise),
    **_each("SeparableConv{}", _separable),
    **_each("MaxPooling{}", _pool),
    **_each("AveragePooling{}", _pool),
    **_each("GlobalAveragePooling{}", plain("global_average_pool")),
    **_each("GlobalMaxPooling{}", plain("global_max_pool")),
    **_each("AdaptiveAveragePooling{}", plain("adaptive_pool")),
    **_each("AdaptiveMaxPooling{}", plain("adaptive_pool")),
    **_each("ZeroPadding{}", _pad),
    **_each("Cropping{}", plain("crop")),
    **_each("UpSampling{}", plain("resize")),
    **_each("SpatialDropout{}", plain("dropout")),
    "Dense": _dense,
    "EinsumDense": _einsum_dense,
    "Embedding": _embedding,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "SimpleRNN": _recurrent,
    "Bidirectional": _bidirectional,
    "TimeDistributed": _time_distributed,
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _multi_head_attention,
    "GroupedQueryAttention": _multi_head_attention,
    "Attention": _dot_attention,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": plain("layer_norm"),
    "GroupNormalization": plain("group_norm"),
    "RMSNormalization": plain("rms_norm"),
    "UnitNormalization": plain("unit_norm"),
    "Normalization": _batch_norm,
    "Rescaling": plain("rescale"),
    "Resizing": plain("resize"),
    "Activation": _activation,
    "ReLU": _relu,
    "LeakyReLU": plain("leaky_relu"),
    "PReLU": plain("prelu"),
    "ELU": plain("elu"),
    "Softmax": plain("softmax"),
    "Add": plain("add"),
    "Subtract": plain("subtract"),
    "Multiply": plain("multiply"),
    "Average": plain("average"),
    "Maximum": plain("maximum"),
    "Minimum": plain("minimum"),
    "Concatenate": plain("concatenate"),
    "Permute": plain("transpose"),
    "RepeatVector": plain("repeat"),
    "Reshape": _reshape_free,
    "Flatten": _reshape_free,
    "Dropout": plain("dropout"),
    "AlphaDropout": plain("dropout"),
    "GaussianDropout": plain("dropout"),
    "GaussianNoise": plain("dropout"),
    "ActivityRegularization": plain("identity"),
    "Identity": plain("identity"),
}
