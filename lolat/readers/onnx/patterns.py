"""Finds operations that ONNX exporters decompose: activations, normalizations, biases, rolls.

A pattern is a region of operators with one input tensor and one output tensor. The labels of its operators,
in any order, identify it. A label is an operator's name and a mark for its other operand: `Add*` for a
constant number, `Add[]` for a constant tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

from lolat.readers.ops import einsum_terms
from lolat.units import shortened

LARGEST_REGION = 14  # most operators of a pattern

_LABELS = {
    "Erf": "Erf", "Tanh": "Tanh", "Sqrt": "Sqrt", "Reciprocal": "Inverse", "Sigmoid": "Sigmoid",
    "HardSigmoid": "HardSigmoid", "Softplus": "Softplus", "Exp": "Exp", "Log": "Log", "ReduceMean": "Mean",
    "ReduceSum": "Sum", "ReduceMax": "Largest", "ReduceL2": "Norm", "Reshape": "Reshape",
    "InstanceNormalization": "InstanceNormalization", "Expand": "Expand",
    "Cast": "", "Identity": "", "Dropout": "",
}  # fmt: skip
_TANH_GELU = "Tanh Add* Mul Mul* Mul* Mul*"
_PATTERNS = {
    "silu": ["Sigmoid Mul"],
    "log_sigmoid": ["Sigmoid Log"],
    "hard_sigmoid": ["Add* Clip6 Mul*"],
    "hard_silu": ["HardSigmoid Mul", "Add* Clip6 Mul* Mul"],
    "mish": ["Softplus Tanh Mul", "Exp Add* Log Tanh Mul"],
    "gelu": ["Mul* Erf Add* Mul Mul*", f"{_TANH_GELU} Cube Add", f"{_TANH_GELU} Square Mul Add",
             f"{_TANH_GELU} Square Add* Mul"],
    "layer_norm": ["Mean Sub Square Mean Add* Sqrt Div", "Mean Sub Sub Square Mean Add* Sqrt Div",
                   "Mean Sub Square Mean Add* Sqrt Inverse Mul",
                   "Mean Sub Sub Square Mean Add* Sqrt Inverse Mul"],
    "rms_norm": ["Square Mean Add* Sqrt Div", "Square Mean Add* Sqrt Inverse Mul"],
    "group_norm": ["Reshape InstanceNormalization Reshape"],
    "softmax": ["Exp Sum Div", "Largest Sub Exp Sum Div"],
    "unit_norm": ["Norm Div", "Norm Clip Div", "Norm Clip Expand Div", "Norm Add* Div"],
}  # fmt: skip
_AFFINE = {
    "layer_norm": ("Mul[]", "Mul[] Add[]"),
    "rms_norm": ("Mul[]",),
    "group_norm": ("Mul[] Add[]",),
}
KINDS: dict[tuple[str, ...], str] = {
    tuple(sorted(f"{pattern} {affine}".split())): kind
    for kind, patterns in _PATTERNS.items()
    for pattern in patterns
    for affine in ("", *_AFFINE.get(kind, ()))
}
"""Sorted labels of a region -> its kind of operation."""


class Patterns:
    """The patterns of an onnx_ir graph; `live`: the tensors that depend on the network's inputs.

    `fused`: last operator of a pattern -> (kind, input tensor); `biases`: matrix product or convolution ->
    the addition of its bias; `parts`: operators that are not written themselves: all but the last operator
    of each pattern, and the additions of biases.
    """

    def __init__(self, graph: Any, live: set[Any]) -> None:
        self.live = live
        self.nodes = [node for node in graph if any(out in live for out in node.outputs)]
        self.order = {node: at for at, node in enumerate(self.nodes)}
        self.fused: dict[Any, tuple[str, Any]] = {}
        self.biases: dict[Any, Any] = {}
        self.parts: set[Any] = set()
        for node in self.nodes:
            self._find_bias(node)
        for node in reversed(self.nodes):
            self._find_region(node)
        for node in self.nodes:
            self._find_roll(node)

    def operands(self, node: Any) -> list[Any]:
        """The live inputs of a node in order, without repetitions."""
        return [value for value in dict.fromkeys(node.inputs) if value in self.live]

    def _find_bias(self, node: Any) -> None:
        """Record an addition of a constant vector as the bias of the product before it."""
        live = self.operands(node)
        if node.op_type != "Add" or node.domain or len(live) != 1 or len(node.inputs) != 2:
            return
        (source,) = live
        before, bias = source.producer(), node.inputs[node.inputs[0] is source]
        if before in (None, *self.biases) or bias is source or source.is_graph_output():
            return
        if len(source.uses()) == 1 and self._is_bias(before, bias):
            self.biases[before] = node
            self.parts.add(node)

    def _is_bias(self, node: Any, bias: Any) -> bool:
        """True if `node` is a product or convolution without a bias, and the constant `bias` fits it."""
        shape, out = bias.shape.numpy(), node.outputs[0].shape.numpy()
        has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
        if node.op_type in ("Conv", "ConvTranspose") and not has_bias:
            vector = (out[1], *(1,) * (len(out) - 2))
            return prod(shape) == out[1] and bool(shape[1 - len(out) :] == vector)
        if node.op_type not in ("MatMul", "Einsum") and (node.op_type != "Gemm" or has_bias):
            return False
        weights = [at for at, value in enumerate(node.inputs[:2]) if value not in self.live]
        if not weights:
            return False
        features = 1  # number of last axes of the result that only the weights have
        if node.op_type == "Einsum":
            labels, result = einsum_terms(node.attributes["equation"].value)
            others = labels[1 - weights[0]]
            features = len(result) - max((result.find(c) + 1 for c in others), default=0)
        of_each = out[len(out) - features :]
        return bool(shape[-features:] == of_each) and prod(shape) == prod(of_each)

    def _find_region(self, last: Any) -> None:
        """Record the largest region that ends in `last` and is a pattern."""
        if last in self.parts or not self._label(last):
            return
        largest: list[Any] = []
        for region, source in self._regions(last):
            labels = sorted(label for node in region if (label := self._label(node)))
            kind = KINDS.get(tuple(labels))
            if kind and source.shape == last.outputs[0].shape and _is_closed(region, last):
                largest, self.fused[last] = region, (kind, source)
        self.parts.update(largest[1:])

    def _regions(self, last: Any) -> Iterator[tuple[list[Any], Any]]:
        """Yield (region, input tensor) of regions that end in `last`, from small to large."""
        region, sources = [last], set(self.operands(last))
        while len(region) <= LARGEST_REGION:
            if len(sources) == 1:
                yield list(region), next(iter(sources))
            makers = [node for s in sources if (node := s.producer()) in self.order]
            node = max(makers, key=self.order.__getitem__, default=None)
            if node is None or self._label(node) is None:
                return
            if node in self.biases or node in self.parts or node in self.fused:
                return
            region.append(node)
            sources.update(self.operands(node))
            sources.difference_update(node.outputs)

    def _find_roll(self, node: Any) -> None:
        """Record a roll: the end of an axis is moved to its beginning, along one axis or several."""
        slices: list[Any] = [value and value.producer() for value in node.inputs]
        if node.op_type != "Concat" or len(slices) != 2 or None in slices:
            return
        source, other = (part.inputs[0] for part in slices)
        alone = all(p.op_type == "Slice" and len(p.outputs[0].uses()) == 1 for p in slices)
        if not alone or source is not other or source.shape != node.outputs[0].shape:
            return
        before = source.producer()
        if self.fused.get(before, ("",))[0] == "roll" and len(source.uses()) == 2:
            _, source = self.fused.pop(before)
            slices.append(before)
        self.parts.update(slices)
        self.fused[node] = "roll", source

    def _label(self, node: Any) -> str | None:
        """The label of a node; "" if patterns ignore the node, None if no pattern can contain it."""
        if node.domain:
            return None
        if node.op_type in _LABELS:
            return _LABELS[node.op_type]
        if node.op_type == "Clip":
            low, high = clip_limits(node)
            return "Clip6" if low == 0 and high in (1, 6) else "Clip"
        if node.op_type == "Max" and len(self.operands(node)) == 1:
            return "Clip"  # such as the limit that keeps a norm from 0
        if node.op_type == "Pow":
            return {2: "Square", 3: "Cube", 0.5: "Sqrt"}.get(number(node, 1) or 0)
        if node.op_type not in ("Add", "Sub", "Mul", "Div"):
            return None
        if Counter(value in self.live for value in node.inputs)[False] != 1:
            same = node.op_type == "Mul" and node.inputs[0] is node.inputs[1]
            return "Square" if same else str(node.op_type)
        if node.op_type == "Div" and node.inputs[0] not in self.live:
            return "Inverse"
        constant = next(value for value in node.inputs if value not in self.live)
        name = "Mul" if node.op_type in ("Mul", "Div") else "Add"
        return f"{name}*" if prod(constant.shape.numpy()) == 1 else f"{name}[]"


def _is_closed(region: list[Any], last: Any) -> bool:
    """True if no operator outside a region reads its tensors, except the outputs of `last`."""
    inner = [out for node in region if node is not last for out in node.outputs]
    used = [use.node for value in inner for use in value.uses()]
    return all(node in region for node in used) and not any(v.is_graph_output() for v in inner)


def node_name(node: Any) -> str:
    """The name of a node for messages; if it has none, the name of its first output."""
    return shortened(str(node.name or node.outputs[0].name))


def clip_limits(node: Any) -> tuple[float | None, float | None]:
    """(lower, upper) limit of a Clip, which are attributes before opset 11 and inputs since."""
    if len(node.inputs) > 1:
        return number(node, 1), number(node, 2)
    low, high = (node.attributes.get(name) for name in ("min", "max"))
    return low and low.value, high and high.value


def number(node: Any, position: int) -> float | None:
    """The value of an input that is a constant number; None for any other input."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().reshape(()))
