"""Keras layers and operations of keras.ops as calls (see `lolat.readers.ops`).

A layer that consists of several operations, such as attention, is written as these operations. A layer that
has the name of its operation in `lolat.readers.ops` is not in the tables.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from lolat.errors import NetworkError
from lolat.graph.kinds import STORED, by_name
from lolat.readers import ops
from lolat.readers.keras.trace import KerasReader, LayerCall, Rule

_SAFE = {"__init__", "build", "get_config", "from_config", "__dict__", "__weakref__"}
"""Methods that a user's subclass of a Keras layer may define without changing what the layer computes."""


def rule_of(layer: Any) -> Rule | None:
    """The rule for an operation of keras.ops or a layer; None if the calls inside the layer's `call` count.

    A user's subclass that only configures a Keras layer has that layer's rule.
    """
    if type(layer).__module__.startswith("keras.src.ops"):
        name = type(layer).__name__
        return OPERATION_RULES.get(name) or _plain(OPERATIONS.get(name, name), is_operation=True)
    for cls in type(layer).__mro__:
        # A user's class with the name of a Keras layer may do anything.
        if cls.__module__.startswith(("keras.src.layers", "keras.layers")):
            name = re.sub(r"[123]D", "", cls.__name__)
            if name.startswith("Random"):
                return _augmentation
            op = LAYERS.get(name, name)
            return RULES.get(name) or (_plain(op) if ops.normalized(op) in ops.KIND_OF else None)
        defined = {n for n, v in vars(cls).items() if callable(v) or hasattr(v, "__get__")}
        if defined - _SAFE:
            return None
    return None


def _plain(op: str, is_operation: bool = False) -> Rule:
    """The rule of a single operation. `is_operation`: of keras.ops, whose constants are operands too."""

    def rule(r: KerasReader, call: LayerCall) -> list[int]:
        if is_operation and ops.KIND_OF.get(ops.normalized(op)) == "identity":
            return call.inputs[:1]  # such as the conversion of a model's inputs to tensors
        return r.write(call, op, r.operands(call) if is_operation else call.inputs)

    return rule


# ---- Activations.


def _activation_kind(function: Any) -> str:
    """The kind of an activation. `function`: a function, a layer or None.

    A function that is not Keras' own keeps its name, and so is reported as unknown.
    """
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    if function is None or name == "linear":
        return "identity"
    if not str(getattr(function, "__module__", "keras")).startswith("keras"):
        return name
    kind = ops.KIND_OF.get(ops.normalized(name), name)
    if kind == "relu" and getattr(function, "max_value", None) == 6:
        return "relu6"
    return "leaky_relu" if kind == "relu" and getattr(function, "negative_slope", None) else kind


def _activated(r: KerasReader, call: LayerCall, written: list[int]) -> list[int]:
    """Append the layer's activation to its result."""
    kind, shape = _activation_kind(getattr(call.layer, "activation", None)), r.shape(written[0])
    if kind == "glu":
        shape = (*shape[:-1], shape[-1] // 2)
    return written if kind == "identity" else r.write(call, kind, written, [shape], kind)


def _activation(r: KerasReader, call: LayerCall) -> list[int]:
    kind = _activation_kind(getattr(call.layer, "activation", call.layer))
    return r.write(call, kind, call.inputs[:1])


# ---- Convolutions, pools, paddings, normalizations.


def _conv(r: KerasReader, call: LayerCall) -> list[int]:
    """A convolution by a layer or by keras.ops; a separable convolution is two operations.

    Conv2D(groups=channels), as in ConvNeXt, is a grouped convolution. Keras runs it as one, many times
    slower than a DepthwiseConv2D.
    """
    import keras

    layer, inputs = call.layer, call.inputs[:1]
    order = layer.data_format or keras.config.image_data_format()
    axis = 1 if order == "channels_first" else -1
    names = {c.__name__.partition("Conv")[0] for c in type(layer).__mro__}
    in_channels, shape = r.shape(inputs[0])[axis], list(call.shapes[0])
    if hasattr(layer, "kernel_size"):
        kernel, multiplier = tuple(layer.kernel_size), int(getattr(layer, "depth_multiplier", 0))
        groups, bias = int(getattr(layer, "groups", 1)), bool(layer.use_bias)
    else:
        inputs, bias = r.operands(call)[:2], False
        *window, features, multiplier = r.shape(inputs[1])
        kernel, groups = tuple(window), in_channels // features
    kind, out_channels = "conv", shape[axis]
    if names & {"Depthwise", "Separable"}:
        kind, out_channels, groups = "depthwise_conv", in_channels * multiplier, in_channels
    elif hasattr(layer, "output_padding"):
        kind, groups = "transposed_conv", 1
    elif groups > 1:
        kind = "grouped_conv"
    shape[axis], ones, separable = out_channels, (1,) * len(kernel), "Separable" in names
    padding, dilation = str(layer.padding), ops.sizes_of(layer.dilation_rate, len(kernel))
    if padding == "causal":  # Keras pads the signal, then convolves it without padding
        before, steps = dilation[0] * (kernel[0] - 1), list(r.shape(inputs[0]))
        steps[1 if axis == -1 else 2] += before
        inputs = r.write(call, "pad", inputs, [tuple(steps)], "pad", padding=((before, 0),))
        padding = "valid"
    written = r.write(
        call, kind, inputs, [tuple(shape)], "depthwise" if separable else "",
        kernel=kernel, strides=ops.sizes_of(layer.strides, len(kernel)), kind=kind,
        dilation=dilation, padding=padding,
        in_channels=in_channels, out_channels=out_channels, groups=groups, bias=bias and not separable,
    )  # fmt: skip
    if separable:
        written = r.write(
            call, "conv", written, suffix="pointwise", kernel=ones, strides=ones, dilation=ones,
            padding="valid", in_channels=out_channels, out_channels=call.shapes[0][axis], groups=1,
            bias=bias,
        )  # fmt: skip
    return _activated(r, call, written)


def _pool(r: KerasReader, call: LayerCall) -> list[int]:
    layer, spatial = call.layer, len(call.shapes[0]) - 2
    kernel = ops.sizes_of(layer.pool_size, spatial)
    kind = "max_pool" if "Max" in type(layer).__name__ else "average_pool"
    strides = ops.sizes_of(layer.strides or kernel, spatial)
    return r.write(call, kind, call.inputs, kernel=kernel, strides=strides, padding=layer.padding)


def _flatten(r: KerasReader, call: LayerCall) -> list[int]:
    """A view; if the channels are on the first axis, a transpose to the last axis comes first."""
    inputs, shape = call.inputs, r.shape(call.inputs[0])
    if call.layer.data_format == "channels_first" and len(shape) > 2:
        inputs = r.write(call, "transpose", inputs, [(shape[0], *shape[2:], shape[1])], "transpose")
    return r.write(call, "reshape", inputs)


def _mean(r: KerasReader, call: LayerCall) -> list[int]:
    """A mean; over all positions of an image it is a global average pooling, as in other frameworks."""
    axes, rank = call.layer.axis, len(r.shape(call.inputs[0]))
    axes = range(rank) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    kind = "global_average_pool" if ops.keeps_channels(rank, axes) else "reduce"
    return r.write(call, kind, call.inputs[:1])


def _pad(r: KerasReader, call: LayerCall) -> list[int]:
    amounts = call.layer.padding
    if not isinstance(amounts[0], (tuple, list)):  # the layer pads one axis
        amounts = (amounts,)
    return r.write(call, "pad", call.inputs, padding=tuple(ops.sizes_of(p, 2) for p in amounts))


def _pad_operation(r: KerasReader, call: LayerCall) -> list[int]:
    """A padding of the axes that grow; all padding counts as added at the end of an axis."""
    sizes = zip(r.shape(call.inputs[0]), call.shapes[0], strict=True)
    return r.write(call, "pad", call.inputs[:1], padding=tuple((0, n - m) for m, n in sizes))


def _normalization(r: KerasReader, call: LayerCall) -> list[int]:
    """A normalization; the layer Normalization, for inputs, is a batch norm without parameters."""
    layer, inputs = call.layer, call.inputs[:1]
    if type(layer).__name__ == "Normalization":
        return r.write(call, "batch_norm", inputs, stored=True, vectors=0)
    names = (ops.normalized(cls.__name__) for cls in type(layer).__mro__)
    kind = next(ops.KIND_OF[name] for name in names if name in ops.KIND_OF)
    more = ops.affine(kind, bool(layer.center) + bool(layer.scale))
    if kind == "batch_norm" and not layer.trainable:
        more[STORED] = True
    return r.write(call, kind, inputs, **more)


def _augmentation(r: KerasReader, call: LayerCall) -> list[int]:
    """A random layer. At inference it returns its input, except RandomCrop, which resizes."""
    same = [r.shape(i) for i in call.inputs] == call.shapes
    r.builder.training_only.append(call.layer.name)
    return r.write(call, "identity" if same else "resize", call.inputs)


# ---- Products.


def _dense(r: KerasReader, call: LayerCall) -> list[int]:
    layer, inputs = call.layer, call.inputs[:1]
    in_features, out_features = r.shape(inputs[0])[-1], call.shapes[0][-1]
    if hasattr(layer, "equation"):
        labels, result = ops.einsum_terms(layer.equation)
        in_features, out_features = ops.einsum_features(
            labels[1], result, tuple(layer.kernel.shape)
        )
    biases = 0 if layer.bias is None else prod(layer.bias.shape)
    # An EinsumDense may have a bias for some of its axes.
    bias: Any = bool(biases) if biases in (0, out_features) else biases / out_features
    sizes = {"in_features": in_features, "out_features": out_features, "bias": bias}
    return _activated(r, call, r.write(call, "dense", inputs, **sizes))


def _embedding(r: KerasReader, call: LayerCall) -> list[int]:
    rows, features = int(call.layer.input_dim), int(call.layer.output_dim)
    return r.write(call, "embedding", call.inputs[:1], rows=rows, out_features=features)


def _dot(r: KerasReader, call: LayerCall) -> list[int]:
    """The product of two activations over one axis each; `normalize` makes them unit vectors first."""
    axes, ins = call.layer.axes, call.inputs
    contracted = r.shape(ins[0])[axes[0] if isinstance(axes, (tuple, list)) else axes]
    if call.layer.normalize:
        ins = [r.write(call, "unit_norm", [i], [r.shape(i)])[0] for i in ins]
    return r.write(call, "matmul", ins, contracted=contracted)


# ---- Attention.


def _attended(
    r: KerasReader, call: LayerCall, operands: list[int], heads: tuple[int, int], name: str, path: str,
    **more: Any,
) -> list[int]:  # fmt: skip
    """Write attention on (batch, ..., steps, heads x size) tensors; return result and attention weights."""
    q, k, v = (r.shape(i) for i in operands)
    shapes = [(*q[:-1], v[-1] // heads[1] * heads[0]), (*q[:-2], heads[0], q[-2], k[-2])]
    return r.step(call, "attention", operands, shapes, name, path, heads=heads, **more)


def _multi_head_attention(r: KerasReader, call: LayerCall) -> list[int]:
    """Projections of query, key and value, the attention, and the output projection."""
    layer, args, kwargs = call.layer, call.node.arguments.args, call.node.arguments.kwargs
    passed = dict(zip(("query", "value", "key"), args, strict=False)) | kwargs
    query, value = r.operand(passed["query"]), r.operand(passed["value"])
    key = value if passed.get("key") is None else r.operand(passed["key"])
    heads = getattr(layer, "num_query_heads", None) or layer.num_heads
    key_heads = getattr(layer, "num_key_value_heads", None) or layer.num_heads
    key_size = getattr(layer, "key_dim", None) or layer.head_dim
    value_size = getattr(layer, "value_dim", None) or key_size
    bias = bool(getattr(layer, "use_bias", True))
    attended = getattr(layer, "_attention_axes", None) or (1,)

    def dense(source: int, features: int, name: str, made: tuple[int, ...]) -> int:
        sizes = {"in_features": r.shape(source)[-1], "out_features": features, "bias": bias}
        return r.step(call, "dense", [source], [made], name, call.inner, **sizes)[0]

    def project(source: int, features: int, name: str) -> int:
        """Project to (batch times the axes without attention, steps, features)."""
        shape = r.shape(source)
        steps = shape[1] if len(shape) == 3 else prod(shape[axis] for axis in attended)
        return dense(source, features, name, (prod(shape[:-1]) // steps, steps, features))

    q = project(query, heads * key_size, "query")
    k = project(key, key_heads * key_size, "key")
    v = project(value, key_heads * value_size, "value")
    mixed, weights = _attended(r, call, [q, k, v], (heads, key_heads), "attention", call.inner)
    out = dense(mixed, call.shapes[0][-1], "output", call.shapes[0])
    return [out, *(r.view(call, weights, shape, "scores", call.inner) for shape in call.shapes[1:])]


def _dot_attention(r: KerasReader, call: LayerCall) -> list[int]:
    """softmax(query key') value without projections. Additive scores: the layer's `call` is followed."""
    if call.layer.score_mode != "dot":
        return r.follow_layer(call)
    query, value, *rest = map(r.operand, call.node.arguments.args[0])
    operands, name = [query, rest[0] if rest else value, value], call.layer.name
    scaled = call.layer.scale is not None
    mixed, weights = _attended(r, call, operands, (1, 1), name, call.path, scaled=scaled)
    return [mixed, *(r.view(call, weights, shape, name, call.path) for shape in call.shapes[1:])]


def _einsum(r: KerasReader, call: LayerCall) -> list[int]:
    return r.write(call, "einsum", r.operands(call), equation=str(call.layer.subscripts))


def _attention_operation(r: KerasReader, call: LayerCall) -> list[int]:
    """Attention on (batch, steps, heads, size) tensors."""
    shapes, name, path = [r.shape(i) for i in call.inputs[:3]], call.layer.name, call.path
    operands = [
        r.view(call, i, (*shape[:-2], shape[-2] * shape[-1]), name, path)
        for i, shape in zip(call.inputs, shapes, strict=False)
    ]
    mixed, _ = _attended(r, call, operands, (shapes[0][-2], shapes[1][-2]), name, path)
    return [r.view(call, mixed, call.shapes[0], name, path)]


def _calling(r: KerasReader, call: LayerCall) -> list[int]:
    """A loop, map or branch. Its functions are not followed, so it may hide matrix products."""
    return r.write(call, type(call.layer).__name__, r.operands(call), hides=True)


# ---- Recurrent layers, and a layer on every step.

_RECURRENT = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "simple_rnn"}


def _recurrent(r: KerasReader, call: LayerCall) -> list[int]:
    """One operation for each cell, over all time steps; NetworkError for a user's own cell."""
    cells = getattr(call.layer.cell, "cells", [call.layer.cell])
    kinds = [_RECURRENT.get(type(c).call.__qualname__.partition("Cell")[0], "") for c in cells]
    if not all(kinds):
        raise NetworkError(
            f"{call.layer.name} ({type(call.layer).__name__}) runs {type(cells[kinds.index('')]).__name__} "
            "in a loop over its steps, which is not read; expected Keras's own LSTM, GRU or SimpleRNN"
        )
    (sequence, *given), states, made = call.inputs, list(call.shapes[1:]), []
    for i, (cell, kind) in enumerate(zip(cells, kinds, strict=True)):
        shape, is_last = r.shape(sequence), i + 1 == len(cells)
        count = 2 if kind == "lstm" else 1
        vectors: dict[str, Any] = {} if getattr(cell, "reset_after", True) else {"bias_vectors": 1}
        if getattr(cell, "implementation", 2) == 1:
            r.builder.warnings.append(
                f"{call.layer.name} multiplies gate by gate (implementation=1, which recurrent_dropout "
                "sets): counted as one product; a CPU may take twice as long"
            )
        out = call.shapes[0] if is_last else (*shape[:-1], int(cell.units))
        sequence, *ends = r.write(
            call, kind, [sequence, *given[:count]], [out, *states[:count]], units=int(cell.units),
            in_features=shape[-1], timesteps=prod(shape[1:-1]), bias=bool(cell.use_bias),
            **vectors,
        )  # fmt: skip
        made += ends
        given, states = given[count:], states[count:]
    return [sequence, *made]


def _time_distributed(r: KerasReader, call: LayerCall) -> list[int]:
    """The wrapped layer, applied to all time steps at once: they count as a larger batch."""
    import keras

    shape, name = r.shape(call.inputs[0]), call.layer.name
    r.builder.warnings.append(
        f"{name} runs its layer on one time step after another: counted as one call on a larger batch; it "
        "may take several times as long"
    )
    dtype = call.node.input_tensors[0].dtype
    step = keras.KerasTensor((shape[0] * shape[1], *shape[2:]), dtype=dtype)
    outputs = keras.tree.flatten(call.layer.layer(step))
    r.alive += [step, *outputs]
    r.known[id(step)] = r.view(call, call.inputs[0], tuple(step.shape), name, call.path)
    written = r.follow(outputs, call.inner)
    return [r.view(call, t, s, name, call.path) for t, s in zip(written, call.shapes, strict=True)]


LAYERS = by_name({
    "global_average_pool": "GlobalAveragePooling", "global_max_pool": "GlobalMaxPooling",
    "adaptive_pool": "AdaptiveAveragePooling AdaptiveMaxPooling", "transpose": "Permute",
    "crop": "Cropping", "dropout": "SpatialDropout AlphaDropout GaussianDropout GaussianNoise",
})  # fmt: skip
"""Keras layer, without "1D" to "3D" -> its name in `lolat.readers.ops`, if that differs."""
_CONVOLUTIONS = "Conv ConvTranspose DepthwiseConv SeparableConv"
RULES = by_name({
    _conv: _CONVOLUTIONS, _pool: "MaxPooling AveragePooling", _dense: "Dense EinsumDense",
    _activation: "Activation ReLU",
    _normalization: "Normalization BatchNormalization LayerNormalization GroupNormalization",
    _recurrent: "LSTM GRU SimpleRNN RNN ConvLSTM",
    _multi_head_attention: "MultiHeadAttention GroupQueryAttention GroupedQueryAttention",
    _pad: "ZeroPadding", _embedding: "Embedding", _dot: "Dot", _dot_attention: "Attention",
    _flatten: "Flatten", _time_distributed: "TimeDistributed",
})  # fmt: skip
"""Keras layer, without "1D" to "3D" -> its rule."""
OPERATIONS = by_name({
    "multiply": "Outer", "where": "Select NanToNum", "slice": "GetItem", "split": "ArraySplit",
    "transpose": "Swapaxes Moveaxis", "cast": "SaturateCast",
})  # fmt: skip
"""Operation of keras.ops -> its name in `lolat.readers.ops`, if that differs."""
OPERATION_RULES = by_name({
    _conv: _CONVOLUTIONS, _pool: "MaxPool AveragePool", _pad_operation: "Pad PadImages",
    _calling: "AssociativeScan Cond ForiLoop Map Scan Switch VectorizedMap WhileLoop",
    _einsum: "Einsum", _mean: "Mean", _attention_operation: "DotProductAttention",
})  # fmt: skip
"""Operation of keras.ops -> its rule."""
