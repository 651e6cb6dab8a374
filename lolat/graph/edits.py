"""A network without some of its operations or with separable convolutions, and the size of its images."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from msgspec.structs import replace

from lolat.graph import Graph, Operation
from lolat.graph.kinds import CONVOLUTIONS
from lolat.graph.naming import is_flat


def bypassed(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The graph without these operations; None unless they read one tensor and write one of its shape."""
    members = set(positions)
    inside = [graph.operations[p] for p in sorted(members)]
    outside = [o for p, o in enumerate(graph.operations) if p not in members]
    written = {t for o in inside for t in o.outputs}
    reads = {t for o in inside for t in o.inputs}.difference(written)
    reads &= {t for o in outside for t in o.outputs}.union(graph.inputs)
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
    """True if a convolution could be a depthwise and a pointwise one."""
    a = operation.attributes
    return (
        operation.kind in ("conv", "grouped_conv")
        and not a["groups"] == a["in_channels"] == a["out_channels"]
        and prod(a["kernel"]) > 1
        and a["in_channels"] >= LEAST_CHANNELS
        and max(a.get("strides", (1,))) < max(a["kernel"])
    )


def separated(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The graph with a depthwise and a pointwise convolution for each separable one; None without."""
    tensors, operations = list(graph.tensors), list[Operation]()
    for position, operation in enumerate(graph.operations):
        if position not in positions or not is_separable(operation):
            operations.append(operation)
            continue
        a, between = operation.attributes, len(tensors)
        channels, ones = a["in_channels"], (1,) * len(a["kernel"])
        result, axis = tensors[operation.outputs[0]], graph.channel_axis(operation.outputs[0])
        shape = (*result.shape[:axis], channels, *result.shape[axis + 1 :])
        tensors.append(replace(result, shape=shape))
        depthwise = {**a, "out_channels": channels, "groups": channels, "bias": False}
        pointwise = {
            "kernel": ones, "strides": ones, "dilation": ones, "padding": "valid", "groups": 1,
            "in_channels": channels, "out_channels": a["out_channels"], "bias": a["bias"],
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


def image_side(graph: Graph) -> int | None:
    """Height = width of the only input; None if it is no square image."""
    return _square_side(graph.tensors[graph.inputs[0]].shape) if len(graph.inputs) == 1 else None


def total_stride(graph: Graph) -> int:
    """The factor by which a network shrinks its images before it pools them; 32 if it is not clear."""
    made = (o.outputs[0] for o in graph.operations if o.kind in _SHRINKING)
    sides = (_square_side(graph.tensors[t].shape) for t in made)
    side, least = image_side(graph), min(filter(None, sides), default=0)
    return side // least if side and least and side % least == 0 else 32


def _square_side(shape: Sequence[int]) -> int | None:
    if len(shape) != 4 or is_flat(shape):
        return None
    return shape[1] if shape[1] == shape[2] else shape[2] if shape[2] == shape[3] else None
