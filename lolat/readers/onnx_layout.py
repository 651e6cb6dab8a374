"""Transposes that are only about layout: they are views here, as they are nothing in Keras.

ONNX has channels first. A network of another layout, or one that normalises or multiplies over channels,
transposes there and back; Keras, with channels last, does not. The same goes for the transposes of a
recurrent layer (steps first), of the heads of an attention, and for those that move axes of size 1 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lolat.readers.onnx_nodes import Net, Node

_FIRST = """
Conv ConvTranspose MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool BatchNormalization
InstanceNormalization GroupNormalization LRN QLinearConv ConvInteger DepthToSpace SpaceToDepth group_norm
Resize Upsample GridSample DeformConv
"""
CHANNELS_FIRST = frozenset(_FIRST.split())
VIEWS = frozenset(["Reshape", "Flatten", "Squeeze", "Unsqueeze"])
_THROUGH = """
Relu Sigmoid Tanh Clip Add Sub Mul Div Pow Max Min Concat Split Slice Pad Dropout Cast LeakyRelu Elu
HardSwish HardSigmoid Gelu PRelu Softplus Mish Selu Erf Sqrt Exp Neg Abs Where Identity silu gelu
hard_silu hard_sigmoid mish Swish QuantizeLinear DequantizeLinear
"""
THROUGH = frozenset(_THROUGH.split())
"""Operators behind which the channels are where they were."""
_SELECTS = frozenset(["Gather", "Split", "Slice", "Concat"])
_MARGIN = 12  # operators between a product and the transpose of its heads


def mark(net: Net, heads: Sequence[tuple[Node, str]]) -> None:
    """Mark (as the kind "reshape") the transposes that are layout; `heads`: see `onnx_attention.fuse`."""
    producers, consumers = net.producers(), net.consumers()
    for node, name in heads:
        _mark_heads(net, node, name, producers, consumers)
    first: set[str] = set()  # tensors whose channels are axis 1 of 3 or more
    for node in net.nodes:
        if node.op == "Transpose" and not node.domain:
            if not node.kind and _is_layout(net, node, first, producers, consumers):
                node.kind = "reshape"
            perm = _perm(net, node)
            if (
                node.kind == "reshape"
                and node.inputs[0] not in first
                and perm == _to_first(len(perm))
            ):
                first.add(node.outputs[0])
        elif _keeps_first(net, node, first):
            first.update(o for o in node.outputs if o)


def _perm(net: Net, node: Node) -> tuple[int, ...]:
    rank = len(net.shapes[node.inputs[0]])
    return tuple(node.attributes.get("perm") or range(rank - 1, -1, -1))


def _to_first(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


def _to_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def _keeps_first(net: Net, node: Node, first: set[str]) -> bool:
    """Whether what a node writes has its channels on axis 1."""
    rank = len(net.shapes[node.outputs[0]]) if node.outputs[0] in net.shapes else 0
    if rank < 3:
        return False
    if node.op in CHANNELS_FIRST:
        return True
    sources = [n for n in net.live_inputs(node) if n in first]
    if node.op in THROUGH or node.op.startswith("Reduce"):
        return any(len(net.shapes[n]) == rank for n in sources)
    if node.op in VIEWS and sources:
        return net.shapes[sources[0]][:2] == net.shapes[node.outputs[0]][:2]
    return False


def _is_layout(
    net: Net,
    node: Node,
    first: set[str],
    producers: dict[str, Node],
    consumers: dict[str, list[Node]],
) -> bool:
    perm, shape = _perm(net, node), net.shapes[node.inputs[0]]
    rank = len(perm)
    moved = [axis for axis in perm if shape[axis] > 1]
    if moved == sorted(moved):  # at batch size 1; the batch comes first in Keras
        return True
    source = node.inputs[0]
    if rank < 3:
        return False
    if source in first:
        return perm == _to_last(rank)
    if perm != _to_first(rank):
        return False
    return rank > 3 or _feeds_channels_first(net, node.outputs[0], first, consumers)


def _feeds_channels_first(
    net: Net, name: str, first: set[str], consumers: dict[str, list[Node]]
) -> bool:
    """Whether somebody reads a tensor as one with channels first, perhaps behind element-wise operators."""
    seen, waiting = {name}, [name]
    while waiting and len(seen) < 4 * _MARGIN:
        for node in consumers.get(waiting.pop(), ()):
            if node.op in CHANNELS_FIRST:
                return True
            if node.op in THROUGH and any(n in first for n in node.inputs):
                return True
            if node.op in THROUGH or node.op in VIEWS:
                new = set(node.outputs) - seen
                seen |= new
                waiting += new
    return False


def _mark_heads(
    net: Net, product: Node, name: str, producers: dict[str, Node], consumers: dict[str, list[Node]]
) -> None:
    """Mark the transposes around a product of an attention, on the side of `name`."""
    if name in product.outputs:
        waiting = [name]
        while waiting:
            for node in consumers.get(waiting.pop(), ()):
                if node.op == "Transpose":
                    node.kind = "reshape"
                elif node.op in VIEWS:
                    waiting += node.outputs
        return
    ahead = [(name, 0)]
    while ahead:
        tensor, steps = ahead.pop()
        before = producers.get(tensor)
        if before is None or steps > _MARGIN:
            continue
        if before.op == "Transpose" and not before.domain:
            before.kind = "reshape"
        elif before.op not in VIEWS and before.op not in THROUGH and before.op not in _SELECTS:
            continue
        ahead += [(n, steps + 1) for n in net.live_inputs(before)]


def pooled(net: Net, axes: Sequence[int], source: str) -> bool:
    """Whether reducing `axes` of an image leaves one number per channel, as global pooling does."""
    rank = len(net.shapes[source])
    left = sorted({n % rank for n in range(rank)} - {a % rank for a in axes})
    sizes = prod(net.shapes[source])
    return rank > 3 and sizes > 0 and left in ([0, 1], [0, rank - 1])
