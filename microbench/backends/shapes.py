"""What an operation does to its axes: as its attributes say, else what its shapes tell.

A Graph has `axis`, `permutation`, `starts`, `steps` and `padding` of an operation where its reader knows
them; a Graph written by hand or edited has shapes alone. What an attribute says is tried first, and taken
where it fits the shapes. Of several answers that fit these (which of two transpositions, where a slice
begins), one is taken that moves as many elements. All functions raise ValueError, saying why, where none
fits. Shapes are at batch size 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import prod
from typing import Any

Shape = tuple[int, ...]
Index = tuple[int | slice, ...]


def concatenation_axis(ins: Sequence[Shape], out: Shape, axis: int | None = None) -> int:
    """The axis along which operands are put together, the last that fits."""
    for i in _with(axis, reversed(range(len(out))), len(out)):
        rests = {(*s[:i], *s[i + 1 :]) for s in (*ins, out)}
        if len(rests) == 1 and sum(s[i] for s in ins) == out[i]:
            return i
    raise ValueError(f"no axis puts {list(ins)} together to {out}")


def _with(axis: int | None, others: Iterable[int], rank: int) -> Iterator[int]:
    """The axis that an attribute says, then others."""
    if axis is not None and -rank <= axis < rank:
        yield axis % rank
    yield from others


def _axes(axis: int | Sequence[int] | None, rank: int) -> set[int]:
    """The axes that an attribute says."""
    return {a % rank for a in ([axis] if isinstance(axis, int) else axis or ())}


def channel_order(before: Shape, after: Shape) -> Shape | None:
    """The order of the axes where only the channels go to the other end; None where it is not that."""
    rank = len(before)
    if rank < 3 or len(after) != rank or before == after:
        return None
    for order in ((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))):
        if tuple(before[i] for i in order) == after:
            return order
    return None


def transposition(
    before: Shape, after: Shape, permutation: Sequence[int] | None = None
) -> Shape | None:
    """The first order of the axes, not theirs, that gives the shape; the batch stays where it can."""
    if permutation is not None and sorted(permutation) == list(range(len(before))):
        order = tuple(permutation)
        if tuple(before[i] for i in order) == after:
            return order
    if sorted(before) != sorted(after):
        return None
    kept = range(int(before[0] == after[0]))
    for rest in permutations(range(len(kept), len(before))):
        order = (*kept, *rest)
        if list(order) != sorted(order) and tuple(before[i] for i in order) == after:
            return order
    return None


def repetitions(before: Shape, after: Shape) -> tuple[Shape, Shape]:
    """(`before`, with a new axis of one where the rank grows, how often each axis is repeated)."""
    raised = [before]
    if len(after) == len(before) + 1:
        raised = [(*before[:i], 1, *before[i:]) for i in range(1, len(after))]
    for shape in raised:
        if len(shape) == len(after) and not any(
            n % was for n, was in zip(after, shape, strict=True)
        ):
            return shape, tuple(n // was for n, was in zip(after, shape, strict=True))
    raise ValueError(f"{before} does not repeat to {after}")


def padding(
    before: Shape, after: Shape, pairs: Sequence[Sequence[int]] = ()
) -> list[tuple[int, int]]:
    """(before, after) of each axis; where the pairs do not say, half of what is added each side.

    `pairs`: of all axes but the batch, or of the spatial ones, whose channels are last or first.
    """
    given = [(int(p[0]), int(p[1])) for p in pairs]
    none = (0, 0)
    for full in ([none, *given], [none, *given, none], [none, none, *given]):
        if len(full) == len(before) and after == tuple(
            n + sum(p) for n, p in zip(before, full, strict=True)
        ):
            return full
    more = [n - was for n, was in zip(after, before, strict=True)]
    if min(more) < 0:
        raise ValueError(f"a padding does not go from {before} to {after}")
    return [(n // 2, n - n // 2) for n in more]


def product_sizes(left: Shape, right: Shape, out: Shape, summed: int) -> tuple[int, int, int]:
    """(products side by side, rows, columns) with these elements and this many multiplications."""
    sizes = prod(left), prod(right), prod(out)
    batch, rest = divmod(sizes[0] * sizes[1], sizes[2] * summed**2)
    if rest or not batch or sizes[0] % (batch * summed) or sizes[1] % (batch * summed):
        raise ValueError(f"no product over {summed} of {left} and {right} makes {out}")
    return batch, sizes[0] // (batch * summed), sizes[1] // (batch * summed)


# ---- parts of a tensor ---------------------------------------------------------------------------


def parts(
    before: Shape, outs: Sequence[Shape], attributes: Mapping[str, Any]
) -> list[tuple[Index, Shape] | None]:
    """For each output of a slice or split (index of what it is of the operand, the shape of that).

    One integer or slice per axis. Several outputs lie side by side. None where the shapes do not fit axis
    by axis, so that all that can be taken is so many elements.
    """
    taken: list[tuple[Index, Shape] | None] = []
    following: dict[int, int] = {}  # axis -> where its next part begins
    for after in outs:
        sizes = _sizes(before, after, attributes)
        if sizes is None:
            taken.append(None)
            continue
        index: list[int | slice] = []
        for axis, (was, (size, kept)) in enumerate(zip(before, sizes, strict=True)):
            start, step = _start(axis, was, size, attributes) or (0, 1)
            if size < was and len(outs) > 1:
                start = min(following.get(axis, 0), was - size)
                following[axis] = start + size
            part = slice(start, start + (size - 1) * step + 1, step)
            index.append(start if not kept else slice(None) if size == was else part)
        taken.append((tuple(index), tuple(size for size, kept in sizes if kept)))
    return taken


def _start(axis: int, was: int, size: int, attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    """(first element, step) along an axis, as the attributes say; None where that does not fit."""
    starts, steps = attributes.get("starts", ()), attributes.get("steps", ())
    start = int(starts[axis]) if axis < len(starts) else 0
    step = int(steps[axis]) if axis < len(steps) else 1
    fits = start >= 0 and step > 0 and start + (size - 1) * step < was
    return (start, step) if fits else None


def _sizes(
    before: Shape, after: Shape, attributes: Mapping[str, Any]
) -> list[tuple[int, bool]] | None:
    """(length, whether it stays an axis) of each axis of a part; None where none fits.

    Of axes that may go, those go that an attribute says, or whose length is not that of the others; axes
    of one element may come.
    """
    if len(after) == len(before) and all(n <= was for n, was in zip(after, before, strict=True)):
        return [(n, True) for n in after]
    gone = _axes(attributes.get("axis"), len(before))
    lead = int(before[0] == after[0])

    def likely(kept: tuple[int, ...], wanted: Shape) -> tuple[bool, bool, int]:
        sizes = dict(zip(kept, wanted, strict=True))
        fits = all(_start(i, before[i], n, attributes) for i, n in sizes.items())
        same = sum(before[i] == n for i, n in sizes.items())
        return not gone.intersection(kept), fits, same

    for wanted in (after[lead:], tuple(n for n in after[lead:] if n > 1)):
        choices = [
            kept
            for kept in combinations(range(lead, len(before)), len(wanted))
            if all(before[i] >= n for i, n in zip(kept, wanted, strict=True))
        ]
        if choices:
            kept = max(choices, key=lambda c: likely(c, wanted))
            sizes = {**dict(enumerate(before[:lead])), **dict(zip(kept, wanted, strict=True))}
            return [(sizes.get(i, 1), i in sizes) for i in range(len(before))]
    return None


def flat_rows(before: Shape, after: Shape) -> int:
    """Rows of the flattened operand, of each of which the first elements are taken."""
    rows = before[0] if after[0] == before[0] else 1
    if prod(after) > prod(before) or prod(after) % rows or prod(before) % rows:
        raise ValueError(f"{after} is no part of {before}")
    return rows


# ---- windows of convolutions and pools: which padding gives the size that a Graph has ------------


@dataclass(frozen=True)
class Window:
    """A convolution's or pool's window on the spatial axes, and the padding that gives the output."""

    kernel: Shape
    strides: Shape
    dilation: Shape
    before: Shape
    after: Shape

    @property
    def symmetric(self) -> bool:
        """Whether as much is padded behind as in front."""
        return self.before == self.after

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The padding of each spatial axis."""
        return list(zip(self.before, self.after, strict=True))


def window(attributes: Mapping[str, Any], inside: Shape, outside: Shape) -> Window:
    """The window of a convolution or pool between these spatial sizes.

    Padding is as much on both sides where that gives the size, as PyTorch's networks have it; else
    what Keras' "same" has: the odd element behind. A stride that is not known is what the sizes say.
    """
    kernel = tuple(int(n) for n in attributes["kernel"])
    strides = attributes.get("strides") or [
        -(-n // m) for n, m in zip(inside, outside, strict=True)
    ]
    dilation = attributes.get("dilation") or (1,) * len(kernel)
    pairs = []
    for size, wanted, k, stride, d in zip(inside, outside, kernel, strides, dilation, strict=True):
        reach = (k - 1) * d + 1
        total = max(0, (wanted - 1) * stride + reach - size)
        half = -(-total // 2)
        both = (size + 2 * half - reach) // stride + 1 == wanted
        pairs.append((half, half) if both else (total // 2, total - total // 2))
    before, after = (tuple(p[side] for p in pairs) for side in (0, 1))
    return Window(kernel, tuple(map(int, strides)), tuple(map(int, dilation)), before, after)


def transposed_padding(
    attributes: Mapping[str, Any], inside: Shape, outside: Shape
) -> tuple[Shape, Shape, Shape]:
    """(strides, padding on both sides, output padding) of a transposed convolution."""
    kernel = [int(n) for n in attributes["kernel"]]
    strides = attributes.get("strides") or [
        max(1, m // n) for n, m in zip(inside, outside, strict=True)
    ]
    dilation = attributes.get("dilation") or (1,) * len(kernel)
    both, extra = [], []
    for n, m, k, s, d in zip(inside, outside, kernel, strides, dilation, strict=True):
        more = (n - 1) * s + (k - 1) * d + 1 - m
        both.append(max(0, -(-more // 2)))
        extra.append(2 * both[-1] - more)
    return tuple(int(s) for s in strides), tuple(both), tuple(extra)
