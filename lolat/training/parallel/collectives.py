"""The time of one all-reduce: every device ends with the sum of what all of them had.

The bandwidth terms of tree and one-to-all are PALEO's (Qi, Sparks, Talwalkar: "Paleo: a performance model
for deep neural networks", ICLR 2017; its paleo/comm.py); the ring is Patarasuk and Yuan's ("Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009), which NCCL and gloo run. PALEO leaves
latency out; here every step pays it (Hockney's model, as in Thakur, Rabenseifner, Gropp 2005), because
with thousands of devices a ring is little else. The adding itself is not counted: memory is far faster
than a link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from lolat.errors import InputError
from lolat.training.parallel.links import Link


def checked_devices(devices: int) -> int:
    """The number of devices; InputError where it is not a whole number of at least 1."""
    if isinstance(devices, bool) or devices != devices or devices < 1 or devices != int(devices):
        raise InputError(f"{devices} devices cannot train; expected a whole number of at least 1")
    return int(devices)


def _checked(size_bytes: float, devices: int) -> int:
    """The number of devices, where both numbers are possible."""
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise InputError(f"{size_bytes:g} bytes cannot be exchanged; expected 0 or more")
    return checked_devices(devices)


def ring_ms(size_bytes: float, devices: int, link: Link) -> float:
    """Ring: K-1 steps that scatter sums, K-1 that gather them, each of bytes / K.

    2 (K-1) (latency + bytes / K / bandwidth): what a device sends stays below twice the bytes.
    """
    k = _checked(size_bytes, devices)
    return 2 * (k - 1) * link.message_ms(size_bytes / k)


def tree_ms(size_bytes: float, devices: int, link: Link) -> float:
    """Binary tree: ceil(log2 K) steps up with sums, as many down, each of all the bytes.

    2 ceil(log2 K) (latency + bytes / bandwidth).
    """
    k = _checked(size_bytes, devices)
    return 2 * (k - 1).bit_length() * link.message_ms(size_bytes)


def one_to_all_ms(size_bytes: float, devices: int, link: Link) -> float:
    """One device (a parameter server) hears all others, one after the other, then tells each.

    2 (K-1) (latency + bytes / bandwidth).
    """
    k = _checked(size_bytes, devices)
    return 2 * (k - 1) * link.message_ms(size_bytes)


EXCHANGES: Mapping[str, Callable[[float, int, Link], float]] = MappingProxyType(
    {"ring": ring_ms, "tree": tree_ms, "one-to-all": one_to_all_ms}
)
"""Each way: (bytes, devices, link) -> ms."""


def exchange_ms(way: str, size_bytes: float, devices: int, link: Link) -> float:
    """One exchange by the name of its way. InputError for a name that is none."""
    if way not in EXCHANGES:
        raise InputError(f"{way!r} is no way to exchange; expected one of {', '.join(EXCHANGES)}")
    return EXCHANGES[way](size_bytes, devices, link)
