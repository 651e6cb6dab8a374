"""What a Graph does not say of an operation and its shapes tell: axes, orders, sizes of a product.

A Graph knows what an operation costs, not all that it does. Where several answers fit the shapes (which
of two transpositions, where a slice begins), one is taken that moves as many elements. All functions raise
ValueError, saying why, where none fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from math import prod

Shape = tuple[int, ...]


def concatenation_axis(ins: Sequence[Shape], out: Shape) -> int:
    """The axis along which operands are put together, the last that fits."""
    for axis in reversed(range(len(out))):
        rests = {(*s[:axis], *s[axis + 1 :]) for s in (*ins, out)}
        if len(rests) == 1 and sum(s[axis] for s in ins) == out[axis]:
            return axis
    raise ValueError(f"no axis puts {list(ins)} together to {out}")


def stacking_axis(ins: Sequence[Shape], out: Shape) -> int:
    """The new axis of a stack."""
    for axis in range(len(out)):
        if out[axis] == len(ins) and (*out[:axis], *out[axis + 1 :]) == ins[0]:
            return axis
    raise ValueError(f"no axis stacks {list(ins)} to {out}")


def channel_order(before: Shape, after: Shape) -> tuple[int, ...] | None:
    """The order of the axes where only the channels go to the other end; None where it is not that."""
    rank = len(before)
    if rank < 3 or len(after) != rank or before == after:
        return None
    for order in ((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))):
        if tuple(before[i] for i in order) == after:
            return order
    return None


def transposition(before: Shape, after: Shape) -> tuple[int, ...] | None:
    """The first order of the axes, not theirs, that gives the shape; the batch stays where it can."""
    if sorted(before) != sorted(after):
        return None
    start = 1 if before[0] == after[0] else 0
    for order in permutations(range(start, len(before))):
        full = (*range(start), *order)
        if full != tuple(range(len(before))) and tuple(before[i] for i in full) == after:
            return full
    return None


def reduced_axes(before: Shape, after: Shape) -> tuple[int, ...]:
    """Axes that a reduction folds, the batch last of all."""
    for axes in _folds(before, after):
        return axes
    raise ValueError(f"no axes reduce {before} to {after}")


def _folds(before: Shape, after: Shape) -> Iterator[tuple[int, ...]]:
    axes = [*range(1, len(before)), 0]
    for count in range(1, len(before) + 1):
        for chosen in combinations(axes, count):
            kept = tuple(n for i, n in enumerate(before) if i not in chosen)
            if after in (kept, tuple(1 if i in chosen else n for i, n in enumerate(before))):
                yield tuple(sorted(chosen))


def repetitions(before: Shape, after: Shape) -> tuple[int, ...]:
    """How often each axis is repeated."""
    pairs = list(zip(after, before, strict=False))
    if len(before) != len(after) or any(n % was for n, was in pairs):
        raise ValueError(f"{before} does not repeat to {after}")
    return tuple(n // was for n, was in pairs)


def padding(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """(before, after) of each axis, half of what is added each side."""
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


def cuts(
    before: Shape, after: Shape, starts: dict[int, int]
) -> tuple[list[tuple[int, int, int]], int | None] | None:
    """((axis, start, size) of each axis that is cut, the axis that goes or None); None if not so.

    `starts`: where the next part of an axis begins; moved on.
    """
    if len(after) == len(before) and all(n <= was for n, was in zip(after, before, strict=True)):
        found = []
        for axis, (n, was) in enumerate(zip(after, before, strict=True)):
            if n < was:
                start = min(starts.get(axis, 0), was - n)
                starts[axis] = start + n
                found.append((axis, start, n))
        return found, None
    for axis in (*range(1, len(before)), 0):
        if (*before[:axis], *before[axis + 1 :]) == after:
            start = min(starts.get(axis, 0), before[axis] - 1)
            starts[axis] = start + 1
            return [(axis, start, 1)], axis
    return None


def flat_rows(before: Shape, after: Shape) -> int:
    """Rows of the flattened operand, of each of which the first elements are taken."""
    rows = before[0] if after[0] == before[0] else 1
    if prod(after) > prod(before) or prod(after) % rows or prod(before) % rows:
        raise ValueError(f"{after} is no part of {before}")
    return rows
