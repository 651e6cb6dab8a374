"""How channels run through a network: which sizes of its tensors are free, which are tied.

Network inputs and outputs are fixed. What a convolution, a dense layer, an embedding or a recurrent layer
makes is free; what adds, multiplies or normalises ties sizes together, a concatenation adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.variations.rules import RULES
from lolat.variations.shapes import Dims, Unclear, fixed
from lolat.variations.sizes import Size, Sizes


class Channels:
    """The sizes of all tensors of a graph, and of the attributes that depend on them."""

    def __init__(self, graph: Graph) -> None:
        """Raises InputError that names the operation through which channels cannot be followed."""
        self.graph = graph
        self.sizes = Sizes()
        self.dims: dict[int, Dims] = {}
        self.attributes: list[dict[str, Size]] = [{} for _ in graph.operations]
        self.layers: dict[tuple[object, ...], tuple[Size, Size]] = {}
        inputs = set(graph.inputs)
        written = {t for o in graph.operations for t in o.outputs}
        for t, tensor in enumerate(graph.tensors):
            if t in inputs:
                self.dims[t] = fixed(tensor.shape)
            elif t not in written:
                self.dims[t] = tuple(self.sizes.unknown(n, follows=True) for n in tensor.shape)
        for position, operation in enumerate(graph.operations):
            try:
                found = self._follow(position, operation)
            except Unclear:
                raise InputError(
                    f"the width of {graph.name!r} cannot be varied: it is not clear how channels pass "
                    f"through operation {operation.full_name!r} ({operation.kind}); vary the "
                    "resolution or the batch size"
                ) from None
            self.dims.update(zip(operation.outputs, found, strict=True))
        for t in graph.outputs:
            for size in self.dims[t]:
                self.sizes.fix(size)

    def _follow(self, position: int, operation: Operation) -> list[Dims]:
        rule = RULES.get(operation.kind)
        if rule is not None and operation.inputs:
            return rule(self, position, operation)
        if any(self.is_open(self.dims[t]) for t in operation.inputs):
            raise Unclear
        return self.as_they_are(operation)

    def as_they_are(self, operation: Operation) -> list[Dims]:
        """Sizes of the outputs that cannot change."""
        return [fixed(s) for s in self.graph.shapes(operation.outputs)]

    def is_open(self, dims: Dims) -> bool:
        """Whether some size of a tensor may change."""
        return any(map(self.sizes.is_open, dims))

    def open_axes(self, dims: Dims) -> list[int]:
        """The axes whose size may change."""
        return [axis for axis, size in enumerate(dims) if self.sizes.is_open(size)]

    def layer(self, operation: Operation, inside: Size, outside: int) -> Size:
        """What a layer with weights makes of `inside`: a new size, or that of its other call."""
        name = operation.name.partition(":")[0]
        key = (operation.path, name, operation.kind, self.sizes.value(inside), outside)
        if key not in self.layers:
            self.layers[key] = (inside, self.sizes.unknown(outside))
        known, made = self.layers[key]
        self.sizes.unify(known, inside)
        return made

    def resized(self, new: Mapping[int, int]) -> Graph:
        """The network with `new` sizes for some unknowns; the others stay what they are."""
        value = self.sizes.value
        tensors = [
            replace(tensor, shape=tuple(value(size, new) for size in self.dims[t]))
            for t, tensor in enumerate(self.graph.tensors)
        ]
        operations = [
            replace(o, attributes={**o.attributes, **{k: value(s, new) for k, s in a.items()}})
            if a else o
            for o, a in zip(self.graph.operations, self.attributes, strict=True)
        ]  # fmt: skip
        return replace(self.graph, tensors=tuple(tensors), operations=tuple(operations), cache={})
