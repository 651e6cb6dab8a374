"""A network on a GPU whose operations a host starts: the longer of both, and what is said of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

import lolat
from lolat.device.prediction import Prediction
from lolat.device.predictors.host import Host
from lolat.device.predictors.roofline import Roofline
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.optimizers import OPTIMIZERS
from lolat.report.prediction import summary
from lolat.report.rows import terms_of
from lolat.training.plan import training_of
from lolat.units import milliseconds
from tests.device.test_roofline import MOVING_BANDWIDTH, classes

START_MS = 0.05
STEP_MS = 1e-6


def chain(number: int, width: int) -> Graph:
    """Additions one after the other, behind a reshape of what needs a gradient."""
    b = GraphBuilder("chain", "torch")
    x = b.add("reshape", [b.tensor((1, 1, width))], (1, width))
    for _ in range(number):
        x = b.add("relu", [x], (1, width))
    return b.build([x])


def model(least: dict[str, float] | None = None, **more: Any) -> lolat.Model:
    formula = Roofline.of(1, classes(), STEP_MS, STEP_MS)
    formula = replace(formula, host=Host(START_MS, 2.0, "assumed"), **more)
    entry = formula.to_dict() | {"residuals": [0.1] * 40}
    document = {
        "name": "gpu", "device": "gpu", "default": "kernels", "predictors": {"kernels": entry},
        "points": [], "environment": {"device": "unknown"}, "noise": {},
        "domain": {"minimum": least or {}},
    }  # fmt: skip
    return lolat.Model(document)


def asked(number: int, width: int, batch: int = 1, **more: Any) -> Prediction:
    return model(**more).predict(chain(number, width), batch)


def test_small_operations_take_as_long_as_the_host_takes_to_start_them() -> None:
    found = asked(20, 8)
    run = 2 * 4 * 8 / MOVING_BANDWIDTH  # of the last one, which the host does not wait for
    assert found.latency_ms == pytest.approx(20.3 * START_MS + run, rel=1e-3)
    assert (found.host_bound, found.in_domain, found.inside_share) == (True, False, 0.0)
    assert found.host_ms == pytest.approx(20.3 * START_MS)
    assert sum(b.latency_ms for b in found.blocks) == pytest.approx(found.latency_ms)
    low, high = found.interval_ms or (0.0, 0.0)
    assert (low, high) == pytest.approx((found.latency_ms / 2, found.latency_ms * 2), rel=1e-2)
    lines = list(summary(found))
    assert "host-bound" in lines[2]
    assert "host-bound: the host takes 1.02 ms" in lines[4]
    assert found.to_dict()["host_bound"] is True
    told = "Bottleneck: the host, which takes 1.02 ms to start the operations; the device waits for it and"
    assert told in found.report()
    assert {b.bound_by for b in found.blocks[:-1]} == {"ops"}


def test_a_device_that_works_after_its_host_has_started_all_is_a_bottleneck_too() -> None:
    """Twenty short operations, for which it waits, then one that takes 0.7 times the host's time."""
    long_ms, host_ms = 0.7 * 21 * START_MS, 21 * START_MS
    b = GraphBuilder("late", "torch")
    x = b.tensor((1, 8))
    for _ in range(20):
        x = b.add("relu", [x], (1, 8))
    x = b.add("repeat", [x], (1, int(long_ms * MOVING_BANDWIDTH / 4)))
    found = model().predict(b.build([x]))
    assert found.host_bound
    assert found.host_ms == pytest.approx(host_ms)
    assert found.latency_ms == pytest.approx(host_ms + long_ms, rel=1e-3)
    parts = terms_of(found.blocks)
    assert parts["ops"] == pytest.approx(host_ms, rel=1e-3)
    assert parts["traffic"] == pytest.approx(long_ms, rel=1e-3)
    report = found.report()
    rest = milliseconds(found.latency_ms - host_ms)
    assert f"1.05 ms to start the operations, and the device, which then takes {rest} to" in report
    assert f"a faster device saves {rest} at most" in report


def test_large_ones_hide_the_host() -> None:
    found = asked(20, 10**6)
    each = 2 * 4e6 / MOVING_BANDWIDTH
    assert found.latency_ms == pytest.approx(20 * each + 1.3 * START_MS, rel=1e-3)
    assert (found.host_bound, found.in_domain) == (False, True)
    low, high = found.interval_ms or (0.0, 0.0)
    assert math.log(high / low) == pytest.approx(0.2, rel=0.05)


def test_a_large_operation_does_not_hide_the_starts_of_those_before_it() -> None:
    """The host is ahead only of what comes after."""
    b = GraphBuilder("wedge", "torch")
    x = b.input((1, 8))
    for _ in range(10):
        x = b.add("relu", [x], (1, 8))
    x = b.add("repeat", [x], (1, 8 * 10**6))
    found = model().predict(b.build([x]))
    assert found.latency_ms > found.host_ms
    assert found.latency_ms == pytest.approx(
        11 * START_MS + 4 * (8e6 + 8) / MOVING_BANDWIDTH, rel=1e-2
    )


def test_steps_smaller_than_those_of_the_table_are_outside() -> None:
    least = {"latency_ms": 50.0, "operation_ms": 0.1}
    small = asked(5, 10**4, 8, least=least)
    assert (small.in_domain, small.host_bound) == (False, False)
    said = next(w for w in small.warnings if "smaller than nearly all" in w)
    assert f"it takes {small.latency_ms:.1f} ms; 99 in 100 timed ones took 50 ms or more" in said
    assert "an operation" not in said
    assert asked(5, 10**6, 64, least=least).in_domain is True


def test_launched_in_another_way() -> None:
    plain = model()
    eager, graph = (plain.run_as(launch=way).predict(chain(20, 8)) for way in (None, "graph"))
    assert (eager.launch, graph.launch) == ("eager", "graph")
    assert graph.latency_ms < 0.2 * eager.latency_ms
    assert graph.in_domain is False
    assert any("another way (eager)" in w for w in graph.warnings)
    with pytest.raises(InputError, match="expected one of eager, compiled, graph") as error:
        plain.run_as(launch="slowly")
    assert error.value.code == "launch"
    with pytest.raises(InputError):
        lolat.load("epyc-2t").run_as(launch="graph")


def test_an_iteration_too_waits_for_the_host() -> None:
    """Forward, loss and backward: steps of the backward pass take twice as long to start."""
    training = training_of(model())
    found = training.batch(chain(20, 8), 1, OPTIMIZERS["sgd"]).iteration.parts()
    assert found["forward"] == pytest.approx((20.3 + 1.7) * START_MS, rel=0.05)
    assert found["backward"] == pytest.approx((20 + 2 * 1.7) * 2 * START_MS, rel=0.1)


# ---- A device of which a few kinds of operations were timed.


def test_what_was_never_timed_is_twice_off_or_not_known() -> None:
    """Norms, of which nothing was: with a data sheet a factor of two, by their share; else not known."""
    products = {"measured": ["dense"]}
    b = GraphBuilder("norms", "torch")
    x = b.input((1, 10**6))
    graph = b.build([b.add("layer_norm", [x], (1, 10**6))])
    own = model(multiprocessors=8).predict(graph, 64)
    sheet = model(multiprocessors=8, **products).predict(graph, 64)
    assert own.interval_ms is not None
    assert sheet.interval_ms is not None
    half, wide = (0.5 * math.log(p[1] / p[0]) for p in (own.interval_ms, sheet.interval_ms))
    assert wide == pytest.approx(math.hypot(half, math.log(2)), rel=0.02)
    assert sheet.in_domain is False
    alone = model(multiprocessors=1, **products).predict(graph, 64)
    assert (alone.interval_ms, alone.coverage, alone.in_domain) == (None, None, False)
    assert any(w.startswith("no interval: most of the time") for w in alone.warnings)


@pytest.mark.parametrize(
    ("kind", "units", "batch_size", "steps", "measured_ms"),
    [("lstm", 256, 16, 150, 4.542), ("lstm", 512, 16, 25, 1.095), ("lstm", 1024, 64, 25, 2.205),
     ("lstm", 4096, 64, 25, 16.598), ("gru", 1024, 32, 1500, 59.131), ("simple_rnn", 2560, 64, 50, 6.161)],
)  # fmt: skip
def test_a_recurrent_layer_takes_its_steps_one_after_the_other(
    kind: str, units: int, batch_size: int, steps: int, measured_ms: float
) -> None:
    """DeepBench's V100 in float32, which multiplies the state alone: within a factor of 2, and inside."""
    b = GraphBuilder("deepbench")
    x = b.input((1, steps, 1))
    x = b.add(kind, [x], (1, steps, units), units=units, in_features=1, timesteps=steps, bias=True)
    found = lolat.load("v100").predict(b.build([x]), batch_size)
    assert 0.5 < found.latency_ms / measured_ms < 2.0
    assert found.in_domain is False
    assert any("recurrent" in text for text in found.warnings)
    low, high = found.interval_ms or (1.0, 1.0)
    assert low < measured_ms < high
    assert high / low > 10


def test_no_step_of_a_small_recurrent_layer_is_faster_than_a_launch() -> None:
    """cuDNN's standard algorithm takes 6.1 to 14.5 us for a step of a layer on any fast GPU."""
    b = GraphBuilder("lstm")
    x = b.input((1, 1280, 256))
    x = b.add("lstm", [x], (1, 1280, 512), units=512, in_features=256, timesteps=1280, bias=True)
    for name in ("h100", "rtx-4090-amp"):
        found = lolat.load(name).predict(b.build([x]), precision="fp16")
        assert 6.1 < 1e3 * found.latency_ms / 1280 < 14.5
