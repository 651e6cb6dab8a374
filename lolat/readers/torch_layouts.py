"""Views, and where the channels of a tensor are: which transpositions move data.

In PyTorch an image is (N, C, H, W) and tokens are (N, T, C); a network moves the channels to the end in
front of a layer norm and back behind it. Written channels last, as in Keras, the same network has no
such transpositions: they are free here. All others count, as in Keras, whether or not a copy follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from lolat.graph import CONVOLUTIONS
from lolat.kinds import NORMALISATIONS, POOLINGS

_RESHAPES = """
view _unsafe_view reshape view_as reshape_as flatten unflatten squeeze unsqueeze contiguous ravel
alias detach clone lift_fresh_copy
"""
_TRANSPOSITIONS = "permute transpose t numpy_T mT movedim moveaxis swapaxes swapdims adjoint"
_PARTS = """
slice select narrow chunk split split_with_sizes unsafe_chunk unsafe_split unbind tensor_split expand
expand_as diagonal to
"""
RESHAPES = frozenset(_RESHAPES.split())
"""Operations that show the same data in another shape; a copy belongs to what needs it."""
TRANSPOSITIONS = frozenset(_TRANSPOSITIONS.split())
VIEWS = RESHAPES - {"clone", "lift_fresh_copy"} | TRANSPOSITIONS | frozenset(_PARTS.split())
"""What changes along with the tensor that it is a view of."""

_FIRST = CONVOLUTIONS | POOLINGS | {"batch_norm", "group_norm", "instance_norm", "resize"}
_LAST = {"dense", "layer_norm", "rms_norm", "embedding", "lstm", "gru", "simple_rnn"}
_IMAGE = ("view", "reshape", "unflatten", "conv", "batch_norm", "pool", "group_norm", "upsample")


def channel_axis(
    walker: Any, kind: str, inputs: Sequence[int], shape: tuple[int, ...]
) -> int | None:
    """The axis of the channels of what an operation writes; None where it is not known."""
    if kind in _FIRST and not (kind in NORMALISATIONS and inputs[0] in walker.channels):
        return 1 if len(shape) > 2 else None
    if kind in _LAST:
        return len(shape) - 1
    if kind in ("reshape", "transpose", "matmul", "unfold", "reduce", "gather"):
        return None
    known = [walker.channels[i] for i in inputs if i in walker.channels
             and len(walker.shape(i)) == len(shape)]  # fmt: skip
    return known[0] if known else None


def reshaped(walker: Any, call: Any) -> list[int]:
    """The same data in another shape; free. The channels stay known where they stay an axis."""
    source = walker.index(call.get("self", call.get("input")))
    before, after = walker.shape(source), call.shapes[0]
    if before == after:
        return [source] if call.op != "clone" else [walker.add(call, "identity", [source])]
    out = walker.add(call, "reshape", [source])
    axis = walker.channels.get(source)
    if axis is not None:
        size = before[axis]
        inside, behind = prod(before[:axis]), prod(before[axis + 1 :])
        for at, n in enumerate(after):
            if n == size and prod(after[:at]) == inside and prod(after[at + 1 :]) == behind:
                walker.channels[out] = at
    return [out]


def permutation(call: Any, rank: int) -> list[int]:
    """Which axis of the input each axis of the output is."""
    order = list(range(rank))
    if call.op == "permute":
        return [int(d) % rank for d in call.get("dims")]
    if call.op in ("movedim", "moveaxis"):
        source, target = call.get("source"), call.get("destination")
        sources = [source] if isinstance(source, int) else list(source)
        targets = [target] if isinstance(target, int) else list(target)
        moved = {t % rank: s % rank for s, t in zip(sources, targets, strict=True)}
        rest = iter(a for a in order if a not in moved.values())
        return [moved[a] if a in moved else next(rest) for a in order]
    if call.op == "numpy_T":
        return order[::-1]
    if call.op in ("t", "mT", "adjoint"):
        first, second = (rank - 2, rank - 1) if rank > 1 else (0, 0)
    else:
        first = call.get("dim0", call.get("axis0", 0)) % rank
        second = call.get("dim1", call.get("axis1", 0)) % rank
    order[first], order[second] = order[second], order[first]
    return order


def transposed(walker: Any, call: Any) -> list[int]:
    """A transposition: free where it only moves the channels to where images or tokens have them."""
    source = walker.index(call.get("self", call.get("input")))
    shape = walker.shape(source)
    order = permutation(call, len(shape))
    axis = walker.channels.get(source)
    moved = [a for a in order if shape[a] > 1]
    free = moved == sorted(moved) or _is_layout(walker, call, source, order)
    out = walker.add(call, "reshape" if free else "transpose", [source])
    if axis is not None:
        walker.channels[out] = order.index(axis)
    return [out]


def _is_layout(walker: Any, call: Any, source: int, order: list[int]) -> bool:
    """Whether the channels alone move, between the second axis and the last."""
    last = len(order) - 1
    to_last = order == [0, *range(2, last + 1), 1]
    to_first = order == [0, last, *range(1, last)]
    if last < 2 or not (to_last or to_first):
        return False
    axis = walker.channels.get(source)
    if last > 2 and source in walker.builder.inputs:
        return True  # an image as files have it
    if last == 2:
        # Of tokens it is the way back to an image or a signal only when one is made of them.
        return axis == 1 or (axis == 2 and _feeds_image(call.node))
    return axis == (1 if to_last else last)


def _feeds_image(node: Any) -> bool:
    """Whether what reads a node sees it as an image or a signal."""
    for user in node.users:
        name = str(user.target)
        if any(part in name for part in ("contiguous", "clone", "dropout")):
            if _feeds_image(user):
                return True
            continue
        rank = len(getattr(user.meta.get("val"), "shape", ()))
        if any(f"aten.{part}" in name or f"_{part}" in name for part in _IMAGE):
            return rank > 3 or "conv" in name or "norm" in name or "pool" in name
    return False
