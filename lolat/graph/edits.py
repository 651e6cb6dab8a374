"""A part of a network as a network, a network without a part or with separable convolutions, and the size
of its images.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod

from msgspec.structs import replace

from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.graph.blocks import cut
from lolat.graph.kinds import CONVOLUTIONS
from lolat.graph.naming import is_flat


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

LEAST_CHANNELS = 8  # of a convolution that is worth splitting: the colors of an image are not


def is_separable(operation: Operation) -> bool:
    """Whether a convolution could be a depthwise and a pointwise one."""
    a = operation.attributes
    return (
        operation.kind in ("conv", "grouped_conv")
        and not a["groups"] == a["in_channels"] == a["out_channels"]
        and prod(a["kernel"]) > 1
        and a["in_channels"] >= LEAST_CHANNELS
        and max(a.get("strides", (1,))) < max(a["kernel"])
    )


def separated(graph: Graph, positions: Collection[int]) -> Graph | None:
    """A depthwise and a pointwise convolution in place of each separable one; None without any."""
    tensors, operations = list(graph.tensors), list[Operation]()
    for position, operation in enumerate(graph.operations):
        if position not in positions or not is_separable(operation):
            operations.append(operation)
            continue
        a, between = operation.attributes, len(tensors)
        inside, ones = a["in_channels"], (1,) * len(a["kernel"])
        result, axis = tensors[operation.outputs[0]], graph.channel_axis(operation.outputs[0])
        shape = (*result.shape[:axis], inside, *result.shape[axis + 1 :])
        tensors.append(replace(result, shape=shape))
        depthwise = {**a, "out_channels": inside, "groups": inside, "bias": False}
        pointwise = {
            "kernel": ones, "strides": ones, "dilation": ones, "padding": "valid", "groups": 1,
            "in_channels": inside, "out_channels": a["out_channels"], "bias": a["bias"],
        }  # fmt: skip
        operations += [
            replace(
                operation, name=f"{operation.name}_depthwise", kind="depthwise_conv", outputs=(between,),
                attributes=depthwise,
            ),
            replace(
                operation, name=f"{operation.name}_pointwise", kind="conv",
                inputs=(between, *operation.inputs[1:]), attributes=pointwise,
            ),
        ]  # fmt: skip
    if len(tensors) == len(graph.tensors):
        return None
    return replace(graph, tensors=tuple(tensors), operations=tuple(operations))


# ---- How a network shrinks its images

_SHRINKING = CONVOLUTIONS | {"max_pool", "average_pool", "resize", "pad"}
USUAL_STRIDE = 32  # of a network that does not tell


def image_side(graph: Graph) -> int | None:
    """Height = width of the only input; None where it is no square image."""
    return square_side(graph.tensors[graph.inputs[0]].shape) if len(graph.inputs) == 1 else None


def total_stride(graph: Graph) -> int | None:
    """By how much a network shrinks its images before it pools them away; None where that is not clear.

    Sizes that are multiples of it need no rounding on the way.
    """
    made = (o.outputs[0] for o in graph.operations if o.kind in _SHRINKING)
    sides = (square_side(graph.tensors[t].shape) for t in made)
    side, least = image_side(graph), min(filter(None, sides), default=0)
    return side // least if side and least and side % least == 0 else None


def square_side(shape: Sequence[int]) -> int | None:
    """Height = width of an image; None for what is none."""
    if len(shape) != 4 or is_flat(shape):
        return None
    return shape[1] if shape[1] == shape[2] else shape[2] if shape[2] == shape[3] else None
