"""Buckets, an iteration on several devices, and curves over their number."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.replicas.curves import strong_scaling, weak_scaling
from lolat.errors import InputError, ModelFileError
from lolat.training.exchange import Link, exposed_ms, fill_buckets, measured_link
from lolat.training.replicas import (
    MIRRORED_MS,
    STRATEGIES,
    ParallelIteration,
    parallel_iteration,
)

LINK = Link(0.008, 2.0)  # 1,000 bytes per ms
small = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8)


def ticked(sizes: list[int], backward: list[int], limit: int, first: int) -> int:
    """What is exposed, by a clock that ticks in ms; an exchange takes 1 ms per byte."""
    computing = deque((part, i) for i, part in reversed(list(enumerate(backward))))
    waiting: deque[int] = deque()
    bucket: list[int] = []
    gone = on_wire = clock = ended = 0
    left = computing[0][0] if computing else 0
    while computing or waiting or on_wire:
        while computing and left == 0:  # gradients that are ready now
            bucket.append(sizes[computing.popleft()[1]])
            if sum(bucket) >= (limit if gone else first) or not computing:
                waiting.append(sum(bucket))
                bucket, gone = [], gone + 1
            left = computing[0][0] if computing else 0
            ended = clock
        while on_wire == 0 and waiting:
            on_wire = waiting.popleft()
        if not (computing or on_wire):
            break
        clock += 1
        left, on_wire = max(left - 1, 0), max(on_wire - 1, 0)
    return clock - ended


@given(small, st.integers(1, 20), st.integers(1, 20))
def test_buckets_are_what_a_ticking_clock_says(
    layers: list[tuple[int, int]], limit: int, first: int
) -> None:
    sizes, backward = [s for s, _ in layers], [b for _, b in layers]
    expected = ticked(sizes, backward, limit, first)
    assert exposed_ms(sizes, backward, float, limit, first) == expected


def test_buckets_leave_from_the_last_layer_on() -> None:
    assert fill_buckets([4, 4, 4, 4, 4], 8, 3) == [[4], [3, 2], [1, 0]]
    assert fill_buckets([4, 4, 4, 4], 8, 3) == [[3], [2, 1], [0]]
    assert fill_buckets([], 8, 3) == []


def test_hidden_by_hand() -> None:
    # The last layer's 10 bytes leave at 5 ms and arrive at 15; the first's leave at 20: 10 ms after it.
    assert exposed_ms([10, 10], [15, 5], float, 10, 10) == 10
    # Here the wire is still busy until 15 when the pass ends at 10.
    assert exposed_ms([10, 10], [5, 5], float, 10, 10) == 15


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e3)), min_size=1, max_size=12),
    st.integers(2, 64),
    st.sampled_from(["ring", "tree", "one-to-all"]),
)
def test_the_backward_pass_hides_but_never_adds(
    layers: list[tuple[float, float]], devices: int, strategy: str
) -> None:
    sizes, backward = [s for s, _ in layers], [b for _, b in layers]
    found = parallel_iteration(1e4, sizes, devices, LINK, strategy, backward_ms=backward)
    assert found.exchange_ms >= 0
    assert -1e-6 <= found.hidden_ms <= sum(backward) * (1 + 1e-9) + 1e-6


def test_an_iteration_adds_up() -> None:
    found = parallel_iteration([10, 14], [4000, 2000], 2, LINK, "ring", fixed_ms=3)
    # Ring of two: two steps of 3,000 bytes, 5 ms each.
    assert (found.replica_ms, found.synchronization_ms, found.exchange_ms) == (12, 2 + 3, 10)
    assert found.iteration_ms == 27
    assert found.efficiency == pytest.approx(12 / 27)


def test_mirrored_is_a_ring_after_the_backward_pass() -> None:
    sizes, backward = [3e7, 3e7], [100.0, 100.0]
    mirrored = parallel_iteration(300, sizes, 4, LINK, "mirrored", backward_ms=backward)
    ring = parallel_iteration(300, sizes, 4, LINK, "ring")
    assert mirrored.exchange_ms == ring.exchange_ms
    assert mirrored.synchronization_ms == MIRRORED_MS
    assert parallel_iteration(9, sizes, 4, LINK, "mirrored", fixed_ms=2).synchronization_ms == 2
    assert parallel_iteration(300, sizes, 4, LINK, "ring", backward_ms=backward).hidden_ms > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_device_is_as_fast_as_one_device(strategy: str) -> None:
    found = parallel_iteration(7, [1e9], 1, LINK, strategy, backward_ms=[5], fixed_ms=3)
    assert found.iteration_ms == 7
    assert found.efficiency == 1


def shared(batch_size: int, devices: int) -> ParallelIteration:
    return parallel_iteration(2.0 + batch_size, [8000], devices, LINK)


def test_weak_scaling_by_hand() -> None:
    one, two = weak_scaling(shared, 10, [1, 2])
    # 12 ms alone; two: a ring of two steps of 4,000 bytes, 6 ms each, on top.
    assert (one.batch_size, one.speedup, one.efficiency) == (10, 1, 1)
    assert (two.batch_size, two.speedup) == (20, pytest.approx(2 * 12 / 24))


def test_strong_scaling_by_hand() -> None:
    two, three = strong_scaling(shared, 10, [2, 3])
    assert two.speedup == pytest.approx(12 / (7 + 12))
    # Ten samples on three: the slowest has four. Ring of three: 4 steps of 8,000 / 3 bytes.
    assert three.speedup == pytest.approx(12 / (6 + 4 * (2 + 8 / 3)))
    assert three.batch_size == 10


@given(st.integers(1, 4096))
def test_nothing_scales_better_than_its_devices(devices: int) -> None:
    (point,) = weak_scaling(shared, 10, [devices])
    assert 0 < point.efficiency <= 1 + 1e-12


def test_wrong_calls() -> None:
    for call, words in [
        (lambda: parallel_iteration(1, [1], 0, LINK), "0 devices cannot train"),
        (lambda: parallel_iteration(1, [1], 2, LINK, "star"), "'star' is no strategy; .* mirrored"),
        (lambda: parallel_iteration([1, 2], [1], 3, LINK), "2 replicas' times for 3 devices"),
        (lambda: parallel_iteration(-1, [1], 2, LINK), "replica of -1 ms cannot be"),
        (lambda: parallel_iteration(1, [1], 2, LINK, fixed_ms=-1), "fixed cost of -1 ms"),
        (lambda: exposed_ms([1], [1, 2], float), "1 gradients, but 2 times"),
        (lambda: exposed_ms([1], [-1], float), "negative or infinite time"),
        (lambda: fill_buckets([-1]), "negative or infinite bytes"),
        (lambda: fill_buckets([math.nan]), "negative or infinite bytes"),
        (lambda: fill_buckets([1], 0), "bucket of 0 bytes"),
        (lambda: weak_scaling(shared, 0, [1]), "batch of 0 on each device"),
        (lambda: weak_scaling(shared, 1, [0]), "0 devices cannot train"),
        (lambda: strong_scaling(shared, 4, [8]), "batch of 4 cannot be shared among 8 devices"),
    ]:
        with pytest.raises(InputError, match=words):
            call()


def test_a_damaged_link_of_a_file_is_named() -> None:
    document = {"name": "desk", "links": {"ddp": {"gbps": "fast"}}}
    with pytest.raises(ModelFileError, match=r"desk: .*`links\.ddp\..*lolat training link"):
        measured_link(document, "ddp", 2)
