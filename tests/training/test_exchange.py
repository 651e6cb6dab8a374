"""Exchanges: hand-worked, against devices that really pass their numbers on, and how devices are linked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.training.exchange import (
    EXCHANGES,
    LATENCY_MS,
    MACHINE,
    Link,
    assumed_link,
    exchange_ms,
    interconnect_of,
)

SLOW = Link(0.008, 2.0)  # 1,000 bytes per ms

links = st.builds(Link, st.floats(1e-3, 1e4), st.floats(0, 100))
sizes = st.floats(0, 1e12)
devices = st.integers(1, 5000)
ways = st.sampled_from(sorted(EXCHANGES))


class Wire:
    """Devices with one vector each, and a clock: messages of a round travel at the same time."""

    def __init__(self, count: int, chunk_bytes: float, link: Link) -> None:
        self.held = np.random.default_rng(0).integers(0, 9, (count, count)).astype(float)
        self.wanted = self.held.sum(axis=0)
        self.chunk_bytes, self.link = chunk_bytes, link
        self.clock, self.sent_bytes = 0.0, np.zeros(count)

    def round(self, messages: list[tuple[int, int, list[int], bool]]) -> None:
        """(from, to, chunks, add or replace); nobody sends or receives two at once."""
        senders, receivers = [m[0] for m in messages], [m[1] for m in messages]
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)
        before = self.held.copy()
        slowest = 0.0
        for source, target, chunks, add in messages:
            size = len(chunks) * self.chunk_bytes
            self.sent_bytes[source] += size
            slowest = max(slowest, self.link.latency_ms + 8 * size / (self.link.gbps * 1e9) * 1e3)
            kept = before[target, chunks] if add else 0
            self.held[target, chunks] = kept + before[source, chunks]
        self.clock += slowest

    def done(self) -> bool:
        return bool((self.held == self.wanted).all())


def pass_ring(wire: Wire, k: int) -> None:
    for step in range(k - 1):
        wire.round([(i, (i + 1) % k, [(i - step) % k], True) for i in range(k)])
    for step in range(k - 1):
        wire.round([(i, (i + 1) % k, [(i + 1 - step) % k], False) for i in range(k)])


def pass_tree(wire: Wire, k: int) -> None:
    everything, strides = list(range(k)), []
    stride = 1
    while stride < k:
        strides.append(stride)
        wire.round([(i, i - stride, everything, True) for i in range(stride, k, 2 * stride)])
        stride *= 2
    for stride in reversed(strides):
        wire.round([(i - stride, i, everything, False) for i in range(stride, k, 2 * stride)])


def pass_one(wire: Wire, k: int) -> None:
    for i in range(1, k):
        wire.round([(i, 0, list(range(k)), True)])
    for i in range(1, k):
        wire.round([(0, i, list(range(k)), False)])


PASSED = {"ring": pass_ring, "tree": pass_tree, "one-to-all": pass_one}


@pytest.mark.parametrize("way", sorted(EXCHANGES))
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17])
def test_devices_that_pass_their_numbers_on_take_as_long(way: str, k: int) -> None:
    wire = Wire(k, 12_000 / k, SLOW)
    PASSED[way](wire, k)
    assert wire.done()
    assert exchange_ms(way, 12_000, k, SLOW) == pytest.approx(wire.clock)
    if way == "ring":
        assert wire.sent_bytes == pytest.approx(2 * (k - 1) / k * 12_000)


@pytest.mark.parametrize(("k", "height"), [(2, 1), (3, 2), (4, 2), (8, 3), (4096, 12)])
def test_without_latency_tree_and_one_to_all_are_paleos(k: int, height: int) -> None:
    link = Link(20, 0.0)  # 2.5 GB/s: 100 MB in 40 ms
    assert exchange_ms("tree", 1e8, k, link) == pytest.approx(2 * height * 40)
    assert exchange_ms("one-to-all", 1e8, k, link) == pytest.approx(2 * (k - 1) * 40)


@given(ways, sizes, devices, links, st.floats(1.0, 1000.0))
def test_more_bandwidth_is_never_slower(
    way: str, size: float, k: int, link: Link, factor: float
) -> None:
    faster = Link(link.gbps * factor, link.latency_ms)
    assert exchange_ms(way, size, k, faster) <= exchange_ms(way, size, k, link) * (1 + 1e-12)


@given(ways, sizes, st.integers(1, 4000), links)
def test_more_devices_are_never_faster_and_one_exchanges_nothing(
    way: str, size: float, k: int, link: Link
) -> None:
    assert exchange_ms(way, size, 1, link) == 0.0
    assert exchange_ms(way, size, k + 1, link) >= exchange_ms(way, size, k, link) * (1 - 1e-12)


def test_a_link_has_a_latency_unless_told() -> None:
    assert Link(1).latency_ms == LATENCY_MS
    assert Link(1, 0.25).message_ms(1e9) == pytest.approx(8000.25)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *((lambda n=n: Link(n), "link of .* Gbit/s .* expected more than 0") for n in (0, -1, math.nan)),
        *((lambda n=n: Link(1, n), "latency of .* expected 0 or more") for n in (-1, math.inf)),
        *((lambda n=n: exchange_ms("ring", 1, n, SLOW), "devices cannot train; expected a whole number")
          for n in (0, -2, 1.5, math.nan, True)),
        *((lambda n=n: exchange_ms("tree", n, 2, SLOW), "bytes cannot be exchanged; expected 0 or more")
          for n in (-1, math.nan, math.inf)),
        (lambda: exchange_ms("star", 1, 2, SLOW), "'star' is no way to exchange; expected one of ring"),
    ],
)  # fmt: skip
def test_what_cannot_be(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


NVLINK = {1: 160, 2: 300, 3: 600, 4: 900, 5: 1800}
"""GB/s, both ways together: NVIDIA's data sheets of P100, V100, A100, H100, B200."""
LANES, ENCODED = 16, 128 / 130
GIGATRANSFERS = {3: 8, 4: 16, 5: 32}
"""A second and lane: PCI Express."""

CARDS = {
    3: ["V100", "Tesla V100-PCIE-32GB", "v100-pcie-32gb", "V100-32GB", "p100-pcie-16gb", "Tesla P100",
        "t4", "Tesla T4", "p4", "K80", "K40", "M60", "1080ti", "NVIDIA GTX 1080 Ti",
        "NVIDIA GeForce RTX 2080 Ti"],
    4: ["a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "A100-80GB", "RTX 3090",
        "NVIDIA GeForce RTX 4090", "RTX4090", "rtx-4090", "A10G", "L4", "NVIDIA L40S", "A6000",
        "RTX 6000 Ada", "mi100", "mi210"],
    5: ["h100", "NVIDIA H100 PCIe", "H200 NVL", "RTX 5090", "NVIDIA GeForce RTX 5090",
        "RTX PRO 6000 Max-Q", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"],
}  # fmt: skip
MODULES = {
    1: ["Tesla P100-SXM2-16GB"],
    2: ["Tesla V100-SXM2-16GB", "v100-sxm2"],
    3: ["NVIDIA A100-SXM4-40GB", "a100-sxm-40gb", "A100-80GB-SXM", "a100-pcie-40gb A100-80GB-SXM"],
    4: ["h100-sxm-80gb", "NVIDIA H100 80GB HBM3", "H100-SXM", "NVIDIA H200"],
    5: ["NVIDIA B200"],
}


@pytest.mark.parametrize(("of", "name"), [(g, n) for g, names in CARDS.items() for n in names])
def test_cards_have_half_of_their_slot(of: int, name: str) -> None:
    gbps = GIGATRANSFERS[of] * LANES * ENCODED / 2
    assert_linked(name, f"PCIe {of}.0 x16", pytest.approx(gbps, rel=1e-3))


@pytest.mark.parametrize(("of", "name"), [(g, n) for g, names in MODULES.items() for n in names])
def test_modules_have_four_fifths_of_nvlink(of: int, name: str) -> None:
    assert_linked(name, f"NVLink {of}", pytest.approx(8 * NVLINK[of] / 2 * 0.8))


def assert_linked(device: str, name: str, gbps: Any) -> None:
    found = interconnect_of(device)
    assert found is not None
    assert (found.name, found.gbps) == (name, gbps)


@pytest.mark.parametrize(
    "name",
    ["cpu", "AMD EPYC, 2 threads", "Intel Core i7-12700H", "Intel Core i9-10940X", "Apple M2", "desk",
     "Intel Xeon E5-2690 v4", "80gb", "", "mi250"],
)  # fmt: skip
def test_others_are_not_known(name: str) -> None:
    assert interconnect_of(name) is None
    assert assumed_link(name, 2) == Link(10, name="a network, as no link of these devices is known")


def test_more_than_a_machine_holds_are_linked_by_a_network() -> None:
    assert assumed_link("RTX 4090", MACHINE).gbps == 126
    assert assumed_link("RTX 4090", MACHINE + 1) == Link(10, name="the network between machines")
    assert assumed_link("RTX 4090", 4, machine=2).gbps == 10
    assert str(assumed_link("RTX 4090", 4)) == "PCIe 4.0 x16, 126 Gbit/s"
    assert str(Link(12.5)) == "12.5 Gbit/s"
