"""Rewrites quantized ONNX networks (QDQ and dynamic) as float networks.

Operators that only handle scales are dropped. Two metadata keys keep what is lost: IN_FILE, on a matrix
product, has the number of its weights and their bytes in the file; INT8, on an operation in 8 bits, has its
quantization scheme (`lolat.graph.quantized`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from lolat.graph.dtypes import FLOAT_BYTES, SIZES
from lolat.graph.quantized import DYNAMIC, INT8, SIGNED, STATIC

IN_FILE = "lolat.in_file"
_FLOAT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), ("Cast", 0)),
    "ConvInteger": ("Conv", 0, 1), "MatMulInteger": ("MatMul", 0, 1),
    "DynamicQuantizeLSTM": ("LSTM", *range(8)),
}  # fmt: skip
"""Quantized operator of ONNX or ONNX Runtime -> (float operator, positions of its operands)."""
MULTIPLYING = frozenset(["Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "LSTM", "GRU", "RNN"])
_PASSING = frozenset(["Cast", "Gather", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
"""Operators that do not change the bits of a weight."""


def in_float(model: Any, parameters: set[str]) -> None:
    """Rewrite a quantized ModelProto and its set of `parameters` in place; skip other models."""
    quantized = [node for node in model.graph.node if node.op_type in _FLOAT]
    if not quantized:
        return
    rewriting = _Rewriting(model, parameters)
    rewriting.widen({name for node in quantized for name in _operands(node)})
    rewriting.find_stored()
    nodes = [made for node in model.graph.node for made in rewriting.nodes(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _operands(node: Any) -> list[str]:
    """The inputs of a quantized node without scales and zero points."""
    positions = (p for p in _FLOAT[node.op_type][1:] if p < len(node.input))
    return [node.input[p] for p in positions]


def _width(data_type: int) -> int:
    """Bits of a quantized data type; 0 for data types that are not quantized."""
    name = TensorProto.DataType.Name(data_type)
    found = re.fullmatch(r"U?INT(2|4|8|16)|FLOAT(4|8)E\w+", name)
    return int(found[1] or found[2]) if found else 0


@dataclass
class _Rewriting:
    """A model while it is rewritten. A value is known by its name.

    `bits`: value -> bits of its quantized type; `stored`: parameter, or value computed from parameters ->
    (elements, bytes in the file with scales and zero points); `sums`: results of integer products, which
    the file multiplies by a scale; `types`: constant -> data type in the file; `schemes`: value -> its
    8-bit scheme; `read_in_float`: values that an operator reads in float.
    """

    model: Any
    parameters: set[str]
    bits: dict[str, int] = field(default_factory=dict)
    stored: dict[str, tuple[int, float]] = field(default_factory=dict)
    sums: set[str] = field(default_factory=set)
    types: dict[str, int] = field(default_factory=dict)
    schemes: dict[str, str] = field(default_factory=dict)
    read_in_float: set[str] = field(default_factory=set)

    def widen(self, operands: set[str]) -> None:
        """Convert parameters to float32 if they are quantized, or in int32 and among `operands`."""
        graph = self.model.graph
        constants = [(n.output[0], n.attribute[0].t) for n in graph.node if n.op_type == "Constant"]
        self.parameters.update(name for name, _ in constants)
        for name, tensor in [*constants, *((i.name, i) for i in graph.initializer)]:
            self.types[name] = tensor.data_type
            self.note(name, tensor.data_type, tensor.dims)
            if self.bits[name] or (name in operands and tensor.data_type == TensorProto.INT32):
                array = numpy_helper.to_array(tensor).astype("float32")
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for value in graph.input:
            kind = value.type.tensor_type
            if value.name in self.parameters:
                self.note(value.name, kind.elem_type, [d.dim_value for d in kind.shape.dim])
                if self.bits[value.name] or value.name in operands:
                    kind.elem_type = TensorProto.FLOAT

    def note(self, name: str, data_type: int, dims: Sequence[int]) -> None:
        """Record the bits, the elements and the bytes of a parameter."""
        self.bits[name] = width = _width(data_type)
        size = width / 8 or SIZES.get(TensorProto.DataType.Name(data_type).lower(), FLOAT_BYTES)
        if data_type != TensorProto.INT64:  # shapes and indices
            self.stored[name] = prod(dims), prod(dims) * size

    def find_stored(self) -> None:
        """Find the values that are quantized to 8 bits, and the values that an operator reads in float."""
        for node in self.model.graph.node:
            op = node.op_type
            if op == "DynamicQuantizeLinear":
                self.schemes[node.output[0]] = DYNAMIC
            elif op == "DequantizeLinear" and node.input[0] not in self.parameters:
                self.schemes[node.output[0]] = self.signed(node.input)
            if op not in ("QuantizeLinear", "Relu", "Clip"):
                self.read_in_float.update(node.input)
        self.read_in_float.update(value.name for value in self.model.graph.output)

    def signed(self, operands: Any) -> str:
        """The 8-bit scheme of a value, from the type of its zero point; "" for types not in 8 bits."""
        zero = operands[2] if len(operands) > 2 else ""
        kind = self.types.get(zero, TensorProto.UINT8)
        return {TensorProto.UINT8: STATIC, TensorProto.INT8: SIGNED}.get(kind, "")

    def scheme(self, node: Any) -> str:
        """The scheme of a float operator that runs on values in 8 bits; "" for other operators.

        ONNX Runtime multiplies operands of 8 bits as integers. It quantizes the float kernel of a
        convolution or a Gemm itself.
        """
        found = {s for name in node.input if (s := self.schemes.get(name))}
        rounded = self.read_in_float.isdisjoint(node.output)
        multiplies = node.op_type in MULTIPLYING
        bits = {self.bits.get(name, 0) for name in node.input[:2]}
        if multiplies and not bits <= ({8} if node.op_type == "MatMul" else {8, 0}):
            return ""
        return found.pop() if len(found) == 1 and (rounded or multiplies) else ""

    def nodes(self, node: Any) -> Iterator[Any]:
        """Yield the nodes that replace a node; a float operator stays and gets its metadata."""
        if node.op_type in _FLOAT:
            yield from self.in_float(node)
            return
        sums = [name for name in node.input if name in self.sums]
        if sums and node.op_type == "Cast":
            self.sums.update(node.output)
        elif sums and node.op_type == "Mul":
            node = self.node("Identity", sums[:1], node)
        width = self.width(node.input)
        if node.op_type in _PASSING:
            self.bits[node.output[0]] = width
            self.keep(node)
        yield self.marked(node, width, self.scheme(node))

    def in_float(self, node: Any) -> Iterator[Any]:
        """Yield the float operator, and constants in place of scales that the quantized node computed."""
        op, operands, name = _FLOAT[node.op_type][0], _operands(node), node.output[0]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        width = self.width(operands) or 8
        if op == "Cast":
            of_scale = node.op_type == "DequantizeLinear"
            attributes = {"to": self.types.get(node.input[1], 1) if of_scale else 1}
            self.bits[name] = width
            self.keep(node)
            if operands[0] in self.parameters:
                self.parameters.add(name)
        if node.op_type == "DynamicQuantizeLinear":
            for made, kind in zip(node.output[1:], (1, 2), strict=False):
                value = helper.make_tensor(made, kind, [], [1])
                yield helper.make_node("Constant", [], [made], value=value)
        if node.op_type.endswith("Integer"):
            self.sums.add(name)
        is_dynamic = op != "Cast" and (
            node.op_type.startswith("Dynamic") or DYNAMIC in map(self.schemes.get, node.input)
        )
        made = self.node(op, operands, node, attributes)
        yield self.marked(made, width, DYNAMIC if is_dynamic else "")

    def keep(self, node: Any) -> None:
        """Record for a node's result the elements of its first operand and the bytes of all operands."""
        found = [self.stored.get(name, (0, 0.0)) for name in node.input]
        if found and found[0][0]:
            self.stored[node.output[0]] = found[0][0], sum(size for _, size in found)

    def marked(self, node: Any, width: int, scheme: str) -> Any:
        """The node, with IN_FILE and INT8 in its metadata where they apply."""
        if width and node.op_type in MULTIPLYING | {"Gather"}:
            found = [self.stored[name] for name in node.input if name in self.stored]
            elements, size = map(sum, zip(*(found or [(8, width)]), strict=True))
            node.metadata_props.add(key=IN_FILE, value=f"{elements} {size}")
        if scheme:
            node.metadata_props.add(key=INT8, value=scheme)
        return node

    def width(self, values: Iterable[str]) -> int:
        """The fewest bits of quantized values; 0 if none is quantized."""
        return min((w for name in values if (w := self.bits.get(name))), default=0)

    def node(self, op: str, operands: list[str], like: Any, attributes: Any = ()) -> Any:
        """A node of operator `op` that replaces `like`, with the `attributes` that `op` knows."""
        opset = max((i.version for i in self.model.opset_import if not i.domain), default=1)
        known = onnx.defs.get_schema(op, opset).attributes
        kept = {a: attributes[a] for a in attributes if a in known}
        outputs = like.output if op == "LSTM" else like.output[:1]
        made = helper.make_node(op, operands, outputs, name=like.name, **kept)
        made.metadata_props.extend(like.metadata_props)
        return made
