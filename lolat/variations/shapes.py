"""Sizes of tensors that are seen as another shape, or with their axes in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from lolat.variations.sizes import Size, Sizes, number, times

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
