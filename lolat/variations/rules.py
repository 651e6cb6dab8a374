"""How channels pass through operations: one rule per kind, in a table.

A rule gets what is known so far, the operation and its position, and returns the sizes of its outputs;
where it is not clear how channels pass, it raises `Unclear`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lolat.graph import Operation
from lolat.kinds import ELEMENTWISE, NORMALISATIONS, POOLINGS
from lolat.variations.shapes import Dims, Unclear, fixed, transposed, viewed, with_axis
from lolat.variations.sizes import Size, number, times

if TYPE_CHECKING:
    from lolat.variations.channels import Channels

Rule = Callable[["Channels", int, Operation], list[Dims]]


def _channel_axis(c: Channels, dims: Dims, shape: tuple[int, ...], count: int) -> int:
    """Where the `count` channels are: on the last axis or on the first behind the batch."""
    fits = [a for a in (len(shape) - 1, 1) if 0 < a < len(shape) and shape[a] == count]
    fits.sort(key=lambda a: not c.sizes.is_open(dims[a]))
    if not fits or set(c.open_axes(dims)) - {fits[0]}:
        raise Unclear
    return fits[0]


def _convolution(c: Channels, position: int, o: Operation) -> list[Dims]:
    """Its output channels are free; of a convolution of one channel a group they follow the input's."""
    a = o.attributes
    dims, (shape,) = c.dims[o.inputs[0]], c.graph.shapes(o.outputs)
    axis = _channel_axis(c, dims, c.graph.tensors[o.inputs[0]].shape, a["in_channels"])
    if shape[axis] != a["out_channels"]:
        raise Unclear
    inside, groups = dims[axis], a["groups"]
    own = {"in_channels": inside}
    if 1 < groups == a["in_channels"] and a["out_channels"] % groups == 0:
        own["groups"] = inside
        outside = times(inside, a["out_channels"] // groups)
    else:
        outside = c.layer(o, inside, a["out_channels"])
        c.sizes.need_multiple(inside, groups)
        c.sizes.need_multiple(outside, groups)
    c.attributes[position] = {**own, "out_channels": outside}
    return [with_axis(fixed(shape), axis, outside)]


def _dense(c: Channels, position: int, o: Operation) -> list[Dims]:
    """Its features are free; the other axes are those of its input."""
    a = o.attributes
    dims, (shape,) = c.dims[o.inputs[0]], c.graph.shapes(o.outputs)
    own = c.graph.tensors[o.inputs[0]].shape
    if own[-1] != a["in_features"] or shape[-1] != a["out_features"]:
        if c.is_open(dims):
            raise Unclear
        return c.as_they_are(o)
    outside = c.layer(o, dims[-1], a["out_features"])
    c.attributes[position] = {"in_features": dims[-1], "out_features": outside}
    if own[:-1] == shape[:-1]:
        return [(*dims[:-1], outside)]
    if c.is_open(dims[:-1]):
        raise Unclear
    return [(*fixed(shape[:-1]), outside)]


def _embedding(c: Channels, position: int, o: Operation) -> list[Dims]:
    (shape,) = c.graph.shapes(o.outputs)
    size = c.layer(o, number(1), shape[-1])
    c.attributes[position] = {"out_features": size}
    return [(*fixed(shape[:-1]), size)]


def _recurrent(c: Channels, position: int, o: Operation) -> list[Dims]:
    """Its units are free; states that come in or go out have as many."""
    sequence, *states = (c.dims[t] for t in o.inputs)
    if c.is_open(sequence[:-1]):
        raise Unclear
    units = c.layer(o, sequence[-1], o.attributes["units"])
    for state in states:
        if c.sizes.value(state[-1]) == o.attributes["units"]:
            c.sizes.unify(state[-1], units)
    c.attributes[position] = {"in_features": sequence[-1], "units": units}
    return [(*fixed(s[:-1]), units) for s in c.graph.shapes(o.outputs)]


def _elementwise(c: Channels, position: int, o: Operation) -> list[Dims]:
    """The operands' sizes are tied; one of size 1 is broadcast."""
    (shape,) = c.graph.shapes(o.outputs)
    made: list[Size | None] = [None] * len(shape)
    for t in o.inputs:
        for back, n in enumerate(reversed(c.graph.tensors[t].shape), 1):
            if back > len(shape) or n not in (1, shape[-back]):
                return _only_fixed(c, o)
            if n == shape[-back]:
                size, known = c.dims[t][-back], made[-back]
                if known is None:
                    made[-back] = size
                else:
                    c.sizes.unify(known, size)
    if None in made:
        return _only_fixed(c, o)
    return [tuple(size for size in made if size is not None)]


def _only_fixed(c: Channels, o: Operation) -> list[Dims]:
    if any(c.is_open(c.dims[t]) for t in o.inputs):
        raise Unclear
    return c.as_they_are(o)


def _gated(c: Channels, position: int, o: Operation) -> list[Dims]:
    """A gated linear unit halves its features."""
    dims, (shape,) = c.dims[o.inputs[0]], c.graph.shapes(o.outputs)
    half = c.sizes.divided(dims[-1], 2)
    if half is None or c.sizes.value(half) != shape[-1]:
        raise Unclear
    return [(*dims[:-1], half)]


def _kept(c: Channels, position: int, o: Operation) -> list[Dims]:
    """What works on the other axes keeps the free one, where that can be told."""
    dims, before = c.dims[o.inputs[0]], c.graph.tensors[o.inputs[0]].shape
    return [_kept_one(c, o, dims, before, shape) for shape in c.graph.shapes(o.outputs)]


def _kept_one(
    c: Channels, o: Operation, dims: Dims, before: tuple[int, ...], shape: tuple[int, ...]
) -> Dims:
    made = fixed(shape)
    for axis in c.open_axes(dims):
        n = before[axis]
        at = axis if len(shape) == len(before) or axis == 1 else axis - len(before)
        if -len(shape) <= at < len(shape) and shape[at] == n:
            made = with_axis(made, at, dims[axis])
        elif o.kind == "slice" and len(shape) == len(before) and n % shape[at] == 0:
            made = with_axis(made, at, _equal_part(c, o, dims[axis], n // shape[at]))
        elif o.kind != "reduce" or (n in shape and len(shape) != len(before)):
            raise Unclear
    return made


def _equal_part(c: Channels, o: Operation, size: Size, parts: int) -> Size:
    """A slice of one of `parts` equal parts, all of which are used."""
    operations = c.graph.operations
    shape = c.graph.shapes(o.outputs)[0]
    others = [p for p in operations if p.kind == "slice" and p.inputs[:1] == o.inputs[:1]]
    same = [p for p in others if c.graph.shapes(p.outputs)[0] == shape]
    part = c.sizes.divided(size, parts)
    if len(same) != parts or part is None:
        raise Unclear
    return part


def _viewed(c: Channels, position: int, o: Operation) -> list[Dims]:
    dims, before = c.dims[o.inputs[0]], c.graph.tensors[o.inputs[0]].shape
    (shape,) = c.graph.shapes(o.outputs)
    found = viewed(c.sizes, dims, before, shape)
    if found is None:
        raise Unclear
    return [found]


def _transposed(c: Channels, position: int, o: Operation) -> list[Dims]:
    dims, before = c.dims[o.inputs[0]], c.graph.tensors[o.inputs[0]].shape
    (shape,) = c.graph.shapes(o.outputs)
    found = transposed(dims, c.open_axes(dims), before, shape)
    if found is None:
        raise Unclear
    return [found]


def _concatenated(c: Channels, position: int, o: Operation) -> list[Dims]:
    """The sizes on one axis are added, those on the others tied."""
    (shape,) = c.graph.shapes(o.outputs)
    parts = [c.dims[t] for t in o.inputs]
    first = c.graph.tensors[o.inputs[0]].shape
    if len(first) != len(shape):
        return _only_fixed(c, o)
    axis = next((a for a, n in enumerate(shape) if n != first[a]), -1)
    made = parts[0]
    for part in parts[1:]:
        for a, size in enumerate(part):
            if a != axis % len(shape):
                c.sizes.unify(made[a], size)
        made = with_axis(made, axis, made[axis] + part[axis])
    return [made]


def _stacked(c: Channels, position: int, o: Operation) -> list[Dims]:
    (shape,) = c.graph.shapes(o.outputs)
    first = c.graph.tensors[o.inputs[0]].shape
    at = [a for a in range(len(shape)) if (*shape[:a], *shape[a + 1 :]) == first]
    if not at or shape[at[0]] != len(o.inputs):
        return _only_fixed(c, o)
    dims = c.dims[o.inputs[0]]
    for t in o.inputs[1:]:
        for one, other in zip(dims, c.dims[t], strict=True):
            c.sizes.unify(one, other)
    return [(*dims[: at[0]], number(len(o.inputs)), *dims[at[0] :])]


def _product(c: Channels, position: int, o: Operation) -> list[Dims]:
    """A product of two activations; of attention the number of heads stays, their size follows."""
    left, right = (c.dims[t] for t in o.inputs[:2])
    (a, b), (out,) = c.graph.shapes(o.inputs[:2]), c.graph.shapes(o.outputs)
    summed = o.attributes["contracted"]
    if not c.is_open(left) and not c.is_open(right):
        return c.as_they_are(o)
    if len(out) == len(a) + 1 == len(b) + 1 and not c.is_open(left[:-1] + right[:-1]):
        heads, others = a[-1] // summed, b[-1] // summed  # scores: queries x keys, head by head
        one, other = c.sizes.divided(left[-1], heads), c.sizes.divided(right[-1], others)
        if one is not None and other is not None and heads == out[-3]:
            c.sizes.unify(one, other)
            c.attributes[position] = {"contracted": one}
            return c.as_they_are(o)
    if len(a) == len(b) + 1 == len(out) + 1 and not c.is_open(left + right[:-1]):
        heads = a[-3]  # the mix of values by the scores
        part = c.sizes.divided(right[-1], max(b[-1] * heads // out[-1], 1))
        if part is not None and summed == b[-2] == a[-1]:
            return [(*fixed(out[:-1]), times(part, heads))]
    return _matrix_product(c, position, o)


def _matrix_product(c: Channels, position: int, o: Operation) -> list[Dims]:
    """(..., m, k) x (..., k, n) -> (..., m, n), or the right one transposed."""
    left, right = (c.dims[t] for t in o.inputs[:2])
    (a, b), (out,) = c.graph.shapes(o.inputs[:2]), c.graph.shapes(o.outputs)
    summed = o.attributes["contracted"]
    plain = b[-2:] == (summed, out[-1])
    turned = b[-2:] == (out[-1], summed)
    if a[-1] != summed or len(out) != len(a) or out[:-1] != a[:-1] or plain == turned:
        raise Unclear
    if c.is_open(right[:-2]):
        raise Unclear
    rows, columns = (right[-2], right[-1]) if plain else (right[-1], right[-2])
    c.sizes.unify(left[-1], rows)
    c.attributes[position] = {"contracted": left[-1]}
    return [(*left[:-1], columns)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(sorted(ELEMENTWISE | NORMALISATIONS), _elementwise),
    **dict.fromkeys(["identity", "dropout", "fill", "cumulative", "roll"], _elementwise),
    **dict.fromkeys(sorted(POOLINGS), _kept),
    **dict.fromkeys(["pad", "crop", "resize", "reduce", "repeat", "slice", "gather"], _kept),
    **dict.fromkeys(["reshape", "flatten", "squeeze", "expand_dims"], _viewed),
    **dict.fromkeys(["conv", "grouped_conv", "depthwise_conv", "transposed_conv"], _convolution),
    **dict.fromkeys(["lstm", "gru", "simple_rnn"], _recurrent),
    "glu": _gated,
    "dense": _dense,
    "embedding": _embedding,
    "transpose": _transposed,
    "concatenate": _concatenated,
    "stack": _stacked,
    "matmul": _product,
}
