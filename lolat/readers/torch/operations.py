"""ATen operations as calls of `lolat.readers.ops`; rules translate arguments that differ.

Tensors are in PyTorch's own layout: an image is (N, C, H, W), tokens are (N, T, C).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from msgspec import structs
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from lolat.graph.kinds import GATES, INPUT, POSITIONS, by_name
from lolat.readers.ops import KIND_OF, affine, kernel_sizes, normalized, sizes_of
from lolat.readers.remarks import ALWAYS_DROPS
from lolat.readers.torch.aten import AtenOperation
from lolat.readers.torch.layout import as_product, joins
from lolat.readers.torch.scatter import BY_INDEX, copied, scattered

Rule = Callable[[AtenOperation], list[int]]


def write(operation: AtenOperation) -> list[int]:
    """Append an operation to the graph; return the graph's tensors of its results."""
    if rule := RULES.get(operation.op):
        return rule(operation)
    name = operation.op if "." in operation.op else f"aten.{operation.op}"
    return operation.write(NAMES.get(operation.op, name))


# ---- Convolutions, products, attention, recurrent layers, embeddings.


def _convolution(o: AtenOperation) -> list[int]:
    """A convolution; if the network computes its kernel, it has no parameters."""
    transposed = o.op.startswith("conv_transpose") or bool(o.get("transposed"))
    sizes = kernel_sizes(o.get("weight").shape, int(o.get("groups", 1)), transposed)
    spatial, padding = len(sizes["kernel"]), o.get("padding", 0)
    strides, dilation = (sizes_of(o.get(name, 1), spatial) for name in ("stride", "dilation"))
    if transposed:
        padding = "same" if any(sizes_of(padding, spatial)) else "valid"
    elif not isinstance(padding, str):
        padding = _padding(sizes_of(padding, spatial), sizes["kernel"], strides, dilation)
    computed: dict[str, Any] = {} if o.operand("weight") in o.writer.constants else {"tied": True}
    odd = [d * (k - 1) % 2 for k, d in zip(sizes["kernel"], dilation, strict=True)]
    if o.get("padding") == "same" and any(odd):  # PyTorch pads one side more first, in a copy
        computed |= {"pad_before": tuple((0, more) for more in odd), "filled": True}
    return o.write(
        "convolution", transposed=transposed, strides=strides, dilation=dilation, padding=padding,
        bias=o.get("bias") is not None, **sizes, **computed,
    )  # fmt: skip


def _padding(amounts: tuple[int, ...], *sizes: tuple[int, ...]) -> Any:
    """ "valid", "same" (keeps the size), (before, after) per axis; `sizes`: kernel, strides, dilation."""
    axes = zip(amounts, *sizes, strict=True)
    if not any(amounts):
        return "valid"
    same = all(stride == 1 and 2 * p == d * (k - 1) for p, k, stride, d in axes)
    return "same" if same else tuple((p, p) for p in amounts)


def _linear(o: AtenOperation) -> list[int]:
    """A dense layer; if the network computes the weights, a product of activations and an addition."""
    (*rows, features), bias = o.get("weight").shape, o.get("bias") is not None
    if o.operand("weight") not in o.writer.constants:
        product = o.write("matmul", o.operands[:2], contracted=features)
        return o.write("add", [*o.operands[2:], *product]) if bias else product
    return o.write("dense", in_features=features, out_features=prod(rows), bias=bias)


def unpacked(packed: Any) -> tuple[Any, Any]:
    """Weight and bias that a quantized layer has packed into an object."""
    with _disable_current_modes():  # packed tensors cannot be fake
        return tuple(packed.unpack())


def _dynamic_linear(o: AtenOperation) -> list[int]:
    """A dense layer with weights in 8 or 16 bits, made by `torch.ao.quantization.quantize_dynamic`."""
    weight, bias = unpacked(o.get("W_prepack"))
    start, (rows, features) = len(o.writer.builder.operations), weight.shape
    made = o.write("dense", in_features=features, out_features=rows, bias=bias is not None)
    size = features * (16 if o.op.endswith("fp16") else 8) + 32 * (bias is not None)
    o.writer.tie(start, o.path, size / (features + (bias is not None)))
    return made


def _experts(o: AtenOperation) -> list[int]:
    """The experts of a mixture: parallel dense layers; each row of the input passes through one expert."""
    weight = o.get("mat2") if o.get("weight") is None else o.get("weight")
    experts, in_features, out_features = weight.shape
    sizes = {"in_features": in_features, "out_features": out_features, "bias": False}
    return o.write("dense", o.operands[:1], experts=experts, **sizes)


def _matmul(o: AtenOperation) -> list[int]:
    """A product of two tensors, and the addition of a third tensor if there is one."""
    *added, left, right = o.operands
    left, right = (  # PyTorch joins the axes in front of the matrices
        _repeated(o, i, shape) if i in o.layout.expanded and len(shape) > 3 else i
        for i in (left, right)
        for shape in [o.writer.shape(i)]
    )
    bias = o.op == "addmm" and o.writer.constants.issuperset(added)
    product = o.write("matmul", [left, right], bias=bias)
    is_bias = o.writer.constants.issuperset([*added, right])
    return product if not added or is_bias else o.write("add", [*added, *product])


def _einsum(o: AtenOperation) -> list[int]:
    """A product, with transposes for operands that PyTorch copies and for a permuted result."""
    values, equation = o.get("tensors"), str(o.get("equation"))
    inputs, found = [i for i in map(o.tensor, values) if i is not None], as_product(equation)
    if found is None:
        return o.write("aten.einsum", equation=equation)
    terms, orders, result = found
    for k, (i, order) in enumerate(zip(inputs, orders, strict=True)):
        if i not in o.writer.constants and not o.layout.is_turned(i) and joins(values[k], order):
            axes = tuple(axis for group in order for axis in group)
            turned = replace(o, shapes=[tuple(o.writer.shape(i)[axis] for axis in axes)])
            inputs[k] = turned.write("transpose", [i], permutation=axes)[0]
            terms[k] = "".join(terms[k][axis] for axis in axes)
    labels = equation.replace(" ", "").partition("->")[2] or "".join(sorted(result))
    back = [result.index(label) for label in labels]
    shape = [o.shapes[0][labels.index(label)] for label in result]
    product = replace(o, shapes=[tuple(shape)])
    made = product.write("aten.einsum", inputs, equation=f"{','.join(terms)}->{result}")
    turned = replace(
        o, op="permute", arguments={"self": made, "dims": back}, tensor=lambda _: made[0]
    )
    return made if back == sorted(back) else _transposed(turned)


BY_CUDNN = (
    "its code leaves on cuDNN's fused attention alone: read as single operations, as PyTorch runs it on "
    "most GPUs; where it prefers cuDNN's (Hopper, Blackwell) this is faster"
)
_WHOLE = 1024
"""Up to this number of steps, causal attention takes about as long as full attention."""


def _attention(o: AtenOperation) -> list[int]:
    """Attention: one operation on (batch, heads, steps, size). Boolean masks are not operands, as in Keras.

    For other ranks, and if code turns fused kernels off (`sdpa_kernel`), PyTorch runs several operations.
    """
    from torch.backends import cuda

    fused = cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled()
    if not fused and cuda.cudnn_sdp_enabled():
        if cuda.math_sdp_enabled():  # which comes before cuDNN's in PyTorch's order
            o.writer.builder.warnings.append(BY_CUDNN)
        else:
            fused = True
    if o.get("dropout_p"):
        o.writer.builder.warnings.append(ALWAYS_DROPS)
    query, key, value = (i for n in ("query", "key", "value") if (i := o.operand(n)) is not None)
    mask = o.operand("attn_mask")
    added = [mask] if mask is not None and "float" in o.writer.builder.tensors[mask].dtype else []
    q, k = o.writer.shape(query), o.writer.shape(key)
    if o.get("is_causal") and q[-2] > _WHOLE:
        o.writer.builder.warnings.append(
            f"its causal attention of {q[-2]:,} steps counts as a full one: fused kernels skip the later "
            "steps, and the attention alone takes down to half the time"
        )
    if len(q) == 4 and fused:
        is_ordered = min(q[-3:-1]) > 1 and o.get("query").is_contiguous()
        return o.write(
            "attention", [query, key, value, *added], **{"contiguous": True} if is_ordered else {}
        )
    scores = replace(o, shapes=[(*q[:-1], k[-2])])
    weights = scores.write("scale", scores.write("matmul", [query, key], contracted=q[-1]))
    if added:
        weights = scores.write("add", [*weights, *added])
    weights = scores.write("softmax", weights)
    return o.write("matmul", [*weights, value], contracted=k[-2])


def _embedding(o: AtenOperation) -> list[int]:
    """An embedding: rows of a table, or for embedding_bag one result per bag, without storing single rows.

    An embedding_bag with mode `max` (2) also writes the row of each result.
    """
    rows, features = o.get("weight").shape
    others = [i for i in o.operands if i not in o.writer.constants]
    indices = [i for i in [o.operand("indices")] if i is not None]
    chosen = {"saved": f"{INPUT} {POSITIONS}"} if o.get("mode") == 2 else {}
    return o.write("embedding", [*indices, *others], rows=rows, out_features=features, **chosen)


_RECURRENT = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "simple_rnn", "rnn_relu": "simple_rnn"}


def _recurrent(o: AtenOperation) -> list[int]:
    """An operation for each layer and direction; the results of two directions are concatenated.

    Each operation has two bias vectors in PyTorch; Keras' LSTM and simple RNN have one. An LSTM may project
    its state to fewer features (`proj_size`).
    """
    params, kind, writer = o.get("params"), _RECURRENT[o.op], o.writer
    biased, layers = bool(o.get("has_biases")), int(o.get("num_layers", 0))
    directions = 2 if o.get("bidirectional") else 1
    if "batch_first" not in o.arguments:
        return writer.unknown(o.call(f"aten.{o.op}", o.operands, o.shapes))  # packed
    each = len(params) // (layers * directions)
    projects = each > (4 if biased else 2)
    x, weights = o.operands[0], iter(params[::each])
    states = map(o.tensor, tree_leaves(o.get("hx")))
    initial = [i for i in states if i is not None and i not in writer.constants]
    shape = writer.shape(x)
    steps = shape[1] if o.get("batch_first") and len(shape) > 2 else shape[0]
    ends: list[list[int]] = [[] for _ in o.shapes[1:]]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            rows, features = next(weights).shape
            units = rows // GATES[kind]
            part = f"l{layer}{'_reverse' * direction}" if layers * directions > 1 else ""
            state = o.shapes[1][-1]
            single = [(*writer.shape(x)[:-1], state), *(s[1:] for s in o.shapes[1:])]
            call = o.call(
                kind, [x, *initial], single, units=units, in_features=features, timesteps=steps,
                bias=biased, bias_vectors=2, **({"projection": state} if projects else {}),
            )  # fmt: skip
            output, *last = writer.write(replace(call, name=call.label(kind, part)))
            outputs.append(output)
            for end, tensor in zip(ends, last, strict=True):
                end.append(tensor)
        x = outputs[0]
        if directions > 1:
            merged = (*writer.shape(x)[:-1], sum(writer.shape(i)[-1] for i in outputs))
            x = writer.write(o.call("concatenate", outputs, [merged]))[0]
    kind = "reshape" if layers * directions == 1 else "stack"
    shapes = ([shape] for shape in o.shapes[1:])
    return [x, *(writer.write(o.call(kind, s, to))[0] for s, to in zip(ends, shapes, strict=True))]


# ---- Operations that move or choose data: slices, splits, pads, pools, copies.


def _slice(o: AtenOperation) -> list[int]:
    """A slice; one with all elements of its input is a view."""
    source = o.operands[:1]
    whole = prod(o.shapes[0]) == o.writer.elements(source[0])
    return o.write("reshape" if whole else "slice", source)


def _expand(o: AtenOperation) -> list[int]:
    """A view. If it repeats elements, at any batch size, it is recorded in `Layout.expanded`."""
    source = o.operands[0]
    grows = for_batch(o.op, o.arguments) and not o.writer.builder.tensors[source].batched
    same = prod(o.shapes[0]) == o.writer.elements(source) and not grows
    return _view(o, source) if same else _view(o, source, o.layout.expanded.get(source, source))


def _view(o: AtenOperation, source: int, owner: int | None = None, **parameters: Any) -> list[int]:
    """A view of a tensor; `owner`: the tensor that stores the elements, if the view repeats them."""
    owner = o.layout.expanded.get(source, owner)
    made = o.write("reshape", [source], **parameters)
    o.layout.expanded.update({made[0]: owner} if owner is not None else {})
    return made


def _repeated(o: AtenOperation, view: int, shape: tuple[int, ...]) -> int:
    """A copy of a view that repeats elements."""
    (made,) = o.writer.write(o.call("repeat", [o.layout.expanded[view]], [shape]))
    tensors = o.writer.builder.tensors
    tensors[made] = structs.replace(tensors[made], batched=tensors[view].batched)
    return made


FILLS = frozenset(["zeros", "ones", "full", "new_zeros", "new_ones", "new_full"])
"""Operations that fill a tensor with one value. The tensor is a constant, so its time is not counted."""


def for_batch(op: str, arguments: Mapping[str, Any], reads: bool = True) -> bool:
    """True if an operation makes a tensor as large as the batch; `reads`: True if it reads a tensor.

    A size of 1 in zeros(1, 8), token.expand(1, -1, -1) and token.repeat(1, 1, 1) is taken as the batch
    size.
    """
    size: Any = arguments.get("repeats", arguments.get("size"))
    ones = [n == 1 for n in size] if isinstance(size, (tuple, list)) else []
    if op == "repeat" or (op == "expand" and -1 in size):
        return all(ones) if op == "repeat" else any(ones)
    several = len(ones) > 1 or op.startswith("rand")  # such as a diffusion model's steps
    return (
        bool(ones)
        and several
        and ones[0]
        and (op == "expand" or op.startswith("new_") or not reads)
    )


def _pad(o: AtenOperation) -> list[int]:
    amounts = [int(n) for n in o.get("pad", o.get("padding"))]
    kind: dict[str, Any] = {"filled": True} if "constant" in o.get("mode", o.op) else {}
    kind["padding"] = tuple(zip(amounts[::2], amounts[1::2], strict=True))[::-1]  # last axis first
    return o.write("pad", **kind) if any(amounts) else o.write("identity", copied=True)


def _pool(o: AtenOperation) -> list[int]:
    """A pooling with a fixed window."""
    spatial = int(o.op.partition("pool")[2][0])
    kernel = sizes_of(o.get("kernel_size"), spatial)
    strides = sizes_of(o.get("stride") or kernel, spatial)
    padding = sizes_of(o.get("padding", 0), spatial)
    same = all(2 * p >= k - 1 > 0 for p, k in zip(padding, kernel, strict=True))
    kind, padded = "max_pool" if "max" in o.op else "average_pool", "same" if same else "valid"
    return o.write(kind, kernel=kernel, strides=strides, padding=padded)


def _adaptive_pool(o: AtenOperation) -> list[int]:
    """A pooling to a given size; to one position it is a global pooling."""
    spatial, is_max = int(o.op.partition("pool")[2][0]), "max" in o.op
    if prod(o.shapes[0][-spatial:]) == 1:
        return o.write("global_max_pool" if is_max else "global_average_pool")
    saved: dict[str, Any] = {"saved": f"{INPUT} {POSITIONS}"} if is_max else {}
    return o.write("adaptive_pool", **saved)


def _transposed(o: AtenOperation) -> list[int]:
    """A transposition; a view if it turns an image into tokens or back, or moves axes of one element."""
    source = o.operands[0]
    shape = o.writer.shape(source)
    order = _permutation(o, len(shape))
    last, channels = len(order) - 1, o.layout.channels(source)
    to_last, to_first = (0, *range(2, last + 1), 1), (0, last, *range(1, last))
    turned = last > 1 and (
        (channels == 1 and order == to_last)
        or (channels == -1 and order == to_first and last > 2)
        or (last > 2 and source in o.writer.builder.inputs and order in (to_last, to_first))
    )
    moving = [a for a in order if shape[a] > 1]
    is_view = turned or moving == sorted(moving) or source in o.layout.expanded
    if is_view:
        return _view(o, source, permutation=order)
    back = {"to_image": True} if channels == -1 and order == to_first else {}
    return o.write("transpose", [source], permutation=order, **back)


def _permutation(o: AtenOperation, rank: int) -> tuple[int, ...]:
    """The axis of the input for each axis of the output."""
    if o.op == "permute":
        return tuple(int(axis) % rank for axis in o.get("dims"))
    order, (first, second) = list(range(rank)), (o.get("dim0", 0), o.get("dim1", rank - 1))
    order[first], order[second] = order[second], order[first]
    return tuple(order)


# ---- Operations whose kind depends on an argument.


def _hardtanh(o: AtenOperation) -> list[int]:
    """A hardtanh; between 0 and 6 it is a ReLU6."""
    limits = (o.get("min_val", -1), o.get("max_val", 1))
    return o.write("relu6" if limits == (0, 6) else "hard_tanh")


def _extreme(o: AtenOperation) -> list[int]:
    """max or min: a reduction of one tensor, or an element-wise operation on two."""
    return o.write(f"{o.op}imum" if "other" in o.arguments else "reduce")


def _dropout(o: AtenOperation) -> list[int]:
    """A dropout with its rate; a view, unless the code also drops elements at inference."""
    rate = o.get("p")
    if not (isinstance(rate, int | float) and 0 < rate < 1):
        return o.write("dropout")
    if not o.get("train", True):
        return o.write("dropout", rate=float(rate))
    o.writer.builder.warnings.append(ALWAYS_DROPS)
    return o.write("dropout", rate=float(rate), always=True)


def _batch_norm(o: AtenOperation) -> list[int]:
    """A batch norm; if it uses the batch's statistics at inference, it counts as an instance norm."""
    if o.get("training"):
        return _norm(o, "instance_norm", of_batch=True)
    return _norm(o, "instance_norm" if o.get("use_input_stats") else "batch_norm")


def _norm(o: AtenOperation, kind: str = "", **parameters: Any) -> list[int]:
    """A normalization; `kind`: "" for the kind that its name says."""
    kind = kind or KIND_OF[normalized(o.op)]
    given = sum(o.get(name) is not None for name in ("weight", "bias"))
    return o.write(kind, **affine(kind, given), **parameters)


def _mean(o: AtenOperation) -> list[int]:
    """A mean; over all positions of an image it is a global average pooling."""
    source = o.operands[0]
    rank = len(o.writer.shape(source))
    axes = sorted(axis % rank for axis in tree_leaves(o.get("dim", ())))
    channels = rank - 1 if o.layout.channels(source) == -1 else 1
    image = rank > 3 and axes == [axis for axis in range(1, rank) if axis != channels]
    return o.write("global_average_pool" if image else "reduce")


def _softmax(o: AtenOperation) -> list[int]:
    """A softmax; for a float32 result PyTorch converts bfloat16 before it, and float16 inside it."""
    is_wide = o.dtype == "float32" and str(o.get("self").dtype) == "torch.bfloat16"
    inputs = o.writer.write(o.call("cast", o.operands, o.shapes)) if is_wide else None
    return o.write(o.op, inputs)


def _logsumexp(o: AtenOperation) -> list[int]:
    """A logsumexp, as the single passes over its tensor that PyTorch runs."""
    whole, write = o.writer.shape(o.operands[0]), o.writer.write
    largest = write(o.call("max", o.operands, o.shapes))
    less = write(o.call("subtract", [*o.operands, *largest], [whole]))
    total = write(o.call("sum", write(o.call("exp", less, [whole], in_place=True)), o.shapes))
    return o.write("add", [*write(o.call("log", total, o.shapes)), *largest])


def _cast(o: AtenOperation) -> list[int]:
    """A conversion to another data type; a change of device or memory format alone is a view."""
    if o.writer.builder.tensors[o.operands[0]].dtype != o.dtype:
        return o.write("cast", o.operands[:1])
    return o.write("identity", o.operands[:1], copied=True) if o.get("copy") else _reshaped(o)


def _reshaped(o: AtenOperation) -> list[int]:
    """A view in another shape; an expanded tensor is copied if PyTorch cannot view it in this shape."""
    source = o.operands[:1]
    if source[0] in o.layout.expanded:
        joins = o.op in ("reshape", "flatten") and o.shapes[0][0] != 1  # the batch and another axis
        if o.is_copy or joins or o.op in ("clone", "contiguous"):
            return [_repeated(o, source[0], o.shapes[0])]
    if o.writer.shape(source[0]) != o.shapes[0]:
        return _view(o, source[0])
    if o.op not in ("clone", "detach"):
        return source
    # A transposition counts as a copy.
    is_made = o.op == "clone" and not o.layout.is_turned(source[0])
    return o.write("identity", source, **{"copied": True} if is_made else {})


# ---- The tables.


def _names(pattern: str, **choices: str) -> str:
    """Fill a pattern such as "{how}_pool{d}" with each word of each choice; names separated by spaces."""
    names = [pattern]
    for key, words in choices.items():
        names = [n.replace(f"{{{key}}}", word) for n in names for word in words.split(" ")]
    return " ".join(names)


_D = "1d 2d 3d"
_CONVOLUTIONS = "convolution _convolution " + _names("conv{t}{d}", t=" _transpose", d=_D)
_PRODUCTS = "matmul mm bmm addmm baddbmm"
DYNAMIC_LINEAR = ("quantized::linear_dynamic", "quantized::linear_dynamic_fp16")
_RULES: dict[Rule, str] = {
    _convolution: _CONVOLUTIONS, _matmul: _PRODUCTS, _linear: "linear",
    _dynamic_linear: " ".join(DYNAMIC_LINEAR).replace("::", "."),
    _einsum: "einsum", _experts: "_grouped_mm transformers.grouped_mm_fallback",
    _embedding: "embedding embedding_bag _embedding_bag",
    _attention: "scaled_dot_product_attention",
    _recurrent: " ".join(_RECURRENT), _slice: "slice select",
    lambda o: o.write("split", o.operands[:1]): "chunk split split_with_sizes unbind unsafe_split "
    "split_copy split_with_sizes_copy",
    _expand: "expand broadcast_to", copied: "copy", scattered: BY_INDEX,
    _pad: "pad constant_pad_nd " + _names("{how}_pad{d}", how="reflection replication", d=_D),
    _pool: _names("{how}_pool{d}{tail}", how="max avg", d=_D, tail=" _with_indices"),
    _adaptive_pool: _names("{u}adaptive_{how}_pool{d}", u=" _", how="max avg", d=_D),
    _norm: "layer_norm native_layer_norm group_norm native_group_norm rms_norm _fused_rms_norm",
    _batch_norm: "batch_norm instance_norm", _hardtanh: "hardtanh", _extreme: "max min", _mean: "mean",
    _dropout: "dropout feature_dropout alpha_dropout native_dropout feature_alpha_dropout",
    _cast: "to _to_copy", _softmax: "softmax",
    _logsumexp: "logsumexp",
    _reshaped: "view _unsafe_view reshape flatten squeeze unsqueeze contiguous alias detach clone "
    "lift_fresh lift_fresh_copy",
    _transposed: "permute transpose t",
}  # fmt: skip
RULES = by_name(_RULES)
"""ATen operation -> its rule."""
NAMES = {
    **{f"__{name}__": f"bitwise_{name}" for name in ("and", "or", "xor")},
    **dict.fromkeys(("lolat.roi_align", "torchvision.roi_align"), "resize"),
    **dict.fromkeys(_names("{u}upsample_{how}", u=" _", how="nearest1d nearest2d nearest3d linear1d "
                           "bilinear2d bicubic2d trilinear3d bilinear2d_aa bicubic2d_aa lanczos2d_aa "
                           "nearest_exact1d nearest_exact2d nearest_exact3d").split(), "resize"),
}  # fmt: skip
"""ATen operation -> its name in `lolat.readers.ops`, if that differs."""
NEVER_FOLDED = frozenset(f"{_CONVOLUTIONS} {_PRODUCTS} linear einsum".split()) | set(_RECURRENT)
"""Operations that stay in the graph even if all their operands are constants."""


def is_known(op: str) -> bool:
    """True if an operation has a rule or a kind; other operations are decomposed into smaller ones."""
    return op in RULES or op in NAMES or normalized(op) in KIND_OF
