"""How channels pass through a network: which sizes of its tensors are free, which are tied to which.

A size is a sum of pieces `factor x unknown` (a concatenation has several, a flattened image one with a
factor), or a plain number. Two that must be equal are unified, as terms are in logic programming
(Robinson 1965): an unknown is bound to what it equals, to its parts or to a number.

Inputs and outputs of a network are fixed. What a layer with weights makes is free; what adds, multiplies
or normalizes ties sizes together, a concatenation adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor, gcd, lcm, prod

from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.graph.kinds import CONVOLUTIONS, ELEMENTWISE, GATES, NORMALIZATIONS, POOLINGS

NUMBER = -1  # in the place of an unknown: the factor is the size itself
STEP = 8  # channel counts are multiples of this, as vector instructions like them

Size = tuple[tuple[int, int], ...]  # pieces: (unknown, factor)
Dims = tuple[Size, ...]  # the size of each axis of a tensor
Shape = tuple[int, ...]


def number(n: int) -> Size:
    """A size that cannot change."""
    return ((NUMBER, n),)


def times(size: Size, factor: int) -> Size:
    """`factor` times a size."""
    return tuple((unknown, factor * f) for unknown, f in size)


def fixed(shape: Sequence[int]) -> Dims:
    """The sizes of a shape that cannot change."""
    return tuple(map(number, shape))


def with_axis(dims: Dims, axis: int, size: Size) -> Dims:
    """`dims` with another size on one axis."""
    return (*dims[:axis], size, *dims[axis % len(dims) + 1 :])


def scaled(size: int, factor: float, multiple: int = 1) -> int:
    """`size` x `factor`, rounded to the nearest multiple of 8 and of `multiple`, and at least that.

    It never leaves the side that the factor points to: 20 channels x 0.99 are not 24, 4 channels x 0.5
    stay 4. So it never falls as the factor rises. Where the common multiple is larger than the size
    itself, it is rounded to `multiple` alone.
    """
    if factor == 1:
        return size
    step = lcm(STEP, multiple)
    step = multiple if step > size and multiple > 1 else step
    new = max(1, floor(size * factor / step + 0.5)) * step
    return min(new, size) if factor < 1 else max(new, size)


class Sizes:
    """The unknowns of a network: their sizes as they are, and what is known of each."""

    def __init__(self) -> None:
        self.now: list[int] = []
        self.multiple: list[int] = []  # what a new size must be a multiple of
        self.follows: list[bool] = []  # of a constant: no say, but follows what it is tied to
        self._bound: list[Size | None] = []

    def unknown(self, size: int, follows: bool = False) -> Size:
        """A new unknown that is `size` now; a size of 1 is a number, because it may be broadcast."""
        if size <= 1:
            return number(size)
        self.now.append(size)
        self.multiple.append(1)
        self.follows.append(follows)
        self._bound.append(None)
        return ((len(self.now) - 1, 1),)

    def resolved(self, size: Sequence[tuple[int, int]]) -> Size:
        """The same size in unknowns that are not bound to others."""
        found = []
        left = list(reversed(size))
        while left:  # no recursion: a deep network may have bound one to the other a thousand times
            unknown, factor = left.pop()
            bound = None if unknown == NUMBER else self._bound[unknown]
            if bound is None:
                found.append((unknown, factor))
            else:
                left += reversed(times(bound, factor))
        return tuple(found)

    def is_open(self, size: Size) -> bool:
        """Whether some of it may change."""
        return any(unknown != NUMBER for unknown, _ in self.resolved(size))

    def value(self, size: Sequence[tuple[int, int]], new: Mapping[int, int] | None = None) -> int:
        """What a size is, with `new` sizes for some unknowns."""
        known = {NUMBER: 1, **(new or {})}
        return sum(f * (known[u] if u in known else self.now[u]) for u, f in self.resolved(size))

    def free(self) -> list[int]:
        """The unknowns that are bound to nothing and have a say."""
        return [u for u, b in enumerate(self._bound) if b is None and not self.follows[u]]

    def fix(self, size: Size) -> None:
        """Make all of a size numbers."""
        for unknown, _ in self.resolved(size):
            if unknown != NUMBER:
                self._bound[unknown] = number(self.now[unknown])

    def need_multiple(self, size: Size, of: int) -> None:
        """Keep every piece of a size a multiple of `of`."""
        for unknown, factor in self.resolved(size):
            if unknown != NUMBER:
                self.multiple[unknown] = lcm(self.multiple[unknown], of // gcd(of, factor))

    def divided(self, size: Size, by: int) -> Size | None:
        """A size divided by a number; None where it, or a part of it, is no multiple of that."""
        pieces: list[tuple[int, int]] = []
        for unknown, factor in self.resolved(size):
            if factor % by == 0:
                pieces.append((unknown, factor // by))
            elif unknown != NUMBER and self.now[unknown] % by == 0:
                part = self.unknown(self.now[unknown] // by, self.follows[unknown])
                self._bind(unknown, times(part, by))
                pieces += times(part, factor)
            else:
                return None
        return tuple(pieces)

    def unify(self, one: Size, other: Size) -> None:
        """Let two sizes be the same from now on; they are the same number now.

        Where both are sums of different pieces, the larger piece is split; where that is not possible
        both stay what they are.
        """
        left, right = list(self.resolved(one)), list(self.resolved(other))
        while left and right:
            a, b = self.value(left[:1]), self.value(right[:1])
            if a == b:
                self._tie(left.pop(0), right.pop(0))
            elif not self._split(*((right, a) if a < b else (left, b))):
                self.fix((left[0], right[0]))
            left, right = list(self.resolved(left)), list(self.resolved(right))

    def _split(self, pieces: list[tuple[int, int]], first: int) -> bool:
        """Split the first of `pieces` behind `first`; False where it cannot be."""
        unknown, factor = pieces[0]
        if unknown == NUMBER:
            pieces[:1] = [(NUMBER, first), (NUMBER, factor - first)]
        elif factor == 1:
            sizes = (first, self.now[unknown] - first)
            one, other = (self.unknown(size, self.follows[unknown]) for size in sizes)
            self._bind(unknown, one + other)
        return unknown == NUMBER or factor == 1

    def _tie(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        (v, f), (w, g) = one, other
        if v == w:
            return
        if NUMBER in (v, w):
            self.fix((one, other))
        elif f == g:  # the older one stays, so that chains are short
            self._bind(max(v, w), ((min(v, w), 1),))
        elif f % g == 0:
            self._bind(w, ((v, f // g),))
        elif g % f == 0:
            self._bind(v, ((w, g // f),))
        else:
            self.fix((one, other))

    def _bind(self, unknown: int, size: Size) -> None:
        self._bound[unknown] = size
        self.need_multiple(size, self.multiple[unknown])
        for part, _ in size:
            if part != NUMBER:
                self.follows[part] = self.follows[part] and self.follows[unknown]

    def scaled(self, unknown: int, factor: float) -> int:
        """An unknown times `factor`; see `scaled`."""
        return scaled(self.now[unknown], factor, self.multiple[unknown])


class Unclear(Exception):
    """It is not clear how channels pass through an operation."""


# ---- Rules: one per kind of operation, asked for each output.
#
# A rule gets what is known so far, the operation and its position, and the shape of an output; it returns
# the output's sizes, or raises `Unclear`.

Rule = Callable[["Channels", int, Operation, Shape], Dims]


def _convolution(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """Its output channels are free; of a convolution of one channel a group they follow the input's."""
    a, dims, before = o.attributes, *c.read(o)
    last = len(before) - 1  # the channels are there, or on the first axis behind the batch
    fits = [x for x in (last, 1) if 0 < x <= last and before[x] == a["in_channels"]]
    axis = min(fits, key=lambda x: not c.sizes.is_open(dims[x]), default=-1)
    if axis < 0 or set(c.open_axes(dims)) - {axis} or shape[axis] != a["out_channels"]:
        raise Unclear
    inside, groups = dims[axis], a["groups"]
    if 1 < groups == a["in_channels"] and a["out_channels"] % groups == 0:
        outside = times(inside, a["out_channels"] // groups)
        c.attributes[position]["groups"] = inside
    else:
        outside = c.layer(o, inside, a["out_channels"])
        c.sizes.need_multiple(inside, groups)
        c.sizes.need_multiple(outside, groups)
    c.attributes[position] |= {"in_channels": inside, "out_channels": outside}
    return with_axis(fixed(shape), axis, outside)


def _dense(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """Its features are free; the other axes are those of its input."""
    a, dims, before = o.attributes, *c.read(o)
    if before[-1] != a["in_features"] or shape[-1] != a["out_features"]:
        return c.only_fixed(o, shape)
    outside = c.layer(o, dims[-1], a["out_features"])
    c.attributes[position] = {"in_features": dims[-1], "out_features": outside}
    if before[:-1] != shape[:-1] and c.is_open(dims[:-1]):
        raise Unclear
    return (*(dims[:-1] if before[:-1] == shape[:-1] else fixed(shape[:-1])), outside)


def _embedding(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    c.attributes[position] = {"out_features": c.layer(o, number(1), shape[-1])}
    return (*fixed(shape[:-1]), c.attributes[position]["out_features"])


def _recurrent(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """Its units are free; states that come in or go out have as many."""
    sequence, *states = (c.dims[t] for t in o.inputs)
    if c.is_open(sequence[:-1]):
        raise Unclear
    units = c.layer(o, sequence[-1], o.attributes["units"])
    for state in states:
        if c.sizes.value(state[-1]) == o.attributes["units"]:
            c.sizes.unify(state[-1], units)
    c.attributes[position] = {"in_features": sequence[-1], "units": units}
    return (*fixed(shape[:-1]), units)


def _elementwise(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """The operands' sizes are tied; one of size 1 is broadcast."""
    made: dict[int, Size] = {}  # by axis, counted from the end
    for i in range(len(o.inputs)):
        dims, before = c.read(o, i)
        for back, n in enumerate(reversed(before), 1):
            if back > len(shape) or n not in (1, shape[-back]):
                return c.only_fixed(o, shape)
            if n == shape[-back]:
                c.sizes.unify(made.setdefault(back, dims[-back]), dims[-back])
    if len(made) < len(shape):
        return c.only_fixed(o, shape)
    return tuple(made[back] for back in range(len(shape), 0, -1))


def _gated(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """A gated linear unit halves its features."""
    dims, _ = c.read(o)
    half = c.sizes.divided(dims[-1], 2)
    if half is None or c.sizes.value(half) != shape[-1]:
        raise Unclear
    return (*dims[:-1], half)


def _kept(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """What works on the other axes keeps the free one, where that can be told."""
    dims, before = c.read(o)
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
    shape = c.graph.shapes(o.outputs)[0]
    others = [p for p in c.graph.operations if p.kind == "slice" and p.inputs[:1] == o.inputs[:1]]
    same = [p for p in others if c.graph.shapes(p.outputs)[0] == shape]
    part = c.sizes.divided(size, parts)
    if len(same) != parts or part is None:
        raise Unclear
    return part


def _viewed(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """Axes that are flattened are multiplied; where a free one is split (features into heads), the last
    part takes what changes.
    """
    dims, before = c.read(o)
    if prod(before) != prod(shape):
        raise Unclear
    made = fixed(shape)
    for old, new in _groups(before, shape):
        is_open = [axis for axis in old if c.sizes.is_open(dims[axis])]
        whole = [axis for axis in new if shape[axis] > 1]
        if is_open:
            size = times(dims[is_open[0]], prod(before[axis] for axis in old if axis != is_open[0]))
            part = c.sizes.divided(size, prod(shape[axis] for axis in whole[:-1]))
            if len(is_open) > 1 or not whole or part is None:
                raise Unclear
            made = with_axis(made, whole[-1], part)
    return made


def _groups(before: Shape, after: Shape) -> Iterator[tuple[range, range]]:
    """Axes of both shapes that hold the same elements, in the smallest groups; the products agree."""
    i = j = 0
    while i < len(before) or j < len(after):
        old, new = range(i, min(i + 1, len(before))), range(j, min(j + 1, len(after)))
        while (left := prod(before[a] for a in old)) != (right := prod(after[a] for a in new)):
            if left < right:
                old = range(i, old.stop + 1)
            else:
                new = range(j, new.stop + 1)
        yield old, new
        i, j = old.stop, new.stop


def _transposed(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """Where a free axis went the graph says, or else its size, if no other axis has it."""
    dims, before = c.read(o)
    order = o.attributes.get("permutation", ())
    if tuple(before[axis] for axis in order) == shape:
        return tuple(dims[axis] for axis in order)
    if sorted(before) != sorted(shape):
        return c.only_fixed(o, shape)
    made = fixed(shape)
    for axis in c.open_axes(dims):
        if before.count(before[axis]) > 1:
            raise Unclear
        made = with_axis(made, shape.index(before[axis]), dims[axis])
    return made


def _concatenated(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    """The sizes on one axis are added, those on the others tied."""
    made, first = c.read(o)
    if len(first) != len(shape):
        return c.only_fixed(o, shape)
    axis = next((a for a, n in enumerate(shape) if n != first[a]), -1)
    axis = o.attributes.get("axis", axis) % len(shape)
    for t in o.inputs[1:]:
        part = c.dims[t]
        for a, size in enumerate(part):
            if a != axis:
                c.sizes.unify(made[a], size)
        made = with_axis(made, axis, made[axis] + part[axis])
    return made


def _stacked(c: Channels, position: int, o: Operation, shape: Shape) -> Dims:
    dims, first = c.read(o)
    places = [a for a in range(len(shape)) if (*shape[:a], *shape[a + 1 :]) == first]
    if not places or shape[places[0]] != len(o.inputs):
        return c.only_fixed(o, shape)
    for t in o.inputs[1:]:
        for one, other in zip(dims, c.dims[t], strict=True):
            c.sizes.unify(one, other)
    at = o.attributes.get("axis", places[0]) % len(shape)
    return (*dims[:at], number(len(o.inputs)), *dims[at:])


def _product(c: Channels, position: int, o: Operation, out: Shape) -> Dims:
    """A product of two activations; of attention the number of heads stays, their size follows."""
    (left, a), (right, b) = c.read(o), c.read(o, 1)
    summed = o.attributes["contracted"]
    if not c.is_open(left) and not c.is_open(right):
        return fixed(out)
    if len(out) == len(a) + 1 == len(b) + 1 and not c.is_open(left[:-1] + right[:-1]):
        heads, others = a[-1] // summed, b[-1] // summed  # scores: queries x keys, head by head
        one, other = c.sizes.divided(left[-1], heads), c.sizes.divided(right[-1], others)
        if one is not None and other is not None and heads == out[-3]:
            c.sizes.unify(one, other)
            c.attributes[position] = {"contracted": one}
            return fixed(out)
    if len(a) == len(b) + 1 == len(out) + 1 and not c.is_open(left + right[:-1]):
        heads = a[-3]  # the mix of values by the scores
        part = c.sizes.divided(right[-1], max(b[-1] * heads // out[-1], 1))
        if part is not None and summed == b[-2] == a[-1]:
            return (*fixed(out[:-1]), times(part, heads))
    # (..., m, k) x (..., k, n) -> (..., m, n), or the right one transposed
    plain, turned = b[-2:] == (summed, out[-1]), b[-2:] == (out[-1], summed)
    fits = a[-1] == summed and out[:-1] == a[:-1] and plain != turned
    if not fits or c.is_open(right[:-2]):
        raise Unclear
    rows, columns = (right[-2], right[-1]) if plain else (right[-1], right[-2])
    c.sizes.unify(left[-1], rows)
    c.attributes[position] = {"contracted": left[-1]}
    return (*left[:-1], columns)


RULES: dict[str, Rule] = {
    **dict.fromkeys(sorted(ELEMENTWISE | NORMALIZATIONS), _elementwise),
    **dict.fromkeys(["identity", "dropout", "fill", "cumulative", "roll"], _elementwise),
    **dict.fromkeys(sorted(POOLINGS), _kept),
    **dict.fromkeys(["pad", "crop", "resize", "reduce", "repeat", "slice", "gather"], _kept),
    **dict.fromkeys(["reshape", "flatten", "squeeze", "expand_dims"], _viewed),
    **dict.fromkeys(sorted(CONVOLUTIONS), _convolution),
    **dict.fromkeys(GATES, _recurrent),
    "glu": _gated,
    "dense": _dense,
    "embedding": _embedding,
    "transpose": _transposed,
    "concatenate": _concatenated,
    "stack": _stacked,
    "matmul": _product,
}


class Channels:
    """The sizes of all tensors of a graph, and of the attributes that depend on them."""

    def __init__(self, graph: Graph) -> None:
        """Raises InputError that names the operation through which channels cannot be followed."""
        self.graph = graph
        self.sizes = Sizes()
        self.dims: dict[int, Dims] = {t: fixed(graph.tensors[t].shape) for t in graph.inputs}
        self.attributes: list[dict[str, Size]] = [{} for _ in graph.operations]
        self.layers: dict[tuple[object, ...], tuple[Size, Size]] = {}
        written = {t for o in graph.operations for t in o.outputs}
        for t in sorted(set(range(len(graph.tensors))) - written - set(graph.inputs)):
            self.dims[t] = tuple(self.sizes.unknown(n, True) for n in graph.tensors[t].shape)
        for position, operation in enumerate(graph.operations):
            rule = RULES.get(operation.kind) if operation.inputs else None
            try:
                dims = [
                    rule(self, position, operation, s) if rule else self.only_fixed(operation, s)
                    for s in graph.shapes(operation.outputs)
                ]
            except (Unclear, LookupError):  # the latter: tensors that do not fit together
                raise InputError(
                    f"the width of {graph.name!r} cannot be varied: it is not clear how channels pass "
                    f"through operation {operation.full_name!r} ({operation.kind}); vary the "
                    "resolution or the batch size"
                ) from None
            self.dims.update(zip(operation.outputs, dims, strict=True))
        for size in (size for t in graph.outputs for size in self.dims[t]):
            self.sizes.fix(size)

    def read(self, operation: Operation, i: int = 0) -> tuple[Dims, Shape]:
        """The sizes and the shape of what an operation reads."""
        t = operation.inputs[i]
        return self.dims[t], self.graph.tensors[t].shape

    def only_fixed(self, operation: Operation, shape: Shape) -> Dims:
        """The sizes of an output of what reads nothing that may change; else it is unclear."""
        if any(self.is_open(self.dims[t]) for t in operation.inputs):
            raise Unclear
        return fixed(shape)

    def is_open(self, dims: Dims) -> bool:
        """Whether some size of a tensor may change."""
        return any(map(self.sizes.is_open, dims))

    def open_axes(self, dims: Dims) -> list[int]:
        """The axes whose size may change."""
        return [axis for axis, size in enumerate(dims) if self.sizes.is_open(size)]

    def layer(self, operation: Operation, inside: Size, outside: int) -> Size:
        """What a layer with weights makes of `inside`: a new size, or that of its other call."""
        name = operation.name.partition(":")[0]
        if self.graph.framework == "onnx" and name == operation.kind:
            name = operation.name  # a node without a name is not the same layer again
        key = (operation.path, name, operation.kind, self.sizes.value(inside), outside)
        known, made = self.layers.get(key) or (inside, self.sizes.unknown(outside))
        self.layers[key] = known, made
        self.sizes.unify(known, inside)
        return made

    def resized(self, new: Mapping[int, int]) -> Graph:
        """The network with `new` sizes for some unknowns; the others stay what they are."""
        value, before = self.sizes.value, self.graph.tensors
        tensors = tuple(
            replace(tensor, shape=tuple(value(size, new) for size in self.dims[t]))
            for t, tensor in enumerate(before)
        )
        operations = []
        for o, sizes in zip(self.graph.operations, self.attributes, strict=True):
            kept = dict(o.attributes)
            if "starts" in kept and o.inputs:  # of a part of what is of another size now
                was, now = before[o.inputs[0]].shape, tensors[o.inputs[0]].shape
                axes = zip(kept["starts"], was, now, strict=False)
                kept["starts"] = tuple(at * b // max(a, 1) for at, a, b in axes)
            kept.update({k: value(s, new) for k, s in sizes.items()})
            operations.append(replace(o, attributes=kept) if kept != o.attributes else o)
        return replace(self.graph, tensors=tensors, operations=tuple(operations), cache={})
