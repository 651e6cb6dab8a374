"""Sizes that a designer chose, as unknowns: which of them are tied, and what each becomes.

A size of a tensor is a sum of pieces `factor x unknown` (a concatenation has several, a flattened image one
with a factor), or a plain number. Two sizes that must be equal are unified, as terms are in logic
programming: an unknown is bound to what it equals (Robinson 1965), to its parts or to a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, gcd, lcm

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
