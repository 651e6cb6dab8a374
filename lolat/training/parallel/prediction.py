"""A training model's prediction of one device, carried over to several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.training.model import Training, TrainingPrediction
from lolat.training.optimizers import optimizer_named
from lolat.training.parallel.gradients import gradient_parts
from lolat.training.parallel.links import Link
from lolat.training.parallel.replicas import (
    ParallelIteration,
    check_strategy,
    parallel_iteration,
)


@dataclass(frozen=True)
class ParallelPrediction:
    """Training on several devices: `training` has all their times, `iteration` what one is made of."""

    training: TrainingPrediction
    iteration: ParallelIteration
    link: Link

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: the prediction's keys, and those of the devices."""
        return {
            **self.training.to_dict(),
            "devices": self.iteration.devices,
            "strategy": self.iteration.strategy,
            "link": self.link.name or None,
            "link_gbps": self.link.gbps,
            "hidden_ms": self.iteration.hidden_ms,
        }


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
                f"{samples} samples; give a smaller batch size, fewer devices, or more samples"
            )
        share = samples // devices if model.drop_last else -(-samples // devices)
    evaluated = None if validation is None else -(-validation // devices)
    one = model.predict(graph, batch_size, share, epochs, optimizer, coverage, evaluated)
    sizes: list[float] = [one.weights_bytes]
    backward = None
    backward_ms = one.parts_ms.get("backward")
    if overlap and devices > 1 and backward_ms is not None and strategy != "mirrored":
        weights = _operation_times(model, graph, batch_size, optimizer)
        sizes, backward = gradient_parts(graph, batch_size, backward_ms, weights)
    found = parallel_iteration(
        one.iteration_ms, sizes, devices, link, strategy, backward_ms=backward
    )
    more_ms = found.synchronisation_ms + found.exchange_ms
    training = replace(
        one,
        samples=samples,
        iteration_ms=found.iteration_ms,
        parts_ms={**one.parts_ms, "exchange": more_ms},
    )
    if one.iterations is not None and one.epoch_s is not None and one.total_s is not None:
        epoch_s = one.iterations * more_ms / 1e3
        total_s = epochs * epoch_s
        ends = one.interval_s
        training = replace(
            training,
            epoch_s=one.epoch_s + epoch_s,
            total_s=one.total_s + total_s,
            interval_s=None if ends is None else (ends[0] + total_s, ends[1] + total_s),
        )
    return ParallelPrediction(training, found, link)


def _operation_times(
    model: Training, graph: Graph, batch_size: int, optimizer: str
) -> list[float] | None:
    """What each operation takes by the model, ms; None where it does not tell."""
    times = getattr(model, "operation_times", None)
    if times is None:
        return None
    each, _, _ = times(graph, batch_size, optimizer_named(optimizer))
    return [float(t) for t in each]
