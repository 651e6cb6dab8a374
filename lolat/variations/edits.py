"""A network with some operations changed, left out or replaced.

Each function gets a graph and the positions of the operations that it may touch, and returns the changed
graph, or None where there is nothing of the kind. Shapes stay consistent, so that counting is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import prod

from lolat.graph import Graph, Operation, Tensor, is_convolution
from lolat.summaries import is_gate

COSTLY_ACTIVATIONS = frozenset(
    ["silu", "gelu", "hard_silu", "mish", "elu", "selu", "tanh", "softplus"]
)
KERNEL = 3  # the size that larger kernels are compared with
LEAST_CHANNELS = 8  # of a convolution that is worth splitting: not that on the colours of an image


def pruned(changed: Graph, original: Graph) -> Graph:
    """`changed` without what only served operations of `original` that are gone."""
    # Known by what they write, which no edit here changes; names need not be unique.
    before = {o.outputs for o in _needed(original)}
    now = {o.outputs for o in _needed(changed)}
    kept = [o for o in changed.operations if o.outputs in now or o.outputs not in before]
    return replace(changed, operations=tuple(kept), cache={})


def _needed(graph: Graph) -> list[Operation]:
    """The operations that some output of the network needs."""
    needed = set(graph.outputs)
    found = []
    for operation in reversed(graph.operations):
        if not needed.isdisjoint(operation.outputs):
            needed.update(operation.inputs)
            found.append(operation)
    return found


def _rewired(graph: Graph, instead: dict[int, int]) -> Graph:
    """The graph with some tensors read in place of others; what nobody needs any more is left out."""

    def now(t: int) -> int:
        while t in instead:
            t = instead[t]
        return t

    operations = tuple(
        replace(o, inputs=tuple(map(now, o.inputs))) if instead.keys() & set(o.inputs) else o
        for o in graph.operations
    )
    outputs = tuple(map(now, graph.outputs))
    return pruned(replace(graph, operations=operations, outputs=outputs, cache={}), graph)


def bypassed(graph: Graph, positions: Collection[int]) -> Graph | None:
    """Without these operations, where they read one tensor and write one of the same shape."""
    inside = [graph.operations[p] for p in sorted(positions)]
    members = set(positions)
    outside = [o for p, o in enumerate(graph.operations) if p not in members]
    written = {t for o in inside for t in o.outputs}
    fed = {t for o in outside for t in o.outputs} | set(graph.inputs)
    reads = {t for o in inside for t in o.inputs if t in fed}
    wanted = {t for o in outside for t in o.inputs}.union(graph.outputs) & written
    if len(reads) != 1 or len(wanted) != 1 or not outside:
        return None
    (source,), (result,) = reads, wanted
    if graph.tensors[source] != graph.tensors[result]:
        return None
    return _rewired(graph, {result: source})


def without_gates(graph: Graph, positions: Iterable[int]) -> Graph | None:
    """Without squeeze-excite: images are handed on as they come, what computed the gates goes."""
    written = {t for o in graph.operations for t in o.outputs}
    instead = {}
    for p in positions:
        operation = graph.operations[p]
        if not is_gate(graph, operation):
            continue
        shape = graph.tensors[operation.outputs[0]].shape
        images = [t for t in operation.inputs if graph.tensors[t].shape == shape]
        gates = set(operation.inputs).difference(
            images
        )  # of constants, such as a layer scale: none
        if len(images) == 1 and written.issuperset(gates):
            instead[operation.outputs[0]] = images[0]
    return _rewired(graph, instead) if instead else None


def _changed(
    graph: Graph, positions: Iterable[int], change: Callable[[Operation], Operation | None]
) -> Graph | None:
    """Operations replaced by what `change` makes of them; None where it makes nothing of any."""
    operations = list(graph.operations)
    found = False
    for p in positions:
        new = change(operations[p])
        if new is not None:
            operations[p], found = new, True
    return replace(graph, operations=tuple(operations), cache={}) if found else None


def with_relu(graph: Graph, positions: Iterable[int]) -> Graph | None:
    """ReLU in place of activations that go over their data more than once, but for the network's last."""
    last = set(graph.outputs)

    def change(o: Operation) -> Operation | None:
        costly = o.kind in COSTLY_ACTIVATIONS and last.isdisjoint(o.outputs)
        return replace(o, kind="relu") if costly else None

    return _changed(graph, positions, change)


def has_large_kernel(operation: Operation) -> bool:
    """Whether a convolution could have a 3x3 kernel with the same output: it is padded and larger."""
    a = operation.attributes
    if not is_convolution(operation.kind) or max(a["kernel"]) <= KERNEL:
        return False
    padded = a.get("pad_before") is not None or a.get("padding", "valid") != "valid"
    return padded and max(a.get("strides", (1,))) < KERNEL


def with_small_kernels(graph: Graph, positions: Iterable[int]) -> Graph | None:
    """3x3 in place of larger kernels, padded so that the outputs keep their size."""

    def change(o: Operation) -> Operation | None:
        if not has_large_kernel(o):
            return None
        kernel = tuple(min(k, KERNEL) for k in o.attributes["kernel"])
        return replace(o, attributes={**o.attributes, "kernel": kernel})

    return _changed(graph, positions, change)


def is_per_channel(operation: Operation) -> bool:
    """Whether a grouped convolution is a depthwise one in all but its name."""
    a = operation.attributes
    return operation.kind == "grouped_conv" and a["groups"] == a["in_channels"] == a["out_channels"]


def as_depthwise(graph: Graph, positions: Iterable[int]) -> Graph | None:
    """Depthwise convolutions in place of grouped ones of one channel a group: the same numbers."""
    return _changed(
        graph,
        positions,
        lambda o: replace(o, kind="depthwise_conv") if is_per_channel(o) else None,
    )


def ungrouped(graph: Graph, positions: Iterable[int]) -> Graph | None:
    """Plain convolutions in place of grouped ones of several channels a group."""

    def change(o: Operation) -> Operation | None:
        if o.kind != "grouped_conv" or is_per_channel(o):
            return None
        return replace(o, kind="conv", attributes={**o.attributes, "groups": 1})

    return _changed(graph, positions, change)


def is_separable(operation: Operation) -> bool:
    """Whether a convolution could be a depthwise and a pointwise one."""
    a = operation.attributes
    return (
        (operation.kind == "conv" or (operation.kind == "grouped_conv" and not is_per_channel(operation)))
        and prod(a["kernel"]) > 1
        and a["in_channels"] >= LEAST_CHANNELS
        and max(a.get("strides", (1,))) < max(a["kernel"])
    )  # fmt: skip


def separated(graph: Graph, positions: Collection[int]) -> Graph | None:
    """A depthwise and a pointwise convolution in place of each that works on space and channels."""
    members = set(positions)
    tensors = list(graph.tensors)
    operations: list[Operation] = []
    for position, operation in enumerate(graph.operations):
        if position in members and is_separable(operation):
            operations += _separated(operation, tensors)
        else:
            operations.append(operation)
    if len(tensors) == len(graph.tensors):
        return None
    return replace(graph, tensors=tuple(tensors), operations=tuple(operations), cache={})


def _separated(operation: Operation, tensors: list[Tensor]) -> tuple[Operation, Operation]:
    """The two convolutions; the tensor between them is added to `tensors`."""
    a = operation.attributes
    source, result = tensors[operation.inputs[0]], tensors[operation.outputs[0]]
    axis = channel_axis(source.shape, a["in_channels"], result.shape, a["out_channels"])
    between = replace(result, shape=_with(result.shape, axis, a["in_channels"]))
    tensors.append(between)
    middle, ones = len(tensors) - 1, (1,) * len(a["kernel"])
    inside = a["in_channels"]
    depthwise = replace(
        operation,
        name=f"{operation.name}_depthwise",
        kind="depthwise_conv",
        outputs=(middle,),
        attributes={**a, "out_channels": inside, "groups": inside, "bias": False},
    )
    pointwise = replace(
        operation,
        name=f"{operation.name}_pointwise",
        kind="conv",
        inputs=(middle, *operation.inputs[1:]),
        attributes={"kernel": ones, "strides": ones, "dilation": ones, "padding": "valid", "groups": 1,
                    "in_channels": inside, "out_channels": a["out_channels"], "bias": a["bias"]},
    )  # fmt: skip
    return depthwise, pointwise


def channel_axis(before: Sequence[int], inside: int, after: Sequence[int], outside: int) -> int:
    """Where the channels of a convolution's tensors are: the last axis, or 1 where that does not fit."""
    last = before[-1] == inside and after[-1] == outside
    return len(after) - 1 if last else 1


def _with(shape: tuple[int, ...], axis: int, n: int) -> tuple[int, ...]:
    return (*shape[:axis], n, *shape[axis + 1 :])
