"""A prediction of training by hand: epochs, intervals, several devices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.device.file import DeviceFile, new_document
from lolat.errors import InputError
from lolat.graph.weights import parameters
from lolat.hardware.links import Link
from lolat.training.prediction import TrainingPrediction, predict
from lolat.training.predictor import TrainingPredictor
from lolat.training.run import TrainingRun
from tests import synthetic
from tests.training.known import KnownTraining
from tests.training.test_measured import model as measured
from tests.training.test_parallel import MIB, three_dense

GRAPH = synthetic.network()


def known(**more: Any) -> KnownTraining:
    """2 ms a sample, 30 ms an epoch."""
    return KnownTraining(sample_ms=2.0, epoch_ms=30.0, **more)


def asked(model: TrainingPredictor, *run: Any, **more: Any) -> TrainingPrediction:
    return predict(model, GRAPH, TrainingRun(*run, **more))


# ---- One device.


def test_an_epoch_with_a_last_batch_that_is_not_full() -> None:
    """100 samples in batches of 32 are three and one of 4."""
    found = asked(known(), 32, 100, 5, "Adam", 0.8)
    assert (found.iterations, found.iteration_ms) == (4, 64.0)
    assert found.epoch_s == pytest.approx((3 * 64 + 8 + 30) / 1e3)
    assert found.total_s == pytest.approx(5 * found.epoch_s)
    assert found.interval_s == pytest.approx((found.total_s / 1.25, found.total_s * 1.25))
    assert (found.startup_s, found.evaluation_s) == (None, None)
    assert asked(known(), 32, 96).iterations == 3


def test_without_samples_there_are_only_iterations() -> None:
    found = asked(known(remarks=("outside",)), 32)
    assert found.warnings == ("outside",)
    assert (found.iterations, found.epoch_s, found.total_s, found.interval_s) == (None,) * 4
    assert found.parts_ms == {"forward": None, "backward": None, "update": None, "exchange": 0.0}


def test_what_is_not_known_is_said() -> None:
    found = asked(known(factor=None), 8, 80, coverage=0.95)
    assert found.interval_s is None
    assert len(found.warnings) == 1
    with pytest.raises(InputError, match="no evaluation"):
        asked(known(), 8, 80, validation=10)


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"samples": 0}, "samples"),
        ({"samples": 4}, "batch_size"),
        ({"samples": 80, "epochs": 0}, "epochs"),
        ({"optimizer": "unknown"}, "optimizer"),
        ({"coverage": 1.0}, "coverage"),
    ],
)
def test_a_run_that_cannot_be(wrong: dict[str, Any], argument: str) -> None:
    with pytest.raises(InputError) as caught:
        TrainingRun(**{"batch_size": 8, **wrong})
    assert argument in caught.value.arguments


@pytest.mark.parametrize(("devices", "argument"), [(0, "replicas"), (101, "batch_size")])
def test_devices_that_cannot_be(devices: Any, argument: str) -> None:
    """101 of them have a batch for more samples than there are, which may be smaller."""
    with pytest.raises(InputError) as caught:
        predict(known(), GRAPH, TrainingRun(10, 1000), devices, Link(10))
    assert caught.value.arguments[0] == argument


# ---- Several devices: a replica's share of the samples, and the exchange.


def test_four_devices_by_hand() -> None:
    """A ring of four: six steps of a quarter of the gradients. Shares of 251 samples: 26 iterations."""
    link = Link(1.6, 5.0)  # 200,000 bytes per ms
    model = KnownTraining(sample_ms=10.0, epoch_ms=2000.0)
    found = predict(model, GRAPH, TrainingRun(10, 1001, 3, "adam"), 4, link)
    gradients = 4 * parameters(GRAPH)
    exchange = 6 * (5 + gradients / 4 / 200_000)
    assert found.parts_ms["exchange"] == pytest.approx(exchange)
    assert found.iteration_ms == pytest.approx(100 + exchange)
    assert found.iterations == 26
    alone_s = 3 * (2 + (25 * 100 + 10) / 1e3)  # the last iteration has one sample
    exchanged_s = 3 * 26 * exchange / 1e3
    assert found.total_s == pytest.approx(alone_s + exchanged_s)
    ends = (0.8 * alone_s + exchanged_s / 1.3, 1.25 * alone_s + 1.3 * exchanged_s)
    assert found.interval_s == pytest.approx(ends)


def test_in_half_precision_half_as_much_is_exchanged() -> None:
    in_half = DeviceFile({**new_document("desk", "desk", {"half": True}), "predictors": {}})
    for passes in (None, PASSES):
        models = KnownTraining(passes=passes), KnownTraining(in_half, passes=passes)
        each = [predict(m, GRAPH, TrainingRun(10), 4, Link(1e-3, 0.0)) for m in models]
        whole, half = (o.hidden_ms + (o.parts_ms["exchange"] or 0.0) for o in each)
        assert whole == pytest.approx(2 * half)


@given(
    st.floats(1.0, 3.0), st.floats(0.01, 1e4), st.integers(2, 40),
    st.sampled_from([None, "NVLink 3", "the network between machines"]),
)  # fmt: skip
def test_the_interval_of_several_is_as_wide_as_that_of_its_surer_part(
    factor: float, gbps: float, devices: int, name: str | None
) -> None:
    """As a ratio, at both ends; however much of the exchange the backward pass hides."""
    surer = min(factor, {None: 1.3, "NVLink 3": 1.5}.get(name, 2.0)) - 1e-9
    for passes in (None, PASSES):
        model = KnownTraining(passes=passes, factor=factor)
        found = predict(model, GRAPH, TrainingRun(8, 999), devices, Link(gbps, name=name))
        assert found.interval_s is not None
        assert found.total_s is not None
        assert found.interval_s[0] * surer <= found.total_s <= found.interval_s[1] / surer


def test_validation_samples_are_shared_out() -> None:
    one = predict(measured(), GRAPH, TrainingRun(8, 800, validation=100))
    four = predict(measured(), GRAPH, TrainingRun(8, 800, validation=397), 4, Link(100))
    assert four.evaluation_s == one.evaluation_s


PASSES = (30.0, 60.0)
MIB_A_MS = Link(8 * MIB / 1e9 * 1e3, 0.0)  # 1 MiB a ms


def two_devices(each: list[float]) -> TrainingPrediction:
    """A ring of two sends half of the bytes twice: 1 ms for each MiB. Each kernel is of 9 MiB: 9 ms."""
    model = KnownTraining(passes=PASSES, each=each)
    return predict(model, three_dense(1536), TrainingRun(8, 80), 2, MIB_A_MS)


def test_buckets_travel_during_the_backward_pass() -> None:
    found = two_devices([0, 1, 0, 1, 0, 1])
    # The last kernel leaves when it is ready, after 20 of 60 ms, alone as it is over 1 MiB; it arrives at
    # 29. The other two, below 25 MiB, leave together at 60: 18 ms are waited for.
    assert found.parts_ms["exchange"] == pytest.approx(18)
    assert found.hidden_ms == pytest.approx(9)
    assert found.iteration_ms == pytest.approx(118)
    assert found.epoch_s == pytest.approx(5 * 0.118)
    assert sum(ms or 0.0 for ms in found.parts_ms.values()) == pytest.approx(found.iteration_ms)


@pytest.mark.parametrize(("sharding", "added"), [("none", 1), ("zero1", 1), ("zero2", 4)])
def test_a_device_adds_up_the_gradients_that_it_has(sharding: str, added: int) -> None:
    """Adam moves 7 elements a parameter, of those whose states are here; a sum of gradients 3."""
    run = TrainingRun(8, None, 1, "adam", accumulate=5, sharding=sharding)
    found = predict(known(passes=(1.0, 2.0)), GRAPH, run, 4, Link(100.0))
    states = 1 if sharding == "none" else 4
    assert found.parts_ms["update"] == pytest.approx(10.0 * (1 / states + 4 * 3 / 7 / added))
