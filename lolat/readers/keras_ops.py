"""One rule per operation of keras.ops: those that a model's call method or a bare operator leaves behind.

Rules have the form of those of `keras_layers`. Constant operands (variables, arrays) of an operation
are tensors that do not grow with the batch.
"""

from __future__ import annotations

from math import prod
from typing import Any

from lolat.readers.keras_layers import (
    ACTIVATIONS,
    Rule,
    attention,
    channels,
    einsum_features,
    with_channels,
)


def is_builtin(operation: Any) -> bool:
    """Whether the operation's class is one of Keras' own operations."""
    return type(operation).__module__.startswith("keras.src.ops")


def operands(r: Any, node: Any) -> list[int]:
    """Every operand of a call in order: symbolic tensors, and constants that have a shape."""
    import keras

    found = []
    for value in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
        if isinstance(value, keras.KerasTensor):
            found.append(r.known[id(value)])
        elif getattr(value, "shape", None) and not isinstance(value, type):
            found.append(r.builder.tensor(tuple(value.shape), batched=False))
    return found


def _elementwise(kind: str) -> Rule:
    def rule(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
        return [r.builder.add(kind, operands(r, node), shapes[0], op.name, path)]

    return rule


def _plain(kind: str) -> Rule:
    def rule(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
        return [r.builder.add(kind, ins, shapes[0], op.name, path)]

    return rule


def _view(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    return [r.view(ins[0], shapes[0], op.name, path)]


def _parts(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """A split: one slice per part."""
    return [r.builder.add("slice", ins[:1], s, op.name, path) for s in shapes]


def _matmul(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    left, right = operands(r, node)[:2]
    second = r.builder.tensors[right]
    contracted = r.builder.tensors[left].shape[-1]
    if not second.batched and len(second.shape) > 1:
        return [r.builder.add(
            "dense", [left], shapes[0], op.name, path,
            in_features=contracted, out_features=prod(second.shape) // contracted, bias=False,
        )]  # fmt: skip
    return [r.builder.add("matmul", [left, right], shapes[0], op.name, path, contracted=contracted)]


def _einsum(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    sources = operands(r, node)
    equation = str(op.subscripts)
    if len(sources) != 2 or "->" not in equation:
        return list(r.unknown("Einsum", op.name, ins, shapes, path))
    second = r.builder.tensors[sources[1]]
    summed, kept = einsum_features(equation, second.shape)
    if not second.batched:
        return [r.builder.add(
            "dense", sources[:1], shapes[0], op.name, path,
            in_features=summed, out_features=kept, bias=False,
        )]  # fmt: skip
    return [r.builder.add("matmul", sources, shapes[0], op.name, path, contracted=summed)]


def _kernel_shape(r: Any, node: Any) -> tuple[int, tuple[int, ...]]:
    """(index of the input, shape of the constant kernel) of a convolution operation."""
    source, kernel, *_ = operands(r, node)
    return source, r.builder.tensors[kernel].shape


def _conv(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    source, kernel = _kernel_shape(r, node)
    inside = channels(op, r.builder.tensors[source].shape)
    groups = inside // kernel[-2]
    return [r.builder.add(
        "grouped_conv" if groups > 1 else "conv", [source], shapes[0], op.name, path,
        kernel=kernel[:-2], in_channels=inside, out_channels=kernel[-1], groups=groups, bias=False,
    )]  # fmt: skip


def _depthwise(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    source, kernel = _kernel_shape(r, node)
    return [r.builder.add(
        "depthwise_conv", [source], shapes[0], op.name, path, kernel=kernel[:-2],
        in_channels=kernel[-2], out_channels=kernel[-2] * kernel[-1], groups=kernel[-2], bias=False,
    )]  # fmt: skip


def _separable(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    source, kernel = _kernel_shape(r, node)
    between = kernel[-2] * kernel[-1]
    depthwise = r.builder.add(
        "depthwise_conv", [source], with_channels(op, shapes[0], between), f"{op.name}_depthwise",
        path, kernel=kernel[:-2], in_channels=kernel[-2], out_channels=between, groups=kernel[-2],
        bias=False,
    )  # fmt: skip
    return [r.builder.add(
        "conv", [depthwise], shapes[0], f"{op.name}_pointwise", path,
        kernel=(1,) * len(kernel[:-2]), in_channels=between, out_channels=channels(op, shapes[0]),
        groups=1, bias=False,
    )]  # fmt: skip


def _conv_transposed(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    source, kernel = _kernel_shape(r, node)
    return [r.builder.add(
        "transposed_conv", [source], shapes[0], op.name, path, kernel=kernel[:-2],
        in_channels=kernel[-1], out_channels=kernel[-2], groups=1, bias=False,
    )]  # fmt: skip


def _pool(kind: str) -> Rule:
    def rule(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
        spatial = len(shapes[0]) - 2
        size = op.pool_size if isinstance(op.pool_size, tuple) else (op.pool_size,) * spatial
        return [r.builder.add(kind, ins, shapes[0], op.name, path, kernel=size)]

    return rule


def _dot_product_attention(
    r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any
) -> list[int]:
    """On (batch, steps, heads, size) tensors."""

    def merged(index: int) -> int:
        shape = r.builder.tensors[index].shape
        flat = (*shape[:-2], shape[-2] * shape[-1])
        return int(r.view(index, flat, op.name, path))

    query_heads, key_heads = (r.builder.tensors[i].shape[-2] for i in ins[:2])
    query, key, value = (merged(i) for i in ins[:3])
    mixed = attention(r, query, key, value, (query_heads, key_heads), op.name, path)
    return [r.view(mixed, shapes[0], op.name, path)]


_ELEMENTWISE = {
    "Add": "add", "Subtract": "subtract", "Multiply": "multiply", "Divide": "divide",
    "TrueDivide": "divide", "DivideNoNan": "divide", "FloorDivide": "divide", "Power": "power",
    "Maximum": "maximum", "Minimum": "minimum", "Square": "square", "Sqrt": "sqrt",
    "Rsqrt": "rsqrt", "Exp": "exp", "Expm1": "exp", "Log": "log", "Log1p": "log",
    "Absolute": "absolute", "Abs": "absolute", "Negative": "negative", "Reciprocal": "reciprocal",
    "Clip": "clip", "Round": "round", "Floor": "round", "Ceil": "round", "Sign": "sign",
    "Erf": "erf", "Where": "where", "Cast": "cast", "Greater": "compare", "Less": "compare",
    "GreaterEqual": "compare", "LessEqual": "compare", "Equal": "compare", "NotEqual": "compare",
    "LogicalAnd": "compare", "LogicalOr": "compare", "LogicalNot": "compare",
}  # fmt: skip

_VIEWS = ("Reshape", "Squeeze", "ExpandDims", "Ravel", "StopGradient", "Copy", "BroadcastTo")

_REDUCTIONS = ("Mean", "Sum", "Max", "Min", "Amax", "Amin", "Var", "Std", "Prod", "Argmax",
               "Argmin", "Logsumexp", "Any", "All", "Moments")  # fmt: skip

_ACTIVATION_CLASSES = {
    "Relu": "relu", "Relu6": "relu6", "Sigmoid": "sigmoid", "Softplus": "softplus",
    "Softsign": "softsign", "Silu": "silu", "LogSigmoid": "log_sigmoid", "Elu": "elu",
    "LeakyRelu": "leaky_relu", "HardSigmoid": "hard_sigmoid", "HardSilu": "hard_silu",
    "Selu": "selu", "Gelu": "gelu", "Celu": "celu", "Glu": "glu", "HardTanh": "hard_tanh",
    "Tanh": "tanh", "Softmax": "softmax", "LogSoftmax": "log_softmax", "Threshold": "threshold",
    "Squareplus": "squareplus",
}  # fmt: skip
assert set(_ACTIVATION_CLASSES.values()) <= set(ACTIVATIONS.values())

RULES: dict[str, Rule] = {
    **{name: _elementwise(kind) for name, kind in _ELEMENTWISE.items()},
    **{name: _plain(kind) for name, kind in _ACTIVATION_CLASSES.items()},
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_REDUCTIONS, _plain("reduce")),
    **dict.fromkeys(("Transpose", "Swapaxes", "Moveaxis", "Flip"), _plain("transpose")),
    **dict.fromkeys(("Split", "Unstack", "ArraySplit"), _parts),
    **dict.fromkeys(("GetItem", "Slice"), _plain("slice")),
    **dict.fromkeys(("Repeat", "Tile"), _plain("repeat")),
    **dict.fromkeys(("Take", "TakeAlongAxis"), _elementwise("gather")),
    **dict.fromkeys(("Concatenate", "Append", "Hstack", "Vstack"), _elementwise("concatenate")),
    "Stack": _elementwise("stack"),
    "Cumsum": _plain("cumulative"),
    "Cumprod": _plain("cumulative"),
    "Roll": _plain("roll"),
    "Pad": _plain("pad"),
    "Resize": _plain("resize"),
    "Matmul": _matmul,
    "Einsum": _einsum,
    "Conv": _conv,
    "DepthwiseConv": _depthwise,
    "SeparableConv": _separable,
    "ConvTranspose": _conv_transposed,
    "MaxPool": _pool("max_pool"),
    "AveragePool": _pool("average_pool"),
    "AdaptiveAveragePool": _plain("adaptive_pool"),
    "AdaptiveMaxPool": _plain("adaptive_pool"),
    "BatchNorm": _plain("batch_norm"),
    "LayerNorm": _plain("layer_norm"),
    "RMSNorm": _plain("rms_norm"),
    "DotProductAttention": _dot_product_attention,
}
