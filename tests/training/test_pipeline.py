"""The input pipeline: the longer of both sets the pace, by a hand count."""

from dataclasses import replace

import pytest

from lolat.errors import InputError
from lolat.training.model import TrainingPrediction, with_input

FOUND = TrainingPrediction(
    "net", 10, "sgd", 1000, 3, 100, 20.0, {"forward": 8.0, "backward": 12.0, "exchange": 0.0},
    2.5, 8.0, (7.0, 9.0), 0.9, 0, 0, (), 0.5, 0.5,
)  # fmt: skip
"""100 iterations of 20 ms, 0.5 s of evaluation, three times, and 0.5 s to start."""


def test_a_slow_pipeline_sets_the_pace() -> None:
    """5 ms a sample are 50 ms a batch: 100 batches take 5 s instead of 2 s."""
    found = with_input(FOUND, 5.0)
    assert found.iteration_ms == pytest.approx(50.0)
    assert found.parts_ms == {"forward": 8.0, "backward": 12.0, "exchange": 0.0, "input": 30.0}
    assert sum(p or 0.0 for p in found.parts_ms.values()) == pytest.approx(found.iteration_ms)
    assert found.epoch_s == pytest.approx(5.5)
    assert found.total_s == pytest.approx(17.0)
    assert found.interval_s == pytest.approx((17.0, 17.0)), "the pipeline's time is certain"


def test_a_fast_pipeline_is_not_seen() -> None:
    """1.5 ms a sample: 15 ms a batch, less than the device takes; training ends no earlier than 6.5 s."""
    found = with_input(FOUND, 1.5)
    assert found == replace(FOUND, parts_ms={**FOUND.parts_ms, "input": 0.0})


def test_no_pipeline_changes_nothing() -> None:
    assert with_input(FOUND, 0.0) is FOUND


def test_an_interval_ends_no_earlier_than_the_pipeline_allows() -> None:
    """1.9 ms a sample: 19 ms a batch, so no less than 8.0 - 3 x 100 x 1 ms in all."""
    assert with_input(FOUND, 1.9).interval_s == pytest.approx((7.7, 9.0))


def test_one_pipeline_feeds_all_devices() -> None:
    """4 devices take 40 samples at a time: 2 ms each are 80 ms, 25 times an epoch."""
    found = with_input(FOUND, 2.0, devices=4)
    assert found.iteration_ms == pytest.approx(80.0)
    assert found.epoch_s == pytest.approx(2.5 + 25 * 0.06)


def test_without_samples_there_are_only_iterations() -> None:
    bare = replace(
        FOUND, samples=None, iterations=None, epoch_s=None, total_s=None, interval_s=None
    )
    found = with_input(bare, 5.0)
    assert (found.iteration_ms, found.epoch_s, found.total_s) == (50.0, None, None)


@pytest.mark.parametrize("given", [-1.0, float("nan"), float("inf")])
def test_times_that_cannot_be(given: float) -> None:
    with pytest.raises(InputError, match=f"an input pipeline of {given:g} ms a sample cannot be"):
        with_input(FOUND, given)
