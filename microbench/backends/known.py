"""A Graph with the operations that a backend's framework takes them for, so that both count the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lolat.graph import Graph, Operation
from microbench.backends import split
from microbench.blocks import Predefined

_FOLDED_INTO = frozenset({"conv", "grouped_conv", "depthwise_conv"})


def as_known(backend: str, graph: Graph) -> Graph:
    """`graph` as the networks of a backend's framework have its operations.

    A convolution with as many groups as channels is a slow grouped one to TensorFlow; to the others it is
    a depthwise one, and so their readers count it. In an `.onnx` file the batch norms behind
    convolutions are folded into these, whose biases they become: by exporters, or by ONNX Runtime when it
    opens the file.
    """
    name, _ = split(backend)
    if name not in ("torch", "onnxruntime"):
        return graph
    operations = tuple(
        replace(o, kind="depthwise_conv")
        if o.kind == "grouped_conv" and o.attributes["groups"] == o.attributes["in_channels"]
        else o
        for o in graph.operations
    )
    known = replace(graph, operations=operations, cache={})
    return without_batch_norms(known) if name == "onnxruntime" else known


def known_blocks(backend: str, blocks: Sequence[Predefined]) -> list[Predefined]:
    """The blocks as a backend's points have them."""
    return [replace(b, make=partial(_made, backend, b)) for b in blocks]


def _made(backend: str, block: Predefined) -> Graph:
    return as_known(backend, block.make())


def without_batch_norms(graph: Graph) -> Graph:
    """`graph` with the batch norms folded that alone read what a convolution writes."""
    readers = graph.consumers()
    folded: dict[int, Operation] = {}  # what a convolution writes -> the batch norm
    for operation in graph.operations:
        written = operation.outputs[0]
        users = [graph.operations[at] for at in readers.get(written, ())]
        if (
            operation.kind in _FOLDED_INTO and written not in graph.outputs
            and [user.kind for user in users] == ["batch_norm"]
        ):  # fmt: skip
            folded[written] = users[0]
    gone = {id(norm) for norm in folded.values()}
    operations = []
    for operation in graph.operations:
        norm = folded.get(operation.outputs[0])
        if norm is not None:
            attributes = {**operation.attributes, "bias": True}
            operation = replace(operation, outputs=norm.outputs, attributes=attributes)
        if id(operation) not in gone:
            operations.append(operation)
    return replace(graph, operations=tuple(operations), cache={})
