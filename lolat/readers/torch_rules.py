"""ATen operations -> kinds of operation: one table, and rules for those that need more than a kind.

A rule gets the walker and the call; it returns the tensors that it wrote. An operation that is in no
table keeps its name, is reported, and counts as the traffic of its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lolat.readers import torch_attention, torch_layers, torch_layouts, torch_moves

Rule = Callable[[Any, Any], list[Any]]

_OPERANDS = {
    "add": "add addcmul addcdiv", "subtract": "sub subtract rsub",
    "multiply": "mul multiply lerp", "divide": "div divide true_divide floor_divide remainder fmod",
    "power": "pow float_power", "maximum": "maximum fmax", "minimum": "minimum fmin",
    "where": "where masked_fill",
    "compare": "eq ne lt le gt ge logical_and logical_or logical_xor isclose",
    "bitwise": "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ bitwise_left_shift "
    "bitwise_right_shift __lshift__ __rshift__",
    "trigonometric": "atan2 arctan2", "concatenate": "cat concat concatenate hstack vstack dstack",
    "stack": "stack", "sqrt": "hypot", "reduce": "cosine_similarity",
    "scatter": "col2im fold slice_scatter select_scatter diagonal_scatter index_put _index_put_impl "
    "scatter scatter_add scatter_reduce index_add index_copy index_reduce masked_scatter index_fill put",
}  # fmt: skip
"""Kind -> operations whose operands count, constants too."""

_PLAIN = {
    "relu": "relu", "relu6": "relu6", "leaky_relu": "leaky_relu rrelu", "prelu": "prelu _prelu_kernel",
    "elu": "elu", "selu": "selu", "celu": "celu", "silu": "silu", "sigmoid": "sigmoid",
    "hard_sigmoid": "hardsigmoid", "hard_silu": "hardswish", "gelu": "gelu", "tanh": "tanh",
    "softmax": "softmax _softmax special_softmax _safe_softmax",
    "log_softmax": "log_softmax _log_softmax", "softplus": "softplus", "mish": "mish",
    "log_sigmoid": "log_sigmoid log_sigmoid_forward", "glu": "glu", "threshold": "threshold",
    "hard_shrink": "hardshrink", "soft_shrink": "softshrink", "softsign": "softsign",
    "tanh_shrink": "tanhshrink", "clip": "clamp clip clamp_min clamp_max nan_to_num",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exp exp2 expm1", "log": "log log2 log10 log1p",
    "square": "square", "absolute": "abs absolute", "negative": "neg negative",
    "reciprocal": "reciprocal", "sign": "sign sgn", "round": "round floor ceil trunc frac fix",
    "erf": "erf erfc erfinv special_erf", "where": "tril triu",
    "compare": "logical_not isnan isinf isfinite signbit", "bitwise": "bitwise_not",
    "trigonometric": "sin cos tan sinh cosh asin acos atan asinh acosh atanh sinc arctan arcsin arccos",
    "reduce": "mean sum amax amin aminmax var std var_mean std_mean prod argmax argmin logsumexp any "
    "all norm linalg_vector_norm linalg_norm frobenius_norm nansum nanmean median count_nonzero trace "
    "max min",
    "cumulative": "cumsum cumprod cummax cummin logcumsumexp", "sort": "sort argsort topk kthvalue",
    "roll": "roll", "one_hot": "one_hot",
    "repeat": "repeat repeat_interleave tile",
    "fill": "zeros_like ones_like full_like empty_like rand_like randn_like fill zero",
    "transpose": "flip fliplr flipud rot90 pixel_shuffle pixel_unshuffle channel_shuffle "
    "native_channel_shuffle",
    "unfold": "unfold im2col",
    "resize": "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d "
    "upsample_linear1d upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    "batch_norm": "batch_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _batch_norm_no_update",
    "layer_norm": "layer_norm native_layer_norm", "rms_norm": "rms_norm _fused_rms_norm",
    "group_norm": "group_norm native_group_norm", "instance_norm": "instance_norm",
}  # fmt: skip
"""Kind -> operations that read one activation; parameters beside it do not count."""


def _plain(kind: str) -> Rule:
    def rule(walker: Any, call: Any) -> list[Any]:
        return [walker.add(call, kind, walker.read(call))]

    return rule


def _operands(kind: str) -> Rule:
    def rule(walker: Any, call: Any) -> list[Any]:
        found = walker.operands(call) or walker.sources(call.node)
        return [walker.add(call, kind, found)]

    return rule


def _hardtanh(walker: Any, call: Any) -> list[Any]:
    """ReLU6 is a hardtanh between 0 and 6."""
    limits = (call.get("min_val", -1), call.get("max_val", 1))
    return _plain("relu6" if limits == (0, 6) else "hard_tanh")(walker, call)


def _reduce_two(walker: Any, call: Any) -> list[Any]:
    """max and min: of one tensor or, element by element, of two."""
    if "other" in call.arguments:
        return _operands("maximum" if call.op == "max" else "minimum")(walker, call)
    return _plain("reduce")(walker, call)


def _dropout(walker: Any, call: Any) -> list[Any]:
    """Nothing, unless the code asks for it outside training too."""
    if call.get("train"):
        return _plain("multiply")(walker, call)
    rate = call.get("p")
    # What it drops in training, where somebody asks how long that takes.
    given = {"rate": float(rate)} if isinstance(rate, int | float) and 0 < rate < 1 else {}
    return [walker.add(call, "dropout", walker.read(call), **given)]


def _mean(walker: Any, call: Any) -> list[Any]:
    """The mean over all positions of an image is a global average pooling."""
    source = walker.sources(call.node)[0]
    rank = len(walker.shape(source))
    axes = call.get("dim") or ()
    axes = sorted(d % rank for d in ([axes] if isinstance(axes, int) else axes))
    image = rank > 3 and walker.channels.get(source, 1) == 1 and axes == list(range(2, rank))
    return _plain("global_average_pool" if image else "reduce")(walker, call)


def _cast(walker: Any, call: Any) -> list[Any]:
    """To another type; to the same one (or another device or memory format) it is nothing."""
    source = walker.sources(call.node)[0]
    if walker.builder.tensors[source].dtype == call.dtype:
        return torch_layouts.reshaped(walker, call)
    return [walker.add(call, "cast", [source])]


def _by_name(kinds: dict[str, str], rule: Callable[[str], Rule]) -> dict[str, Rule]:
    return {name: rule(kind) for kind, names in kinds.items() for name in names.split()}


RULES: dict[str, Rule] = {
    **_by_name(_PLAIN, _plain),
    **_by_name(_OPERANDS, _operands),
    **dict.fromkeys(torch_layouts.RESHAPES, torch_layouts.reshaped),
    **dict.fromkeys(torch_layouts.TRANSPOSITIONS, torch_layouts.transposed),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "native_dropout",
                     "feature_alpha_dropout"), _dropout),
    **dict.fromkeys(("to", "_to_copy", "type_as", "float", "half", "_autocast_to_full_precision",
                     "_autocast_to_reduced_precision"), _cast),
    **torch_layers.RULES,
    **torch_moves.RULES,
    **torch_attention.RULES,
    "hardtanh": _hardtanh,
    "max": _reduce_two,
    "min": _reduce_two,
    "mean": _mean,
}  # fmt: skip

_KINDS = {
    **{name: kind for kind, names in (*_PLAIN.items(), *_OPERANDS.items()) for name in names.split()},
    **torch_layers.KINDS,
}  # fmt: skip


def kind_of(op: str) -> str:
    """The kind of an ATen operation, where it has just one; "" for others."""
    return _KINDS.get(op, "")


def emit(walker: Any, call: Any) -> list[Any]:
    """Write a call as operations; what it wrote."""
    rule = RULES.get(call.op)
    if rule is not None:
        return rule(walker, call)
    inputs = walker.operands(call) or walker.sources(call.node)
    # Under its own name, which says whose operation it is: so it is reported.
    kind = call.op if "." in call.op else f"aten.{call.op}"
    name = call.name or call.op.rpartition(".")[2]
    return list(walker.builder.add_several(kind, inputs, call.shapes, name, call.path))
