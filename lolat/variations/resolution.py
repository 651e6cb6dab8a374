"""A part of a network on smaller images, and by how much a network shrinks its images."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from lolat.blocks import cut
from lolat.counts import COLUMNS, GraphCounts, count
from lolat.graph import Graph, Operation, Tensor, is_convolution
from lolat.kinds import ELEMENTWISE, FREE, NORMALISATIONS, POOLINGS
from lolat.summaries import is_flat
from lolat.variations.edits import channel_axis

_ANY_SIZE = ELEMENTWISE | NORMALISATIONS | {"concatenate", "stack"}
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
