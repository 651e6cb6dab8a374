"""Operations of a Graph as functions of PyTorch: arithmetic, and what moves, drops or folds elements.

What shapes leave open, `microbench.backends.shapes` decides.
"""

from __future__ import annotations

from math import prod
from typing import Any

from microbench.backends import shapes
from microbench.backends.channels_first import Call, Maker, Shape


def _function(name: str, *constants: Any, **options: Any) -> Maker:
    """torch's function of the operands; `constants` follow them."""
    return lambda c: c.tape.call(getattr(c.tape.torch, name), *c.inputs, *constants, **options)


def _merge(name: str, constant: float) -> Maker:
    """A function of two operands over all of them; of one operand and a constant."""

    def make(c: Call) -> Any:
        function = getattr(c.tape.torch, name)
        if len(c.inputs) == 1:
            scalar = name not in ("maximum", "minimum")
            if not scalar:
                side = {"min": constant} if name == "maximum" else {"max": constant}
                return c.tape.call(c.tape.torch.clamp, c.x, **side)
            return c.tape.call(function, c.x, constant)
        result = c.x
        for operand in c.inputs[1:]:
            result = c.tape.call(function, result, operand)
        return result

    return make


def _average(c: Call) -> Any:
    return c.tape.call(c.tape.torch.mul, _merge("add", 1.5)(c), 1 / max(1, len(c.inputs)))


def _rescale(c: Call) -> Any:
    """As Keras' Rescaling: a product and a sum."""
    return c.tape.call(c.tape.torch.sub, c.tape.call(c.tape.torch.mul, c.x, 1 / 127.5), 1.0)


def _matmul(c: Call) -> Any:
    """A product over the last axis of the left and the last but one of the right operand, or its last."""
    torch, summed = c.tape.torch, c.operation.attributes["contracted"]
    left, right = c.ins[:2]
    a, b = c.inputs[:2]
    if len(left) > 1 and len(right) > 1 and left[-1] == summed:
        if right[-2] == summed and right[-1] == c.out[-1]:
            return _shaped(c, c.tape.call(torch.matmul, a, b))
        if right[-1] == summed and right[-2] == c.out[-1]:
            turned = c.tape.call(torch.transpose, b, -1, -2)
            return _shaped(c, c.tape.call(torch.matmul, a, turned))
    batch, rows, columns = shapes.product_sizes(left, right, c.out, summed)
    count = -1 if c.batched else batch
    flat = c.tape.call(torch.reshape, a, (count, rows, summed))
    other = c.tape.call(torch.reshape, b, (count, summed, columns))
    return _shaped(c, c.tape.call(torch.matmul, flat, other))


def _shaped(c: Call, node: Any) -> Any:
    if c.tape.shape(node) == c.out:
        return node
    return c.tape.call(c.tape.torch.reshape, node, c.target(c.out))


# ---- shapes --------------------------------------------------------------------------------------


def _reshape(c: Call) -> Any:
    """A view; where the channels only change their place, that."""
    order = shapes.channel_order(c.shape, c.out)
    if order is not None:
        return c.tape.permute(c.x, order)
    return c.tape.call(c.tape.torch.reshape, c.x, c.target(c.out))


def _flatten(c: Call) -> Any:
    if len(c.out) == 2 and c.out[0] == c.shape[0]:
        return c.tape.call(c.tape.torch.flatten, c.x, 1)
    return _reshape(c)


def _transpose(c: Call) -> Any:
    """The first order of the axes that gives the shape, and the copy that it costs sooner or later."""
    torch = c.tape.torch
    if c.shape == c.out and "flip" in c.operation.name:
        return c.tape.call(torch.flip, c.x, (len(c.shape) - 1,))
    order = shapes.transposition(c.shape, c.out)
    if order is not None:
        return _copied(c, c.tape.permute(c.x, order))
    flat = c.tape.call(torch.reshape, c.x, (c.target((1, 0))[0], prod(c.shape[1:-1]), c.shape[-1]))
    turned = _copied(c, c.tape.permute(flat, (0, 2, 1)))
    return c.tape.call(torch.reshape, turned, c.target(c.out))


def _copied(c: Call, node: Any) -> Any:
    return c.tape.call(c.tape.torch.clone, node, memory_format=c.tape.torch.contiguous_format)


def _concatenate(c: Call) -> Any:
    return c.tape.call(c.tape.torch.cat, list(c.inputs), shapes.concatenation_axis(c.ins, c.out))


def _stack(c: Call) -> Any:
    return c.tape.call(c.tape.torch.stack, list(c.inputs), shapes.stacking_axis(c.ins, c.out))


def _part(c: Call, wanted: Shape, starts: dict[int, int]) -> Any:
    """A slice of the first operand, further along than the last one of the same axis."""
    torch = c.tape.torch
    found = shapes.cuts(c.shape, wanted, starts)
    if found is None:
        rows = shapes.flat_rows(c.shape, wanted)
        flat = c.tape.call(torch.reshape, c.x, c.target((rows, prod(c.shape) // rows)))
        some = c.tape.call(torch.narrow, flat, 1, 0, prod(wanted) // rows)
        return c.tape.call(torch.reshape, some, c.target(wanted))
    node = c.x
    for axis, start, size in found[0]:
        if found[1] is not None:
            return c.tape.call(torch.select, node, axis, start)
        node = c.tape.call(torch.narrow, node, axis, start, size)
    return node


def _slices(c: Call) -> list[Any]:
    """One part per output: a view, whose copy is left to what reads it."""
    starts: dict[int, int] = {}
    return [_part(c, shape, starts) for shape in c.outs]


def _pad(c: Call) -> Any:
    pairs = shapes.padding(c.shape, c.out)
    amounts = tuple(n for pair in reversed(pairs) for n in pair)
    return c.tape.call(c.tape.torch.nn.functional.pad, c.x, amounts)


def _resize(c: Call) -> Any:
    """Nearest, as Keras' UpSampling and PyTorch's Upsample have it unless told otherwise."""
    return c.tape.call(c.tape.torch.nn.functional.interpolate, c.x, c.out[2:])


def _reduce(c: Call) -> Any:
    """The sum, the maximum or, unless the name says so, the mean."""
    name = next((n for n in ("sum", "amax", "amin") if n.strip("a") in c.operation.name), "mean")
    axes, keep = shapes.reduced_axes(c.shape, c.out), len(c.out) == len(c.shape)
    return c.tape.call(getattr(c.tape.torch, name), c.x, axes, keepdim=keep)


def _repeat(c: Call) -> Any:
    return c.tape.call(c.tape.torch.tile, c.x, shapes.repetitions(c.shape, c.out))


_ALIKE = "erf sqrt rsqrt square log exp reciprocal round sign"

MAKERS: dict[str, Maker] = {
    **{name: _function(name) for name in _ALIKE.split()},
    "exponential": _function("exp"),
    "absolute": _function("abs"),
    "negative": _function("neg"),
    "trigonometric": _function("sin"),
    "clip": _function("clamp", 0.0, 6.0),
    "scale": _function("mul", 0.125),
    "rescale": _rescale,
    "add": _merge("add", 1.5),
    "subtract": _merge("sub", 1.5),
    "multiply": _merge("mul", 1.5),
    "divide": _merge("div", 1.5),
    "power": _merge("pow", 3.0),
    "maximum": _merge("maximum", 0.5),
    "minimum": _merge("minimum", 0.5),
    "average": _average,
    "matmul": _matmul,
    "flatten": _flatten,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    **dict.fromkeys(("slice", "split", "crop"), _slices),
    "pad": _pad,
    "resize": _resize,
    "reduce": _reduce,
    "repeat": _repeat,
    "roll": _function("roll", 1, -1),
    "cumulative": _function("cumsum", -1),
}
"""Kind of operation -> how it is built."""
