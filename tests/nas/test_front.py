"""The front against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.nas.search import crowding, front, ranks

# Few values, so that many are equal.
PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40)


def dominated(i: int, pairs: list[tuple[int, int]]) -> bool:
    """Whether another is as good in both and better in one, or the same and earlier."""
    latency, score = pairs[i]
    return any(
        (t <= latency and s >= score) and ((t, s) != (latency, score) or j < i)
        for j, (t, s) in enumerate(pairs)
        if j != i
    )


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    found = np.array(pairs, float).reshape(-1, 2)
    return found[:, 0], found[:, 1]


@given(PAIRS)
@settings(deadline=None)
def test_the_front_is_what_nothing_dominates(pairs: list[tuple[int, int]]) -> None:
    found = front(*columns(pairs))
    assert sorted(found) == [i for i in range(len(pairs)) if not dominated(i, pairs)]
    times = [pairs[i][0] for i in found]
    assert times == sorted(times)


@given(PAIRS)
@settings(deadline=None)
def test_ranks_are_fronts_of_what_is_left(pairs: list[tuple[int, int]]) -> None:
    rank = ranks(*columns(pairs))
    left = list(range(len(pairs)))
    for number in range(len(pairs)):
        here = [pairs[i] for i in left]
        best = {left[k] for k in range(len(here)) if not dominated(k, here)}
        assert best == {i for i in range(len(pairs)) if rank[i] == number}
        left = [i for i in left if i not in best]


def test_a_nan_is_on_no_front() -> None:
    latencies, scores = np.array([1.0, np.nan, 2.0, 3.0]), np.array([1.0, 9.0, np.nan, 2.0])
    assert front(latencies, scores).tolist() == [0, 3]
    assert ranks(latencies, scores).tolist() == [0, 4, 4, 0]
    assert front(np.array([]), np.array([])).tolist() == []


def test_crowding_by_hand() -> None:
    # Deb's distance: neighbours' difference over the range, in both; the ends are infinite.
    latencies, scores = np.array([0.0, 1.0, 4.0, 10.0, 7.0]), np.array([0.0, 5.0, 8.0, 10.0, 1.0])
    rank = ranks(latencies, scores)
    assert rank.tolist() == [0, 0, 0, 0, 1]
    found = crowding(latencies, scores, rank)
    assert found[[0, 3, 4]].tolist() == [np.inf] * 3
    np.testing.assert_allclose(found[1:3], [4 / 10 + 8 / 10, 9 / 10 + 5 / 10])
