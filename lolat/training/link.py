"""What joins the devices that train together: a bandwidth and a latency, given or assumed.

The assumed peaks are the makers' (the standards' for PCI Express), in GB/s one way. NCCL's all-reduce
gets a share of them, its bus bandwidth over the peak, as reported in NVIDIA's issue trackers:

NVLink 0.8: 232 of 300 on eight A100-SXM (nccl-tests#175); 370 of 450 on H100, "protocol overhead (~20%)" in
the words of NCCL's maintainer, without NVLink SHARP (nccl-tests#212).
PCI Express 0.5, as everything goes through the host: 28 of 63 on eight and 35 on four RTX 5090 (nccl#1639),
20 of 31.5 on three A100-PCIe (nccl-tests#178). A host with slow memory reaches less.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lolat.errors import InputError, arg

NETWORK_GBPS = 10.0
"""Assumed between machines and between unknown devices: Ethernet of a cloud."""
LATENCY_MS = 0.005
"""Of one message: 5 microseconds, between two machines over RDMA or two GPUs."""
MACHINE = 8
"""Devices that one machine holds, unless an offer says it: what most servers for GPUs are built for."""
NVLINK_SHARE, PCIE_SHARE = 0.8, 0.5


@dataclass(frozen=True)
class Link:
    """The link of each device: it sends and receives at the same time, at `gbps` each way.

    `gbps`: Gbit/s that a message really gets (not the label's), above 0; `latency_ms`: of one message;
    `name`: of an assumed link, else None. InputError for a bandwidth that is not above 0 and finite.
    """

    gbps: float
    latency_ms: float = LATENCY_MS
    name: str | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.gbps < math.inf:
            raise InputError(
                f"{arg('link_gbps')} {self.gbps:g}: expected more than 0, such as 10 (Ethernet) or 100 "
                "(InfiniBand)"
            )

    def __str__(self) -> str:
        return f"{self.name}, {self.gbps:g} Gbit/s" if self.name else f"{self.gbps:g} Gbit/s"

    def message_ms(self, size_bytes: float) -> float:
        """One message of so many bytes: latency + bytes / bandwidth (Hockney 1994)."""
        return self.latency_ms + 8.0 * size_bytes / (self.gbps * 1e6)


_PEAKS = (
    # Half of what NVIDIA's data sheets say, which is for both ways: 160, 300, 600, 900, 1800.
    ("NVLink 5", 900.0, r"b200"),
    ("NVLink 4", 450.0, r"h[12]00 .*(sxm\d?|hbm3)|h200(?!.* (nvl|pcie))"),
    ("NVLink 3", 300.0, r"a100 .*sxm\d?"),
    ("NVLink 2", 150.0, r"v100 .*sxm\d?"),
    ("NVLink 1", 80.0, r"p100 .*sxm\d?"),
    # Rates: PCI-SIG's base specifications, 16 lanes of 8, 16 and 32 GT/s at 128/130.
    ("PCIe 5.0 x16", 63.0, r"h[12]00|(rtx ?)?50[789]0|pro [456]000"),
    (
        "PCIe 4.0 x16",
        31.5,
        r"a100|a10g?|a16|a30|a40|l4|l40s?|(rtx ?)?a[456]000|(rtx ?)?[34]0[789]0|6000 ada|mi100|mi210",
    ),
    (
        "PCIe 3.0 x16",
        15.75,
        r"v100s?|p100|p40?|t4|[km]\d0|(gtx ?)?10[78]0 ?(ti)?|(rtx ?)?20[78]0 ?(ti)?|titan",
    ),
)
"""(name, peak in GB/s one way, words of a device's name); the first row that fits counts.

A name that does not tell the form, such as V100, is a card, which is slower. An NVLink bridge joins two
cards and no more (RTX 3090, A6000, the NVL forms): in a ring of more it is as fast as the PCI Express
between the pairs."""


def link_inside(device: str) -> Link | None:
    """How devices of that name are linked in one machine; None for an unknown name."""
    words = " ".join(re.findall(r"[a-z0-9]+", device.casefold()))
    for name, peak_gb_s, names in _PEAKS:
        if re.search(rf"\b({names})\b", words):
            share = NVLINK_SHARE if name.startswith("NVLink") else PCIE_SHARE
            return Link(8 * peak_gb_s * share, name=name)
    return None


def assumed_link(device: str, devices: int, machine: int = MACHINE) -> Link:
    """The link of `devices` devices of that name, of which one machine holds `machine`.

    Over several machines the slowest part sets the pace of an exchange: the network between them.
    """
    if devices > machine:
        return Link(NETWORK_GBPS, name="the network between machines")
    unknown = Link(NETWORK_GBPS, name="a network, as no link of these devices is known")
    return link_inside(device) or unknown
