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
"""Predicts for (a plan, the numbers of devices that share it, one of these), with offers to rent."""

NEAR_SPEED = 0.98
"""The least share of the best speed that is as good."""
FAR_SPEED = 0.8
"""A share of the best speed below which smaller batches are not as fast again."""


def with_batch(plan: Plan, batch_size: int) -> Plan:
    """Return a plan with another batch size."""
    return replace(plan, run=replace(plan.run, batch_size=batch_size))


def auto_batch(plan: Plan, devices: int, most: int, at: At) -> int:
    """Return the smallest batch nearly as fast as the best one.

    It is a power of two, the largest that leaves a share CLOSE of the memory, or the largest that fits
    (`most`) and that the data set fills.
    """
    most, speeds = plan.run.filled(most, devices * plan.run.accumulate), dict[int, float]()
    plan = replace(plan, run=replace(plan.run, validation=None))

    def speed(batch_size: int) -> float:
        return at(with_batch(plan, batch_size), [devices], devices)[0].samples_per_s

    for n in (most, *map((2).__pow__, reversed(range((most - 1).bit_length())))):
        speeds[n] = speed(n)
        if speeds[n] < FAR_SPEED * max(speeds.values()):
            break
    near = NEAR_SPEED * max(speeds.values())
    found = min(n for n, its in speeds.items() if its >= near)
    room = int((1.0 - CLOSE) * (plan.available or 0))
    if plan.memory([devices], found).total > room:
        roomy = min(plan.largest([devices], room), found)
        found = roomy if roomy and speed(roomy) >= near else found
    return found
