"""ATen operations -> kinds of operation: tables, and rules for those that need more than a kind.

See `lolat.readers.rules`. An operation that is in no table keeps its name, is reported, and counts as the
traffic of its inputs and outputs.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from lolat.readers.rules import (
    Rule,
    by_name,
    einsum_features,
    einsum_terms,
    on_operands,
    part_of,
    plain,
    product,
)
from lolat.readers.torch.program import (
    RESHAPES,
    TRANSPOSITIONS,
    Call,
    flat,
    is_made_for_batch,
    reshaped,
    transposed,
)

# ---- What multiplies: convolutions, products, attention, recurrent layers, embeddings.


def sizes_of(value: Any, count: int) -> tuple[int, ...]:
    """One number for each axis, from one for all."""
    sizes = [int(n) for n in value] if isinstance(value, (tuple, list)) else [int(value)]
    return tuple(sizes * count if len(sizes) == 1 else sizes)


def _shape(node: Any) -> tuple[int, ...]:
    """The shape of a parameter."""
    return tuple(int(n) for n in node.meta["val"].shape)


def _convolution(walker: Any, call: Call) -> list[int]:
    """A convolution, or a transposed one, in one, two or three dimensions."""
    source = walker.index(call.get("input"))
    kernel = _shape(call.get("weight"))
    spatial = len(kernel) - 2
    groups = int(call.get("groups", 1))
    strides = sizes_of(call.get("stride", 1), spatial)
    dilation = sizes_of(call.get("dilation", 1), spatial)
    padding = call.get("padding", 0)
    attributes = {"kernel": kernel[2:], "strides": strides, "dilation": dilation,
                  "bias": call.get("bias") is not None, "groups": groups}  # fmt: skip
    if call.op.startswith("conv_transpose") or call.get("transposed"):
        return [walker.add(
            call, "transposed_conv", walker.activations(call, source), in_channels=kernel[0],
            out_channels=kernel[1] * groups, padding="valid" if not any(sizes_of(padding, spatial))
            else "same", **attributes,
        )]  # fmt: skip
    inside = kernel[1] * groups
    # One group for each channel is a depthwise convolution, for which PyTorch has a kernel of its own.
    kind = "conv" if groups == 1 else "depthwise_conv" if groups == inside else "grouped_conv"
    return [walker.add(
        call, kind, walker.activations(call, source), in_channels=inside, out_channels=kernel[0],
        **_padding(padding, kernel[2:], strides, dilation), **attributes,
    )]  # fmt: skip


def _padding(
    padding: Any, kernel: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...]
) -> dict[str, Any]:
    """Padding as Keras has it: "same", "valid", or a valid convolution of what was padded before."""
    if isinstance(padding, str):
        return {"padding": padding}
    amounts = sizes_of(padding, len(kernel))
    if not any(amounts):
        return {"padding": "valid"}
    keeps = all(2 * p == d * (k - 1) for p, k, d in zip(amounts, kernel, dilation, strict=True))
    if keeps and set(strides) == {1}:
        return {"padding": "same"}
    return {"padding": "valid", "pad_before": tuple((p, p) for p in amounts)}


def _linear(walker: Any, call: Call) -> list[int]:
    source, weight = walker.index(call.get("input")), walker.index(call.get("weight"))
    shape = walker.shape(weight)
    if weight not in walker.constants:
        return product(walker, call, source, weight, shape[-1])
    return [walker.add(
        call, "dense", walker.activations(call, source), in_features=shape[-1],
        out_features=prod(shape[:-1]), bias=call.get("bias") is not None,
    )]  # fmt: skip


def _matmul(walker: Any, call: Call) -> list[int]:
    """A product of two tensors, and where it is given a third to which it is added."""
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "mv": ("self", "vec"),
             "dot": ("self", "tensor"), "outer": ("self", "vec2")}  # fmt: skip
    first, second = names.get(call.op, ("self", "mat2" if "mat2" in call.arguments else "other"))
    left, right = walker.index(call.get(first)), walker.index(call.get(second))
    added = walker.index(call.get("self")) if call.op in ("addmm", "baddbmm") else None
    is_constant = added in walker.constants
    contracted = 1 if call.op == "outer" else walker.shape(left)[-1]
    bias = call.op == "addmm" and is_constant
    out = product(walker, call, left, right, contracted, bias)
    if added is None or (is_constant and right in walker.constants) or call.get("beta", 1) == 0:
        return out
    return [walker.add(call, "add", [added, *out], suffix="add")]


def _einsum(walker: Any, call: Call) -> list[int]:
    """A product over the labels that the second operand has and the result has not."""
    operands = [walker.index(n) for n in call.get("tensors")]
    labels, result = einsum_terms(str(call.get("equation")))
    if len(operands) == 1:
        whole = len(set(labels[0])) == len(result)
        return [walker.add(call, "transpose" if whole else "reduce", operands)]
    if len(operands) != 2:
        inputs = [i for i in operands if i is not None]
        return list(walker.whole(call, "aten.einsum", inputs, call.label("einsum")))
    contracted, _ = einsum_features(labels[1], result, walker.shape(operands[1]))
    return product(walker, call, operands[0], operands[1], contracted)


def _fused_attention(walker: Any, call: Call) -> list[Any]:
    """softmax(q k' * scale [+ mask]) v on (batch, heads, steps, size), which PyTorch runs as one.

    Of other ranks PyTorch runs several operations, and so they are written. A mask of yes and no is no
    operand, as in Keras.
    """
    if call.op == "python.flex_attention":  # what its function does to the scores is not counted
        names = ("query", "key", "value")
        call = replace(call, arguments=dict(zip(names, call.node.args[:3], strict=True)))
    query, key, value = (walker.index(call.get(n)) for n in ("query", "key", "value"))
    (*batch, steps, size), keys = walker.shape(query), walker.shape(key)[-2]
    call = replace(call, name=call.label("attention"))
    mask = walker.index(call.get("attn_mask", call.get("attn_bias")))
    is_added = mask is not None and "float" in walker.builder.tensors[mask].dtype
    if len(batch) == 2:
        inputs = [query, key, value, *([mask] if is_added else [])]
        return [walker.add(
            call, "attention", inputs, heads=batch[1], key_heads=walker.shape(key)[1], queries=steps,
            keys=keys, head_size=size, value_size=walker.shape(value)[-1],
        )]  # fmt: skip

    def step(kind: str, inputs: list[Any], **attributes: Any) -> int:
        suffix = "scores" if kind == "matmul" else kind
        return int(walker.add(call, kind, inputs, (*batch, steps, keys), suffix, **attributes))

    scores = step("scale", [step("matmul", [query, key], contracted=size)])
    if is_added:
        scores = step("add", [scores, mask])
    weights = step("softmax", [scores], axis=len(batch) + 1)
    return [walker.add(call, "matmul", [weights, value], suffix="mix", contracted=keys)]


def _embedding(walker: Any, call: Call) -> list[int]:
    """The rows of a table at given indices."""
    rows, features = _shape(call.get("weight"))
    read = walker.activations(call, walker.index(call.get("indices")))
    return [walker.add(call, "embedding", read, rows=rows, out_features=features)]


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_RECURRENT = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "simple_rnn", "rnn_relu": "simple_rnn"}


def _recurrent(walker: Any, call: Call) -> list[Any]:
    """A layer of one direction is an operation; two directions are concatenated.

    Each has two vectors of biases in PyTorch, one more than Keras' LSTM and simple RNN.
    """
    params = call.get("params")
    biased, layers = bool(call.get("has_biases")), int(call.get("num_layers", 0))
    ways = 2 if call.get("bidirectional") else 1
    if "batch_first" not in call.arguments or len(params) != layers * ways * (4 if biased else 2):
        inputs = walker.sources(call.node)[:1]  # packed sequences, projected states
        return list(walker.whole(call, f"aten.{call.op}", inputs, call.label(call.op)))
    x = walker.index(call.get("input"))
    states = call.get("hx")
    states = [walker.index(s) for s in flat(states)]
    initial = [s for s in states if s is not None and s not in walker.constants]
    shape = walker.shape(x)
    steps = shape[1] if call.get("batch_first") and len(shape) > 2 else shape[0]
    last: list[list[int]] = [[] for _ in call.shapes[1:]]
    weights = iter(params[:: 4 if biased else 2])
    several = layers * ways > 1
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            rows, features = _shape(next(weights))
            units = rows // GATES[call.op]
            suffix = f"l{layer}" + "_reverse" * way if several else ""
            single = (*walker.shape(x)[:-1], units)
            state = (*call.shapes[1][1:],)
            written = walker.builder.add_several(
                _RECURRENT[call.op], [x, *initial], [single] + [state] * len(last),
                call.label(_RECURRENT[call.op], suffix), call.path, units=units,
                in_features=features, timesteps=steps, bias=biased, bias_vectors=2, sequences=True,
            )  # fmt: skip
            walker.channels[written[0]] = -1
            outputs.append(written[0])
            for of_state, index in zip(last, written[1:], strict=True):
                of_state.append(index)
        x = outputs[0]
        if ways > 1:
            merged = (*walker.shape(x)[:-1], sum(walker.shape(i)[-1] for i in outputs))
            x = walker.add(
                call, "concatenate", outputs, merged, suffix=f"l{layer}_merge", axis=len(merged) - 1
            )
    return [x, *(_stacked(walker, call, of_state) for of_state in last)]


def _stacked(walker: Any, call: Any, states: list[int]) -> int:
    """The last states of all layers as one tensor; where one of them is taken, it is that one."""
    shape = call.shapes[1]
    kind = "reshape" if len(states) == 1 else "stack"
    along = {"axis": 0} if kind == "stack" else {}
    out = int(walker.add(call, kind, states, shape, suffix="states", **along))
    walker.parts[out] = states
    return out


def _cell(walker: Any, call: Call) -> list[Any]:
    """One step of a recurrent layer."""
    op = call.op.removesuffix("_cell")
    rows, features = _shape(call.get("w_ih"))
    units = rows // GATES[op]
    states = call.get("hx")
    nodes = (walker.index(n) for n in flat(states))
    initial = [i for i in nodes if i is not None and i not in walker.constants]
    return list(walker.builder.add_several(
        _RECURRENT[op], [walker.index(call.get("input")), *initial], call.shapes,
        call.label(_RECURRENT[op]), call.path, units=units, in_features=features, timesteps=1,
        bias=call.get("b_ih") is not None, bias_vectors=2, sequences=False,
    ))  # fmt: skip


# ---- What moves or chooses data: slices, splits, pads, pools, gathers, copies.


def _slice(walker: Any, call: Call) -> list[Any]:
    """A part of a tensor; the whole of it, or one of an axis of one, is a view."""
    source = walker.sources(call.node)[0]
    shape = walker.shape(source)
    if call.op == "select" and source in walker.parts and call.get("dim") == 0:
        return [walker.parts[source][call.get("index")]]
    if prod(call.shapes[0]) == prod(shape):
        return [walker.add(call, "reshape", [source])]
    start = call.get("start", call.get("index", 0))
    if call.op == "diagonal" or not isinstance(start, int):
        return [walker.add(call, "slice", [source])]
    axis = call.get("dim", 0) % len(shape)
    step = call.get("step", 1)
    gone = (axis,) if call.op == "select" else ()
    part = part_of(shape, {axis: start}, {axis: step}, gone)
    return [walker.add(call, "slice", [source], **part)]


def _split(walker: Any, call: Call) -> list[Any]:
    """One slice for each part."""
    source = walker.sources(call.node)[0]
    if source in walker.parts and call.op == "unbind":
        return list(walker.parts[source])
    shape, start, written = walker.shape(source), 0, []
    axis = {"hsplit": min(len(shape), 2) - 1, "dsplit": 2}.get(call.op, call.get("dim", 0))
    axis %= len(shape)
    for own in call.shapes:
        gone = (axis,) if len(own) < len(shape) else ()
        part = part_of(shape, {axis: start}, gone=gone)
        written.append(walker.add(call, "slice", [source], own, **part))
        start += 1 if gone else own[axis]
    return written


def _expand(walker: Any, call: Call) -> list[Any]:
    """The same values again; nothing where no axis grows, at any batch size."""
    source = walker.sources(call.node)[0]
    grows = is_made_for_batch(call.node) and not walker.builder.tensors[source].batched
    same = prod(call.shapes[0]) == prod(walker.shape(source)) and not grows
    return [walker.add(call, "reshape" if same else "repeat", [source])]


def _pad(walker: Any, call: Call) -> list[Any]:
    """Elements added at the ends of axes, or taken away there."""
    source = walker.sources(call.node)[0]
    amounts = [int(n) for n in call.get("pad", call.get("padding"))]
    if not any(amounts):
        return [walker.add(call, "identity", [source])]
    if max(amounts) <= 0:
        return [walker.add(call, "crop", [source], suffix="crop")]
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]  # PyTorch: last axis first
    return [walker.add(call, "pad", [source], suffix="pad", padding=tuple(pairs))]


def _pool(walker: Any, call: Call) -> list[Any]:
    """A pooling with a window."""
    spatial = int(call.op.partition("pool")[2][0])
    kernel = sizes_of(call.get("kernel_size"), spatial)
    strides = sizes_of(call.get("stride") or kernel, spatial)
    padding = sizes_of(call.get("padding", 0), spatial)
    same = all(2 * p >= k - 1 > 0 for p, k in zip(padding, kernel, strict=True))
    return [walker.add(
        call, "max_pool" if "max" in call.op else "average_pool", walker.sources(call.node)[:1],
        kernel=kernel, strides=strides, padding="same" if same else "valid",
    )]  # fmt: skip


def _adaptive_pool(walker: Any, call: Call) -> list[Any]:
    """A pooling to a given size; to one position it is a global one."""
    spatial = int(call.op.partition("pool")[2][0])
    whole = prod(call.shapes[0][-spatial:]) == 1
    kind = "global_max_pool" if "max" in call.op else "global_average_pool"
    source = walker.sources(call.node)[:1]
    return [walker.add(call, kind if whole else "adaptive_pool", source)]


def _copy(walker: Any, call: Call) -> list[Any]:
    """Values written into a tensor, or a part of it, that is there already."""
    source = walker.index(call.get("src"))
    if source is None:
        return [walker.add(call, "fill", walker.sources(call.node)[:1])]
    return [walker.add(call, "scatter", [source])]


# ---- What one operation is, perhaps after a look at its arguments.


def _hardtanh(walker: Any, call: Call) -> list[Any]:
    """ReLU6 is a hardtanh between 0 and 6."""
    limits = (call.get("min_val", -1), call.get("max_val", 1))
    return plain("relu6" if limits == (0, 6) else "hard_tanh")(walker, call)


def _reduce_two(walker: Any, call: Call) -> list[Any]:
    """max and min: of one tensor or, element by element, of two."""
    if "other" in call.arguments:
        return on_operands("maximum" if call.op == "max" else "minimum")(walker, call)
    return plain("reduce")(walker, call)


def _dropout(walker: Any, call: Call) -> list[Any]:
    """Nothing, unless the code asks for it outside training too."""
    if call.get("train"):
        return plain("multiply")(walker, call)
    rate = call.get("p")
    # What it drops in training, where somebody asks how long that takes.
    known = {"rate": float(rate)} if isinstance(rate, int | float) and 0 < rate < 1 else {}
    return [walker.add(call, "dropout", walker.activations(call), **known)]


def _mean(walker: Any, call: Call) -> list[Any]:
    """The mean over all positions of an image is a global average pooling."""
    source = walker.sources(call.node)[0]
    rank = len(walker.shape(source))
    axes = sorted(d % rank for d in flat(call.get("dim", ())))
    image = rank > 3 and walker.channels.get(source, 1) == 1 and axes == list(range(2, rank))
    return plain("global_average_pool" if image else "reduce")(walker, call)


def _cast(walker: Any, call: Call) -> list[Any]:
    """To another type; to the same one (or another device or memory format) it is nothing."""
    source = walker.sources(call.node)[0]
    if walker.builder.tensors[source].dtype == call.dtype:
        return reshaped(walker, call)
    return [walker.add(call, "cast", [source])]


_OPERANDS = {
    "add": "add addcmul addcdiv", "subtract": "sub subtract rsub",
    "multiply": "mul multiply lerp", "divide": "div divide true_divide floor_divide remainder fmod",
    "power": "pow float_power", "maximum": "maximum fmax", "minimum": "minimum fmin",
    "where": "where masked_fill",
    "compare": "eq ne lt le gt ge logical_and logical_or logical_xor isclose",
    "bitwise": "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ bitwise_left_shift "
    "bitwise_right_shift __lshift__ __rshift__",
    "gather": "index gather index_select take take_along_dim _unsafe_index",
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


def _names(pattern: str, **choices: str) -> str:
    """Every name of a pattern: "{how}_pool{d}" with the words of each choice."""
    names = [pattern]
    for key, words in choices.items():
        names = [n.replace(f"{{{key}}}", word) for n in names for word in words.split(" ")]
    return " ".join(names)


_D = "1d 2d 3d"
_CONVOLUTIONS = "convolution _convolution " + _names("conv{t}{d}", t=" _transpose", d=_D)
_PRODUCTS = "matmul mm bmm addmm baddbmm mv dot outer"
_NAMES: dict[Rule, str] = {
    _slice: "slice select narrow diagonal",
    _split: "chunk split split_with_sizes unsafe_chunk unsafe_split unbind tensor_split hsplit vsplit "
    "dsplit split_copy split_with_sizes_copy",
    _expand: "expand expand_as broadcast_to",
    _pad: "pad constant_pad_nd " + _names("{how}_pad{d}", how="reflection replication", d=_D),
    _pool: _names("{how}_pool{d}{tail}", how="max avg", d=_D, tail=" _with_indices"),
    _adaptive_pool: _names("{u}adaptive_{how}_pool{d}", u=" _", how="max avg", d=_D),
    _dropout: "dropout feature_dropout alpha_dropout native_dropout feature_alpha_dropout",
    _cast: "to _to_copy type_as float half _autocast_to_full_precision "
    "_autocast_to_reduced_precision",
    _copy: "copy", _hardtanh: "hardtanh", _reduce_two: "max min", _mean: "mean",
    _convolution: _CONVOLUTIONS, _matmul: _PRODUCTS, _linear: "linear", _einsum: "einsum",
    _embedding: "embedding", _recurrent: " ".join(GATES),
    _cell: _names("{rnn}_cell", rnn=" ".join(GATES)),
    _fused_attention: "scaled_dot_product_attention python.flex_attention "
    + _names("_scaled_dot_product_{how}", how="flash_attention efficient_attention cudnn_attention "
             "attention_math flash_attention_for_cpu fused_attention_overrideable"),
    reshaped: " ".join(sorted(RESHAPES)), transposed: " ".join(sorted(TRANSPOSITIONS)),
}  # fmt: skip

RULES: dict[str, Rule] = {
    **by_name(_PLAIN, plain),
    **by_name(_OPERANDS, on_operands),
    **{name: rule for rule, names in _NAMES.items() for name in names.split()},
}

HEAVY = frozenset(f"{_CONVOLUTIONS} {_PRODUCTS} addmv addbmm linear einsum".split()) | set(GATES)
"""What is never folded into a constant, however constant its operands are."""
