"""The input pipeline beside training: where it is slower than the device, the device waits."""

from __future__ import annotations

import math
from dataclasses import replace

from lolat.errors import InputError
from lolat.training.model import TrainingPrediction

INPUT = "input"
"""The part of an iteration that the device waits for its batch."""


def with_input(found: TrainingPrediction, sample_ms: float, devices: int = 1) -> TrainingPrediction:
    """`found` with a pipeline that makes a sample in `sample_ms`, for all `devices` together.

    Batches are made while the one before is trained on, as `tf.data`'s prefetch and PyTorch's workers do:
    an iteration takes the longer of both; with 0 there is nothing to wait for, and nothing is changed. The
    epoch's last batch waits as its share of a whole one; the pipeline's own time is taken as certain, so
    that an interval ends no earlier than it allows.
    InputError for a time that is negative or not finite.
    """
    if not (math.isfinite(sample_ms) and sample_ms >= 0.0):
        raise InputError(
            f"an input pipeline of {sample_ms:g} ms a sample cannot be; expected 0 or more, such as 2.5"
        )
    if sample_ms == 0.0:
        return found
    more_ms = sample_ms * found.batch_size * devices - found.iteration_ms
    wait_ms = max(0.0, more_ms)
    waited = replace(
        found,
        iteration_ms=found.iteration_ms + wait_ms,
        parts_ms={**found.parts_ms, INPUT: wait_ms},
    )
    if found.samples is None or found.epoch_s is None or found.total_s is None:
        return waited
    batches = found.samples / (found.batch_size * devices)
    # What the epochs would take if the device had nothing to do but wait for batches.
    bound_s = found.total_s + found.epochs * batches * more_ms / 1e3
    ends = found.interval_s
    return replace(
        waited,
        epoch_s=found.epoch_s + batches * wait_ms / 1e3,
        total_s=max(found.total_s, bound_s),
        interval_s=None if ends is None else (max(ends[0], bound_s), max(ends[1], bound_s)),
    )
