"""One rule per ONNX operator: how a call of it is written as operations (see `lolat.readers.rules`).

Names and order of the operands are those of the ONNX operator documentation; what each kind of operation
counts is in lolat/graph/counts.py. An operator without a rule keeps its name, and is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lolat.errors import NetworkError
from lolat.readers.onnx.nodes import Node, permutation, pooled
from lolat.readers.onnx.patterns import clip_limits
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

Names = list[str]


def _padding(node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> Any:
    """ "valid", "same" (what keeps the size but for the stride), or (before, after) of each axis."""
    a, spatial = node.attributes, len(after)
    auto = str(a.get("auto_pad", "NOTSET"))
    if auto.startswith("SAME"):
        return "same"
    pads = [int(n) for n in a.get("pads", ())] or [0] * (2 * spatial)
    strides = a.get("strides") or [1] * spatial
    if node.op == "ConvTranspose":  # "same" where it enlarges by its stride
        same = all(n * s == m for n, s, m in zip(before, strides, after, strict=True))
        if same or not any(pads):
            return "same" if same else "valid"
    elif auto == "VALID" or not any(pads):
        return "valid"
    elif all(-(-n // s) == m for n, s, m in zip(before, strides, after, strict=True)):
        return "same"
    return tuple(zip(pads[:spatial], pads[spatial:], strict=True))


def _window(w: Any, node: Node, kernel: tuple[int, ...]) -> dict[str, Any]:
    """How a convolution or a pooling slides."""
    shapes = w.net.shapes
    before, after = shapes[node.inputs[0]], shapes[node.outputs[0]]
    return {
        "kernel": kernel,
        "strides": tuple(node.attributes.get("strides") or (1,) * len(kernel)),
        "padding": _padding(node, before[2:], after[2:]),
    }


def _unfit(w: Any, node: Node, weights: Sequence[int], where: str) -> NetworkError:
    """What to raise for weights of a shape that others of the node's facts deny."""
    return NetworkError(
        f"node {node.name or node.outputs[0]!r} ({node.op}) of {w.net.name!r} has weights of "
        f"{'x'.join(map(str, weights))} {where}; the file is damaged"
    )


def _convolution(w: Any, node: Node) -> Names:
    """A convolution; of as many groups as channels it is depthwise."""
    at = 3 if node.op == "QLinearConv" else 1
    weights, source = node.inputs[at], node.inputs[0]
    inside, kernel = w.net.shapes[source][1], w.net.shapes[weights]
    groups = int(node.attributes.get("group", 1))
    transposed = node.op == "ConvTranspose"
    if (kernel[0] if transposed else kernel[1] * groups) != inside:
        raise _unfit(w, node, kernel, f"in {groups} groups for {inside} channels")
    kind = "conv" if groups == 1 else "depthwise_conv" if groups == inside else "grouped_conv"
    vector = node.input(8 if at == 3 else 2)
    is_zero = vector not in w.net.parameters and not np.any(w.net.values.get(vector, 1))
    bias = bool(vector) and not is_zero and node.op != "ConvInteger"
    return w.write(
        node, "transposed_conv" if transposed else kind,
        [source] if w.net.constant(weights) else [source, weights],
        dilation=tuple(node.attributes.get("dilations") or (1,) * (len(kernel) - 2)),
        bias=bias or node.bias, in_channels=inside,
        out_channels=kernel[1] * groups if transposed else kernel[0], groups=groups,
        **_window(w, node, kernel[2:]),
    )  # fmt: skip


def _pool(w: Any, node: Node) -> Names:
    """A pooling over windows."""
    kernel = tuple(int(n) for n in node.attributes["kernel_shape"])
    kind = "max_pool" if node.op == "MaxPool" else "average_pool"
    return w.write(node, kind, node.inputs[:1], **_window(w, node, kernel))


def _matmul(w: Any, node: Node) -> Names:
    """A product over the last axis of the left operand."""
    left, right = node.inputs[0], node.inputs[3 if node.op == "QLinearMatMul" else 1]
    contracted = (w.net.shapes[left] or (1,))[-1]
    return product(w, node, left, right, contracted, node.bias)


def _gemm(w: Any, node: Node) -> Names:
    """A product of two matrices and perhaps the addition of a third."""
    left, right, third = node.inputs[0], node.inputs[1], node.input(2)
    contracted = w.net.shapes[left][0 if node.attributes.get("transA") else 1]
    if not third or w.net.constant(third):
        bias = bool(third) or node.bias
        return product(w, node, left, right, contracted, bias)
    between = w.temporary(f"{node.outputs[0]} (product)", w.net.shapes[node.outputs[0]], node)
    first = Node("Gemm", "", node.name, node.path, [left, right], [between])
    product(w, first, left, right, contracted)
    return w.write(node, "add", [between, third])


def _einsum(w: Any, node: Node) -> Names:
    """A product of two operands; another number of them has no formula."""
    equation = str(node.attributes["equation"])
    if len(node.inputs) != 2 or "->" not in equation:
        return w.write(node, "Einsum", node.inputs)
    labels, result = einsum_terms(equation)
    operands = list(zip(node.inputs, labels, strict=True))
    if w.net.constant(node.inputs[0]) and not w.net.constant(node.inputs[1]):
        operands.reverse()
    (left, _), (right, its_labels) = operands
    contracted, _ = einsum_features(its_labels, result, w.net.shapes[right])
    return product(w, node, left, right, contracted, node.bias)


_RECURRENT = {"LSTM": ("lstm", 4), "GRU": ("gru", 3), "RNN": ("simple_rnn", 1)}
"""What it is called, and its gates."""


def _recurrent(w: Any, node: Node) -> Names:
    """One operation per direction, and the concatenation of what two directions give."""
    a, (kind, gates), shapes = node.attributes, _RECURRENT[node.op], w.net.shapes
    batch_first, both = bool(a.get("layout")), a.get("direction", "forward") == "bidirectional"
    shape = shapes[node.inputs[0]]
    units = int(a.get("hidden_size") or shapes[node.inputs[2]][-1])
    for weights, features in zip(node.inputs[1:3], (shape[-1], units), strict=True):
        if shapes[weights] != (1 + both, gates * units, features):
            raise _unfit(w, node, shapes[weights], f"for {features} features and {units} units")
    inputs = [node.inputs[0], *(n for n in node.inputs[4:] if n and n in w.net.live)]
    attributes = {
        "units": units,
        "in_features": shape[-1], "timesteps": shape[1 if batch_first else 0],
        "bias": bool(node.input(3)), "sequences": w.read(node.outputs[0]),
        "bias_vectors": 2,  # of the input and of the state, as in PyTorch; Keras' LSTM has one
    }  # fmt: skip
    if not both:
        return w.write(node, kind, inputs, **attributes)
    outputs = [name for name in w.outputs(node) if name]  # "": one that the network leaves out
    axes = [1 + batch_first if out == node.outputs[0] else int(batch_first) for out in outputs]
    ways: list[Names] = []
    for way in ("forward", "backward"):
        names = []
        for out, axis in zip(outputs, axes, strict=True):
            half = (*shapes[out][:axis], 1, *shapes[out][axis + 1 :])
            names.append(w.temporary(f"{out} ({way})", half, node))
        single = Node(node.op, "", f"{node.name}_{way}", node.path, node.inputs, names)
        ways.append(w.write(single, kind, inputs, **attributes))
    for out, axis, *parts in zip(outputs, axes, *ways, strict=True):
        merge = Node("Concat", "", f"{node.name}_merge", node.path, [], [out])
        w.write(merge, "concatenate", parts, axis=axis)
    return outputs


def _attention(w: Any, node: Node) -> Names:
    """The operator Attention (opset 23), on (batch, heads, steps, size) or with the heads side by side."""
    query, key, value = node.inputs[:3]
    q, k, v = (w.net.shapes[n] for n in (query, key, value))
    heads = int(node.attributes.get("q_num_heads") or (q[1] if len(q) == 4 else 1))
    key_heads = int(node.attributes.get("kv_num_heads") or (k[1] if len(k) == 4 else 1))
    past = w.net.shapes[node.input(4)][2] if node.input(4) else 0
    single = Node(node.op, node.domain, node.name, node.path, node.inputs, node.outputs[:1])
    w.write(
        single, "attention", [query, key, value, *([node.input(3)] if node.input(3) else [])],
        heads=heads, key_heads=key_heads, queries=q[-2], keys=k[-2] + past,
        head_size=q[-1] if len(q) == 4 else q[-1] // heads,
        value_size=v[-1] if len(v) == 4 else v[-1] // key_heads,
    )  # fmt: skip
    for position, own in ((1, key), (2, value)):
        if len(node.outputs) > position and w.read(node.outputs[position]):
            out = node.outputs[position]
            joined = Node("Concat", "", f"{node.name}_cache", node.path, [], [out])
            w.write(
                joined, "concatenate", [n for n in (node.input(position + 3), own) if n], axis=2
            )
    return node.outputs


def _fill(w: Any, node: Node) -> Names:
    return w.write(node, "fill", [])


def _clip(w: Any, node: Node) -> Names:
    kinds = {(0, 6): "relu6", (0, None): "relu", (-1, 1): "hard_tanh"}
    limits: Any = clip_limits(w.net, node)
    return w.write(node, kinds.get(limits, "clip"), node.inputs[:1])


def _cast(w: Any, node: Node) -> Names:
    same = w.net.dtypes[node.inputs[0]] == w.net.dtypes[node.outputs[0]]
    return w.write(node, "identity" if same else "cast", node.inputs[:1])


def _pad(w: Any, node: Node) -> Names:
    before, after = (w.net.shapes[n] for n in (node.inputs[0], node.outputs[0]))
    pads = w.numbers(node, "pads", 1)
    half = len(before)
    if pads is None or len(pads) != 2 * half:  # not known, or of some axes alone
        pairs = [(0, n - m) for m, n in zip(before, after, strict=True)]
    else:
        pairs = list(zip(pads[:half], pads[half:], strict=True))
    if any(n < 0 for pair in pairs for n in pair):
        return w.write(node, "crop", node.inputs[:1])
    moved = [i for i, pair in enumerate(pairs) if any(pair)]
    spatial = pairs[2:] if all(i > 1 for i in moved) else pairs[1:]
    return w.write(node, "pad", node.inputs[:1], padding=tuple(spatial))


def _transpose(w: Any, node: Node) -> Names:
    return w.write(node, "transpose", node.inputs[:1], permutation=permutation(w.net, node))


def _gather(w: Any, node: Node) -> Names:
    """An embedding where a table of parameters is read, a slice where the place is fixed, else a gather."""
    data, indices = node.inputs[:2]
    shape = w.net.shapes[data]
    axis = node.attributes.get("axis", 0)
    table = w.net.constant(data) and len(shape) == 2 and "float" in w.net.dtypes[data]
    if node.op == "Gather" and table and axis == 0:
        return w.write(node, "embedding", [indices], rows=shape[0], out_features=shape[1])
    if not w.net.constant(indices) or w.net.elements(indices) != 1:
        return w.write(node, "gather", [data, indices], **w.axes(node, "gather"))
    place = w.net.values.get(indices)
    part: dict[str, Any] = {}
    if node.op == "Gather" and place is not None:
        axis %= len(shape)
        gone = () if w.net.shapes[indices] else (axis,)
        part = part_of(shape, {axis: int(place.reshape(()))}, gone=gone)
    return w.write(node, "slice", [data], **part)


def _slice(w: Any, node: Node) -> Names:
    shape = w.net.shapes[node.inputs[0]]
    names = ("starts", "ends", "axes", "steps")
    starts, _, axes, steps = (w.numbers(node, name, at) for at, name in enumerate(names, start=1))
    if starts is None or (node.input(3) and axes is None) or (node.input(4) and steps is None):
        return w.write(node, "slice", node.inputs[:1])
    axes = [a % len(shape) for a in (range(len(starts)) if axes is None else axes)]
    part = part_of(
        shape,
        dict(zip(axes, starts, strict=True)),
        dict(zip(axes, steps or [1] * len(axes), strict=True)),
    )
    return w.write(node, "slice", node.inputs[:1], **part)


def _split(w: Any, node: Node) -> Names:
    """One slice per part that is read."""
    shapes, start = w.net.shapes, 0
    shape = shapes[node.inputs[0]]
    axis = node.attributes.get("axis", 0) % len(shape)
    for out in node.outputs:
        if w.read(out):
            part = Node("Slice", "", node.name, node.path, node.inputs[:1], [out])
            w.write(part, "slice", node.inputs[:1], **part_of(shape, {axis: start}))
        start += shapes[out][axis] if out in shapes else 0
    return node.outputs


def _reduce(w: Any, node: Node) -> Names:
    """A reduction; the mean or the largest of each channel is global pooling."""
    source, axes = node.inputs[0], w.numbers(node, "axes", 1)
    kinds = {"ReduceMean": "global_average_pool", "ReduceMax": "global_max_pool"}
    if node.op in kinds and axes is not None and pooled(w.net, axes, source):
        return w.write(node, kinds[node.op], [source])
    return w.write(node, "reduce", [source], **w.axes(node, "reduce"))


_OPERANDS = {
    "add": "Add Sum", "subtract": "Sub", "multiply": "Mul", "divide": "Div Mod", "power": "Pow",
    "average": "Mean", "maximum": "Max", "minimum": "Min", "where": "Where",
    "compare": "Equal Greater Less GreaterOrEqual LessOrEqual And Or Xor",
    "bitwise": "BitwiseAnd BitwiseOr BitwiseXor BitShift", "concatenate": "Concat",
    "scatter": "ScatterND ScatterElements Scatter TensorScatter",
}  # fmt: skip
"""Kind -> operators all of whose operands count."""

_PLAIN = {
    "relu": "Relu", "leaky_relu": "LeakyRelu", "prelu": "PRelu", "elu": "Elu", "selu": "Selu",
    "celu": "Celu",
    "silu": "Swish", "sigmoid": "Sigmoid", "hard_sigmoid": "HardSigmoid", "hard_silu": "HardSwish",
    "tanh": "Tanh", "softmax": "Softmax Hardmax", "log_softmax": "LogSoftmax", "softplus": "Softplus",
    "softsign": "Softsign", "mish": "Mish", "threshold": "ThresholdedRelu", "soft_shrink": "Shrink",
    "gelu": "Gelu", "erf": "Erf", "sqrt": "Sqrt", "absolute": "Abs", "negative": "Neg", "log": "Log",
    "exp": "Exp",    "reciprocal": "Reciprocal", "round": "Round Floor Ceil", "sign": "Sign",
    "compare": "Not IsNaN IsInf", "bitwise": "BitwiseNot", "one_hot": "OneHot",
    "trigonometric": "Sin Cos Tan Sinh Cosh Asin Acos Atan Asinh Acosh Atanh",
    "batch_norm": "BatchNormalization", "layer_norm": "LayerNormalization MeanVarianceNormalization",
    "instance_norm": "InstanceNormalization", "group_norm": "GroupNormalization",
    "rms_norm": "RMSNormalization SimplifiedLayerNormalization", "unit_norm": "LpNormalization",
    "global_average_pool": "GlobalAveragePool", "global_max_pool": "GlobalMaxPool",
    "average_pool": "GlobalLpPool",
    "reshape": "Reshape Flatten Squeeze Unsqueeze", "dropout": "Dropout", "identity": "Identity",
    "transpose": "DepthToSpace SpaceToDepth ReverseSequence", "resize": "Resize Upsample",
    "repeat": "Tile Expand", "cumulative": "CumSum", "sort": "TopK", "reduce": "ArgMax ArgMin",
    "where": "Trilu",
}  # fmt: skip
"""Kind -> operators on their first operand."""

_REDUCTIONS = ("ReduceMean ReduceMax ReduceMin ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
               "ReduceLogSumExp ReduceSumSquare")  # fmt: skip
_FILLS = ("ConstantOfShape RandomNormal RandomUniform RandomNormalLike RandomUniformLike EyeLike Range "
          "Bernoulli")  # fmt: skip


RULES: dict[str, Rule] = {
    **by_name(_OPERANDS, on_operands),
    **by_name(_PLAIN, plain),
    **dict.fromkeys(_REDUCTIONS.split(), _reduce),
    **dict.fromkeys(_FILLS.split(), _fill),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _gather),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Conv", "ConvTranspose", "QLinearConv", "ConvInteger", "DeformConv"), _convolution),
    **dict.fromkeys(("MatMul", "QLinearMatMul", "MatMulInteger"), _matmul),
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(_RECURRENT, _recurrent),
    "Attention": _attention,
    "Clip": _clip,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transpose,
}  # fmt: skip


def write(w: Any, node: Node) -> Names:
    """Write a node: what a pattern found it to be, by its rule, or under its own name as unknown."""
    if node.kind:
        return w.write(node, node.kind, node.inputs[:1])
    if not node.domain and node.op in RULES:
        return RULES[node.op](w, node)
    domain = f"{node.domain}." if node.domain else ""
    return w.write(node, f"{domain}{node.op}", w.operands(node))
