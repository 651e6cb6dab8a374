"""Networks in INT8: the operations that ONNX Runtime's CPU kernels run in integers, and the conversions.

Readers mark an operation with the attribute INT8. DYNAMIC: a product that quantizes its input at run time.
STATIC, SIGNED: an operation between tensors that the file stores in 8 bits, unsigned or signed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from lolat.graph.kinds import KERNELS, VIEWS
from lolat.graph.network import Graph, Operation, cached_on_graph

INT8 = "int8"
DYNAMIC, STATIC, SIGNED = "dynamic", "static", "signed"
SCHEMES = (DYNAMIC, STATIC, SIGNED)
_CLASSES = {
    "convolution": "conv",
    "grouped": "grouped_conv",
    "depthwise": "depthwise_conv",
    "product": "dense matmul",
    "pair": "add multiply scale rescale",
    "curve": "sigmoid silu softmax",
    "average": "average_pool",
    "other": """
        leaky_relu max_pool global_average_pool concatenate transpose resize slice split gather""",
}
CONVERSION, NOTHING = "conversion", "nothing"
ISLANDS = {
    **dict.fromkeys(("convolution", "grouped", "product"), "island"),
    "depthwise": "depthwise island",
}
INT8_CLASSES = (*_CLASSES, CONVERSION, *dict.fromkeys(ISLANDS.values()))
"""Classes of work in INT8. CONVERSION: converting tensors to or from 8 bits. ISLANDS: products that run in
float between 8-bit tensors; for them ONNX Runtime does not use its own layout of images. NOTHING is no
class and takes no time: an activation that rounding its input makes superfluous."""
_CLASS_OF = {kind: name for name, kinds in _CLASSES.items() for kind in kinds.split()}
_ABSORBED = frozenset(["relu", "relu6", "clip"])
"""Kinds that the quantizer drops: rounding their input to its range has the same effect."""
_TWICE = frozenset(["silu", "hard_silu"])
"""Kinds that read their input twice in an ONNX file."""
_RESHAPED = "reshaped"
"""Attribute of a dense layer on several positions; ONNX Runtime's tools insert a reshape before it."""
_PASSES = 3
"""Passes over the result of a dynamic convolution: one each for conversion, scale and bias."""


class QuantizedStep(NamedTuple):
    """An operation of a network in INT8; `name`: its class, or "" if it runs as in float.

    `moved`, `converted`: the tensors that the operation moves and converts; a tensor is listed once per
    move or conversion.
    """

    scheme: str
    name: str
    moved: tuple[int, ...] = ()
    converted: tuple[int, ...] = ()


@cached_on_graph
def int8_steps(graph: Graph) -> tuple[QuantizedStep, ...]:
    """The QuantizedStep of each operation."""
    return tuple(_Int8(graph).steps())


def as_quantized(graph: Graph, scheme: str) -> Graph:
    """The graph as ONNX Runtime's tools quantize it; DYNAMIC: only products with weights, else all."""

    def marked(o: Operation) -> Operation:
        has_weights = o.kind in KERNELS and (scheme != DYNAMIC or o.kind in _CLASS_OF)
        more: dict[str, Any] = {"bits": 8} if has_weights else {}
        if has_weights or scheme != DYNAMIC:
            more |= {INT8: scheme}
        if o.kind == "dense" and len(graph.tensors[o.inputs[0]].shape) > 2:
            more |= {_RESHAPED: True}
        return replace(o, attributes={**o.attributes, **more})

    return replace(graph, operations=tuple(map(marked, graph.operations)))


class _Int8:
    """A graph whose operations are marked with INT8.

    `stored`: the tensors kept in 8 bits; `integer`: (operations,) True if the operation runs in integers.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.readers = graph, graph.consumers()
        self.marks = [o.attributes.get(INT8, "") for o in graph.operations]
        self.writer = graph.writers()
        self.stored = {t for t in range(len(graph.tensors)) if self._is_stored(t)}
        self.integer = [self._is_integer(p) for p in range(len(graph.operations))]

    def steps(self) -> Iterator[QuantizedStep]:
        """The QuantizedStep of each operation."""
        ends = {*self.graph.inputs, *self.graph.outputs}
        for position, (o, mark) in enumerate(zip(self.graph.operations, self.marks, strict=True)):
            name, around = _CLASS_OF.get(o.kind, ""), (*o.inputs, *o.outputs)
            if mark == DYNAMIC:
                passes = 1 if name == "product" else _PASSES
                converted = (*o.inputs, *o.outputs * passes) if name else ()
                yield QuantizedStep(mark, name, (), converted)
                continue
            times = 1 + (o.kind in _TWICE)
            stored = tuple(t for t in around if t in self.stored) * times
            at_the_ends = tuple(t for t in stored if t in ends)
            if self.integer[position]:
                yield QuantizedStep(mark, name, around * times, at_the_ends)
            elif mark and o.kind in _ABSORBED:
                before = self.writer.get(o.inputs[0])
                is_rounded = before is not None and self.integer[before]
                yield QuantizedStep(mark, NOTHING, (), at_the_ends if is_rounded else stored)
            elif o.kind in VIEWS:
                yield QuantizedStep(mark, "")
            else:
                yield QuantizedStep(mark, ISLANDS.get(name, "") if mark else "", (), stored)

    def _is_stored(self, tensor: int) -> bool:
        """True if a tensor is kept in 8 bits: its writer, or for an input one of its readers, is marked."""
        readers = [self.graph.operations[p] for p in self.readers.get(tensor, ())]
        if not self.graph.tensors[tensor].batched or self._absorbed(tensor):
            return False
        writer = self.writer.get(tensor)
        around = readers if writer is None else [self.graph.operations[writer]]
        return any(o.attributes.get(INT8) in (STATIC, SIGNED) for o in around)

    def _absorbed(self, tensor: int) -> bool:
        """True if the tensor's only reader is an activation that rounding the tensor makes superfluous."""
        readers = self.readers.get(tensor, ())
        return len(readers) == 1 and self.graph.operations[readers[0]].kind in _ABSORBED

    def _is_integer(self, position: int) -> bool:
        """True if an operation runs in integers.

        x86 has no kernels for signed activations. ONNX Runtime makes a signed tensor unsigned only if a
        single operation reads it (qdq_s8_to_u8.cc); a constant stays signed.
        """
        o, mark = self.graph.operations[position], self.marks[position]
        if mark not in (STATIC, SIGNED) or o.kind not in _CLASS_OF:
            return False
        around = o.outputs if _RESHAPED in o.attributes else (*o.inputs, *o.outputs)
        in_float = o.kind in _TWICE or (_CLASS_OF[o.kind] == "pair" and len(o.inputs) < 2)
        return mark == STATIC or not (in_float or any(map(self._is_shared, around)))

    def _is_shared(self, tensor: int) -> bool:
        """True if several operations read a tensor, directly or behind an activation that is dropped."""
        while self._absorbed(tensor):
            (tensor,) = self.graph.operations[self.readers[tensor][0]].outputs[:1]
        readers = [self.graph.operations[p] for p in self.readers.get(tensor, ())]
        return len(readers) + sum(o.kind in _TWICE for o in readers) > 1
