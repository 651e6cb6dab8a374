"""Curves over the number of devices: weak (each keeps its batch) and strong (one batch, shared out)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lolat.errors import InputError

Iteration = Callable[[int, int], float]
"""(samples of the largest replica, devices) -> ms of an iteration."""


@dataclass(frozen=True)
class ScalingPoint:
    """One number of devices: `batch_size` is that of all together, `speedup` is over one device.

    `speedup`: samples per second, as a multiple of one device's; `efficiency`: that by the devices.
    """

    devices: int
    batch_size: int
    iteration_ms: float
    speedup: float

    @property
    def efficiency(self) -> float:
        """1 where every device brings what the first one does."""
        return self.speedup / self.devices


def _curve(
    iteration: Iteration, devices: Sequence[int], shares: Callable[[int], tuple[int, int]]
) -> tuple[ScalingPoint, ...]:
    """Points from (samples of all, of the largest replica) at each number of devices."""
    total, largest = shares(1)
    alone = total / iteration(largest, 1)
    points = []
    for k in devices:
        total, largest = shares(k)
        found = iteration(largest, k)
        points.append(ScalingPoint(k, total, found, total / found / alone))
    return tuple(points)


def weak_scaling(
    iteration: Iteration, batch_size: int, devices: Sequence[int]
) -> tuple[ScalingPoint, ...]:
    """Each device has `batch_size` samples, whatever their number. InputError for a batch below 1."""
    if batch_size < 1:
        raise InputError(f"a batch of {batch_size} on each device; expected at least 1")
    return _curve(iteration, devices, lambda k: (k * batch_size, batch_size))


def strong_scaling(
    iteration: Iteration, batch_size: int, devices: Sequence[int]
) -> tuple[ScalingPoint, ...]:
    """All devices share one batch of `batch_size`; the largest part, rounded up, sets the pace.

    InputError where some device would have no sample.
    """
    most = max(devices, default=1)
    if batch_size < most:
        raise InputError(
            f"a batch of {batch_size} cannot be shared among {most} devices; expected at least one sample "
            "for each, so a larger batch or fewer devices"
        )
    return _curve(iteration, devices, lambda k: (batch_size, -(-batch_size // k)))
