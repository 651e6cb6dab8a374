"""The images of a network: whether it reads any, their side, and how far it shrinks them."""

from __future__ import annotations

from collections.abc import Sequence

from lolat.graph import Graph
from lolat.graph.kinds import CONVOLUTIONS
from lolat.graph.network import is_flat

_SHRINKING = CONVOLUTIONS | {"max_pool", "average_pool", "resize", "pad"}


def has_convolutions(graph: Graph) -> bool:
    """True if a network has a convolution of images or other tensors."""
    return any(o.kind in CONVOLUTIONS for o in graph.operations)


def has_images(graph: Graph) -> bool:
    """True if a network has a convolution over two dimensions, whose layout torch.channels_last sets."""
    convolutions = (o for o in graph.operations if o.kind in CONVOLUTIONS)
    return any(len(o.attributes["kernel"]) == 2 for o in convolutions)


def image_side(graph: Graph) -> int | None:
    """Side of the square image that is the only input; None if the inputs are something else."""
    return _square_side(graph.tensors[graph.inputs[0]].shape) if len(graph.inputs) == 1 else None


def takes_images(graph: Graph) -> bool:
    """True if a network has convolutions, and an input of images or video frames."""
    shapes = (graph.tensors[i].shape for i in graph.inputs)
    return has_convolutions(graph) and any(len(s) > 3 and not is_flat(s) for s in shapes)


def total_stride(graph: Graph) -> int:
    """Side of a network's image / side of its smallest feature map; 32 if the ratio is not whole."""
    made = (o.outputs[0] for o in graph.operations if o.kind in _SHRINKING)
    sides = (_square_side(graph.tensors[t].shape) for t in made)
    side, least = image_side(graph), min(filter(None, sides), default=0)
    return side // least if side and least and side % least == 0 else 32


def _square_side(shape: Sequence[int]) -> int | None:
    if len(shape) != 4 or is_flat(shape):
        return None
    return shape[1] if shape[1] == shape[2] else shape[2] if shape[2] == shape[3] else None
