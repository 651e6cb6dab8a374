"""What joins the devices: a bandwidth and a latency, as stated by whoever asks, or assumed (`machines`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lolat.errors import InputError

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
    def byte_ms(self) -> float:
        """Milliseconds per byte, one way."""
        return 8.0 / (self.gbps * 1e6)

    def message_ms(self, size_bytes: float) -> float:
        """One message of so many bytes: latency + bytes / bandwidth (Hockney 1994)."""
        return self.latency_ms + size_bytes * self.byte_ms
