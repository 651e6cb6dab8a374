"""Sizes as unknowns: what is tied, split, divided, and what a factor makes of a count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.graph.channels import Sizes, number, scaled, times

FACTORS = st.floats(0.01, 8.0)


@pytest.mark.parametrize(
    ("size", "factor", "multiple", "wanted"),
    [
        (64, 0.5, 1, 32),
        (64, 0.55, 1, 32),  # 35.2
        (64, 0.57, 1, 40),  # 36.48: 4.56 eights
        (96, 0.75, 1, 72),
        (20, 0.99, 1, 16),
        (20, 1.0, 1, 20),
        (20, 1.01, 1, 24),
        (45, 0.99, 1, 45),  # the nearest multiple is 48, which is more than now
        (4, 0.5, 1, 4),
        (4, 3.0, 1, 16),
        (64, 0.01, 1, 8),
        (128, 0.75, 32, 96),
        (128, 0.7, 32, 96),
        (64, 0.5, 32, 32),
        (12, 0.5, 3, 6),  # 24 would be more than 12: in multiples of 3
        (24, 0.5, 3, 24),
        (48, 0.5, 3, 24),
        (44, 0.5, 11, 22),
    ],
)
def test_a_count_times_a_factor(size: int, factor: float, multiple: int, wanted: int) -> None:
    assert scaled(size, factor, multiple) == wanted


@given(st.integers(2, 4096), st.sampled_from([1, 2, 3, 4, 8, 32]), FACTORS, FACTORS)
def test_a_larger_factor_never_gives_fewer(
    size: int, multiple: int, one: float, two: float
) -> None:
    size *= multiple
    low, high = sorted((one, two))
    assert 0 < scaled(size, low, multiple) <= scaled(size, high, multiple)
    assert scaled(size, 1.0, multiple) == size
    new = scaled(size, one, multiple)
    assert new % multiple == 0
    assert new == size or new % 8 == 0 or 8 * multiple > size
    assert (new <= size) if one < 1 else (new >= size)


def test_what_is_unified_stays_equal() -> None:
    sizes = Sizes()
    a, b, c = (sizes.unknown(64) for _ in range(3))
    sizes.unify(a, b)
    sizes.unify(c, b)
    (free,) = sizes.free()
    assert [sizes.value(x, {free: 48}) for x in (a, b, c)] == [48, 48, 48]


def test_a_sum_is_unified_with_one() -> None:
    sizes = Sizes()
    a, b, whole = sizes.unknown(64), sizes.unknown(192), sizes.unknown(256)
    sizes.unify(whole, a + b)
    first, second = sizes.free()
    assert sizes.value(whole, {first: 32, second: 96}) == 128


def test_sums_of_other_pieces_are_split() -> None:
    sizes = Sizes()
    left = sizes.unknown(96) + sizes.unknown(32)
    right = sizes.unknown(32) + sizes.unknown(96)
    sizes.unify(left, right)
    new = {u: 2 * sizes.now[u] for u in sizes.free()}
    assert sizes.value(left, new) == sizes.value(right, new) == 256
    for one in sizes.free():
        assert sizes.value(left, {one: 8}) == sizes.value(right, {one: 8})


def test_a_number_fixes_what_it_is_unified_with() -> None:
    sizes = Sizes()
    a = sizes.unknown(10)
    sizes.unify(number(10), a)
    assert not sizes.is_open(a)
    b = sizes.unknown(13)
    sizes.unify(number(3) + sizes.unknown(10), b)
    assert sizes.value(b, {sizes.free()[0]: 20}) == 23


def test_factors() -> None:
    sizes = Sizes()
    channels = sizes.unknown(64)
    flat = times(channels, 49)
    assert sizes.value(flat, {0: 32}) == 49 * 32
    assert sizes.divided(flat, 49) == channels
    head = sizes.divided(channels, 4)
    assert head is not None
    (free,) = sizes.free()
    assert (sizes.value(head, {free: 8}), sizes.value(channels, {free: 8})) == (8, 32)
    assert sizes.divided(channels, 7) is None
    assert sizes.divided(number(12), 4) == number(3)
    assert sizes.divided(number(12), 5) is None


def test_factors_that_do_not_go_into_each_other_fix_both() -> None:
    sizes = Sizes()
    sizes.unify(times(sizes.unknown(6), 4), times(sizes.unknown(4), 6))
    assert sizes.free() == []
    sizes.unify(times(sizes.unknown(6), 4), times(sizes.unknown(12), 2))
    (free,) = sizes.free()
    assert sizes.now[free] == 6


@pytest.mark.parametrize("which", [0, 1])
def test_multiples_are_kept_through_ties(which: int) -> None:
    sizes = Sizes()
    both = sizes.unknown(96), sizes.unknown(96)
    sizes.need_multiple(both[which], 32)
    sizes.unify(*both)
    (free,) = sizes.free()
    assert sizes.scaled(free, 0.7) == 64
    assert sizes.multiple[free] == 32


def test_what_only_follows_has_no_say() -> None:
    sizes = Sizes()
    constant = sizes.unknown(64, follows=True)
    assert sizes.free() == []
    made = sizes.unknown(64)
    sizes.unify(constant, made)
    assert len(sizes.free()) == 1
    assert sizes.unknown(1) == number(1)  # it may be broadcast
