"""One iteration on several devices, from the time of one replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lolat.errors import InputError
from lolat.training.parallel.buckets import BUCKET_BYTES, exposed_ms
from lolat.training.parallel.collectives import checked_devices, exchange_ms
from lolat.training.parallel.links import Link

STRATEGIES = ("ring", "tree", "one-to-all", "mirrored")
"""Ways to exchange; `mirrored` is TensorFlow's MirroredStrategy: a ring (NCCL) after the backward pass."""
MIRRORED_MS = 1.4
"""What MirroredStrategy costs besides: of two P100s of 2020, docs/training-devices.md (synchronisation)."""


@dataclass(frozen=True)
class ParallelIteration:
    """An iteration on several devices, ms; the parts add up.

    `replica_ms`: the mean replica alone. `synchronisation_ms`: what a replica waits for the slowest one,
    and what the strategy costs whatever the network. `exchange_ms`: what of the exchange is waited for;
    `hidden_ms`: what happens during the backward pass and is part of no sum.
    """

    devices: int
    strategy: str
    replica_ms: float
    synchronisation_ms: float
    exchange_ms: float
    hidden_ms: float

    @property
    def iteration_ms(self) -> float:
        """The whole iteration."""
        return self.replica_ms + self.synchronisation_ms + self.exchange_ms

    @property
    def efficiency(self) -> float:
        """The part of the time in which the mean replica works: 1 for one device."""
        return self.replica_ms / self.iteration_ms if self.iteration_ms else 1.0


def _replica_times(compute_ms: float | Sequence[float], devices: int) -> tuple[float, float]:
    """(mean, slowest) replica; InputError unless there is one possible time, or one for each device."""
    times = [compute_ms] if isinstance(compute_ms, (int, float)) else [float(t) for t in compute_ms]
    if len(times) not in (1, devices):
        raise InputError(
            f"{len(times)} replicas' times for {devices} devices; expected one, or one for each device"
        )
    if any(not (math.isfinite(t) and t >= 0) for t in times):
        raise InputError(
            f"a replica of {min(times):g} ms cannot be; expected 0 or more, not infinite"
        )
    return sum(times) / len(times), max(times)


def check_strategy(strategy: str, devices: int) -> int:
    """The number of devices; InputError for zero of them and for a strategy that is none of STRATEGIES."""
    if strategy not in STRATEGIES:
        raise InputError(f"{strategy!r} is no strategy; expected one of {', '.join(STRATEGIES)}")
    return checked_devices(devices)


def parallel_iteration(
    compute_ms: float | Sequence[float],
    gradient_bytes: Sequence[float],
    devices: int,
    link: Link,
    strategy: str = "ring",
    *,
    backward_ms: Sequence[float] | None = None,
    fixed_ms: float | None = None,
    bucket_bytes: float = BUCKET_BYTES,
) -> ParallelIteration:
    """An iteration on `devices` that each compute for `compute_ms` on their part of the batch.

    `compute_ms`: forward, backward and update of one replica alone, ms: one number, or one per device, of
    which the slowest is waited for. `gradient_bytes`: (variables,), in the order of the forward pass.
    `backward_ms`: (variables,), the part of the backward pass that computes each: then full buckets travel
    during it; None: everything is exchanged after it, at once, which is what `mirrored` always does.
    `fixed_ms`: what the strategy costs in each iteration on more than one device; None: MIRRORED_MS for
    `mirrored`, else 0. One device exchanges nothing. InputError for zero devices, an unknown strategy and
    impossible numbers.
    """
    devices = check_strategy(strategy, devices)
    if fixed_ms is None:
        fixed_ms = MIRRORED_MS if strategy == "mirrored" else 0.0
    if not (math.isfinite(fixed_ms) and fixed_ms >= 0):
        raise InputError(f"a fixed cost of {fixed_ms:g} ms cannot be; expected 0 or more")
    mean, slowest = _replica_times(compute_ms, devices)
    way = "ring" if strategy == "mirrored" else strategy

    def exchange(size_bytes: float) -> float:
        return exchange_ms(way, size_bytes, devices, link)

    if devices == 1:
        return ParallelIteration(1, strategy, mean, 0.0, 0.0, 0.0)
    if backward_ms is None or strategy == "mirrored":
        shown, hidden = exchange(sum(gradient_bytes)), 0.0
    else:
        # The whole exchange, bucket by bucket, is what would be waited for if the pass took no time.
        whole = exposed_ms(gradient_bytes, [0.0] * len(backward_ms), exchange, bucket_bytes)
        shown = exposed_ms(gradient_bytes, backward_ms, exchange, bucket_bytes)
        hidden = whole - shown
    return ParallelIteration(devices, strategy, mean, slowest - mean + fixed_ms, shown, hidden)
