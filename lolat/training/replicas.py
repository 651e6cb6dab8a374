"""A training model's prediction of one device, carried over to several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.analysis import FLOAT_BYTES, operation_parameters
from lolat.graph.counts import COLUMNS, count
from lolat.training.exchange import BUCKET_BYTES, Link, checked_devices, exchange_ms, exposed_ms
from lolat.training.iteration import optimizer_named
from lolat.training.model import Training, TrainingPrediction

# ---- One iteration on several devices, from the time of one replica.

STRATEGIES = ("ring", "tree", "one-to-all", "mirrored")
"""Ways to exchange; `mirrored` is TensorFlow's MirroredStrategy: a ring (NCCL) after the backward pass."""
MIRRORED_MS = 1.4
"""What MirroredStrategy costs besides: of two P100s of 2020 (docs/results/training-devices.md)."""


@dataclass(frozen=True)
class ParallelIteration:
    """An iteration on several devices, ms; the parts add up.

    `replica_ms`: the mean replica alone. `synchronization_ms`: what a replica waits for the slowest one,
    and what the strategy costs whatever the network. `exchange_ms`: what of the exchange is waited for;
    `hidden_ms`: what happens during the backward pass and is part of no sum.
    """

    devices: int
    strategy: str
    replica_ms: float
    synchronization_ms: float
    exchange_ms: float
    hidden_ms: float

    @property
    def iteration_ms(self) -> float:
        """The whole iteration."""
        return self.replica_ms + self.synchronization_ms + self.exchange_ms

    @property
    def efficiency(self) -> float:
        """The part of the time in which the mean replica works: 1 for one device."""
        return self.replica_ms / self.iteration_ms if self.iteration_ms else 1.0


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
    times = [compute_ms] if isinstance(compute_ms, (int, float)) else [float(t) for t in compute_ms]
    if len(times) not in (1, devices):
        raise InputError(
            f"{len(times)} replicas' times for {devices} devices; expected one, or one for each device"
        )
    if any(not (math.isfinite(t) and t >= 0) for t in times):
        raise InputError(
            f"a replica of {min(times):g} ms cannot be; expected 0 or more, not infinite"
        )
    mean = sum(times) / len(times)
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
    return ParallelIteration(devices, strategy, mean, max(times) - mean + fixed_ms, shown, hidden)


# ---- When a backward pass has which gradients ready: per operation with parameters, from the
# graph.

MACS_PER_ELEMENT = 10.0
"""Multiply-accumulates that take as long as moving an element, where nothing tells it: the order of CPUs
and GPUs alike (an H200 of 30 TMAC/s and 4.8 TB/s: 25; a core of 50 GMAC/s and 20 GB/s: 10)."""


def gradient_parts(
    graph: Graph, batch_size: int, backward_ms: float, weights: Sequence[float] | None = None
) -> tuple[list[float], list[float]]:
    """(bytes of the gradient, ms of the backward pass until it is ready since the one before it).

    One of each for every operation that has parameters, in the order of the forward pass; the backward
    pass goes through them from the last to the first, and through what lies behind each before it. What
    lies in front of the first is not gone through: nobody needs the gradient of an input. The first list
    adds up to the network's gradients, the second to `backward_ms` (without parameters both are empty).
    `weights`: (operations,), what each takes, to share `backward_ms` out; None: by what it multiplies and
    moves.
    """
    rows = count(graph).at(batch_size)
    column = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
    if weights is None:
        moved = column["acts"] + column["inp"] + column["traffic"] + column["weights"]
        weights = (column["flops"] / MACS_PER_ELEMENT + moved).tolist()
    one = count(graph).at(1)[:, COLUMNS.index("weights")]
    numbers = [
        operation_parameters(graph, o, int(w)) for o, w in zip(graph.operations, one, strict=True)
    ]
    having = [i for i, n in enumerate(numbers) if n]
    if not having:
        return [], []
    ends = [*having[1:], len(numbers)]
    parts = np.array(
        [sum(weights[start:end]) for start, end in zip(having, ends, strict=True)], dtype=float
    )
    whole = float(parts.sum())
    shares = parts / whole if whole > 0 else np.full(len(parts), 1.0 / len(parts))
    return [float(FLOAT_BYTES * numbers[i]) for i in having], (backward_ms * shares).tolist()


# ---- A whole training on several devices.


@dataclass(frozen=True)
class ParallelPrediction:
    """Training on several devices: `training` has all their times, `iteration` what one is made of."""

    training: TrainingPrediction
    iteration: ParallelIteration
    link: Link


def predict_parallel(
    model: Training,
    graph: Graph,
    batch_size: int,
    samples: int | None,
    epochs: int,
    optimizer: str,
    coverage: float,
    devices: int,
    link: Link,
    strategy: str,
    overlap: bool = True,
    validation: int | None = None,
) -> ParallelPrediction:
    """Training when each device has `batch_size` samples at a time.

    A device's share of `samples` is rounded up (down where the model leaves out a last batch): the device
    with most sets the pace. `overlap`: gradients travel in buckets while the backward pass goes on, where
    the model tells how long that is and the strategy is not `mirrored`; what it hides is `hidden_ms`, and
    part of no sum. `validation`: samples evaluated after each epoch, shared out too. The exchange, worked
    out from a stated link, is added to both ends of the interval; the memory is one device's. InputError
    for zero devices, an unknown strategy, and batches that together are larger than the data set.
    """
    devices = check_strategy(strategy, devices)
    share = samples
    if samples is not None and devices > 1:
        if batch_size * devices > samples:
            raise InputError(
                f"a batch of {batch_size} on each of {devices} devices is larger than the data set of "
                f"{samples} samples; give a smaller batch size, fewer devices, or more samples",
                code="batch-over-data",
                batch_size=int(batch_size),
                samples=int(samples),
            )
        share = samples // devices if model.drop_last else -(-samples // devices)
    validation = None if validation is None else -(-validation // devices)
    one = model.predict(graph, batch_size, share, epochs, optimizer, coverage, validation)
    sizes, backward = [float(one.weights_bytes)], None
    backward_ms = one.parts_ms["backward"]
    if overlap and devices > 1 and backward_ms is not None and strategy != "mirrored":
        each, _, _ = model.operation_times(graph, batch_size, optimizer_named(optimizer))
        sizes, backward = gradient_parts(graph, batch_size, backward_ms, each.tolist())
    times = one.iteration_ms, sizes, devices, link, strategy
    iteration = parallel_iteration(*times, backward_ms=backward)
    more_ms = iteration.synchronization_ms + iteration.exchange_ms
    parts_ms = {**one.parts_ms, "exchange": more_ms}
    changes: dict[str, Any] = {"iteration_ms": iteration.iteration_ms, "parts_ms": parts_ms}
    if one.iterations is not None and one.epoch_s is not None and one.total_s is not None:
        epoch_s = one.iterations * more_ms / 1e3
        total_s = epochs * epoch_s
        changes |= {"epoch_s": one.epoch_s + epoch_s, "total_s": one.total_s + total_s}
        if one.interval_s is not None:
            low, high = one.interval_s
            changes["interval_s"] = (low + total_s, high + total_s)
    return ParallelPrediction(replace(one, samples=samples, **changes), iteration, link)
