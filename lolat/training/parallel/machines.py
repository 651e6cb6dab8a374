"""How the devices of one machine are linked, where nobody says it: by the device's name.

The peaks are the makers' (the standards' for PCI Express), in GB/s one way. `share` is what NCCL's
all-reduce makes of them, its bus bandwidth over the peak, as reported in NVIDIA's issue trackers:

NVLink 0.8: 232 of 300 on eight A100-SXM (nccl-tests#175); 370 of 450 on H100, "protocol overhead (~20%)" in
the words of NCCL's maintainer, without NVLink SHARP (nccl-tests#212).
PCI Express 0.5, as everything goes through the host: 28 of 63 on eight and 35 on four RTX 5090 (nccl#1639),
20 of 31.5 on three A100-PCIe (nccl-tests#178). A host with slow memory makes less of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lolat.training.parallel.links import LINK_GBPS, Link

MACHINE = 8
"""Devices that one machine holds, where no offer says it: what most servers for GPUs are built for."""
OF_NVLINK, OF_PCIE = 0.8, 0.5


@dataclass(frozen=True)
class Interconnect:
    """What joins devices: GB/s one way of one device, and the share that an exchange makes of it."""

    name: str
    peak_gb_s: float
    share: float

    @property
    def gbps(self) -> float:
        """Gbit/s of an exchange."""
        return 8 * self.peak_gb_s * self.share


# Rates: PCI-SIG's base specifications, 16 lanes of 8, 16 and 32 GT/s at 128/130.
PCIE_3 = Interconnect("PCIe 3.0 x16", 15.75, OF_PCIE)
PCIE_4 = Interconnect("PCIe 4.0 x16", 31.5, OF_PCIE)
PCIE_5 = Interconnect("PCIe 5.0 x16", 63.0, OF_PCIE)
# Half of what NVIDIA's data sheets say, which is for both ways: 160, 300, 600, 900, 1800.
NVLINK_1 = Interconnect("NVLink 1", 80.0, OF_NVLINK)
NVLINK_2 = Interconnect("NVLink 2", 150.0, OF_NVLINK)
NVLINK_3 = Interconnect("NVLink 3", 300.0, OF_NVLINK)
NVLINK_4 = Interconnect("NVLink 4", 450.0, OF_NVLINK)
NVLINK_5 = Interconnect("NVLink 5", 900.0, OF_NVLINK)

_OF_DEVICES = (
    (r"b200", NVLINK_5),
    (r"h[12]00 .*(sxm\d?|hbm3)|h200(?!.* (nvl|pcie))", NVLINK_4),
    (r"a100 .*sxm\d?", NVLINK_3),
    (r"v100 .*sxm\d?", NVLINK_2),
    (r"p100 .*sxm\d?", NVLINK_1),
    (r"h[12]00|(rtx ?)?50[789]0|pro [456]000", PCIE_5),
    (r"a100|a10g?|a16|a30|a40|l4|l40s?|(rtx ?)?a[456]000|(rtx ?)?[34]0[789]0|6000 ada|mi100|mi210", PCIE_4),
    (r"v100s?|p100|p40?|t4|[km]\d0|(gtx ?)?10[78]0 ?(ti)?|(rtx ?)?20[78]0 ?(ti)?|titan", PCIE_3),
)  # fmt: skip
"""Words of a device's name -> what its data sheet says; the first that fits. Where the name does not tell
the form, such as V100, it is the slower one, on a card. An NVLink bridge joins two cards and no more (RTX
3090, A6000, the NVL forms): in a ring of more it is as fast as the PCI Express between the pairs."""


def interconnect_of(device: str) -> Interconnect | None:
    """How devices of that name are linked in one machine; None where nothing is known of it."""
    words = " ".join(re.findall(r"[a-z0-9]+", device.casefold()))
    fitting = (i for names, i in _OF_DEVICES if re.search(rf"\b({names})\b", words))
    return next(fitting, None)


def assumed_link(device: str, devices: int, machine: int = MACHINE) -> Link:
    """The link of `devices` devices of that name, of which one machine holds `machine`.

    Over several machines the slowest part sets the pace of an exchange: what is between them.
    """
    if devices > machine:
        return Link(LINK_GBPS, name="the network between machines")
    known = interconnect_of(device)
    if known is None:
        return Link(LINK_GBPS, name="a network, as no link of these devices is known")
    return Link(known.gbps, name=known.name)
