"""Chooses the batch size "auto" of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lolat.device.prediction import CLOSE
from lolat.hardware.rental import Rental
from lolat.training.decoder_plan import DecoderPlan
from lolat.training.plan import NetworkPlan
from lolat.training.prediction import TrainingPrediction

Plan = NetworkPlan | DecoderPlan
At = Callable[[Plan, Sequence[int], int], tuple[TrainingPrediction, Rental | None]]
"""A function of (plan, numbers of devices with this plan, one of these numbers) that predicts the training
and finds offers to rent."""

NEAR_SPEED = 0.98
"""A speed of at least this fraction of the best speed counts as equal to it."""
NEAR_WIDTH = 1.5
"""An interval counts as narrow if its upper end over its lower one is at most so many times that of the
narrowest. Outside of the measured range intervals are wider."""
FAR_SPEED = 0.8
"""Smaller batches are no longer tried once the speed is below this fraction of the best."""


def with_batch(plan: Plan, batch_size: int) -> Plan:
    """A plan with another batch size."""
    return replace(plan, run=replace(plan.run, batch_size=batch_size))


def auto_batch(plan: Plan, devices: int, most: int, at: At) -> int:
    """The smallest batch whose speed is near the best and whose interval is narrow (see NEAR_WIDTH).

    Candidates are powers of two, the largest batch that leaves a fraction CLOSE of the memory free, and the
    largest batch that fits (`most`) and that the data set fills.
    """
    most, speeds = plan.run.filled(most, devices * plan.run.accumulate), dict[int, float]()
    plan, widths = replace(plan, run=replace(plan.run, validation=None)), dict[int, float]()

    def speed(batch_size: int) -> float:
        found = at(with_batch(plan, batch_size), [devices], devices)[0]
        short, long = found.interval_ms or (1.0, 1.0)
        widths[batch_size] = long / short
        return found.samples_per_s

    for n in (most, *map((2).__pow__, reversed(range((most - 1).bit_length())))):
        speeds[n] = speed(n)
        if speeds[n] < FAR_SPEED * max(speeds.values()):
            break
    near = NEAR_SPEED * max(speeds.values())
    fast = [n for n, its in speeds.items() if its >= near]
    narrow = NEAR_WIDTH * min(widths[n] for n in fast)
    found = min(n for n in fast if widths[n] <= narrow)
    room = int((1.0 - CLOSE) * (plan.available or 0))
    if plan.memory([devices], found).total > room:
        roomy = min(plan.largest([devices], room), found)
        found = roomy if roomy and speed(roomy) >= near else found
    return found
