"""What all models of training share: epochs from iterations, intervals, blocks, the input pipeline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.training.fitting import EpochTraining
from lolat.training.model import Training, iteration_blocks, with_input
from tests import synthetic
from tests.training import epoch_tables, known_device
from tests.training.known_training import KnownTraining
from tests.training.test_estimate import model as estimated
from tests.training.test_learning import model as measured

GRAPH = synthetic.network()


def known(**more: Any) -> KnownTraining:
    """2 ms a sample, 30 ms an epoch."""
    return KnownTraining(sample_ms=2.0, epoch_ms=30.0, **more)


def test_an_epoch_with_a_last_batch_that_is_not_full() -> None:
    """100 samples in batches of 32 are three and one of 4."""
    found = known().predict(GRAPH, 32, 100, 5, "Adam", 0.8)
    assert (found.network, found.batch_size, found.optimizer) == (GRAPH.name, 32, "adam")
    assert (found.iterations, found.iteration_ms) == (4, 64.0)
    assert found.epoch_s == pytest.approx((3 * 64 + 8 + 30) / 1e3)
    assert found.total_s == pytest.approx(5 * found.epoch_s)
    assert found.interval_s == pytest.approx((found.total_s / 1.25, found.total_s * 1.25))
    assert (found.coverage, found.startup_s, found.evaluation_s) == (0.8, None, None)
    assert known().predict(GRAPH, 32, 96).iterations == 3
    dropped = known(drop_last=True).predict(GRAPH, 32, 100)
    assert (dropped.iterations, dropped.epoch_s) == (3, pytest.approx(0.222))


def test_without_samples_there_are_only_iterations() -> None:
    found = known(said=("outside",)).predict(GRAPH, 32)
    assert found.warnings == ("outside",)
    untold = (found.iterations, found.epoch_s, found.total_s, found.startup_s, found.interval_s)
    assert untold == (None,) * 5
    document = found.to_dict()
    assert (document["interval_s"], document["warnings"]) == (None, ["outside"])
    assert document["parts_ms"] == {
        "forward": None, "backward": None, "update": None, "exchange": 0.0,
    }  # fmt: skip


def test_what_is_not_known_is_said() -> None:
    unsure = known(factor=None, residuals=[0.1] * 7)
    found = unsure.predict(GRAPH, 8, 80, coverage=0.95, validation=10)
    assert found.interval_s is None
    evaluation, interval = found.warnings
    assert "without an evaluation: the validation samples are left out" in evaluation
    assert interval == "no interval: 7 points cannot give 95 % coverage"
    assert found.epoch_s == known().predict(GRAPH, 8, 80).epoch_s
    (start,) = known(starts=True).predict(GRAPH, 8, 80, optimizer="adam").warnings
    assert start == "the start of a training with adam was not measured: the total is without it"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"batch_size": 0}, "batch size 0: expected a whole number from 1"),
        ({"batch_size": 2.5}, "batch size 2.5"),
        ({"batch_size": True}, "batch size True"),
        ({"samples": 0}, "samples 0"),
        ({"samples": 4}, "a batch of 8 is larger than the data set of 4 samples"),
        ({"samples": 80, "epochs": 0}, "epochs 0"),
        ({"samples": 80, "validation": 0}, "validation samples 0"),
        ({"optimizer": "adamw"}, "did you mean adam.*sgd, momentum, rmsprop, adagrad, adam"),
        ({"coverage": 1.0}, "expected a number above 0 and below 1"),
    ],
)
def test_wrong_questions(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        known().predict(GRAPH, **{"batch_size": 8, **asked})


@pytest.mark.parametrize("batch_size", [1, 16])
@pytest.mark.parametrize(
    "model", [measured(), estimated(), EpochTraining(epoch_tables.document(), "m.json")]
)
def test_blocks_add_up_to_the_iteration(model: Training, batch_size: int) -> None:
    blocks = iteration_blocks(model, GRAPH, batch_size, "adam")
    prediction = model.predict(GRAPH, batch_size, optimizer="adam")
    assert [b.name for b in blocks[-2:]] == ["update", "call"]
    assert len(blocks) > 3
    assert sum(b.iteration_ms for b in blocks) == pytest.approx(prediction.iteration_ms)
    assert sum(b.share for b in blocks) == pytest.approx(1.0)
    told = prediction.parts_ms["update"]
    assert told is None or blocks[-2].iteration_ms == pytest.approx(told)


def test_nothing_that_takes_time_has_no_shares() -> None:
    idle = KnownTraining(each=[0.0] * len(GRAPH.operations))
    assert all(b.share == 0.0 for b in iteration_blocks(idle, GRAPH, 8, "sgd"))


def test_times_are_finite_for_any_batch() -> None:
    found = estimated().predict(known_device.network(), 2**20, samples=2**20)
    assert all(map(math.isfinite, (found.iteration_ms, found.total_s, *found.interval_s)))


# ---- The input pipeline: the longer of both sets the pace.

PARTS = {"forward": 8.0, "backward": 12.0}
TOLD = replace(
    KnownTraining(times=PARTS, factor=1.125).predict(GRAPH, 10, 1000, 3),
    epoch_s=2.5, total_s=8.0, interval_s=(7.0, 9.0),
)  # fmt: skip
"""100 iterations of 20 ms, 0.5 s of evaluation, three times, and 0.5 s to start."""


@pytest.mark.parametrize(
    ("sample_ms", "devices", "iteration_ms", "epoch_s", "total_s", "interval"),
    [
        (5.0, 1, 50.0, 5.5, 17.0, (17.0, 17.0)),  # 50 ms a batch; the pipeline's time is certain
        (1.5, 1, 20.0, 2.5, 8.0, (7.0, 9.0)),  # not seen: training ends no earlier than 6.5 s
        (1.9, 1, 20.0, 2.5, 8.0, (7.7, 9.0)),  # no less than 8.0 - 3 x 100 x 1 ms in all
        (2.0, 4, 80.0, 2.5 + 25 * 0.06, 12.5, (12.5, 12.5)),  # 40 samples at a time, 25 times
    ],
)
def test_the_longer_sets_the_pace(
    sample_ms: float, devices: int, iteration_ms: float, epoch_s: float, total_s: float,
    interval: tuple[float, float],
) -> None:  # fmt: skip
    found = with_input(TOLD, sample_ms, devices)
    assert found.iteration_ms == pytest.approx(iteration_ms)
    assert found.parts_ms["input"] == pytest.approx(iteration_ms - 20.0)
    assert sum(p or 0.0 for p in found.parts_ms.values()) == pytest.approx(iteration_ms)
    assert (found.epoch_s, found.total_s) == pytest.approx((epoch_s, total_s))
    assert found.interval_s == pytest.approx(interval)


def test_no_pipeline_and_no_samples() -> None:
    assert with_input(TOLD, 0.0) is TOLD
    bare = replace(TOLD, samples=None, epoch_s=None, total_s=None, interval_s=None)
    found = with_input(bare, 5.0)
    assert (found.iteration_ms, found.epoch_s, found.total_s) == (50.0, None, None)
    unsure = with_input(replace(TOLD, interval_s=None), 5.0)
    assert (unsure.total_s, unsure.interval_s) == (17.0, None)


@pytest.mark.parametrize("given", [-1.0, math.nan, math.inf])
def test_pipelines_that_cannot_be(given: float) -> None:
    with pytest.raises(InputError, match=f"an input pipeline of {given:g} ms a sample cannot be"):
        with_input(TOLD, given)
