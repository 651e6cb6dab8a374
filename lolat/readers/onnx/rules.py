"""One rule per ONNX operator: how a call of it is written as operations.

Names and order of the operands are those of the ONNX operator documentation; what each kind of operation
counts is in lolat/graph/counts.py. An operator without a rule keeps its name, and is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from lolat.errors import NetworkError
from lolat.readers.onnx.nodes import Node, pooled
from lolat.readers.onnx.patterns import clip_limits

# ---- How ONNX's heavy operators are written: convolutions, products, recurrent layers,
# attention.
#
# A rule gets the writer (`onnx_writer.Writer`) and the node, and writes its operations.


def padding(node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> Any:
    """ "valid", "same" (what keeps the size but for the stride), or (before, after) of each axis."""
    a = node.attributes
    spatial = len(after)
    auto = str(a.get("auto_pad", "NOTSET"))
    if auto.startswith("SAME"):
        return "same"
    pads = [int(n) for n in a.get("pads", ())] or [0] * (2 * spatial)
    if auto == "VALID" or not any(pads):
        return "valid"
    strides = a.get("strides") or [1] * spatial
    if all(-(-n // s) == m for n, s, m in zip(before, strides, after, strict=True)):
        return "same"
    return tuple(zip(pads[:spatial], pads[spatial:], strict=True))


def convolution(w: Any, node: Node) -> None:
    """A convolution; of as many groups as channels it is depthwise."""
    integer = node.op == "ConvInteger"
    at = 3 if node.op == "QLinearConv" else 1
    weights, source = node.inputs[at], node.inputs[0]
    shape, kernel = w.net.shapes[source], w.net.shapes[weights]
    groups = int(node.attributes.get("group", 1))
    transposed = node.op == "ConvTranspose"
    inside = shape[1]
    outside = kernel[1] * groups if transposed else kernel[0]
    if (kernel[0] if transposed else kernel[1] * groups) != inside:
        raise NetworkError(
            f"node {node.name or node.outputs[0]!r} ({node.op}) of {w.net.name!r} has weights of "
            f"{'x'.join(map(str, kernel))} in {groups} groups for {inside} channels; the file is damaged"
        )
    kind = "grouped_conv" if groups > 1 else "conv"
    if groups > 1 and groups == inside:
        kind = "depthwise_conv"
    if transposed:
        kind = "transposed_conv"
    after = w.net.shapes[node.outputs[0]]
    spatial = len(kernel) - 2
    given = node.input(8 if at == 3 else 2)
    made_up = given not in w.net.parameters and not np.any(w.net.values.get(given, 1))
    bias = bool(given) and not made_up and not integer
    operands = [source] if w.net.constant(weights) else [source, weights]
    w.write(
        node, kind, operands,
        kernel=kernel[2:],
        strides=tuple(node.attributes.get("strides") or (1,) * spatial),
        dilation=tuple(node.attributes.get("dilations") or (1,) * spatial),
        padding=padding(node, shape[2:], after[2:]) if not transposed else _transposed(node, shape, after),
        bias=bias or bool(node.extra.get("bias")),
        in_channels=inside, out_channels=outside, groups=groups,
    )  # fmt: skip


def _transposed(node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> Any:
    """The padding of a transposed convolution: "same" where it enlarges by its stride."""
    strides = node.attributes.get("strides") or (1,) * (len(before) - 2)
    same = all(n * s == m for n, s, m in zip(before[2:], strides, after[2:], strict=True))
    pads = [int(n) for n in node.attributes.get("pads", ())]
    half = len(pads) // 2
    if same:
        return "same"
    return tuple(zip(pads[:half], pads[half:], strict=True)) if any(pads) else "valid"


def pool(w: Any, node: Node) -> None:
    """A pooling over windows."""
    kernel = tuple(int(n) for n in node.attributes["kernel_shape"])
    before, after = w.net.shapes[node.inputs[0]], w.net.shapes[node.outputs[0]]
    w.write(
        node, "max_pool" if node.op == "MaxPool" else "average_pool", node.inputs[:1], kernel=kernel,
        strides=tuple(node.attributes.get("strides") or (1,) * len(kernel)),
        padding=padding(node, before[2:], after[2:]),
    )  # fmt: skip


def _product(w: Any, node: Node, left: str, right: str, contracted: int, bias: bool) -> None:
    """A dense layer where the right operand is constant, else a product of two activations."""
    if w.net.constant(right):
        outside = w.net.elements(right) // max(contracted, 1)
        w.write(node, "dense", [left], in_features=contracted, out_features=outside, bias=bias)
    else:
        w.write(node, "matmul", [left, right], contracted=contracted)


def matmul(w: Any, node: Node) -> None:
    """A product over the last axis of the left operand."""
    right = node.inputs[{"QLinearMatMul": 3}.get(node.op, 1)]
    contracted = (w.net.shapes[node.inputs[0]] or (1,))[-1]
    _product(w, node, node.inputs[0], right, contracted, bool(node.extra.get("bias")))


def gemm(w: Any, node: Node) -> None:
    """A product of two matrices and perhaps the addition of a third."""
    left, right, third = node.inputs[0], node.inputs[1], node.input(2)
    contracted = w.net.shapes[left][0 if node.attributes.get("transA") else 1]
    if not third or w.net.constant(third):
        bias = bool(third) or bool(node.extra.get("bias"))
        return _product(w, node, left, right, contracted, bias)
    out = node.outputs[0]
    between = w.temporary(f"{out} (product)", w.net.shapes[out], out)
    first = Node("Gemm", "", node.name, node.path, [left, right], [between])
    _product(w, first, left, right, contracted, False)
    w.write(node, "add", [between, third])
    return None


def einsum(w: Any, node: Node) -> None:
    """A product of two operands; another number of them has no formula."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    if len(node.inputs) != 2 or "->" not in equation:
        return w.write(node, "Einsum", node.inputs)
    inputs, result = equation.split("->")
    left, right = node.inputs
    sizes: dict[str, int] = {}
    for labels, name in zip(inputs.split(","), node.inputs, strict=True):
        shape = w.net.shapes[name]
        named = labels.replace("...", "")
        own = shape if "..." not in labels else (
            *shape[: labels.index(".")], *shape[len(shape) - len(named) + labels.index(".") :]
        )  # fmt: skip
        sizes |= dict(zip(named, own, strict=False))
    contracted = prod(n for label, n in sizes.items() if label not in result)
    if w.net.constant(left) and not w.net.constant(right):
        left, right = right, left
    return _product(w, node, left, right, contracted, bool(node.extra.get("bias")))


_RECURRENT = {"LSTM": "lstm", "GRU": "gru", "RNN": "simple_rnn"}


def recurrent(w: Any, node: Node) -> None:
    """One operation per direction, and the concatenation of what two directions give."""
    a = node.attributes
    kind = _RECURRENT[node.op]
    shape = w.net.shapes[node.inputs[0]]
    states = [n for n in node.inputs[4:] if n and n in w.net.live]
    attributes = {
        "units": int(a.get("hidden_size") or w.net.shapes[node.inputs[2]][-1]),
        "in_features": shape[-1], "timesteps": shape[1 if a.get("layout") else 0],
        "bias": bool(node.input(3)), "sequences": w.read(node.outputs[0]),
        "bias_vectors": 2,  # of the input and of the state, as in PyTorch; Keras' LSTM has one
    }  # fmt: skip
    if a.get("direction", "forward") != "bidirectional":
        w.write(node, kind, [node.inputs[0], *states], **attributes)
        return
    axis = 2 if a.get("layout") else 1
    parts: list[list[str]] = []
    outputs = [o for o in node.outputs if w.read(o)] or node.outputs[:1]
    for way in ("forward", "backward"):
        names = []
        for out in outputs:
            half = list(w.net.shapes[out])
            half[axis if out == node.outputs[0] else (1 if a.get("layout") else 0)] = 1
            names.append(w.temporary(f"{out} ({way})", tuple(half), out))
        single = Node(node.op, "", f"{node.name}_{way}", node.path, node.inputs, names)
        w.write(single, kind, [node.inputs[0], *states], **attributes)
        parts.append(names)
    for position, out in enumerate(outputs):
        merge = Node("Concat", "", f"{node.name}_merge", node.path, [], [out])
        w.write(merge, "concatenate", [names[position] for names in parts])


def attention(w: Any, node: Node) -> None:
    """The operator Attention (opset 23): two products, the scaling of the scores, a mask, the softmax."""
    query, key, value = node.inputs[:3]
    q, k = (w.net.shapes[n] for n in (query, key))
    heads = int(node.attributes.get("q_num_heads") or (q[1] if len(q) == 4 else 1))
    size = q[-1] if len(q) == 4 else q[-1] // heads
    past = w.net.shapes[node.input(4)][2] if node.input(4) else 0
    steps, other = q[-2], k[-2] + past
    out = node.outputs[0]
    shape = (q[0], heads, steps, other)

    def step(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        made = w.temporary(f"{out} ({name})", shape, out)
        w.write(
            Node(kind, "", f"{node.name}_{name}", node.path, inputs, [made]),
            kind,
            inputs,
            **attributes,
        )
        return str(made)

    scores = step("matmul", [query, key], "scores", contracted=size)
    scores = step("scale", [scores], "scale")
    if node.input(3):
        scores = step("add", [scores, node.input(3)], "mask")
    weights = step("softmax", [scores], "softmax")
    mix = Node("matmul", "", f"{node.name}_mix", node.path, [weights, value], [out])
    w.write(mix, "matmul", [weights, value], contracted=other)
    for position, name in ((1, key), (2, value)):
        if len(node.outputs) > position and w.read(node.outputs[position]):
            joined = Node(
                "Concat", "", f"{node.name}_cache", node.path, [], [node.outputs[position]]
            )
            w.write(joined, "concatenate", [n for n in (node.input(position + 3), name) if n])


_HEAVY = {
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "QLinearConv", "ConvInteger", "DeformConv"), convolution
    ),
    **dict.fromkeys(("MatMul", "QLinearMatMul", "MatMulInteger"), matmul),
    **dict.fromkeys(("MaxPool", "AveragePool"), pool),
    **dict.fromkeys(_RECURRENT, recurrent),
    "Gemm": gemm,
    "Einsum": einsum,
    "Attention": attention,
}

# ---- onnx rules ----------------------------------------

Rule = Callable[[Any, Node], None]


def _first(kind: str) -> Rule:
    """An operation on the first operand; the others are its parameters."""
    return lambda w, node: w.write(node, kind, node.inputs[:1])


def _operands(kind: str) -> Rule:
    """An operation on all operands, constants too; a single number is none."""
    return lambda w, node: w.write(node, kind, w.operands(node))


def _fill(w: Any, node: Node) -> None:
    w.write(node, "fill", [])


def _clip(w: Any, node: Node) -> None:
    kinds = {(0, 6): "relu6", (0, None): "relu", (-1, 1): "hard_tanh"}
    w.write(node, kinds.get(clip_limits(w.net, node), "clip"), node.inputs[:1])  # type: ignore[arg-type]


def _cast(w: Any, node: Node) -> None:
    same = w.net.dtypes[node.inputs[0]] == w.net.dtypes[node.outputs[0]]
    w.write(node, "identity" if same else "cast", node.inputs[:1])


def _pad(w: Any, node: Node) -> None:
    before, after = (w.net.shapes[n] for n in (node.inputs[0], node.outputs[0]))
    pads = node.attributes.get("pads")
    given = w.net.values.get(node.input(1)) if pads is None else pads
    if given is None:
        pairs = [(0, n - m) for m, n in zip(before, after, strict=True)]
    elif len(given) == 2 * len(before):
        half = len(before)
        pairs = [(int(given[i]), int(given[i + half])) for i in range(half)]
    else:  # of some axes alone
        pairs = [(0, n - m) for m, n in zip(before, after, strict=True)]
    if any(n < 0 for pair in pairs for n in pair):
        return w.write(node, "crop", node.inputs[:1])
    moved = [i for i, pair in enumerate(pairs) if any(pair)]
    spatial = pairs[2:] if all(i > 1 for i in moved) else pairs[1:]
    return w.write(node, "pad", node.inputs[:1], padding=tuple(spatial))


def _gather(w: Any, node: Node) -> None:
    """An embedding where a table of parameters is read, a slice where the place is fixed, else a gather."""
    data, indices = node.inputs[:2]
    shape = w.net.shapes[data]
    table = w.net.constant(data) and len(shape) == 2 and "float" in w.net.dtypes[data]
    if node.op == "Gather" and table and node.attributes.get("axis", 0) == 0:
        return w.write(node, "embedding", [indices], rows=shape[0], out_features=shape[1])
    if w.net.constant(indices) and w.net.elements(indices) == 1:
        return w.write(node, "slice", [data])
    return w.write(node, "gather", [data, indices])


def _slice(w: Any, node: Node) -> None:
    w.write(node, "slice", node.inputs[:1])


def _split(w: Any, node: Node) -> None:
    """One slice per part that is read."""
    for out in node.outputs:
        if w.read(out):
            part = Node("Slice", "", node.name, node.path, node.inputs[:1], [out])
            w.write(part, "slice", node.inputs[:1])


def _reduce(w: Any, node: Node) -> None:
    """A reduction; the mean or the largest of each channel is global pooling."""
    source = node.inputs[0]
    axes = node.attributes.get("axes")
    if axes is None and node.input(1):
        axes = w.net.values.get(node.inputs[1])
    kinds = {"ReduceMean": "global_average_pool", "ReduceMax": "global_max_pool"}
    kind = "reduce"
    if node.op in kinds and axes is not None and pooled(w.net, [int(a) for a in axes], source):
        kind = kinds[node.op]
    w.write(node, kind, [source])


_ELEMENTWISE = {
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
    "transpose": "Transpose DepthToSpace SpaceToDepth ReverseSequence", "resize": "Resize Upsample",
    "repeat": "Tile Expand", "cumulative": "CumSum", "sort": "TopK", "reduce": "ArgMax ArgMin",
    "where": "Trilu",
}  # fmt: skip
"""Kind -> operators on their first operand."""

_REDUCTIONS = ("ReduceMean ReduceMax ReduceMin ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
               "ReduceLogSumExp ReduceSumSquare")  # fmt: skip
_FILLS = ("ConstantOfShape RandomNormal RandomUniform RandomNormalLike RandomUniformLike EyeLike Range "
          "Bernoulli")  # fmt: skip


def _by_name(kinds: dict[str, str], rule: Callable[[str], Rule]) -> dict[str, Rule]:
    return {name: rule(kind) for kind, names in kinds.items() for name in names.split()}


RULES: dict[str, Rule] = {
    **_by_name(_ELEMENTWISE, _operands),
    **_by_name(_PLAIN, _first),
    **dict.fromkeys(_REDUCTIONS.split(), _reduce),
    **dict.fromkeys(_FILLS.split(), _fill),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _gather),
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast,
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
    **_HEAVY,
}


def write(w: Any, node: Node) -> None:
    """Write a node: what a pattern found it to be, by its rule, or under its own name as unknown."""
    if node.kind == "scale":
        w.write(node, "scale", w.net.live_inputs(node))
    elif node.kind:
        w.write(node, node.kind, node.inputs[:1])
    elif not node.domain and node.op in RULES:
        RULES[node.op](w, node)
    else:
        domain = f"{node.domain}." if node.domain else ""
        w.write(node, f"{domain}{node.op}", w.operands(node))
