"""Exchanges against devices that pass numbers on, and buckets against a ticking clock."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import parameters
from lolat.graph.modes import AMP, BFLOAT16, Mode
from lolat.hardware.links import Link
from lolat.training.exchange import exchange_ms, exposed_ms, gradients
from tests import synthetic

SLOW = Link(0.008, 2.0)  # 1,000 bytes per ms

links = st.builds(Link, st.floats(1e-3, 1e4), st.floats(0, 100))
sizes = st.floats(0, 1e12)

# ---- One all-reduce.


class Wire:
    """Devices with one vector each, and a clock: messages of a round travel at the same time."""

    def __init__(self, count: int, chunk_bytes: float, link: Link) -> None:
        self.vectors = np.random.default_rng(0).integers(0, 9, (count, count)).astype(float)
        self.sum = self.vectors.sum(axis=0)
        self.chunk_bytes, self.link = chunk_bytes, link
        self.clock, self.sent_bytes = 0.0, np.zeros(count)

    def round(self, messages: list[tuple[int, int, list[int], bool]]) -> None:
        """(from, to, chunks, add or replace); nobody sends or receives two at once."""
        senders, receivers = [m[0] for m in messages], [m[1] for m in messages]
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)
        before = self.vectors.copy()
        slowest = 0.0
        for source, target, chunks, add in messages:
            size = len(chunks) * self.chunk_bytes
            self.sent_bytes[source] += size
            slowest = max(slowest, self.link.latency_ms + 8 * size / (self.link.gbps * 1e9) * 1e3)
            old = before[target, chunks] if add else 0
            self.vectors[target, chunks] = old + before[source, chunks]
        self.clock += slowest

    def done(self) -> bool:
        return bool((self.vectors == self.sum).all())


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 16])
def test_devices_that_pass_their_numbers_on_take_as_long(k: int) -> None:
    wire = Wire(k, 12_000 / k, SLOW)
    for step in range(k - 1):
        wire.round([(i, (i + 1) % k, [(i - step) % k], True) for i in range(k)])
    for step in range(k - 1):
        wire.round([(i, (i + 1) % k, [(i + 1 - step) % k], False) for i in range(k)])
    assert wire.done()
    assert exchange_ms([5_000, 7_000], None, k, SLOW)[0] == pytest.approx(wire.clock)
    assert wire.sent_bytes == pytest.approx(2 * (k - 1) / k * 12_000)


# ---- Buckets.

layers = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8)


def ticked(gradient_bytes: list[int], backward: list[int], limit: int, first: int) -> int:
    """The exposed time, by a clock that ticks in ms; an exchange takes 1 ms per byte."""
    computing = deque((part, i) for i, part in reversed(list(enumerate(backward))))
    waiting: deque[int] = deque()
    bucket: list[int] = []
    gone = on_wire = clock = ended = 0
    left = computing[0][0] if computing else 0
    while computing or waiting or on_wire:
        while computing and left == 0:  # gradients that are ready now
            bucket.append(gradient_bytes[computing.popleft()[1]])
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


@given(layers, st.integers(1, 20), st.integers(1, 20))
def test_buckets_take_as_long_as_by_a_ticking_clock(
    pairs: list[tuple[int, int]], limit: int, first: int
) -> None:
    gradient_bytes, backward = [s for s, _ in pairs], [b for _, b in pairs]
    expected = ticked(gradient_bytes, backward, limit, first)
    assert exposed_ms(gradient_bytes, backward, float, limit, first) == expected


MIB = 2**20


def three_dense(width: int = 512) -> Graph:
    """scale, dense, relu, dense, relu, dense; kernels of 1 MiB each at 512."""
    b = GraphBuilder("three")
    x = b.input((1, width))
    x = b.add("rescale", [x], (1, width), "scale")
    for number in range(3):
        x = b.add("dense", [x], (1, width), f"d{number}", in_features=width, out_features=width,
                  bias=False)  # fmt: skip
        if number < 2:
            x = b.add("relu", [x], (1, width), f"r{number}")
    return b.build([x])


def test_a_gradient_comes_with_the_operations_behind_its_own() -> None:
    # scale, d0, r0, d1, r1, d2: nobody needs the gradient of what is in front of d0, whose 5 ms are shared.
    found, backward = gradients(three_dense(), np.array([5.0, 1, 2, 3, 4, 25]))
    assert found == [MIB] * 3
    half, _ = gradients(three_dense(), np.zeros(6), Mode(BFLOAT16))
    mixed, _ = gradients(three_dense(), np.zeros(6), Mode(AMP))  # its gradients are in float32
    assert (half, mixed) == ([MIB / 2] * 3, [MIB] * 3)
    assert backward == pytest.approx([3 * 40 / 35, 7 * 40 / 35, 25 * 40 / 35])


@given(st.integers(1, 4), st.data())
def test_gradients_add_up(stages: int, data: st.DataObject) -> None:
    graph = synthetic.network(stages)
    number = len(graph.operations)
    times = data.draw(st.lists(st.floats(0, 1e3), min_size=number, max_size=number))
    found, backward = gradients(graph, np.array(times))
    assert sum(found) == 4 * parameters(graph)
    assert sum(backward) == pytest.approx(sum(times))
    assert len(found) == len(backward) == 1 + 2 * stages * 2 + 1  # conv and norm, stem and head


@given(
    st.lists(st.tuples(st.floats(1.0, 1e8), st.floats(0.0, 10.0)), min_size=1, max_size=5),
    st.sampled_from([1.0, 10.0, 100.0]),
)
def test_no_less_than_nothing_is_hidden(gradients: list[tuple[float, float]], gbps: float) -> None:
    """Where nothing is, rounding would leave 1e-14 ms: the last backward pass ends with all to send."""
    sizes, backward = map(list, zip(*gradients, strict=True))
    assert exchange_ms(sizes, backward, 8, Link(gbps))[1] >= 0.0
    assert exchange_ms(sizes, [*[0.0] * (len(backward) - 1), 0.7], 8, Link(gbps))[1] == 0.0
