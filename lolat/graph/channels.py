"""How channels pass through operations: one rule per kind, in a table.

A rule gets what is known so far, the operation and its position, and returns the sizes of its outputs;
where it is not clear how channels pass, it raises `Unclear`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor, gcd, lcm, prod

from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.graph.kinds import ELEMENTWISE, NORMALIZATIONS, POOLINGS

# ---- Sizes that a designer chose, as unknowns: which of them are tied, and what each becomes.
#
# A size of a tensor is a sum of pieces `factor x unknown` (a concatenation has several, a flattened
# image one
# with a factor), or a plain number. Two sizes that must be equal are unified, as terms are in logic
# programming: an unknown is bound to what it equals (Robinson 1965), to its parts or to a number.

NUMBER = -1  # in the place of an unknown: the factor is the size itself
STEP = 8  # channel counts are multiples of this, as vector instructions like them

Size = tuple[tuple[int, int], ...]  # pieces: (unknown, factor)


def number(n: int) -> Size:
    """A size that cannot change."""
    return ((NUMBER, n),)


def times(size: Size, factor: int) -> Size:
    """`factor` times a size."""
    return tuple((unknown, factor * f) for unknown, f in size)


class Sizes:
    """The unknowns of a network: their sizes as they are, and what is known of each."""

    def __init__(self) -> None:
        self.now: list[int] = []
        self.multiple: list[int] = []  # what a new size must be a multiple of
        self.follows: list[
            bool
        ] = []  # of a constant: it has no say, but follows what it is tied to
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

    def resolved(self, size: Size) -> Size:
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

    def value(self, size: Size, new: Mapping[int, int] | None = None) -> int:
        """What a size is, with `new` sizes for some unknowns."""
        known = new or {}
        return sum(
            f * (1 if u == NUMBER else known.get(u, self.now[u])) for u, f in self.resolved(size)
        )

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
            a, b = left[0], right[0]
            if self.value((a,)) == self.value((b,)):
                self._tie(left.pop(0), right.pop(0))
            elif self.value((a,)) < self.value((b,)):
                if not self._split(b, self.value((a,)), right):
                    self.fix((a, b))
            elif not self._split(a, self.value((b,)), left):
                self.fix((a, b))
            left, right = list(self.resolved(tuple(left))), list(self.resolved(tuple(right)))

    def _split(self, piece: tuple[int, int], first: int, pieces: list[tuple[int, int]]) -> bool:
        """Split the first of `pieces` behind `first`; False where it cannot be."""
        unknown, factor = piece
        if unknown == NUMBER:
            pieces[:1] = [(NUMBER, first), (NUMBER, factor - first)]
            return True
        if factor > 1:
            return False
        sizes, follows = (first, self.now[unknown] - first), self.follows[unknown]
        one, other = (self.unknown(size, follows) for size in sizes)
        self._bind(unknown, one + other)
        return True

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


# ---- Sizes of tensors that are seen as another shape, or with their axes in another order.

Dims = tuple[Size, ...]
"""The size of each axis of a tensor."""


class Unclear(Exception):
    """It is not clear how channels pass through an operation."""


def fixed(shape: Sequence[int]) -> Dims:
    """The sizes of a shape that cannot change."""
    return tuple(map(number, shape))


def with_axis(dims: Dims, axis: int, size: Size) -> Dims:
    """`dims` with another size on one axis."""
    return (*dims[:axis], size, *dims[axis % len(dims) + 1 :])


def viewed(sizes: Sizes, dims: Dims, before: Sequence[int], after: Sequence[int]) -> Dims | None:
    """The sizes of a tensor of shape `before` seen as `after`; None where that is not clear.

    Axes that are flattened are multiplied; where a free one is split (features into heads), the last part
    takes what changes.
    """
    made = list(fixed(after))
    if prod(before) != prod(after):
        return None
    for old, new in _groups(before, after):
        is_open = [axis for axis in old if sizes.is_open(dims[axis])]
        if not is_open:
            continue
        whole = [axis for axis in new if after[axis] > 1]
        if len(is_open) > 1 or not whole:
            return None
        size = times(dims[is_open[0]], prod(before[axis] for axis in old if axis != is_open[0]))
        part = sizes.divided(size, prod(after[axis] for axis in whole[:-1]))
        if part is None:
            return None
        made[whole[-1]] = part
    return tuple(made)


def _groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Axes of both shapes that hold the same elements, in the smallest groups; the products agree."""
    i = j = 0
    while i < len(before) or j < len(after):
        old, new = [], []
        left = right = 1
        if i < len(before):
            old, left, i = [i], before[i], i + 1
        if j < len(after):
            new, right, j = [j], after[j], j + 1
        while left != right:
            if left < right:
                old.append(i)
                left, i = left * before[i], i + 1
            else:
                new.append(j)
                right, j = right * after[j], j + 1
        yield old, new


def transposed(
    dims: Dims, is_open: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> Dims | None:
    """The sizes with the axes in another order; None where sizes do not tell where a free one went."""
    made = list(fixed(after))
    if sorted(before) != sorted(after):
        return None if is_open else tuple(made)
    for axis in is_open:
        if list(before).count(before[axis]) > 1:
            return None
        made[list(after).index(before[axis])] = dims[axis]
    return tuple(made)


# ---- rules ----------------------------------------

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
    **dict.fromkeys(sorted(ELEMENTWISE | NORMALIZATIONS), _elementwise),
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

# ---- How channels run through a network: which sizes of its tensors are free, which are tied.
#
# Network inputs and outputs are fixed. What a convolution, a dense layer, an embedding or a recurrent layer
# makes is free; what adds, multiplies or normalises ties sizes together, a concatenation adds them.


class Channels:
    """The sizes of all tensors of a graph, and of the attributes that depend on them."""

    def __init__(self, graph: Graph) -> None:
        """Raises InputError that names the operation through which channels cannot be followed."""
        self.graph = graph
        self.sizes = Sizes()
        self.dims: dict[int, Dims] = {}
        self.attributes: list[dict[str, Size]] = [{} for _ in graph.operations]
        self.layers: dict[tuple[object, ...], tuple[Size, Size]] = {}
        inputs = set(graph.inputs)
        written = {t for o in graph.operations for t in o.outputs}
        for t, tensor in enumerate(graph.tensors):
            if t in inputs:
                self.dims[t] = fixed(tensor.shape)
            elif t not in written:
                self.dims[t] = tuple(self.sizes.unknown(n, follows=True) for n in tensor.shape)
        for position, operation in enumerate(graph.operations):
            try:
                found = self._follow(position, operation)
            except Unclear:
                raise InputError(
                    f"the width of {graph.name!r} cannot be varied: it is not clear how channels pass "
                    f"through operation {operation.full_name!r} ({operation.kind}); vary the "
                    "resolution or the batch size"
                ) from None
            self.dims.update(zip(operation.outputs, found, strict=True))
        for t in graph.outputs:
            for size in self.dims[t]:
                self.sizes.fix(size)

    def _follow(self, position: int, operation: Operation) -> list[Dims]:
        rule = RULES.get(operation.kind)
        if rule is not None and operation.inputs:
            return rule(self, position, operation)
        if any(self.is_open(self.dims[t]) for t in operation.inputs):
            raise Unclear
        return self.as_they_are(operation)

    def as_they_are(self, operation: Operation) -> list[Dims]:
        """Sizes of the outputs that cannot change."""
        return [fixed(s) for s in self.graph.shapes(operation.outputs)]

    def is_open(self, dims: Dims) -> bool:
        """Whether some size of a tensor may change."""
        return any(map(self.sizes.is_open, dims))

    def open_axes(self, dims: Dims) -> list[int]:
        """The axes whose size may change."""
        return [axis for axis, size in enumerate(dims) if self.sizes.is_open(size)]

    def layer(self, operation: Operation, inside: Size, outside: int) -> Size:
        """What a layer with weights makes of `inside`: a new size, or that of its other call."""
        name = operation.name.partition(":")[0]
        key = (operation.path, name, operation.kind, self.sizes.value(inside), outside)
        if key not in self.layers:
            self.layers[key] = (inside, self.sizes.unknown(outside))
        known, made = self.layers[key]
        self.sizes.unify(known, inside)
        return made

    def resized(self, new: Mapping[int, int]) -> Graph:
        """The network with `new` sizes for some unknowns; the others stay what they are."""
        value = self.sizes.value
        tensors = [
            replace(tensor, shape=tuple(value(size, new) for size in self.dims[t]))
            for t, tensor in enumerate(self.graph.tensors)
        ]
        operations = [
            replace(o, attributes={**o.attributes, **{k: value(s, new) for k, s in a.items()}})
            if a else o
            for o, a in zip(self.graph.operations, self.attributes, strict=True)
        ]  # fmt: skip
        return replace(self.graph, tensors=tuple(tensors), operations=tuple(operations), cache={})
