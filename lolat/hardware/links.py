"""The link between devices that train together.

Peaks are the makers' (PCI-SIG's for PCI Express), in GB/s one way. NCCL's all-reduce reaches a share of
them (bus bandwidth / peak), according to reports to NVIDIA's issue trackers. NVLink reaches 0.8: 232 of 300
on eight A100-SXM (nccl-tests#175); 370 of 450 on H100, "protocol overhead (~20%)" by NCCL's maintainer,
without NVLink SHARP (nccl-tests#212). PCI Express reaches 0.5, through the host: 28 of 63 on eight and 35
on four RTX 5090 (nccl#1639), 20 of 31.5 on three A100-PCIe (nccl-tests#178). A host with slow memory
reaches less.

NVIDIA's driver supports no peer-to-peer transfers (P2P) on GeForce cards since Turing: all bytes go through
the memory of the host. A fast host reached the 28 above; owners of eight RTX 4090 ask why theirs is so slow
(nccl-tests#270, #307). The speed of a slow host is assumed (`HOST_GBPS`).
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
"""Assumed bandwidth in Gbit/s between machines and between unknown devices: a cloud's Ethernet."""
GEFORCE = re.compile(r"RTX [2-5]0\d0( Ti)?")
"""Pattern of data sheets' names of cards without P2P."""
WITHOUT_P2P = " without P2P"
"""End of the name of a link between cards without P2P."""
HOST_GBPS = 8 * 64.0
"""Bandwidth of a slow host's memory in Gbit/s, shared by GPUs without P2P: a message is written to it and
read again."""
LATENCY_MS = 0.005  # of a message between two GPUs, or two machines over RDMA
OWN_LINK = "the link of its data sheet"
"""The name of a link that comes from the data sheet in a device's file."""
ALIKE = 0.05
"""Relative difference below which the rate in a user's data sheet counts as the rate of the card's usual
link."""
UNKNOWN_NETWORK = "the network between machines"
"""The name of a link between machines with an unknown network."""
CLUSTER = "the network of a cluster"
"""The name of the assumed link between whole machines that were bought to train together."""
MACHINE = 8  # devices in one machine if no offer says it, as in most GPU servers
NVLINK_SHARE, PCIE_SHARE = 0.8, 0.5
OFF_BETWEEN, OFF_WITHIN, OFF_GIVEN = 2.0, 1.5, 1.3
"""Factors by which the time of an exchange may be off: between machines, within one machine, over a link
that the user gives. In the reports above, one kind of link reached 0.77 and 0.82 of its peak within a
machine (NVLink), and 0.44 to 0.63 (PCI Express)."""
FASTEST_GBPS = 3200.0
"""Fastest unknown network between whole machines, in Gbit/s: eight cards of 400, as in clusters of H100."""
FASTEST_APART_GBPS = 100.0
"""Fastest unknown network between machines with fewer GPUs, in Gbit/s: the most that such machines have in
the clouds (networks.csv)."""


@dataclass(frozen=True)
class Link:
    """The link of a device, which sends and receives at the same time.

    `gbps`: Gbit/s of a message each way, which is less than the link's label says; `latency_ms`: latency of
    a message; `name`: name of an assumed link, None for a link that the user gave; `fastest_gbps`,
    `slowest_gbps`: bounds that the `ends` of an unknown link reach. InputError unless `gbps` is above 0 and
    finite.
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
        """(fastest, slowest) link that an assumed or given link may be in reality."""
        off = OFF_WITHIN if self.is_within else OFF_BETWEEN
        off = OFF_GIVEN if self.name is None else off
        fast, slow = (
            replace(self, gbps=self.gbps / factor, latency_ms=self.latency_ms * factor)
            for factor in (1.0 / off, off)
        )
        fast = replace(fast, gbps=max(fast.gbps, self.fastest_gbps))
        return fast, replace(slow, gbps=min(slow.gbps, self.slowest_gbps))

    def message_ms(self, size_bytes: float) -> float:
        """Time of a message in ms: latency + bytes / bandwidth (Hockney 1994)."""
        return self.latency_ms + 8.0 * size_bytes / (self.gbps * 1e6)


PEAKS = {
    # Half of the rates for both ways in NVIDIA's data sheets: 160, 300, 600, 900, 1800.
    "NVLink 1": 80.0, "NVLink 2": 150.0, "NVLink 3": 300.0, "NVLink 4": 450.0, "NVLink 5": 900.0,
    # Rates: PCI-SIG's base specifications, 16 lanes of 8, 16 and 32 GT/s at 128/130.
    "PCIe 3.0 x16": 15.75, "PCIe 4.0 x16": 31.5, "PCIe 5.0 x16": 63.0,
    # A MI300X has seven links, one to each other card of a machine: half of 128 GB/s each (AMD).
    "Infinity Fabric": 448.0,
}  # fmt: skip
"""Link in a data sheet (`lolat.hardware.gpus`) -> its peak in GB/s one way.

An NVLink bridge joins only two cards (RTX 3090, A6000, the NVL forms): a ring of more cards is as fast as
the PCI Express between the pairs.
"""


AMOUNT = re.compile(r"\d+ ?gb\b|x\d+\b", re.IGNORECASE)
"""Pattern of a machine's memory or number of cards, in the name of its type."""


def own_rate(device: str, gb_s: float | None, forms: Sequence[str] = ("",)) -> float | None:
    """The GB/s of a link in a user's data sheet; None without one, or if it is the usual link of the card.

    `forms`: other forms of the card, such as "SXM", whose links count as usual links too.
    """
    cards = [of_form(device, form) if form else find_gpu(device) for form in forms]
    usual = [PEAKS.get(gpu.link, 0.0) for gpu in cards if gpu is not None]
    return None if gb_s and any(abs(gb_s - peak) < ALIKE * peak for peak in usual) else gb_s


def assumed_link(
    device: str, devices: int, machine: int = MACHINE, instance: str = "", own_gb_s: float | None = None
) -> Link:  # fmt: skip
    """The link between `devices` devices of this name, `machine` of them in each machine.

    `instance`: the type of machine. `own_gb_s`: the peak of the link inside a machine by a user's data
    sheet, which replaces the card's. The slowest part limits an exchange over several machines: the network
    between them, which the devices of a machine share, or the link inside a machine. The network is known
    if networks.csv has a word of `instance`. Otherwise, machines with MACHINE GPUs and NVLink count as a
    cluster's (`_cluster_link`); other machines have NETWORK_GBPS. No network counts as faster than the link
    inside a machine. `instance` or networks.csv may name the card's form (SXM, PCIe); a number of GB in
    `instance` is the machine's memory.
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
    """The link between devices with a given link of `gbps` each; a `machine` uses all its devices' links.

    Between machines nothing is faster than the link `within` one. See `TrainingRun.link`.
    """
    return Link(gbps if devices <= machine else min(machine * gbps, max(within.gbps, gbps)))


def _cluster_link(within: Link) -> Link:
    """The assumed link between machines of a cluster: half the rate of the link inside a machine.

    It may be a quarter to all of that rate. Networks of machines with eight A100 have 0.2 (p4d) and 0.8 (ND
    A100) of NVLink's rate, with eight H100 0.3 (a3-highgpu) to 1.1 (p5, ND H100).
    """
    return Link(within.gbps / OFF_BETWEEN, name=CLUSTER)


def form_in(instance: str) -> str:
    """The form of the cards in an instance type, by its name or networks.csv; "" if unknown."""
    return form_of(instance) or next((form for *_, form in _known(instance)), "")


def _known(instance: str) -> list[tuple[str, float, str]]:
    """(word, Gbit/s to other machines or 0, form of cards) for each known word of an instance's type."""
    words = instance.casefold().split()
    return [(w, gbps, form) for w in words for n, gbps, form in _networks() if n.fullmatch(w)]


@cache
def _networks() -> tuple[tuple[re.Pattern[str], float, str], ...]:
    """(pattern of instance types, Gbit/s to other machines, form of the cards) of rows of networks.csv."""
    table = read_table(
        Path(__file__).with_name("networks.csv"), ("instance", "gbps", "form"), rows="network"
    )
    return tuple(
        (re.compile(row["instance"]), row.number("gbps", default=0.0), row["form"]) for row in table
    )
