"""One rule per Keras layer: how a call of it is written as operations (see `lolat.readers.rules`).

A layer of several operations (attention, recurrent layers, wrappers) is written as what it consists of.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from lolat.readers.keras.calls import Call
from lolat.readers.rules import Rule, attention, einsum_features, einsum_terms, part_of, plain

_ACTIVATIONS = """
relu relu6 leaky_relu elu selu celu silu sigmoid hard_sigmoid hard_silu gelu tanh softmax log_softmax
softplus softsign mish glu squareplus hard_tanh log_sigmoid threshold hard_shrink soft_shrink
tanh_shrink sparse_plus sparse_sigmoid sparsemax
"""
_KINDS = {
    **{kind.replace("_", ""): kind for kind in _ACTIVATIONS.split()},
    "swish": "silu", "hardswish": "hard_silu", "linear": "identity", "identity": "identity",
    "prelu": "prelu", "exponential": "exp",
}  # fmt: skip


def rule_of(layer: Any) -> Rule | None:
    """The rule for a layer: of its class, or of the Keras layer that a user's class only sets up."""
    for cls in type(layer).__mro__:
        # A user's class of the same name may do anything.
        if cls.__module__.startswith(("keras.src.layers", "keras.layers")):
            return RULES.get(cls.__name__)
        defined = {n for n, v in vars(cls).items() if callable(v) or hasattr(v, "__get__")}
        if defined - _SAFE - {"__dict__", "__weakref__"}:
            return None
    return None


_SAFE = {"__init__", "build", "get_config", "from_config"}
"""What a user's class may define and still do what the Keras layer does that it inherits from."""


def activation_kind(function: Any) -> str:
    """The kind of operation of an activation: a function, a layer or None.

    A function that is not Keras' own keeps its name, so that it is reported.
    """
    if function is None:
        return "identity"
    called = getattr(function, "__name__", None) or type(function).__name__
    if not str(getattr(function, "__module__", "keras")).startswith("keras"):
        return str(called)
    kind = _KINDS.get(called.replace("_", "").lower(), called)
    if kind == "relu" and getattr(function, "max_value", None) == 6:
        return "relu6"
    return "leaky_relu" if kind == "relu" and getattr(function, "negative_slope", 0) else kind


def _activated(r: Any, call: Call, source: int) -> list[int]:
    """Append the layer's activation to what it wrote."""
    kind = activation_kind(call.layer.activation)
    if kind == "identity":
        return [source]
    shape = r.builder.tensors[source].shape
    if kind == "glu":
        shape = (*shape[:-1], shape[-1] // 2)
    return [r.add(call, kind, [source], shape, suffix=kind, **_last_axis(kind, shape))]


def _last_axis(kind: str, shape: tuple[int, ...]) -> dict[str, int]:
    """The axis of an activation that works along one."""
    return {"axis": len(shape) - 1} if kind in ("softmax", "log_softmax") else {}


def channels(layer: Any, shape: tuple[int, ...]) -> int:
    """Number of channels of an input of `shape`."""
    return shape[1 if getattr(layer, "data_format", "") == "channels_first" else -1]


def with_channels(layer: Any, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`shape` with another number of channels."""
    if getattr(layer, "data_format", "") == "channels_first":
        return (shape[0], count, *shape[2:])
    return (*shape[:-1], count)


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    return (int(value),) * count if isinstance(value, int) else tuple(int(v) for v in value)


def _window(layer: Any) -> dict[str, Any]:
    """How a convolution slides."""
    kernel = tuple(layer.kernel_size)
    return {
        "kernel": kernel,
        "strides": _tuple(layer.strides, len(kernel)),
        "dilation": _tuple(layer.dilation_rate, len(kernel)),
        "padding": str(layer.padding),
        "bias": bool(layer.use_bias),
    }


def _conv(r: Any, call: Call) -> list[int]:
    """A convolution of any sort but a separable one."""
    layer = call.layer
    inside = channels(layer, r.shape(call.inputs[0]))
    groups = int(getattr(layer, "groups", 1))
    # Keras runs Conv2D(groups=channels) as a grouped convolution, not as DepthwiseConv2D: ConvNeXt
    # is written so, and takes many times longer than a depthwise kernel would.
    kind = "grouped_conv" if groups > 1 else "conv"
    if hasattr(layer, "depth_multiplier"):
        kind, groups, outside = "depthwise_conv", inside, inside * int(layer.depth_multiplier)
    else:
        outside = int(layer.filters)
        if hasattr(layer, "output_padding"):
            kind, groups = "transposed_conv", 1
    out = r.add(
        call, kind, call.inputs[:1], in_channels=inside, out_channels=outside, groups=groups,
        **_window(layer),
    )  # fmt: skip
    return _activated(r, call, out)


def _separable(r: Any, call: Call) -> list[int]:
    layer, window = call.layer, _window(call.layer)
    inside = channels(layer, r.shape(call.inputs[0]))
    between = inside * int(layer.depth_multiplier)
    depthwise = r.add(
        call, "depthwise_conv", call.inputs[:1], with_channels(layer, call.shapes[0], between),
        suffix="depthwise", in_channels=inside, out_channels=between, groups=inside,
        **{**window, "bias": False},
    )  # fmt: skip
    ones = (1,) * len(window["kernel"])
    out = r.add(
        call, "conv", [depthwise], suffix="pointwise", in_channels=between,
        out_channels=int(layer.filters), groups=1, kernel=ones, strides=ones, dilation=ones,
        padding="valid", bias=window["bias"],
    )  # fmt: skip
    return _activated(r, call, out)


def _dense(r: Any, call: Call) -> list[int]:
    layer = call.layer
    if hasattr(layer, "equation"):
        labels, result = einsum_terms(layer.equation)
        inside, outside = einsum_features(labels[1], result, tuple(layer.kernel.shape))
        bias = layer.bias is not None
    else:
        inside, outside = r.shape(call.inputs[0])[-1], int(layer.units)
        bias = bool(layer.use_bias)
    out = r.add(call, "dense", call.inputs[:1], in_features=inside, out_features=outside, bias=bias)
    return _activated(r, call, out)


def _embedding(r: Any, call: Call) -> list[int]:
    rows, features = int(call.layer.input_dim), int(call.layer.output_dim)
    return [r.add(call, "embedding", call.inputs[:1], rows=rows, out_features=features)]


def _dot(r: Any, call: Call) -> list[int]:
    """The product of two activations over one axis each; normalized first where the layer says so."""
    axes, ins = call.layer.axes, call.inputs
    contracted = r.shape(ins[0])[axes[0] if isinstance(axes, (tuple, list)) else axes]
    if call.layer.normalize:
        ins = [r.add(call, "unit_norm", [i], r.shape(i)) for i in ins]
    return [r.add(call, "matmul", ins, contracted=contracted)]


def _batch_norm(r: Any, call: Call) -> list[int]:
    return [r.add(call, "batch_norm", call.inputs[:1])]


def _normalization(r: Any, call: Call) -> list[int]:
    """Of a network's input: it says of how many channels, which for an image are few."""
    return [r.add(call, "batch_norm", call.inputs[:1], channels=int(call.shapes[0][-1]))]


def _pool(r: Any, call: Call) -> list[int]:
    layer = call.layer
    size = layer.pool_size if isinstance(layer.pool_size, tuple) else (layer.pool_size,)
    return [r.add(
        call, "max_pool" if layer.pool_mode == "max" else "average_pool", call.inputs,
        kernel=tuple(size), strides=_tuple(layer.strides or size, len(size)),
        padding=str(layer.padding),
    )]  # fmt: skip


def _pairs(amounts: Any) -> tuple[tuple[int, int], ...]:
    """(before, after) of each spatial axis, as a padding or cropping layer says it."""
    if not isinstance(amounts[0], (tuple, list)):
        return (tuple(amounts),)
    return tuple(tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in amounts)


def _pad(r: Any, call: Call) -> list[int]:
    return [r.add(call, "pad", call.inputs, padding=_pairs(call.layer.padding))]


def _crop(r: Any, call: Call) -> list[int]:
    first = 2 if getattr(call.layer, "data_format", "") == "channels_first" else 1
    starts = {first + i: before for i, (before, _) in enumerate(_pairs(call.layer.cropping))}
    return [r.add(call, "crop", call.inputs, **part_of(r.shape(call.inputs[0]), starts))]


def _permute(r: Any, call: Call) -> list[int]:
    return [r.add(call, "transpose", call.inputs, permutation=(0, *map(int, call.layer.dims)))]


def _activation(r: Any, call: Call) -> list[int]:
    function = getattr(call.layer, "activation", call.layer)
    kind = activation_kind(function)
    return [r.add(call, kind, call.inputs[:1], **_last_axis(kind, call.shapes[0]))]


def _augmentation(r: Any, call: Call) -> list[int]:
    """Random layers hand on what they get at inference; RandomCrop makes it fit."""
    same = [r.shape(i) for i in call.inputs] == call.shapes
    return list(r.write(call, "identity" if same else "resize", call.inputs))


def view(r: Any, call: Call) -> list[int]:
    """The same data seen as another shape: free."""
    return [r.add(call, "reshape", call.inputs[:1])]


# ---- Layers that are several operations: attention, recurrent layers and their wrappers.


def _called_with(r: Any, node: Any) -> tuple[int, int, int]:
    """Query, value and key of a call, whether they were passed by position or by name."""
    args, kwargs = node.arguments.args, node.arguments.kwargs
    names = ("query", "value", "key")
    passed = [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]
    query, value, key = (r.known.get(id(tensor)) for tensor in passed)
    return query, value, value if key is None else key


def _multi_head_attention(r: Any, call: Call) -> list[int]:
    """Three projections, attention, the projection of its result."""
    layer, b = call.layer, r.builder
    query, value, key = _called_with(r, call.node)
    query_heads = getattr(layer, "num_query_heads", None) or layer.num_heads
    key_heads = getattr(layer, "num_key_value_heads", None) or layer.num_heads
    key_size = getattr(layer, "key_dim", None) or layer.head_dim
    value_size = getattr(layer, "value_dim", None) or key_size
    bias = bool(getattr(layer, "use_bias", True))
    attended = getattr(layer, "_attention_axes", None) or (1,)

    def project(source: int, features: int, name: str) -> int:
        """To (batch and what is not attended over, what is, features)."""
        shape = r.shape(source)
        steps = shape[1] if len(shape) == 3 else prod(shape[axis] for axis in attended)
        rows = prod(shape[:-1]) // steps
        return int(b.add(
            "dense", [source], (rows, steps, features), name, call.inner,
            in_features=shape[-1], out_features=features, bias=bias,
        ))  # fmt: skip

    heads = query_heads, key_heads
    q = project(query, query_heads * key_size, "query")
    k = project(key, key_heads * key_size, "key")
    v = project(value, key_heads * value_size, "value")
    mixed, weights = attention(b, q, k, v, heads, "attention", call.inner)
    out = b.add(
        "dense", [mixed], call.shapes[0], "output", call.inner,
        in_features=r.shape(mixed)[-1], out_features=call.shapes[0][-1], bias=bias,
    )  # fmt: skip
    return [out, *(r.view(weights, shape, "scores", call.inner) for shape in call.shapes[1:])]


def _dot_attention(r: Any, call: Call) -> list[int]:
    """softmax(query key') value without projections; additive scores are followed as they are written."""
    if call.layer.score_mode != "dot":
        return list(r.inside(call))
    query, value, *rest = (r.known[id(t)] for t in call.node.arguments.args[0])
    key = rest[0] if rest else value
    scaled = call.layer.scale is not None
    name, path = call.name, call.path
    mixed, weights = attention(r.builder, query, key, value, (1, 1), name, path, scaled)
    return [mixed, *(r.view(weights, s, f"{name}_weights", path) for s in call.shapes[1:])]


_RECURRENT = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "simple_rnn"}


def _recurrent_kind(layer: Any) -> str | None:
    """The kind of a recurrent layer or its cell, also of a user's class that inherits one."""
    for part in (layer, getattr(layer, "cell", None)):
        for cls in type(part).__mro__:
            name = cls.__name__.removesuffix("Cell")
            if cls.__module__.startswith("keras.") and name in _RECURRENT:
                return _RECURRENT[name]
    return None


def _recurrent(r: Any, call: Call) -> list[int]:
    """One operation for all steps: the sequence and perhaps states in, the sequence and states out."""
    kind = _recurrent_kind(call.layer)
    if kind is None:
        return list(r.inside(call))
    cell, shape = call.layer.cell, r.shape(call.inputs[0])
    vectors = {} if getattr(cell, "reset_after", True) else {"bias_vectors": 1}
    return list(r.write(
        call, kind, call.inputs, units=int(cell.units), in_features=shape[-1],
        timesteps=prod(shape[1:-1]), bias=bool(cell.use_bias),
        sequences=bool(call.layer.return_sequences), **vectors,
    ))  # fmt: skip


def _bidirectional(r: Any, call: Call) -> list[int]:
    """The layer forwards and the layer backwards, and what merges them."""
    layer, shapes = call.layer, call.shapes
    ways = (layer.forward_layer, layer.backward_layer)
    if None in map(_recurrent_kind, ways):
        return list(r.write(call, "Bidirectional", call.inputs))
    merged = layer.merge_mode is not None
    states = shapes[1:] if merged else shapes[2:]
    half = len(states) // 2
    single = list(shapes[0])
    if layer.merge_mode == "concat":
        single[-1] //= 2
    (forward, *forward_states), (backward, *backward_states) = (
        _recurrent(r, replace(call, layer=way, shapes=[tuple(single), *own], path=call.inner))
        for way, own in zip(ways, (states[:half], states[half:]), strict=True)
    )
    if not merged:
        return [forward, backward, *forward_states, *backward_states]
    merge = {"concat": "concatenate", "sum": "add", "ave": "average", "mul": "multiply"}
    along = {"axis": len(shapes[0]) - 1} if layer.merge_mode == "concat" else {}
    out = r.builder.add(
        merge[layer.merge_mode], [forward, backward], shapes[0], "merge", call.inner, **along
    )
    return [out, *forward_states, *backward_states]


def _time_distributed(r: Any, call: Call) -> list[int]:
    """The wrapped layer on every step: the steps become part of the batch."""
    import keras

    shape = r.shape(call.inputs[0])
    merged = r.view(call.inputs[0], (shape[0] * shape[1], *shape[2:]), call.name, call.path)
    step = keras.KerasTensor((None, *shape[2:]), dtype=call.node.input_tensors[0].dtype)
    outputs = keras.tree.flatten(call.layer.layer(step))
    r.alive += [step, *outputs]
    r.known[id(step)] = merged
    written = r.follow(outputs, call.inner)
    return [r.view(t, s, call.name, call.path) for t, s in zip(written, call.shapes, strict=True)]


_AUGMENTATIONS = """
AugMix CutMix Equalization MixUp RandAugment RandomBrightness RandomColorDegeneration
RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing RandomFlip
RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective RandomPosterization
RandomRotation RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom Solarization
"""

_OF_DIMENSIONS: dict[str, Rule] = {
    "Conv{}": _conv, "Conv{}Transpose": _conv, "DepthwiseConv{}": _conv, "SeparableConv{}": _separable,
    "MaxPooling{}": _pool, "AveragePooling{}": _pool, "ZeroPadding{}": _pad, "Cropping{}": _crop,
    "GlobalAveragePooling{}": plain("global_average_pool"),
    "GlobalMaxPooling{}": plain("global_max_pool"),
    "AdaptiveAveragePooling{}": plain("adaptive_pool"),
    "AdaptiveMaxPooling{}": plain("adaptive_pool"),
    "UpSampling{}": plain("resize"), "SpatialDropout{}": plain("dropout"),
}  # fmt: skip

_PLAIN = {
    "LayerNormalization": "layer_norm", "GroupNormalization": "group_norm",
    "RMSNormalization": "rms_norm", "UnitNormalization": "unit_norm", "Rescaling": "rescale",
    "Resizing": "resize", "LeakyReLU": "leaky_relu", "PReLU": "prelu", "ELU": "elu",
    "Softmax": "softmax", "Add": "add", "Subtract": "subtract", "Multiply": "multiply",
    "Average": "average", "Maximum": "maximum", "Minimum": "minimum", "Concatenate": "concatenate",
    "RepeatVector": "repeat", "Dropout": "dropout", "AlphaDropout": "dropout",
    "GaussianDropout": "dropout", "GaussianNoise": "dropout", "ActivityRegularization": "identity",
    "Identity": "identity",
}  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_AUGMENTATIONS.split(), _augmentation),
    **{name.format(d): rule for name, rule in _OF_DIMENSIONS.items() for d in ("1D", "2D", "3D")},
    **{name: plain(kind) for name, kind in _PLAIN.items()},
    **dict.fromkeys(("Dense", "EinsumDense"), _dense),
    **dict.fromkeys(("Activation", "ReLU"), _activation),
    **dict.fromkeys(("Reshape", "Flatten"), view),
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "RNN"), _recurrent),
    **dict.fromkeys(("MultiHeadAttention", "GroupQueryAttention", "GroupedQueryAttention"),
                    _multi_head_attention),
    "Embedding": _embedding,
    "BatchNormalization": _batch_norm,
    "Normalization": _normalization,
    "Dot": _dot,
    "Permute": _permute,
    "Bidirectional": _bidirectional,
    "TimeDistributed": _time_distributed,
    "Attention": _dot_attention,
}  # fmt: skip
