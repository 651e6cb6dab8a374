"""Operations that every backend builds of the same steps: they move, drop, fold or merge elements.

A framework's own steps are the methods of its tape; what an operation does to its axes, `shapes` says.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from microbench.backends import shapes
from microbench.backends.tape import Call, Maker

CONSTANTS = {"maximum": 0.5, "minimum": 0.5, "power": 3.0}
"""The other operand of an operation that has one alone: a constant of the network; else 1.5."""


def reshape(c: Call) -> Any:
    """A view; of another order of the axes where the Graph says so, or channels only change place."""
    order = None
    if c.tape.channels_first:  # elsewhere it costs nothing, as the Graph counts it
        permutation = c.attributes.get("permutation")
        order = (
            shapes.channel_order(c.shape, c.out)
            if permutation is None
            else shapes.transposition(c.shape, c.out, permutation)
        )
    return c.reshape(c.x, c.out) if order is None else c.tape.permute(c.x, order)


def transpose(c: Call) -> Any:
    """The order of the axes that gives the shape; else all of a sample as one matrix."""
    order = shapes.transposition(c.shape, c.out, c.attributes.get("permutation"))
    if order is not None:
        return c.tape.copied(c.tape.permute(c.x, order))
    rows = c.target((1, 0))[0]
    flat = c.tape.reshape(c.x, (rows, prod(c.shape[1:-1]), c.shape[-1]))
    return c.reshape(c.tape.copied(c.tape.permute(flat, (0, 2, 1))), c.out)


def _concatenate(c: Call) -> Any:
    return c.tape.concatenate(c.inputs, shapes.concatenation_axis(c.ins, c.out, c.axis))


def _stack(c: Call) -> Any:
    return c.tape.stack(c.inputs, shapes.stacking_axis(c.ins, c.out, c.axis))


def parts(c: Call) -> list[Any]:
    """One part of the first operand for each output."""
    nodes = []
    for part, out in zip(shapes.parts(c.shape, c.outs, c.attributes), c.outs, strict=True):
        node, index, shape = c.x, *(part or ((), ()))
        if part is None:
            rows = shapes.flat_rows(c.shape, out)
            node = c.reshape(c.x, (rows, prod(c.shape) // rows))
            index = (slice(None), slice(0, prod(out) // rows, 1))
        nodes.append(c.reshape(c.tape.index(node, index), out, shape))
    return nodes


def _pad(c: Call) -> Any:
    return c.tape.pad(c.x, shapes.padding(c.shape, c.out, c.attributes.get("padding", ())))


def _reduce(c: Call) -> Any:
    axes = shapes.reduced_axes(c.shape, c.out, c.attributes.get("axis"))
    name = shapes.reduction(c.operation.name)
    return c.tape.reduce(c.x, name, axes, len(c.out) == len(c.shape))


def _repeat(c: Call) -> Any:
    raised, times = shapes.repetitions(c.shape, c.out)
    return c.tape.tile(c.reshape(c.x, raised, c.shape), times)


def _merge(kind: str, c: Call) -> Any:
    if len(c.inputs) > 1:
        return c.tape.merge(kind, c.inputs)
    return c.tape.binary("add" if kind == "average" else kind, c.x, CONSTANTS.get(kind, 1.5))


def _rescale(c: Call) -> Any:
    """As Keras' Rescaling: a product and a sum."""
    return c.tape.binary("subtract", c.tape.binary("multiply", c.x, 1 / 127.5), 1.0)


def dense(c: Call) -> Any:
    """A dense layer along the last axis, or one between shapes of as many elements."""
    a = c.attributes
    inside, made = a["in_features"], a["out_features"]
    if c.shape[-1] == inside and c.out == (*c.shape[:-1], made):
        return c.tape.dense(c.x, len(c.shape), inside, made, a["bias"])
    rows, rest = divmod(prod(c.shape), inside)
    if rest or rows * made != prod(c.out):
        raise ValueError(f"no product of {inside} features goes from {c.shape} to {c.out}")
    flat = c.reshape(c.x, (rows, inside))
    return c.reshape(c.tape.dense(flat, 2, inside, made, a["bias"]), c.out)


def matmul(c: Call, turn_right: bool = True) -> Any:
    """A product over the last axis of the left and the last but one of the right operand, or its last.

    Where neither fits, or without `turn_right`, a batch of products of as many elements.
    """
    summed = c.attributes["contracted"]
    (left, right), (a, b) = c.ins[:2], c.inputs[:2]
    if len(left) > 1 and len(right) > 1 and left[-1] == summed:
        plain = right[-2] == summed and right[-1] == c.out[-1]
        if not plain and turn_right and right[-1] == summed and right[-2] == c.out[-1]:
            b = c.tape.permute(b, (*range(len(right) - 2), len(right) - 1, len(right) - 2))
            plain = True
        if plain:
            product = c.tape.matmul(a, b)
            ranks = len(left), len(right)
            return product if max(ranks) == len(c.out) else c.reshape(product, c.out)
    batch, rows, columns = shapes.product_sizes(left, right, c.out, summed)
    count = -1 if c.batched else batch
    a, b = c.tape.reshape(a, (count, rows, summed)), c.tape.reshape(b, (count, summed, columns))
    return c.reshape(c.tape.matmul(a, b), c.out, (batch, rows, columns))


MERGES = ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "average"]
MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("reshape", "flatten", "squeeze", "expand_dims"), reshape),
    "transpose": transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    **dict.fromkeys(("slice", "split", "crop"), parts),
    "pad": _pad,
    "reduce": _reduce,
    "repeat": _repeat,
    **{kind: partial(_merge, kind) for kind in MERGES},
    "scale": lambda c: c.tape.binary("multiply", c.x, 0.125),
    "rescale": _rescale,
    "dense": dense,
    "matmul": matmul,
    "identity": lambda c: c.x,
}
"""Kind of operation -> how it is built."""
