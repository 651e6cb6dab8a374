"""One rule per operation of keras.ops: those that a model's call method or a bare operator leaves behind.

Rules have the form of those of `keras_layers`. Constant operands (variables, arrays) of an operation
are tensors that do not grow with the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from lolat.readers.keras.composite import (
    Rule,
    attention,
    channels,
    einsum_features,
    plain,
    view,
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


def _cast(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """To another type; to the same one it is nothing."""
    same = str(node.input_tensors[0].dtype) == str(node.output_tensors[0].dtype)
    return plain("identity" if same else "cast")(r, op, ins, shapes, path, node)


def _parts(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """A split: one slice per part."""
    return [r.builder.add("slice", ins[:1], s, op.name, path) for s in shapes]


def _product(
    r: Any, op: Any, left: int, right: int, contracted: int, shape: Any, path: str
) -> list[int]:
    """A dense layer where the right operand is a constant, else a product of two activations."""
    second = r.builder.tensors[right]
    if second.batched:
        sources = [left, right]
        return [r.builder.add("matmul", sources, shape, op.name, path, contracted=contracted)]
    return [r.builder.add(
        "dense", [left], shape, op.name, path,
        in_features=contracted, out_features=prod(second.shape) // contracted, bias=False,
    )]  # fmt: skip


def _matmul(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    left, right = operands(r, node)[:2]
    contracted = r.builder.tensors[left].shape[-1]
    return _product(r, op, left, right, contracted, shapes[0], path)


def _tensordot(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    left, right = operands(r, node)[:2]
    shape = r.builder.tensors[left].shape
    axes = op.axes
    if isinstance(axes, int):
        contracted = prod(shape[len(shape) - axes :])
    else:
        first = axes[0] if isinstance(axes[0], (tuple, list)) else axes[:1]
        contracted = prod(shape[axis] for axis in first)
    return _product(r, op, left, right, contracted, shapes[0], path)


def _einsum(r: Any, op: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    sources = operands(r, node)
    equation = str(op.subscripts)
    if len(sources) != 2 or "->" not in equation:
        return list(r.unknown("Einsum", op.name, ins, shapes, path))
    left, right = sources
    summed, _ = einsum_features(equation, r.builder.tensors[right].shape)
    return _product(r, op, left, right, summed, shapes[0], path)


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
    mixed, _ = attention(r, query, key, value, (query_heads, key_heads), op.name, path)
    return [r.view(mixed, shapes[0], op.name, path)]


_ELEMENTWISE = {
    "add": "Add", "subtract": "Subtract Diff", "multiply": "Multiply Outer", "average": "Average",
    "divide": "Divide TrueDivide DivideNoNan FloorDivide Mod Fmod", "power": "Power Cbrt",
    "maximum": "Maximum Fmax", "minimum": "Minimum Fmin", "square": "Square",
    "sqrt": "Sqrt Hypot", "rsqrt": "Rsqrt", "exp": "Exp Exp2 Expm1",
    "log": "Log Log1p Log2 Log10 Logaddexp Logaddexp2", "absolute": "Absolute Fabs",
    "negative": "Negative", "reciprocal": "Reciprocal", "clip": "Clip", "sign": "Sign",
    "round": "Round Floor Ceil Trunc", "erf": "Erf Erfc Erfinv",
    "where": "Where Select NanToNum Tril Triu",
    "compare": "Greater Less GreaterEqual LessEqual Equal NotEqual LogicalAnd LogicalOr LogicalNot "
    "LogicalXor Heaviside Isclose Isfinite Isinf Isnan Isneginf Isposinf Signbit IsIn",
    "trigonometric": "Sin Cos Tan Sinh Cosh Arcsin Arccos Arctan Arctan2 Arcsinh Arccosh Arctanh Sinc",
    "bitwise": "BitwiseAnd BitwiseInvert BitwiseNot BitwiseOr BitwiseXor BitwiseLeftShift "
    "BitwiseRightShift LeftShift RightShift",
    "scale": "Deg2rad Rad2deg", "gather": "Take TakeAlongAxis",
    "concatenate": "Concatenate Append Hstack Vstack Dstack", "stack": "Stack",
}  # fmt: skip
"""Kind -> operations whose operands count, constants too."""

_PLAIN = {
    "identity": "StopGradient Copy ConvertToTensor",
    "reduce": "Mean Sum Max Min Amax Amin Var Std Prod Argmax Argmin Logsumexp Any All Moments Norm "
    "CountNonzero Ptp Median Quantile Percentile Trace Nanargmax Nanargmin Nanmax Nanmean Nanmedian "
    "Nanmin Nanprod Nanstd Nansum Nanvar SegmentReduction",
    "transpose": "Transpose Swapaxes Moveaxis Flip Fliplr Flipud Rot90 DepthToSpace SpaceToDepth "
    "Rearrange",
    "slice": "GetItem Slice Diagonal", "crop": "CropImages", "pad": "Pad PadImages",
    "repeat": "Repeat Tile BroadcastTo", "cumulative": "Cumsum Cumprod Nancumsum Nancumprod",
    "roll": "Roll", "resize": "Resize", "one_hot": "OneHot MultiHot", "fill": "OnesLike ZerosLike FullLike",
    "sort": "Sort Argsort TopK Argpartition InTopK", "unfold": "Unfold ExtractPatches",
    "scatter": "Scatter ScatterUpdate SliceUpdate Fold",
    "adaptive_pool": "AdaptiveAveragePool AdaptiveMaxPool", "batch_norm": "BatchNorm",
    "layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "unit_norm": "Normalize",
    "relu": "Relu", "relu6": "Relu6", "sigmoid": "Sigmoid", "softplus": "Softplus",
    "softsign": "Softsign", "silu": "Silu", "log_sigmoid": "LogSigmoid", "elu": "Elu",
    "leaky_relu": "LeakyRelu", "hard_sigmoid": "HardSigmoid", "hard_silu": "HardSilu",
    "selu": "Selu", "gelu": "Gelu", "celu": "Celu", "glu": "Glu", "hard_tanh": "HardTanh",
    "tanh": "Tanh", "softmax": "Softmax", "log_softmax": "LogSoftmax", "threshold": "Threshold",
    "squareplus": "Squareplus", "hard_shrink": "HardShrink", "soft_shrink": "SoftShrink",
    "tanh_shrink": "TanhShrink", "sparse_plus": "SparsePlus", "sparse_sigmoid": "SparseSigmoid",
    "sparsemax": "Sparsemax",
}  # fmt: skip
"""Kind -> operations of activations alone."""


def _by_name(kinds: dict[str, str], rule: Callable[[str], Rule]) -> dict[str, Rule]:
    return {name: rule(kind) for kind, names in kinds.items() for name in names.split()}


RULES: dict[str, Rule] = {
    **_by_name(_ELEMENTWISE, _elementwise),
    **_by_name(_PLAIN, plain),
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims", "Ravel"), view),
    **dict.fromkeys(("Split", "Unstack", "ArraySplit", "Hsplit", "Vsplit", "Dsplit"), _parts),
    "Cast": _cast,
    "SaturateCast": _cast,
    "Matmul": _matmul,
    "Dot": _matmul,
    "Tensordot": _tensordot,
    "Einsum": _einsum,
    "Conv": _conv,
    "DepthwiseConv": _depthwise,
    "SeparableConv": _separable,
    "ConvTranspose": _conv_transposed,
    "MaxPool": _pool("max_pool"),
    "AveragePool": _pool("average_pool"),
    "DotProductAttention": _dot_product_attention,
}
