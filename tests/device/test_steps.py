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
from lolat.optimizers import optimizer_named
from lolat.report.prediction import summary
from lolat.training.plan import training_of
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
        "domain": {"least": least or {}},
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
    assert "host-bound" in lines[1]
    assert "host-bound: the host takes 1.02 ms" in lines[3]
    assert found.to_dict()["host_bound"] is True
    assert "Bottleneck: the host, which takes 1.02 ms to start the operations" in found.report()


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
    least = {"batch_size": 64.0, "latency_ms": 50.0, "operation_ms": 0.1}
    small = asked(5, 10**4, 8, least=least)
    assert (small.in_domain, small.host_bound) == (False, False)
    said = next(w for w in small.warnings if w.startswith("smaller"))
    assert "8 samples (nearly all that was measured: from 64), 10.67 ms (nearly all " in said
    assert "an operation" not in said
    assert asked(5, 10**6, 64, least=least).in_domain is True


def test_launched_in_another_way() -> None:
    plain = model()
    eager, graph = (plain.run_as(launch=way).predict(chain(20, 8)) for way in (None, "graph"))
    assert (eager.launch, graph.launch) == ("eager", "graph")
    assert graph.latency_ms < 0.2 * eager.latency_ms
    assert graph.in_domain is False
    assert any("another way (eager)" in w for w in graph.warnings)
    with pytest.raises(InputError, match="expected eager, compiled, graph") as error:
        plain.run_as(launch="slowly")
    assert error.value.code == "no-launch"
    with pytest.raises(InputError):
        lolat.load("epyc-2t").run_as(launch="graph")


def test_an_iteration_too_waits_for_the_host() -> None:
    """Forward, loss and backward: steps of the backward pass take twice as long to start."""
    training = training_of(model().document, "gpu")
    found = training.iteration(chain(20, 8), 1, optimizer_named("sgd")).parts()
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


def test_recurrent_layers_were_timed_on_no_gpu() -> None:
    """Half of the work or more in one: nearly all of the answer may be a factor of 4 off, and more."""
    b = GraphBuilder("lstm")
    shape = (1, 200, 256)
    x = b.add(
        "lstm", [b.input(shape)], shape, units=256, in_features=256, timesteps=200, bias=True,
        bias_vectors=2, sequences=True,
    )  # fmt: skip
    found = lolat.load("rtx-4090-amp").predict(b.build([x]), 256)
    assert found.in_domain is False
    assert any("recurrent" in text for text in found.warnings)
    low, high = found.interval_ms or (1.0, 1.0)
    assert high / low > 16
