"""A network with other channel counts: all of them, or those that do not leave a block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import prod

from lolat.errors import InputError
from lolat.graph import Graph, Operation, Tensor, is_convolution
from lolat.graph.blocks import cut
from lolat.graph.channels import Channels
from lolat.graph.counts import COLUMNS, GraphCounts, count
from lolat.graph.kinds import ELEMENTWISE, FREE, NORMALIZATIONS, POOLINGS
from lolat.graph.naming import is_flat, is_gate

# ---- A network with some operations changed, left out or replaced.
#
# Each function gets a graph and the positions of the operations that it may touch, and returns the changed
# graph, or None where there is nothing of the kind. Shapes stay consistent, so that counting is exact.

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


# ---- A part of a network on smaller images, and by how much a network shrinks its images.

_ANY_SIZE = ELEMENTWISE | NORMALIZATIONS | {"concatenate", "stack"}
_SLIDING = frozenset(["max_pool", "average_pool"])
USUAL_STRIDE = 32  # of a network that does not tell


def halved(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The network with these operations working on images half as high and wide (rounded up).

    What lies outside is counted as it was. None where they do not work on images (4 axes), or shrink
    them by something other than their strides, so that half the input is not half the output.
    """
    inside = [graph.operations[p] for p in sorted(positions)]
    shown = {t for o in inside for t in (*o.inputs, *o.outputs)}
    images = {t for t in shown if not is_flat(graph.tensors[t].shape)}
    if not images or any(len(graph.tensors[t].shape) != 4 for t in images):
        return None
    if not all(_halves(graph, o, images) for o in inside):
        return None
    axis = _channels_at(inside, graph)
    tensors = [
        _half(tensor, axis) if t in images else tensor for t, tensor in enumerate(graph.tensors)
    ]
    smaller = replace(graph, tensors=tuple(tensors), cache={})
    if smaller.tensors == graph.tensors:
        return None
    # The neighbours read and write the same tensors: theirs are the counts from before.
    before, after = count(graph), count(smaller)
    fixed, scaled = before.fixed.copy(), before.scaled.copy()
    rows = sorted(positions)
    fixed[rows], scaled[rows] = after.fixed[rows], after.scaled[rows]
    serial = COLUMNS.index("serial")
    fixed[:, serial] = before.fixed[:, serial]  # the path is the same, whatever the sizes
    smaller.cache["counts"] = GraphCounts(fixed, scaled, before.warnings)
    smaller.cache["blocks"] = cut(graph)
    return smaller


def _halves(graph: Graph, operation: Operation, images: set[int]) -> bool:
    """Whether half the input gives half the output: ceil(n / stride), and ceil of ceil."""
    a, kind = operation.attributes, operation.kind
    if kind in ("transposed_conv", "resize"):  # twice half of an odd size is one more than it
        return all(n % 2 == 0 or n == 1 for n in graph.tensors[operation.inputs[0]].shape[1:3])
    if kind in POOLINGS - _SLIDING or kind in _ANY_SIZE:
        return True
    if kind in FREE:  # a view: as many images as before, or a flat tensor seen as another
        return images.issuperset(operation.outputs) == images.issuperset(operation.inputs[:1])
    if is_convolution(kind) or kind in _SLIDING:
        padded = a.get("pad_before") is not None or a.get("padding", "valid") != "valid"
        return padded or max(a["kernel"]) <= max(a.get("strides", a["kernel"]))
    return kind == "dense" and not any(t in images for t in operation.inputs)


def _channels_at(operations: Sequence[Operation], graph: Graph) -> int:
    for o in operations:
        if is_convolution(o.kind) and len(o.attributes["kernel"]) == 2:
            before, after = graph.shapes((o.inputs[0], o.outputs[0]))
            a = o.attributes
            return channel_axis(before, a["in_channels"], after, a["out_channels"])
    return 3


def _half(tensor: Tensor, axis: int) -> Tensor:
    shape = tuple(n if i in (0, axis) else (n + 1) // 2 for i, n in enumerate(tensor.shape))
    return replace(tensor, shape=shape)


def image_side(graph: Graph) -> int | None:
    """Height = width of the only input; None where it is no square image."""
    sides = [_side(graph.tensors[t].shape) for t in graph.inputs]
    return sides[0] if len(sides) == 1 else None


def total_stride(graph: Graph) -> int | None:
    """By how much a network shrinks its images before it pools them away; None where that is not clear.

    Sizes that are multiples of it need no rounding on the way.
    """
    side, kinds = image_side(graph), _SLIDING | {"resize", "pad"}
    made = [o.outputs[0] for o in graph.operations if is_convolution(o.kind) or o.kind in kinds]
    smaller = [s for t in made if (s := _side(graph.tensors[t].shape)) is not None]
    if side is None or not smaller or side % min(smaller):
        return None
    return side // min(smaller)


def _side(shape: Sequence[int]) -> int | None:
    """Height = width of an image; None for what is none."""
    if len(shape) != 4 or is_flat(shape):
        return None
    return shape[1] if shape[1] == shape[2] else shape[2] if shape[2] == shape[3] else None


# ---- width ----------------------------------------


def channels(graph: Graph) -> Channels:
    """Which sizes of a network are free; kept with the graph. InputError where that is not clear."""
    found: Channels | None = graph.cache.get("channels")
    if found is None:
        found = graph.cache["channels"] = Channels(graph)
    return found


def widened(graph: Graph, factor: float) -> Graph:
    """The network with every free channel count times `factor`.

    Each is rounded to a multiple of 8 and of the groups of its convolutions (`sizes.scaled`); inputs and
    outputs of the network stay, and so do the heads of attention, whose size changes. Raises
    InputError where an operation does not tell how channels pass through it, and where there is
    nothing to vary.
    """
    known = channels(graph)
    free = known.sizes.free()
    if not free:
        raise InputError(
            f"the width of {graph.name!r} cannot be varied: none of its channel counts is free, they are "
            "those of its inputs and outputs; vary the resolution or the batch size"
        )
    return known.resized({u: known.sizes.scaled(u, factor) for u in free})


def inner(graph: Graph, positions: Iterable[int]) -> dict[int, int]:
    """The free channel counts that do not leave the operations at `positions`: unknown -> count.

    Raises InputError as `channels` does.
    """
    known = channels(graph)
    inside = set(positions)
    written: set[int] = set()
    elsewhere = set(graph.outputs)
    for position, operation in enumerate(graph.operations):
        if position in inside:
            written.update(operation.outputs)
        else:
            elsewhere.update((*operation.inputs, *operation.outputs))
    own = _unknowns(known, written - elsewhere) - _unknowns(known, elsewhere)
    return {u: known.sizes.now[u] for u in sorted(own & set(known.sizes.free()))}


def _unknowns(known: Channels, tensors: Iterable[int]) -> set[int]:
    resolved = known.sizes.resolved
    return {u for t in tensors for size in known.dims[t] for u, _ in resolved(size)}


def inner_widened(graph: Graph, unknowns: Iterable[int], factor: float) -> Graph:
    """The network with these channel counts (see `inner`) times `factor`, the others as they are."""
    known = channels(graph)
    return known.resized({u: known.sizes.scaled(u, factor) for u in unknowns})
