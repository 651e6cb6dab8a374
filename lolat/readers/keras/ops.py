"""One rule per operation of keras.ops: those that a model's call method or a bare operator leaves behind.

Constant operands (variables, arrays) of an operation are tensors that do not grow with the batch.
"""

from __future__ import annotations

from math import prod
from typing import Any

from lolat.readers.keras.calls import Call
from lolat.readers.keras.layers import channels, view, with_channels
from lolat.readers.rules import (
    Rule,
    attention,
    by_name,
    einsum_features,
    einsum_terms,
    moved,
    on_operands,
    part_of,
    plain,
    product,
    swapped,
)


def is_builtin(operation: Any) -> bool:
    """Whether the operation's class is one of Keras' own operations."""
    return type(operation).__module__.startswith("keras.src.ops")


def _cast(r: Any, call: Call) -> list[int]:
    """To another type; to the same one it is nothing."""
    same = str(call.node.input_tensors[0].dtype) == str(call.node.output_tensors[0].dtype)
    return list(r.write(call, "identity" if same else "cast", call.inputs))


def _transpose(r: Any, call: Call) -> list[int]:
    op, rank = call.layer, len(r.shape(call.inputs[0]))
    if hasattr(op, "axis1"):
        order = swapped(rank, op.axis1, op.axis2)
    elif hasattr(op, "destination"):
        order = moved(rank, op.source, op.destination)
    else:
        order = tuple(int(a) % rank for a in (op.axes or range(rank - 1, -1, -1)))
    return [r.add(call, "transpose", call.inputs, permutation=order)]


def _split(r: Any, call: Call) -> list[int]:
    """One slice per part."""
    of_name = {"Hsplit": 1, "Vsplit": 0, "Dsplit": 2}
    shape = r.shape(call.inputs[0])
    axis = of_name.get(type(call.layer).__name__, getattr(call.layer, "axis", 0)) % len(shape)
    written, start = [], 0
    for part in call.shapes:
        gone = (axis,) if len(part) < len(shape) else ()
        attributes = part_of(shape, {axis: start}, gone=gone)
        written.append(r.add(call, "slice", call.inputs[:1], part, **attributes))
        start += 1 if gone else part[axis]
    return written


def _slice(r: Any, call: Call) -> list[int]:
    """x[key], or a part that begins at numbers; where a tensor says where, that is not known."""
    shape = r.shape(call.inputs[0])
    arguments = [*call.node.arguments.args, *call.node.arguments.kwargs.values()]
    key = arguments[1] if len(arguments) > 1 else ()
    if type(call.layer).__name__ == "Slice":
        starts = key if isinstance(key, (tuple, list)) else ()
        whole = len(starts) == len(shape) and all(isinstance(n, int) for n in starts)
        known = part_of(shape, dict(enumerate(starts))) if whole else {}
    else:
        known = _part_of_key(shape, key)
    return [r.add(call, "slice", call.inputs, **known)]


def _part_of_key(shape: tuple[int, ...], key: Any) -> dict[str, Any]:
    """The attributes of x[key]; {} for a key with new axes, or with tensors in it."""
    keys = list(key) if isinstance(key, (tuple, list)) else [key]
    if not all(k is Ellipsis or isinstance(k, (int, slice)) for k in keys):
        return {}
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(shape) - len(keys) + 1)
    starts, steps, gone = {}, {}, []
    for axis, part in enumerate(keys):
        if isinstance(part, slice):
            try:
                starts[axis], _, steps[axis] = part.indices(shape[axis])
            except TypeError:  # limits that are tensors
                return {}
        else:
            starts[axis] = int(part)
            gone.append(axis)
    return part_of(shape, starts, steps, gone)


def _matmul(r: Any, call: Call) -> list[int]:
    left, right = r.operands(call)[:2]
    return product(r, call, left, right, r.shape(left)[-1])


def _tensordot(r: Any, call: Call) -> list[int]:
    left, right = r.operands(call)[:2]
    shape, axes = r.shape(left), call.layer.axes
    if isinstance(axes, int):
        contracted = prod(shape[len(shape) - axes :])
    else:
        first = axes[0] if isinstance(axes[0], (tuple, list)) else axes[:1]
        contracted = prod(shape[axis] for axis in first)
    return product(r, call, left, right, contracted)


def _einsum(r: Any, call: Call) -> list[int]:
    sources, equation = r.operands(call), str(call.layer.subscripts)
    if len(sources) != 2 or "->" not in equation:
        return list(r.write(call, "Einsum", call.inputs))
    labels, result = einsum_terms(equation)
    summed, _ = einsum_features(labels[1], result, r.shape(sources[1]))
    return product(r, call, sources[0], sources[1], summed)


def _conv(r: Any, call: Call) -> list[int]:
    """A convolution of any sort: (spatial sizes, channels in, channels out) of its kernel say which."""
    source, weights, *_ = r.operands(call)
    *window, a, b = r.shape(weights)
    kind, inside, outside, groups = "conv", a, b, 1
    name = type(call.layer).__name__
    if name == "ConvTranspose":
        kind, inside, outside = "transposed_conv", b, a
    elif name == "Conv":
        inside = channels(call.layer, r.shape(source))
        groups = inside // a
        kind = "grouped_conv" if groups > 1 else kind
    else:
        kind, outside, groups = "depthwise_conv", a * b, a
    sizes: dict[str, Any] = {
        "kernel": tuple(window), "in_channels": inside, "out_channels": outside, "groups": groups,
        "bias": False,
    }  # fmt: skip
    if name != "SeparableConv":
        return [r.add(call, kind, [source], **sizes)]
    between = with_channels(call.layer, call.shapes[0], outside)
    depthwise = r.add(call, kind, [source], between, suffix="depthwise", **sizes)
    return [r.add(
        call, "conv", [depthwise], suffix="pointwise", kernel=(1,) * len(window), groups=1, bias=False,
        in_channels=outside, out_channels=channels(call.layer, call.shapes[0]),
    )]  # fmt: skip


def _pool(kind: str) -> Rule:
    def rule(r: Any, call: Call) -> list[int]:
        size, spatial = call.layer.pool_size, len(call.shapes[0]) - 2
        kernel = size if isinstance(size, tuple) else (size,) * spatial
        return [r.add(call, kind, call.inputs, kernel=kernel)]

    return rule


def _dot_product_attention(r: Any, call: Call) -> list[int]:
    """On (batch, steps, heads, size) tensors."""

    def merged(index: int) -> int:
        shape = r.shape(index)
        flat = (*shape[:-2], shape[-2] * shape[-1])
        return int(r.view(index, flat, call.name, call.path))

    heads = tuple(r.shape(i)[-2] for i in call.inputs[:2])
    query, key, value = (merged(i) for i in call.inputs[:3])
    mixed, _ = attention(r.builder, query, key, value, (heads[0], heads[1]), call.name, call.path)
    return [r.view(mixed, call.shapes[0], call.name, call.path)]


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
    "transpose": "Flip Fliplr Flipud Rot90 DepthToSpace SpaceToDepth "
    "Rearrange",
    "slice": "Diagonal", "crop": "CropImages", "pad": "Pad PadImages",
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


RULES: dict[str, Rule] = {
    **by_name(_ELEMENTWISE, on_operands),
    **by_name(_PLAIN, plain),
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims", "Ravel"), view),
    **dict.fromkeys(("Split", "Unstack", "ArraySplit", "Hsplit", "Vsplit", "Dsplit"), _split),
    **dict.fromkeys(("Transpose", "Swapaxes", "Moveaxis"), _transpose),
    **dict.fromkeys(("GetItem", "Slice"), _slice),
    **dict.fromkeys(("Cast", "SaturateCast"), _cast),
    **dict.fromkeys(("Matmul", "Dot"), _matmul),
    **dict.fromkeys(("Conv", "DepthwiseConv", "SeparableConv", "ConvTranspose"), _conv),
    "Tensordot": _tensordot,
    "Einsum": _einsum,
    "MaxPool": _pool("max_pool"),
    "AveragePool": _pool("average_pool"),
    "DotProductAttention": _dot_product_attention,
}
