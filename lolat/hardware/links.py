"""The link of devices that train together.

Peaks are the makers' (PCI-SIG's for PCI Express), in GB/s one way. NCCL's all-reduce reaches a share of
them (bus bandwidth over peak) in reports to NVIDIA's issue trackers:

NVLink 0.8: 232 of 300 on eight A100-SXM (nccl-tests#175); 370 of 450 on H100, "protocol overhead (~20%)" by
NCCL's maintainer, without NVLink SHARP (nccl-tests#212).
PCI Express 0.5, through the host: 28 of 63 on eight and 35 on four RTX 5090 (nccl#1639), 20 of 31.5 on
three A100-PCIe (nccl-tests#178). A host with slow memory reaches less.
GeForce cards since Turing have no transfers from peer to peer (P2P) in NVIDIA's driver: all goes through
the memory of the host. A fast one reached the 28 above; owners of eight RTX 4090 ask why theirs is so slow
(nccl-tests#270, #307). How slow it may be is assumed (`HOST_GBPS`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

from lolat.hardware.card_names import find_gpu, form_of, of_form
from lolat.io.tables import read_table
from lolat.parameters import PARAMETERS

NETWORK_GBPS = 10.0
"""Assumed bandwidth between machines and between unknown devices: a cloud's Ethernet."""
GEFORCE = re.compile(r"RTX [2-5]0\d0( Ti)?")
"""Cards without P2P by their data sheets' names."""
WITHOUT_P2P = " without P2P"
"""The end of the name of their link."""
HOST_GBPS = 8 * 64.0
"""The memory of a slow host, which GPUs without P2P share: a message is written to it and read again."""
LATENCY_MS = 0.005  # of a message between two GPUs, or two machines over RDMA
OWN_LINK = "the link of its data sheet"
"""The name of the link of an own data sheet."""
ALIKE = 0.05
"""Difference below which the rate of an own data sheet is that of a card's usual link."""
UNKNOWN_NETWORK = "the network between machines"
"""The name of a link between machines whose network is not known."""
CLUSTER = "the network of a cluster"
"""The name of an assumed link between whole machines that were bought to train together."""
MACHINE = 8  # devices in one machine if no offer says it, as in most GPU servers
NVLINK_SHARE, PCIE_SHARE = 0.8, 0.5
OFF_BETWEEN, OFF_WITHIN, OFF_GIVEN = 2.0, 1.5, 1.3
"""Error factors of an exchange's time: between machines, within one, over a link that the user gives.
Within a machine the same link reached 0.77 and 0.82 of its peak, on PCI Express 0.44 to 0.63, in the
reports above."""
FASTEST_GBPS, FASTEST_APART_GBPS = 3200.0, 100.0
"""Fastest network of a machine if unknown: eight cards of 400 Gbit/s, as in clusters of H100; of a machine
with fewer GPUs, as the clouds' own are at most (networks.csv)."""


@dataclass(frozen=True)
class Link:
    """The link of a device, which sends and receives at the same time.

    `gbps`: Gbit/s of a message each way, less than the label's; `latency_ms`: of a message; `name`: the
    assumed link, None for a given one; `fastest_gbps`, `slowest_gbps`: bounds of an unknown link that its
    `ends` reach. InputError unless `gbps` is above 0 and finite.
    """

    gbps: float
    latency_ms: float = LATENCY_MS
    name: str | None = None
    fastest_gbps: float = 0.0
    slowest_gbps: float = inf

    def __post_init__(self) -> None:
        PARAMETERS["link_gbps"].check(self.gbps)

    @property
    def is_within(self) -> bool:
        """True if the link is known and inside a machine."""
        return (self.name or "").removesuffix(WITHOUT_P2P) in {*PEAKS, OWN_LINK}

    @property
    def ends(self) -> tuple[Link, Link]:
        """The fastest and the slowest link that an unknown one may be."""
        off = OFF_WITHIN if self.is_within else OFF_BETWEEN
        off = OFF_GIVEN if self.name is None else off
        fast, slow = (
            replace(self, gbps=self.gbps / factor, latency_ms=self.latency_ms * factor)
            for factor in (1.0 / off, off)
        )
        fast = replace(fast, gbps=max(fast.gbps, self.fastest_gbps))
        return fast, replace(slow, gbps=min(slow.gbps, self.slowest_gbps))

    def message_ms(self, size_bytes: float) -> float:
        """Time of a message: latency + bytes / bandwidth (Hockney 1994)."""
        return self.latency_ms + 8.0 * size_bytes / (self.gbps * 1e6)


PEAKS = {
    # Half of the rates for both ways in NVIDIA's data sheets: 160, 300, 600, 900, 1800.
    "NVLink 1": 80.0, "NVLink 2": 150.0, "NVLink 3": 300.0, "NVLink 4": 450.0, "NVLink 5": 900.0,
    # Rates: PCI-SIG's base specifications, 16 lanes of 8, 16 and 32 GT/s at 128/130.
    "PCIe 3.0 x16": 15.75, "PCIe 4.0 x16": 31.5, "PCIe 5.0 x16": 63.0,
    # A MI300X has seven links, one to each other card of a machine: half of 128 GB/s each (AMD).
    "Infinity Fabric": 448.0,
}  # fmt: skip
"""The link of a data sheet (`lolat.hardware.gpus`) -> its peak in GB/s one way.

An NVLink bridge joins two cards only (RTX 3090, A6000, the NVL forms): a ring of more is as fast as the PCI
Express between the pairs."""


AMOUNT = re.compile(r"\d+ ?gb\b|x\d+\b", re.IGNORECASE)
"""A machine's memory and its number of cards, in the name of its type."""


def own_rate(device: str, gb_s: float | None, forms: Sequence[str] = ("",)) -> float | None:
    """The GB/s of a data sheet's link; None without one, and if the card of that name has it.

    `forms`: other forms of the card, such as "SXM", whose links are the card's too.
    """
    cards = [of_form(device, form) if form else find_gpu(device) for form in forms]
    usual = [PEAKS.get(gpu.link, 0.0) for gpu in cards if gpu is not None]
    return None if gb_s and any(abs(gb_s - peak) < ALIKE * peak for peak in usual) else gb_s


def assumed_link(
    device: str, devices: int, machine: int = MACHINE, instance: str = "", own_gb_s: float | None = None
) -> Link:  # fmt: skip
    """The link of `devices` devices of that name, `machine` of them in each machine, of type `instance`.

    `own_gb_s`: the peak of the link inside a machine by an own data sheet, in place of the card's.
    The slowest part limits an exchange over several machines: the network between them, which the devices
    of a machine share, or the link within. The network is known if a word of the instance's type is one of
    networks.csv. Else machines of MACHINE GPUs with NVLink are those of a cluster (`_cluster_link`); others
    have NETWORK_GBPS, and at most the link within. The type or that table may name the card's form (SXM,
    PCIe); the type's GB are the machine's memory.
    """
    form = form_in(instance)
    own = of_form(device, form) if form else find_gpu(f"{device} {AMOUNT.sub('', instance)}")
    gpu, within = own or find_gpu(device), None
    name = OWN_LINK if own_gb_s else gpu.link if gpu else ""
    peak = own_gb_s or PEAKS.get(name, 0.0)
    has_nvlink = peak > PEAKS["PCIe 5.0 x16"]
    if peak:
        within = Link(8 * peak * (NVLINK_SHARE if has_nvlink else PCIE_SHARE), name=name)
    if within and gpu and name == gpu.link and GEFORCE.fullmatch(gpu.name):
        within = replace(
            within, name=name + WITHOUT_P2P, slowest_gbps=HOST_GBPS / (2 * min(devices, machine))
        )
    fastest = FASTEST_GBPS if within is None else within.gbps
    if devices > machine:
        for word, gbps, _ in _known(instance):
            if gbps:
                slower = f", no faster than {within.name}" if within and gbps > fastest else ""
                return Link(min(gbps, fastest), name=f"the network of {word}{slower}")
        if machine >= MACHINE and gpu is not None and within and has_nvlink:
            return _cluster_link(within)
        apart = fastest if machine >= MACHINE else min(fastest, FASTEST_APART_GBPS)
        return Link(NETWORK_GBPS, name=UNKNOWN_NETWORK, fastest_gbps=apart)
    name = "an assumed network, as no link of these devices is known"
    return within or Link(NETWORK_GBPS, name=name, fastest_gbps=fastest)


def given_link(within: Link, devices: int, gbps: float, machine: int = MACHINE) -> Link:
    """The link of devices that have a link of `gbps` each; those of a `machine` use all of theirs.

    Nothing is faster between machines than the link `within` one. See `TrainingRun.link`.
    """
    return Link(gbps if devices <= machine else min(machine * gbps, max(within.gbps, gbps)))


def _cluster_link(within: Link) -> Link:
    """The assumed link between machines of a cluster: half of that inside one, a quarter to the whole.

    Networks of machines with eight A100 have 0.2 (p4d) and 0.8 (ND A100) of NVLink's rate, with eight H100
    0.3 (a3-highgpu) to 1.1 (p5, ND H100).
    """
    return Link(within.gbps / OFF_BETWEEN, name=CLUSTER)


def form_in(instance: str) -> str:
    """The form of the cards of an instance type, by its name or by networks.csv; "" if unknown."""
    return form_of(instance) or next((form for *_, form in _known(instance)), "")


def _known(instance: str) -> list[tuple[str, float, str]]:
    """Each known word of an instance's type, with Gbit/s to other machines (0: unknown) and the form of
    its cards.
    """
    words = instance.casefold().split()
    return [(w, gbps, form) for w in words for n, gbps, form in _networks() if n.fullmatch(w)]


@cache
def _networks() -> tuple[tuple[re.Pattern[str], float, str], ...]:
    """(pattern of instance types, Gbit/s of one to others, form of its cards), networks.csv beside this
    file.
    """
    table = read_table(
        Path(__file__).with_name("networks.csv"), ("instance", "gbps", "form"), rows="network"
    )
    return tuple(
        (re.compile(row["instance"]), row.number("gbps", default=0.0), row["form"]) for row in table
    )
