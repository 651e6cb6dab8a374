"""The link of devices that train together, and how long they exchange their gradients over it.

Every device has the whole network and its own part of the batch; after the backward pass all of them need
the sum of all gradients: an all-reduce in a ring. Gradients leave in buckets while others are still
computed, as in PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020).

The assumed peaks of links are the makers' (the standards' for PCI Express), in GB/s one way. NCCL's
all-reduce gets a share of them, its bus bandwidth over the peak, as reported in NVIDIA's issue trackers:

NVLink 0.8: 232 of 300 on eight A100-SXM (nccl-tests#175); 370 of 450 on H100, "protocol overhead (~20%)" in
the words of NCCL's maintainer, without NVLink SHARP (nccl-tests#212).
PCI Express 0.5, as everything goes through the host: 28 of 63 on eight and 35 on four RTX 5090 (nccl#1639),
20 of 31.5 on three A100-PCIe (nccl-tests#178). A host with slow memory reaches less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from lolat.errors import InputError, arg
from lolat.fitting.gpus import find_gpu
from lolat.graph import Graph
from lolat.graph.analysis import operation_parameters
from lolat.graph.counts import COLUMNS, count
from lolat.graph.modes import Mode
from lolat.io.tables import read_table
from lolat.training.iteration import state_bytes

NETWORK_GBPS = 10.0
"""Assumed between machines and between unknown devices: Ethernet of a cloud."""
LATENCY_MS = 0.005
"""Of one message: 5 microseconds, between two machines over RDMA or two GPUs."""
MACHINE = 8
"""Devices that one machine holds, unless an offer says it: what most servers for GPUs are built for."""
NVLINK_SHARE, PCIE_SHARE = 0.8, 0.5
OFF_BETWEEN, OFF_WITHIN, OFF_GIVEN = 2.0, 1.5, 1.3
"""How many times longer or shorter an exchange may take. Between machines: how much of the label it gets.
Within a machine: the same link reached 0.77 and 0.82 of its peak, and 0.44 to 0.63 on PCI Express, in the
reports above, and machines differ. Over a link that is given: the same, but somebody knows it."""
FASTEST_GBPS = 3200.0
"""Of a machine's network, where it is not known: eight cards of 400 Gbit/s, as in clusters of H100."""


@dataclass(frozen=True)
class Link:
    """The link of each device: it sends and receives at the same time, at `gbps` each way.

    `gbps`: Gbit/s that a message really gets (not the label's), above 0; `latency_ms`: of one message;
    `name`: of an assumed link, else None; `fastest_gbps`: that it may have at most, where nobody knows.
    InputError for a bandwidth that is not above 0 and finite.
    """

    gbps: float
    latency_ms: float = LATENCY_MS
    name: str | None = None
    fastest_gbps: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.gbps < math.inf:
            raise InputError(f"{arg('link_gbps')} {self.gbps:g}: expected more than 0, such as 10")

    @property
    def ends(self) -> tuple[Link, Link]:
        """The fastest and the slowest that it may be."""
        off = OFF_WITHIN if self.name in PEAKS else OFF_BETWEEN
        off = OFF_GIVEN if self.name is None else off
        fast, slow = (
            replace(self, gbps=self.gbps / factor, latency_ms=self.latency_ms * factor)
            for factor in (1.0 / off, off)
        )
        return replace(fast, gbps=max(fast.gbps, self.fastest_gbps)), slow

    def message_ms(self, size_bytes: float) -> float:
        """One message of so many bytes: latency + bytes / bandwidth (Hockney 1994)."""
        return self.latency_ms + 8.0 * size_bytes / (self.gbps * 1e6)


PEAKS = {
    # Half of what NVIDIA's data sheets say, which is for both ways: 160, 300, 600, 900, 1800.
    "NVLink 1": 80.0, "NVLink 2": 150.0, "NVLink 3": 300.0, "NVLink 4": 450.0, "NVLink 5": 900.0,
    # Rates: PCI-SIG's base specifications, 16 lanes of 8, 16 and 32 GT/s at 128/130.
    "PCIe 3.0 x16": 15.75, "PCIe 4.0 x16": 31.5, "PCIe 5.0 x16": 63.0,
}  # fmt: skip
"""The link of a data sheet (`lolat.fitting.gpus`) -> its peak in GB/s one way.

A name that does not tell the form, such as V100, is a card, which is slower. An NVLink bridge joins two
cards and no more (RTX 3090, A6000, the NVL forms): in a ring of more it is as fast as the PCI Express
between the pairs."""


def assumed_link(device: str, devices: int, machine: int = MACHINE) -> Link:
    """The link of `devices` devices of that name, of which one machine holds `machine`.

    Over several machines the slowest part sets the pace of an exchange: the network between them, which all
    devices of a machine use together, or the link within. Where no word of the name is an instance type of
    networks.csv it is not known, and as fast as that link at most.
    """
    gpu, inside = find_gpu(device), None
    if gpu is not None and gpu.link in PEAKS:
        share = NVLINK_SHARE if gpu.link.startswith("NVLink") else PCIE_SHARE
        inside = Link(8 * PEAKS[gpu.link] * share, name=gpu.link)
    fastest = FASTEST_GBPS if inside is None else inside.gbps
    if devices > machine:
        for word in device.casefold().split():
            if known := next((n for n in _networks() if n[0].fullmatch(word)), None):
                return Link(min(known[1], fastest), name=f"the network of {word}")
        return Link(NETWORK_GBPS, name="the network between machines", fastest_gbps=fastest)
    name = "a network, as no link of these devices is known"
    return inside or Link(NETWORK_GBPS, name=name, fastest_gbps=fastest)


@cache
def _networks() -> tuple[tuple[re.Pattern[str], float], ...]:
    """(instance types, Gbit/s of one to others), networks.csv beside this file: as the clouds say."""
    table = read_table(
        Path(__file__).with_name("networks.csv"), ("instance", "gbps"), rows="network"
    )
    return tuple((re.compile(row["instance"]), row.number("gbps")) for row in table)


# ---- The exchange of gradients.

BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's `bucket_cap_mb` of 25."""
FIRST_BUCKET_BYTES = 2**20
"""Its first bucket holds 1 MiB, so that the link has something to do early."""


def exposed_ms(
    gradient_bytes: Sequence[float],
    backward_ms: Sequence[float],
    allreduce: Callable[[float], float],
    bucket_bytes: float = BUCKET_BYTES,
    first_bytes: float = FIRST_BUCKET_BYTES,
) -> float:
    """How long the devices still exchange after their backward pass has ended, ms.

    `gradient_bytes`, `backward_ms`: (gradients,), in the order of the forward pass: the bytes of each, and
    the part of the backward pass that computes it. `allreduce`: bytes -> ms. Gradients become ready from
    the last to the first, and fill a bucket, which leaves when it holds `bucket_bytes` (the first one:
    `first_bytes`) or more; one bucket is exchanged at a time.
    """
    computed = free = bucket = 0.0
    limit = first_bytes
    for index in reversed(range(len(gradient_bytes))):
        computed += backward_ms[index]
        bucket += gradient_bytes[index]
        if bucket >= limit or index == 0:
            free = max(computed, free) + allreduce(bucket)
            bucket, limit = 0.0, bucket_bytes
    return max(0.0, free - computed)


def gradients(
    graph: Graph, backward_ms: np.ndarray, mode: Mode | None = None
) -> tuple[list[float], list[float]]:
    """(bytes of each gradient, ms of the backward pass from the gradient before it to this one).

    One of each for every operation with parameters, in the order of the forward pass. `backward_ms`:
    (operations,). The operations in front of the first have no backward pass, as nobody needs the gradient
    of an input: their time is shared out among the others, so that the sum stays. `mode`: of the device.
    """
    weights = count(graph).at(1)[:, COLUMNS.index("weights")]
    size = state_bytes(graph, mode)
    numbers = [
        operation_parameters(graph, o, int(w))
        for o, w in zip(graph.operations, weights, strict=True)
    ]
    learned = [i for i, n in enumerate(numbers) if n]
    if not learned:
        return [], []
    parts = np.add.reduceat(backward_ms, learned)
    behind, whole = float(parts.sum()), float(backward_ms.sum())
    parts = parts * (whole / behind) if behind > 0 else np.full(len(parts), whole / len(parts))
    return [size * numbers[i] for i in learned], parts.tolist()


def exchange_ms(
    gradient_bytes: Sequence[float],
    backward_ms: Sequence[float] | None,
    devices: int,
    link: Link,
) -> tuple[float, float]:
    """(ms that an iteration waits for the exchange, ms that the backward pass hides) on `devices` devices.

    `gradient_bytes`, `backward_ms`: as `gradients` gives them. Without `backward_ms` everything is
    exchanged after the backward pass, at once. One device exchanges nothing.
    """

    def allreduce(size_bytes: float) -> float:
        """A ring, as NCCL and gloo run: K-1 steps that scatter sums and K-1 that gather them, each of bytes
        / K (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
        2009). The adding itself is not counted: memory is far faster than a link.
        """
        return 2 * (devices - 1) * link.message_ms(size_bytes / devices)

    if devices == 1 or backward_ms is None:
        return allreduce(sum(gradient_bytes)), 0.0
    # The wait, if the backward pass took no time, is the whole exchange, bucket by bucket.
    whole = exposed_ms(gradient_bytes, [0.0] * len(backward_ms), allreduce)
    exposed = exposed_ms(gradient_bytes, backward_ms, allreduce)
    hidden = whole - exposed
    return exposed, hidden if hidden > 1e-9 * whole else 0.0  # below: rounding
