"""The largest number for which something holds, asked as seldom as can be; and budgets that suffice."""

from __future__ import annotations

import math
from collections.abc import Callable


def search(
    fits: Callable[[int], bool | None], count: int, start: int, guess: int
) -> tuple[int, int, bool]:
    """The largest of 1 ... count that fits, from a guess; asks few times where the guess is good.

    `fits` is True up to some number and False from the next on; None for what is refused, at the lower
    or the upper end. Returns (largest that fits, the next, True), or (0 or the largest that is
    refused, the smallest that is not, False). Where `fits` is not so ordered, the two answers are
    still neighbours of which one fits and the other does not.
    """
    low, high, found = 0, count + 1, False
    at, stride = start, 1
    while high - low > 1:
        verdict = fits(at)
        if verdict:
            low, found = at, True
        elif verdict is None and at == start:
            return at, at, False
        elif verdict is None and at < start and not found:
            low = at
        else:
            high = at
        half = max((high - low) // 2, 1)
        if low < guess < high:
            at = guess
        elif guess <= low:
            at = low + min(stride, half)
            stride *= 2
        else:
            at = high - min(stride, half)
            stride *= 2
    return low, high, found


def enough(takes: float) -> str:
    """A budget of three digits or more that `takes` stays within."""
    for digits in range(3, 17):
        unit = 10.0 ** (math.floor(math.log10(takes)) + 1 - digits) if takes > 0.0 else 1.0
        text = f"{math.ceil(takes / unit - 1e-9) * unit:.{digits}g}"
        if float(text) >= takes:
            return text
    return repr(takes)
