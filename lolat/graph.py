"""A network as plain data: operations and tensors, whatever the framework it came from.

Shapes are those at batch size 1, with the batch dimension in place. A tensor that does not grow with
the batch (a constant operand, a position embedding) has `batched=False`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from lolat.errors import InputError

SCHEMA = "lolat-graph"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that flows between operations; `shape` at batch size 1."""

    shape: tuple[int, ...]
    batched: bool = True
    dtype: str = "float32"

    def elements(self, batch_size: int = 1) -> int:
        """Number of elements at `batch_size`."""
        return prod(self.shape) * (batch_size if self.batched else 1)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its kind (a row of `lolat.counts`), what it reads and what it writes.

    `inputs` and `outputs` are indices into `Graph.tensors`; `path` is the module it sits in
    ("" at the top, "encoder/layer_1" below).
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""

    @property
    def full_name(self) -> str:
        """The name with its module path."""
        return f"{self.path}/{self.name}" if self.path else self.name


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of operations, in an order in which they can run.

    `inputs` and `outputs` are tensor indices. `warnings` are a reader's remarks for people.
    Derived facts (counts, blocks) are kept in `cache`, which is no part of the value.
    """

    name: str
    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    warnings: tuple[str, ...] = ()
    cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.tensors)
        used = [*self.inputs, *self.outputs]
        for operation in self.operations:
            used += operation.inputs
            used += operation.outputs
        if used and not (min(used) >= 0 and max(used) < count):
            raise InputError(
                f"graph {self.name!r} names tensor {max(used)}, but has only {count} tensors"
            )
        produced = {t for operation in self.operations for t in operation.outputs}
        ready = set(range(count)) - produced
        for operation in self.operations:
            late = set(operation.inputs) - ready
            if late:
                raise InputError(
                    f"graph {self.name!r}: operation {operation.name!r} reads tensor {min(late)} "
                    "before it is written; operations must stand in an order in which they can run"
                )
            twice = ready & set(operation.outputs)
            if twice:
                raise InputError(
                    f"graph {self.name!r}: operation {operation.name!r} writes tensor "
                    f"{min(twice)}, which already has a value; a tensor is written once"
                )
            ready.update(operation.outputs)

    def shapes(self, indices: Sequence[int]) -> list[tuple[int, ...]]:
        """Shapes (at batch size 1) of the tensors at `indices`."""
        return [self.tensors[i].shape for i in indices]

    def consumers(self) -> dict[int, list[int]]:
        """For each tensor that is read: the positions of the operations that read it."""
        readers: dict[int, list[int]] = {}
        for position, operation in enumerate(self.operations):
            for tensor in operation.inputs:
                readers.setdefault(tensor, []).append(position)
        return readers

    def to_dict(self) -> dict[str, Any]:
        """The graph as JSON-ready data; `from_dict` is the inverse."""
        return {
            "schema": SCHEMA,
            "version": FORMAT_VERSION,
            "name": self.name,
            "tensors": [[list(t.shape), t.batched, t.dtype] for t in self.tensors],
            "operations": [
                {
                    "name": o.name,
                    "kind": o.kind,
                    "inputs": list(o.inputs),
                    "outputs": list(o.outputs),
                    "attributes": dict(o.attributes),
                    "path": o.path,
                }
                for o in self.operations
            ],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "warnings": list(self.warnings),
        }

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Graph:
        """Read what `to_dict` wrote. Raises InputError when it is something else."""
        if document.get("schema") != SCHEMA:
            raise InputError(
                f'a graph document must have "schema": "{SCHEMA}", got {document.get("schema")!r}'
            )
        if document.get("version") != FORMAT_VERSION:
            raise InputError(
                f"graph document of version {document.get('version')!r}; this LoLat reads "
                f"version {FORMAT_VERSION}"
            )
        return Graph(
            name=document["name"],
            tensors=tuple(Tensor(tuple(s), b, d) for s, b, d in document["tensors"]),
            operations=tuple(
                Operation(
                    o["name"],
                    o["kind"],
                    tuple(o["inputs"]),
                    tuple(o["outputs"]),
                    {k: _frozen(v) for k, v in o["attributes"].items()},
                    o.get("path", ""),
                )
                for o in document["operations"]
            ),
            inputs=tuple(document["inputs"]),
            outputs=tuple(document["outputs"]),
            warnings=tuple(document.get("warnings", ())),
        )


def _frozen(value: Any) -> Any:
    """JSON lists back into tuples, at any depth."""
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


class GraphBuilder:
    """Collects tensors and operations, in running order, into a `Graph`; names are made unique."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: list[Tensor] = []
        self.operations: list[Operation] = []
        self.inputs: list[int] = []
        self.warnings: list[str] = []
        self._names: dict[str, int] = {}

    def input(self, shape: Sequence[int], dtype: str = "float32", batched: bool = True) -> int:
        """Add an input of the network; returns its tensor index."""
        index = self.tensor(shape, batched, dtype)
        self.inputs.append(index)
        return index

    def tensor(self, shape: Sequence[int], batched: bool = True, dtype: str = "float32") -> int:
        """Add a tensor without a producer (a constant operand); returns its index."""
        self.tensors.append(Tensor(tuple(int(n) for n in shape), batched, dtype))
        return len(self.tensors) - 1

    def add(
        self,
        kind: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        name: str = "",
        path: str = "",
        dtype: str | None = None,
        **attributes: Any,
    ) -> int:
        """Add an operation with one output of `shape` (at batch size 1); returns its tensor index.

        The output grows with the batch when any input does.
        """
        batched = any(self.tensors[i].batched for i in inputs) if inputs else True
        if dtype is None:
            dtype = self.tensors[inputs[0]].dtype if inputs else "float32"
        output = self.tensor(shape, batched, dtype)
        self.operations.append(
            Operation(
                self._unique(name or kind, path), kind, tuple(inputs), (output,), attributes, path
            )
        )
        return output

    def _unique(self, name: str, path: str) -> str:
        """`name`, or `name:2`, `name:3` ... where the network uses a layer again."""
        key = f"{path}/{name}"
        uses = self._names.get(key, 0) + 1
        self._names[key] = uses
        return name if uses == 1 else f"{name}:{uses}"

    def build(self, outputs: Sequence[int]) -> Graph:
        """The finished graph; a padding that only feeds convolutions becomes part of them."""
        graph = Graph(
            self.name,
            tuple(self.tensors),
            tuple(self.operations),
            tuple(self.inputs),
            tuple(outputs),
            tuple(dict.fromkeys(self.warnings)),
        )
        return merge_padding(graph)


def is_convolution(kind: str) -> bool:
    """Whether `kind` is a convolution of any sort: the operations that ACTS and INP are about."""
    return kind in CONVOLUTIONS


CONVOLUTIONS = frozenset({"conv", "grouped_conv", "depthwise_conv", "transposed_conv"})


def kind_label(operation: Operation) -> str:
    """The kind as the domain knows it: convolutions and pools of one or three dimensions apart."""
    dimensions = len(operation.attributes.get("kernel", ()))
    if dimensions in (1, 3):
        return f"{operation.kind}_{dimensions}d"
    return operation.kind


def merge_padding(graph: Graph) -> Graph:
    """Fold a padding that feeds nothing but convolutions into them, so INP is before padding."""
    readers = graph.consumers()
    replaced: dict[int, tuple[int, Any]] = {}
    for operation in graph.operations:
        if operation.kind != "pad" or operation.outputs[0] in graph.outputs:
            continue
        users = [graph.operations[i] for i in readers.get(operation.outputs[0], [])]
        if users and all(is_convolution(u.kind) for u in users):
            replaced[operation.outputs[0]] = (
                operation.inputs[0],
                operation.attributes.get("padding"),
            )
    if not replaced:
        return graph
    operations = []
    for operation in graph.operations:
        if operation.outputs[0] in replaced:
            continue
        if operation.inputs and operation.inputs[0] in replaced:
            source, padding = replaced[operation.inputs[0]]
            attributes = {**operation.attributes, "pad_before": padding}
            operation = replace(
                operation, inputs=(source, *operation.inputs[1:]), attributes=attributes
            )
        operations.append(operation)
    return replace(graph, operations=tuple(operations), cache={})


def floating_types(graph: Graph) -> Iterator[str]:
    """The data types of the tensors that are written, integers left out."""
    for operation in graph.operations:
        for index in operation.outputs:
            dtype = graph.tensors[index].dtype
            if "float" in dtype:
                yield dtype
