"""What of the exchange the backward pass hides: gradients leave in buckets while others are computed.

The model of PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020): gradients
fill a bucket in the order in which they become ready, from the last layer to the first; a full bucket is
exchanged, one bucket at a time, while the backward pass goes on. What is still on its way when the pass
ends is what an iteration waits for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lolat.errors import InputError

# ---- What joins the devices: a bandwidth and a latency, as stated by whoever asks, or assumed
# (`machines`).

LINK_GBPS = 10.0
"""Where none is given nor known: Ethernet between the machines of a cloud."""
LATENCY_MS = 0.005
"""Of one message where none is given: 5 microseconds, between two machines over RDMA or two GPUs."""


@dataclass(frozen=True)
class Link:
    """The link of each device: it sends and receives at the same time, at `gbps` each way.

    `gbps`: Gbit/s that a message really gets (not the label's), more than 0; `latency_ms`: of one
    message, 0 or more; `name`: what it is, where it was assumed. InputError for impossible numbers.
    """

    gbps: float
    latency_ms: float = LATENCY_MS
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}, {self.gbps:g} Gbit/s" if self.name else f"{self.gbps:g} Gbit/s"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gbps) and self.gbps > 0):
            raise InputError(
                f"a link of {self.gbps:g} Gbit/s moves nothing that could be timed; expected more than 0, "
                "for instance 10 (Ethernet) or 100 (InfiniBand)"
            )
        if not (math.isfinite(self.latency_ms) and self.latency_ms >= 0):
            raise InputError(
                f"a link's latency of {self.latency_ms:g} ms cannot be; expected 0 or more, "
                "for instance 0.005"
            )

    @property
    def known_name(self) -> str | None:
        """Its name, None where it has none."""
        return self.name or None

    @property
    def byte_ms(self) -> float:
        """Milliseconds per byte, one way."""
        return 8.0 / (self.gbps * 1e6)

    def message_ms(self, size_bytes: float) -> float:
        """One message of so many bytes: latency + bytes / bandwidth (Hockney 1994)."""
        return self.latency_ms + size_bytes * self.byte_ms


# ---- How the devices of one machine are linked, where nobody says it: by the device's name.
#
# The peaks are the makers' (the standards' for PCI Express), in GB/s one way. `share` is what NCCL's
# all-reduce makes of them, its bus bandwidth over the peak, as reported in NVIDIA's issue trackers:
#
# NVLink 0.8: 232 of 300 on eight A100-SXM (nccl-tests#175); 370 of 450 on H100, "protocol overhead
# (~20%)" in the words of NCCL's maintainer, without NVLink SHARP (nccl-tests#212).
# PCI Express 0.5, as everything goes through the host: 28 of 63 on eight and 35 on four RTX 5090
# (nccl#1639), 20 of 31.5 on three A100-PCIe (nccl-tests#178). A host with slow memory makes less of it.

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


_OF_DEVICES = tuple(
    (Interconnect(name, peak, OF_NVLINK if "NVLink" in name else OF_PCIE), words)
    for name, peak, words in (
        # Half of what NVIDIA's data sheets say, which is for both ways: 160, 300, 600, 900, 1800.
        ("NVLink 5", 900.0, r"b200"),
        ("NVLink 4", 450.0, r"h[12]00 .*(sxm\d?|hbm3)|h200(?!.* (nvl|pcie))"),
        ("NVLink 3", 300.0, r"a100 .*sxm\d?"),
        ("NVLink 2", 150.0, r"v100 .*sxm\d?"),
        ("NVLink 1", 80.0, r"p100 .*sxm\d?"),
        # Rates: PCI-SIG's base specifications, 16 lanes of 8, 16 and 32 GT/s at 128/130.
        ("PCIe 5.0 x16", 63.0, r"h[12]00|(rtx ?)?50[789]0|pro [456]000"),
        ("PCIe 4.0 x16", 31.5, r"a100|a10g?|a16|a30|a40|l4|l40s?|(rtx ?)?a[456]000|(rtx ?)?[34]0[789]0|"
         r"6000 ada|mi100|mi210"),
        ("PCIe 3.0 x16", 15.75, r"v100s?|p100|p40?|t4|[km]\d0|(gtx ?)?10[78]0 ?(ti)?|"
         r"(rtx ?)?20[78]0 ?(ti)?|titan"),
    )
)  # fmt: skip
"""Words of a device's name -> what its data sheet says; the first that fits. Where the name does not tell
the form, such as V100, it is the slower one, on a card. An NVLink bridge joins two cards and no more (RTX
3090, A6000, the NVL forms): in a ring of more it is as fast as the PCI Express between the pairs."""


def interconnect_of(device: str) -> Interconnect | None:
    """How devices of that name are linked in one machine; None where nothing is known of it."""
    words = " ".join(re.findall(r"[a-z0-9]+", device.casefold()))
    fitting = (i for i, names in _OF_DEVICES if re.search(rf"\b({names})\b", words))
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


# ---- The time of one all-reduce: every device ends with the sum of what all of them had.
#
# The bandwidth terms of tree and one-to-all are PALEO's (Qi, Sparks, Talwalkar: "Paleo: a performance model
# for deep neural networks", ICLR 2017; its paleo/comm.py); the ring is Patarasuk and Yuan's ("Bandwidth
# optimal all-reduce algorithms for clusters of workstations", 2009), which NCCL and gloo run. PALEO leaves
# latency out; here every step pays it (Hockney's model, as in Thakur, Rabenseifner, Gropp 2005), because
# with thousands of devices a ring is little else. The adding itself is not counted: memory is far faster
# than a link.


EXCHANGES: Mapping[str, Callable[[int], tuple[int, float]]] = {
    # K-1 steps that scatter sums, K-1 that gather them, each of bytes / K.
    "ring": lambda k: (2 * (k - 1), 1 / k),
    # A binary tree: ceil(log2 K) steps up with sums, as many down, each of all the bytes.
    "tree": lambda k: (2 * (k - 1).bit_length(), 1.0),
    # One device (a parameter server) hears all others, one after the other, then tells each.
    "one-to-all": lambda k: (2 * (k - 1), 1.0),
}
"""Each way: number of devices -> (steps one after the other, part of the bytes in each)."""


def checked_devices(devices: int) -> int:
    """The number of devices; InputError where it is not a whole number of at least 1."""
    if isinstance(devices, bool) or devices != devices or devices < 1 or devices != int(devices):
        raise InputError(f"{devices} devices cannot train; expected a whole number of at least 1")
    return int(devices)


def exchange_ms(way: str, size_bytes: float, devices: int, link: Link) -> float:
    """One exchange: steps (latency + part of the bytes / bandwidth). InputError for a way that is none."""
    if way not in EXCHANGES:
        raise InputError(f"{way!r} is no way to exchange; expected one of {', '.join(EXCHANGES)}")
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise InputError(f"{size_bytes:g} bytes cannot be exchanged; expected 0 or more")
    steps, part = EXCHANGES[way](checked_devices(devices))
    return steps * link.message_ms(size_bytes * part)


# ---- Buckets.

BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's `bucket_cap_mb` of 25."""
FIRST_BUCKET_BYTES = 2**20
"""Its first bucket is of 1 MiB, so that the link has something to do early."""


def fill_buckets(
    gradient_bytes: Sequence[float],
    bucket_bytes: float = BUCKET_BYTES,
    first_bytes: float = FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """Which variables travel together: indices into `gradient_bytes`, in the order of departure.

    `gradient_bytes`: (variables,), as in the forward pass; they leave from the last to the first. A bucket
    goes as soon as it holds `bucket_bytes` (the first one: `first_bytes`) or more. InputError for negative
    bytes or a limit that is not positive.
    """
    if min(bucket_bytes, first_bytes) <= 0:
        raise InputError(
            f"a bucket of {min(bucket_bytes, first_bytes):g} bytes holds nothing; expected more than 0"
        )
    if any(not 0 <= size < float("inf") for size in gradient_bytes):
        raise InputError(
            "gradients have negative or infinite bytes; expected 0 or more of each variable"
        )
    full: list[list[int]] = []
    bucket: list[int] = []
    held, limit = 0.0, first_bytes
    for index in reversed(range(len(gradient_bytes))):
        bucket.append(index)
        held += gradient_bytes[index]
        if held >= limit:
            full.append(bucket)
            bucket, held, limit = [], 0.0, bucket_bytes
    return [*full, bucket] if bucket else full


def exposed_ms(
    gradient_bytes: Sequence[float],
    backward_ms: Sequence[float],
    exchange: Callable[[float], float],
    bucket_bytes: float = BUCKET_BYTES,
    first_bytes: float = FIRST_BUCKET_BYTES,
) -> float:
    """How long the devices still exchange after their backward pass has ended, ms.

    `gradient_bytes`, `backward_ms`: (variables,), as in the forward pass: the bytes of each variable's
    gradient and the part of the backward pass that computes it. `exchange`: bytes -> ms. InputError where
    the two differ in length or a time is negative.
    """
    if len(gradient_bytes) != len(backward_ms):
        raise InputError(
            f"{len(gradient_bytes)} gradients, but {len(backward_ms)} times of the backward pass; "
            "expected one time for each gradient"
        )
    if any(not 0 <= part < float("inf") for part in backward_ms):
        raise InputError(
            "the backward pass has a negative or infinite time; expected 0 or more ms of each"
        )
    computed = free = 0.0
    for bucket in fill_buckets(gradient_bytes, bucket_bytes, first_bytes):
        computed += sum(backward_ms[i] for i in bucket)
        free = max(computed, free) + exchange(sum(gradient_bytes[i] for i in bucket))
    return max(0.0, free - computed)
