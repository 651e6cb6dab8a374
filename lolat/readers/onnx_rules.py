"""One rule per ONNX operator: how a call of it is written as operations.

Names and order of the operands are those of the ONNX operator documentation; what each kind of operation
counts is in lolat/counts.py. An operator without a rule keeps its name, and is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lolat.readers import onnx_layers
from lolat.readers.onnx_layout import pooled
from lolat.readers.onnx_nodes import Node
from lolat.readers.onnx_patterns import clip_limits

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
    **onnx_layers.RULES,
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
