"""A network with some operations left out or replaced, or on smaller images.

Each function gets a graph and the positions of the operations that it may touch, and returns the changed
graph, or None where there is nothing of the kind. Shapes stay consistent, so that counting is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod

from msgspec.structs import replace

from lolat.errors import InputError
from lolat.graph import Graph, Operation, Tensor, is_convolution
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS, GraphCounts, count
from lolat.graph.kinds import ELEMENTWISE, FREE, NORMALIZATIONS, POOLINGS
from lolat.graph.naming import is_flat

# ---- A part of a network as a network of its own: what can be measured, or written down,
# alone.


def subgraph(graph: Graph, positions: Iterable[int], name: str) -> Graph:
    """The operations at `positions` of `graph` as a graph called `name`.

    Its inputs are the tensors that the part reads from the rest of the network (or that are the
    network's own), in the order in which they are read; its outputs those that the rest, or the
    network's caller, reads. A constant operand (which nobody writes and is no input) stays one.
    Tensors are numbered anew.
    """
    inside = set(positions)
    operations = [graph.operations[p] for p in sorted(inside)]
    reads = dict.fromkeys(t for o in operations for t in o.inputs)
    writes = [t for o in operations for t in o.outputs]
    fed = {t for o in graph.operations for t in o.outputs}.union(graph.inputs).difference(writes)
    outside = [o for p, o in enumerate(graph.operations) if p not in inside]
    read_outside = {t for o in outside for t in o.inputs}.union(graph.outputs)
    outputs = [t for t in writes if t in read_outside]
    if not outputs:  # what nobody reads: then all that is left over inside
        outputs = [t for t in writes if t not in reads]
    used = dict.fromkeys(t for o in operations for t in (*o.inputs, *o.outputs))
    number = {old: new for new, old in enumerate(used)}

    def numbered(tensors: Iterable[int]) -> tuple[int, ...]:
        return tuple(number[t] for t in tensors)

    return Graph(
        name,
        tuple(graph.tensors[t] for t in used),
        tuple(
            replace(o, inputs=numbered(o.inputs), outputs=numbered(o.outputs)) for o in operations
        ),
        numbered(t for t in reads if t in fed),
        numbered(outputs),
        channels_first=graph.channels_first,
    )


def block_graph(graph: Graph, number: int, name: str) -> Graph:
    """Block number `number` (of `cut`, from 0) as a graph of its own called `name`.

    InputError for one that there is not. A number, because a framework may call a layer that nobody
    named otherwise each time.
    """
    blocks = cut(graph)
    if not 0 <= number < len(blocks):
        raise InputError(f"{graph.name!r} has no block {number}: expected 0 to {len(blocks) - 1}")
    return subgraph(graph, blocks[number].operations, name)


# ---- Operations left out


def bypassed(graph: Graph, positions: Collection[int]) -> Graph | None:
    """Without these operations, where they read one tensor and write one of the same shape."""
    members = set(positions)
    inside = [graph.operations[p] for p in sorted(members)]
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
    now = {result: source}
    operations = [replace(o, inputs=tuple(now.get(t, t) for t in o.inputs)) for o in outside]
    outputs = tuple(now.get(t, t) for t in graph.outputs)
    return replace(graph, operations=tuple(operations), outputs=outputs)


# ---- A convolution as a depthwise and a pointwise one

LEAST_CHANNELS = 8  # of one that is worth splitting: not that on the colors of an image


def is_separable(operation: Operation) -> bool:
    """Whether a convolution could be a depthwise and a pointwise one."""
    a = operation.attributes
    per_channel = a.get("groups") == a.get("in_channels") == a.get("out_channels")
    return (
        operation.kind in ("conv", "grouped_conv")
        and not per_channel
        and prod(a["kernel"]) > 1
        and a["in_channels"] >= LEAST_CHANNELS
        and max(a.get("strides", (1,))) < max(a["kernel"])
    )


def separated(graph: Graph, positions: Collection[int]) -> Graph | None:
    """A depthwise and a pointwise convolution in place of each that works on space and channels."""
    tensors = list(graph.tensors)
    operations: list[Operation] = []
    for position, operation in enumerate(graph.operations):
        if position in positions and is_separable(operation):
            axis = graph.channel_axis(operation.outputs[0])
            operations += _separated(operation, tensors, axis)
        else:
            operations.append(operation)
    if len(tensors) == len(graph.tensors):
        return None
    return replace(graph, tensors=tuple(tensors), operations=tuple(operations))


def _separated(
    operation: Operation, tensors: list[Tensor], axis: int
) -> tuple[Operation, Operation]:
    """The two convolutions; the tensor between them is added to `tensors`; `axis`: of the channels."""
    a = operation.attributes
    inside, ones = a["in_channels"], (1,) * len(a["kernel"])
    result = tensors[operation.outputs[0]]
    tensors.append(replace(result, shape=(*result.shape[:axis], inside, *result.shape[axis + 1 :])))
    between = len(tensors) - 1
    depthwise = replace(
        operation, name=f"{operation.name}_depthwise", kind="depthwise_conv", outputs=(between,),
        attributes={**a, "out_channels": inside, "groups": inside, "bias": False},
    )  # fmt: skip
    pointwise = replace(
        operation, name=f"{operation.name}_pointwise", kind="conv",
        inputs=(between, *operation.inputs[1:]),
        attributes={"kernel": ones, "strides": ones, "dilation": ones, "padding": "valid", "groups": 1,
                    "in_channels": inside, "out_channels": a["out_channels"], "bias": a["bias"]},
    )  # fmt: skip
    return depthwise, pointwise


# ---- A part of a network on smaller images, and by how much a network shrinks its images

_ANY_SIZE = ELEMENTWISE | NORMALIZATIONS | {"concatenate", "stack"}
_SLIDING = frozenset(["max_pool", "average_pool"])
USUAL_STRIDE = 32  # of a network that does not tell


def halved(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The network with these operations working on images half as high and wide (rounded up).

    What lies outside is counted as it was. None where they do not work on images (4 axes), or shrink
    them by something other than their strides, so that half the input is not half the output.
    """
    rows = sorted(positions)
    inside = [graph.operations[p] for p in rows]
    shown = {t for o in inside for t in (*o.inputs, *o.outputs)}
    images = {t for t in shown if not is_flat(graph.tensors[t].shape)}
    if not images or any(len(graph.tensors[t].shape) != 4 for t in images):
        return None
    if not all(_halves(graph, o, images) for o in inside):
        return None
    axis = 1 if graph.channels_first else 3

    def half(tensor: Tensor) -> Tensor:
        sides = (n if i in (0, axis) else (n + 1) // 2 for i, n in enumerate(tensor.shape))
        return replace(tensor, shape=tuple(sides))

    tensors = tuple(half(x) if t in images else x for t, x in enumerate(graph.tensors))
    if tensors == graph.tensors:
        return None
    smaller = replace(graph, tensors=tensors)
    # The neighbors read and write the same tensors: theirs are the counts from before.
    before, after = count(graph), count(smaller)
    fixed, scaled = before.fixed.copy(), before.scaled.copy()
    fixed[rows], scaled[rows] = after.fixed[rows], after.scaled[rows]
    serial = COLUMNS.index("serial")
    fixed[:, serial] = before.fixed[:, serial]  # the path is the same, whatever the sizes
    smaller.cache["counts"] = GraphCounts(fixed, scaled, before.warnings)
    smaller.cache["blocks"] = cut(graph)
    return smaller


def _is_padded(operation: Operation) -> bool:
    a = operation.attributes
    return a.get("pad_before") is not None or a.get("padding", "valid") != "valid"


def _halves(graph: Graph, operation: Operation, images: set[int]) -> bool:
    """Whether half the input gives half the output: ceil(n / stride), and ceil of ceil."""
    a, kind = operation.attributes, operation.kind
    if kind in ("transposed_conv", "resize"):  # twice half of an odd size is one more than it
        read = graph.shapes(operation.inputs[:1])
        return all(n % 2 == 0 or n == 1 for shape in read for n in shape[1:3])
    if kind in POOLINGS - _SLIDING or kind in _ANY_SIZE:
        return True
    if kind in FREE:  # a view: as many images as before, or a flat tensor seen as another
        return images.issuperset(operation.outputs) == images.issuperset(operation.inputs[:1])
    if is_convolution(kind) or kind in _SLIDING:
        return _is_padded(operation) or max(a["kernel"]) <= max(a.get("strides") or a["kernel"])
    return kind == "dense" and images.isdisjoint(operation.inputs)


def image_side(graph: Graph) -> int | None:
    """Height = width of the only input; None where it is no square image."""
    return square_side(graph.tensors[graph.inputs[0]].shape) if len(graph.inputs) == 1 else None


def total_stride(graph: Graph) -> int | None:
    """By how much a network shrinks its images before it pools them away; None where that is not clear.

    Sizes that are multiples of it need no rounding on the way.
    """
    side, kinds = image_side(graph), _SLIDING | {"resize", "pad"}
    made = [o.outputs[0] for o in graph.operations if is_convolution(o.kind) or o.kind in kinds]
    smaller = [s for t in made if (s := square_side(graph.tensors[t].shape)) is not None]
    if side is None or not smaller or side % min(smaller):
        return None
    return side // min(smaller)


def square_side(shape: Sequence[int]) -> int | None:
    """Height = width of an image; None for what is none."""
    if len(shape) != 4 or is_flat(shape):
        return None
    return shape[1] if shape[1] == shape[2] else shape[2] if shape[2] == shape[3] else None
