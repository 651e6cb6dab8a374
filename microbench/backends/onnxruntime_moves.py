"""Operations that move, drop or fold elements, as ONNX nodes; what shapes leave open, `shapes` decides."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from microbench.backends import shapes
from microbench.backends.channels_first import Call, Maker, Shape


def reshaped(
    c: Call, x: str, target: Shape, left_rank: int | None = None, right: Shape = ()
) -> Any:
    """A reshape, left out where a product of these ranks has the output's already."""
    if left_rank is not None and max(left_rank, len(right)) == len(c.out):
        return x
    return c.tape.add("Reshape", x, c.tape.integers(*target))


def _reshape(c: Call) -> Any:
    order = shapes.channel_order(c.shape, c.out)
    if order is not None:
        return c.tape.permute(c.x, order)
    return reshaped(c, c.x, c.target(c.out))


def _flatten(c: Call) -> Any:
    if len(c.out) == 2 and c.out[0] == c.shape[0]:
        return c.tape.add("Flatten", c.x, axis=1)
    return _reshape(c)


def _transpose(c: Call) -> Any:
    order = shapes.transposition(c.shape, c.out)
    if order is not None:
        return c.tape.permute(c.x, order)
    rows = c.target((1, 0))[0]
    flat = reshaped(c, c.x, (rows, prod(c.shape[1:-1]), c.shape[-1]))
    return reshaped(c, c.tape.permute(flat, (0, 2, 1)), c.target(c.out))


def _concatenate(c: Call) -> Any:
    return c.tape.add("Concat", *c.inputs, axis=shapes.concatenation_axis(c.ins, c.out))


def _stack(c: Call) -> Any:
    axis = shapes.stacking_axis(c.ins, c.out)
    raised = [c.tape.add("Unsqueeze", x, c.tape.integers(axis)) for x in c.inputs]
    return c.tape.add("Concat", *raised, axis=axis)


def _part(c: Call, wanted: Shape, starts: dict[int, int]) -> Any:
    found = shapes.cuts(c.shape, wanted, starts)
    if found is None:
        rows = shapes.flat_rows(c.shape, wanted)
        flat = reshaped(c, c.x, c.target((rows, prod(c.shape) // rows)))
        some = _sliced(c, flat, 1, 0, prod(wanted) // rows)
        return reshaped(c, some, c.target(wanted))
    node = c.x
    for axis, start, size in found[0]:
        node = _sliced(c, node, axis, start, size)
    return node if found[1] is None else c.tape.add("Squeeze", node, c.tape.integers(found[1]))


def _sliced(c: Call, x: str, axis: int, start: int, size: int) -> Any:
    bounds = (start, start + size, axis)
    return c.tape.add("Slice", x, *(c.tape.integers(n) for n in bounds))


def _slices(c: Call) -> list[Any]:
    starts: dict[int, int] = {}
    return [_part(c, shape, starts) for shape in c.outs]


def _pad(c: Call) -> Any:
    pairs = shapes.padding(c.shape, c.out)
    amounts = (*(p[0] for p in pairs), *(p[1] for p in pairs))
    return c.tape.add("Pad", c.x, c.tape.integers(*amounts))


def _resize(c: Call) -> Any:
    """Nearest, as exporters write PyTorch's interpolate."""
    scales = np.array([1, 1, *(n / was for n, was in zip(c.out[2:], c.shape[2:], strict=True))])
    return c.tape.add(
        "Resize", c.x, "", c.tape.array(scales.astype(np.float32)), mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


def _reduce(c: Call) -> Any:
    axes, keep = shapes.reduced_axes(c.shape, c.out), len(c.out) == len(c.shape)
    kinds = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}
    kind = next((k for n, k in kinds.items() if n in c.operation.name.lower()), "ReduceMean")
    return c.tape.add(kind, c.x, c.tape.integers(*axes), keepdims=int(keep))


def _repeat(c: Call) -> Any:
    return c.tape.add("Tile", c.x, c.tape.integers(*shapes.repetitions(c.shape, c.out)))


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "flatten": _flatten,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    **dict.fromkeys(("slice", "split", "crop"), _slices),
    "pad": _pad,
    "resize": _resize,
    "reduce": _reduce,
    "repeat": _repeat,
}
"""Kind of operation -> how it is built."""
