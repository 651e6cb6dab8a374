"""Sharding against ZeRO's volumes, exchanges against devices that pass numbers, buckets against a clock."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lolat
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.modes import AMP, BFLOAT16, Mode
from lolat.graph.weights import parameters
from lolat.hardware.links import Link
from lolat.training.parallel import GATHER_SHARE, Parallel, exposed_ms, gradients
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
    assert Parallel(k, SLOW).exchange_ms([12_000], [0.0])[0] == pytest.approx(wire.clock)
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
    eight = Parallel(8, Link(gbps))
    assert eight.exchange_ms(sizes, backward)[1] >= 0.0
    assert eight.exchange_ms(sizes, [*[0.0] * (len(backward) - 1), 0.7])[1] == 0.0


# ---- Sharding.


@pytest.mark.parametrize(
    ("sharding", "divided", "volume"),
    [
        ("none", (1, 1, 1), 2),
        ("zero1", (1, 1, 4), 2),
        ("zero2", (1, 4, 4), 2),
        ("fsdp", (4, 4, 4), 3),
    ],
)
def test_memory_and_volume_are_those_of_zero(
    sharding: str, divided: tuple[int, ...], volume: int
) -> None:
    """ZeRO (Rajbhandari et al. 2020), section 7: 2 a parameter, 3 with all of it, of nearly so many."""
    parallel = Parallel(4, SLOW, sharding)
    assert parallel.shards == divided
    at_once = replace(parallel, link=Link(0.008, 0.0)).exchange_ms([1000.0], [0.0], [1000.0], [0.0])
    assert at_once == (pytest.approx(volume * 3 / 4), 0.0)


def test_a_hybrid_divides_inside_a_machine_and_exchanges_shards_between_machines() -> None:
    parallel = Parallel(16, SLOW, "hybrid", SLOW)
    assert parallel.shards == (8, 8, 8)
    # A gather before each pass and a scatter, in a ring of 8; then two rounds of two machines.
    exposed, hidden = parallel.exchange_ms([8000.0], [0.0], [8000.0], [0.0])
    inside, between = 7 * (2.0 + 1.0) + 7 * (2.0 + 2.0), 2 * (2.0 + 4.0 / GATHER_SHARE)
    assert (exposed, hidden) == (pytest.approx(inside + between), 0.0)
    # Of ten parts and long passes, the first gather, and the last scatter and exchange, are waited for.
    parts, ms = [8000.0] * 10, [1e3] * 10
    exposed, hidden = parallel.exchange_ms(parts, ms, parts, ms)
    assert (exposed, hidden) == (
        pytest.approx(inside + between),
        pytest.approx(9 * (inside + between)),
    )


def test_a_hybrid_takes_whole_machines() -> None:
    """A mesh of PyTorch has as many GPUs in each row."""
    assert [Parallel(k, SLOW, "hybrid", SLOW, 4).shards.states for k in (3, 4, 8, 12)] == [
        3,
        4,
        4,
        4,
    ]
    with pytest.raises(InputError, match="of 8; expected 8 or 16"):
        Parallel(15, SLOW, "hybrid")


def test_fsdp_waits_for_two_gathers_and_a_scatter_of_each_micro_batch() -> None:
    """1,000 bytes a ms and 2 ms a message: of 4,000 bytes among 4 devices three messages of 3 ms each."""
    parallel = Parallel(4, SLOW, "fsdp")
    exposed, hidden = parallel.exchange_ms([4000.0], [0.0], [4000.0], [0.0], batches=3)
    assert exposed == pytest.approx(
        3 * (3 * 3.0 + 3 * (2.0 + 2.0))
    )  # gather and scatter as one message
    assert hidden == 0.0


def test_messages_hide_behind_long_passes_but_for_the_first_gather_and_the_last_scatter() -> None:
    parallel, parts, ms = Parallel(4, SLOW, "fsdp"), [4000.0] * 10, [1e3] * 10
    exposed, hidden = parallel.exchange_ms(parts, ms, parts, ms)
    assert exposed == pytest.approx(9.0 + 12.0)
    assert hidden == pytest.approx(9 * 21.0)


def test_zero1_gathers_after_the_update_when_nothing_hides_it() -> None:
    """ZeRO 1 of PyTorch broadcasts in `step()`: ten parts of 40 MB at 80 Gbit/s, in a ring of 4."""
    parts, ms, link = [4e7] * 10, [1e3] * 10, Link(80.0, 0.0)
    exposed, hidden = Parallel(4, link, "zero1").exchange_ms(parts, ms, parts, ms)
    assert exposed == pytest.approx(3.0 + 30.0)  # the last gradients, then all weights
    assert hidden == pytest.approx(9 * 3.0)
    assert exposed > Parallel(4, link).exchange_ms(parts, ms, parts, ms)[0] == pytest.approx(6.0)


def test_zero1_exchanges_once_whatever_the_batches_and_zero2_each_time() -> None:
    one, two = (
        [Parallel(4, SLOW, s).exchange_ms([4000.0], [0.0], [4000.0], [0.0], n)[0] for n in (1, 3)]
        for s in ("zero1", "zero2")
    )
    assert one == pytest.approx([9.0 + 9.0] * 2)
    assert two == pytest.approx([9.0 + 9.0, 3 * 9.0 + 9.0])


def test_gathers_between_machines_reach_a_share_of_the_network() -> None:
    parallel = Parallel(16, SLOW, "zero2")
    exposed = parallel.exchange_ms([16e3], [0.0], [0.0], [0.0])[0]
    assert exposed == pytest.approx(15 * (2.0 + 1.0 / GATHER_SHARE))


def test_zero1_between_machines_sends_what_an_allreduce_sends() -> None:
    """Scattered sums and gathered weights are the halves of a ring's all-reduce, in whole messages."""
    plain = Parallel(16, SLOW).exchange_ms([16e3], [0.0])[0]
    divided = Parallel(16, SLOW, "zero1").exchange_ms([16e3], [0.0], [16e3], [0.0])[0]
    assert divided == pytest.approx(plain) == pytest.approx(2 * 15 * (2.0 + 1.0))


def test_a_device_alone_and_gradients_of_nothing_wait_for_nobody() -> None:
    assert Parallel().exchange_ms([1e6], [1.0]) == (0.0, 0.0)
    assert Parallel(4, SLOW, "zero2").exchange_ms([0.0], [0.0], [0.0], [0.0]) == (0.0, 0.0)


def test_a_network_divides_its_states_and_waits_for_messages_of_zero() -> None:
    """Adam, float32: 8 bytes of states, 4 of gradients, 4 of weights a parameter, each among 4 devices.

    The buckets of DistributedDataParallel hold whole gradients under ZeroRedundancyOptimizer too, which
    divides the states alone; divided gradients are those of one layer at a time. FSDP's SHARD_GRAD_OP
    (zero2) keeps a fourth of the weights beside the whole ones.
    """
    graph, asked = three_dense(), {"optimizer": "adam", "replicas": 4, "link_gbps": 1.0}
    model = lolat.load("v100-fp32")
    found = {
        s: model.cost(graph, 8, sharding=s, **asked) for s in ("none", "zero1", "zero2", "fsdp")
    }
    number = parameters(graph)
    for sharding, divided in (("none", 0), ("zero1", 8), ("zero2", 12), ("fsdp", 16)):
        memory = found[sharding].memory
        kept = sum(memory.get(n, 0) for n in ("weights", "gradients", "optimizer states"))
        shard = 4 / 4 * (sharding == "zero2")
        assert kept == pytest.approx(number * (16 - divided * 3 / 4 + shard), rel=1e-6)
    for sharding, whole in (("none", number), ("zero1", number), ("zero2", 512 * 512), ("fsdp", 0)):
        assert found[sharding].memory.get("buckets of gradients", 0) == 4 * whole
    # One device has all states, four a quarter each, and a card between the two holds the training on four.
    each = [model.cost(graph, 8, sharding="fsdp", **asked | {"replicas": k}) for k in (1, 4)]
    sizes = [c.memory_bytes for c in each]
    gib = (sum(sizes) / 2 + 2**29) / 0.94 / 2**30
    both = model.cost(graph, 8, sharding="fsdp", memory_gib=gib, **asked | {"replicas": [1, 4]})
    assert [(row["memory_bytes"], row["fits"]) for row in both.rows()] == [
        (sizes[0], False), (sizes[1], True)
    ]  # fmt: skip
    assert (both.fits, both.memory_bytes, both.best.devices) == (True, sizes[1], 4)
    waits = {s: c.options[0].parts_ms["exchange"] for s, c in found.items()}
    assert (
        waits["none"] < waits["fsdp"]
    )  # twice the parameters against three times, and nothing hides


@pytest.mark.parametrize("sharding", ["zero2", "fsdp"])
@pytest.mark.parametrize(("tune", "again"), [("full", 4), ("frozen", 1), ("lora:8", 3)])
def test_fsdp_gathers_frozen_parameters_too(tune: str, again: int, sharding: str) -> None:
    """Four layers of 4 MiB on four devices: all for the forward pass, and again those that are trained or
    that a gradient goes through (no adapter is in front of the first), unless they stay whole as with
    SHARD_GRAD_OP (zero2); gradients are scattered.
    """
    b = GraphBuilder("net", "torch")
    at = b.input((1, 1024))
    for _ in range(4):
        at = b.add("dense", [at], (1, 1024), in_features=1024, out_features=1024, bias=False)
    graph = b.build([at])
    found = lolat.load("v100-fp32").cost(
        graph, 16, tune=tune, sharding=sharding, replicas=4, link_gbps=1.0
    )
    (option,) = found.options
    layer, trained = 4 * 1024 * 1024, 4 * found.trained_parameters
    adapters = trained * (tune == "lora:8")
    passes = 1 + (sharding == "fsdp")
    moved = (4 + again * (passes - 1)) * layer + passes * adapters + trained
    ms = 3 / 4 * moved * 8 / 1e6
    assert option.parts_ms["exchange"] + option.hidden_ms == pytest.approx(ms, rel=0.02)
