"""The host that starts operations: the device's waits, against a queue that is played step by step."""

from __future__ import annotations

import numpy as np
import pytest

import lolat
from lolat.device.predictors.host import BACKWARD, GRAPH_CALLS, GRAPH_MS, VIEW, Host, Steps, waits
from lolat.graph import GraphBuilder
from lolat.graph import work as c
from lolat.graph.modes import AMP, Mode
from tests.device.test_roofline import work_of

HOST = Host(0.03, 1.6, "fitted")
DENSE = 2.5  # launches of an addition in that of a dense layer


def played(starts: list[float], run: list[float]) -> list[float]:
    """Waiting of the device before each step, by a clock."""
    clock = free = 0.0
    waited = []
    for start, ms in zip(starts, run, strict=True):
        clock += start
        begun = max(clock, free)
        waited.append(begun - free)
        free = begun + ms
    return waited


@pytest.mark.parametrize("slow", [0.01, 1.0, 100.0])
def test_the_device_waits_as_in_a_queue(slow: float) -> None:
    draw = np.random.default_rng(0)
    for number in (0, 1, 2, 50):
        starts, run = slow * draw.exponential(size=number), draw.exponential(size=number)
        run[number // 2 :] *= draw.random(number - number // 2) > 0.5  # views
        found = waits(starts, run)
        np.testing.assert_allclose(found, played(list(starts), list(run)), atol=1e-9)


def test_a_view_is_cheaper_and_a_graph_starts_all_at_once() -> None:
    work = work_of([(1, 64, 64, 64, 3e4), (0, 0, 0, 0, 0)])
    assert HOST.starts(work, Mode()).tolist() == pytest.approx([DENSE * 0.03, VIEW * 0.03])
    assert HOST.starts(work, Mode(launch="compiled")).tolist() == HOST.starts(work, Mode()).tolist()
    assert HOST.starts(work, Mode(launch="graph")).sum() == pytest.approx(
        2 * GRAPH_MS + GRAPH_CALLS * 0.03
    )


def test_autocast_starts_a_conversion_of_the_weights_of_each_layer() -> None:
    """One for a dense layer; none for a product of two tensors, a norm or a compiled network."""
    row = (1.0, 64.0, 64.0, 64.0, 1e6)
    work = work_of([row, row, (0, 0, 0, 0, 1e6)], c.DENSE, c.BATCHED, c.NORM)
    each = (HOST.starts(work, Mode(AMP)) / 0.03).tolist()
    assert each == pytest.approx([DENSE + 1.0, 1.8, 1.7])
    assert (HOST.starts(work, Mode(AMP, "compiled")) / 0.03).tolist() == pytest.approx(
        [DENSE, 1.8, 1.7]
    )


def test_a_given_host_takes_its_time_for_each_operation() -> None:
    """A chain of 40 small additions at 900 µs each takes 36 ms, and 8 views 0.3 of that each."""
    builder = GraphBuilder("chain", "torch")
    x = builder.input((1, 64))
    for _ in range(8):
        for _ in range(5):
            x = builder.add("add", [x, x], (1, 64))
        x = builder.add("reshape", [x], (1, 64))
    device, graph = lolat.load("v100-fp32").run_as(host_us=900), builder.build([x])
    found = device.predict(graph)
    assert found.latency_ms == pytest.approx(0.9 * (40 + VIEW * 8), rel=0.02)
    low, high = found.interval_ms or (0, 0)
    assert high / low < 1.4**2
    assert "--host-us 900" in (device.predict("timm:resnet50").arguments or "")
    for wrong in (0.025, 2000, float("nan"), "24"):
        with pytest.raises(lolat.InputError, match="microseconds"):
            device.run_as(host_us=wrong)


def test_the_steps_of_a_network() -> None:
    """Steps in the order of the graph, the backward pass last, with the host's times."""
    work = work_of([(1, 64, 64, 64, 3e4), (1, 8, 8, 8, 1e3), (0, 0, 0, 0, 0)])
    work = work._replace(operation=np.array([1, 0, 0]), backward=np.array([False, True, False]))
    run = np.array([1.0, 2.0, 0.0])
    shares = np.ones((1, 3))
    steps = Steps.of(work, run, shares, HOST, Mode())
    assert steps.operation.tolist() == [0, 1, 0]
    assert steps.run_ms.tolist() == [0.0, 1.0, 2.0]
    assert steps.starts_ms.tolist() == pytest.approx(
        [VIEW * 0.03, DENSE * 0.03, BACKWARD * DENSE * 0.03]
    )
    assert (steps.host_bound, steps.host_half) == (False, pytest.approx(np.log(1.6)))
    assert Steps.of(work, run / 1e3, shares, HOST, Mode()).host_bound is True
    unknown = Steps.of(work, run, shares, None, Mode())
    assert (unknown.host_ms, unknown.host_bound, unknown.latency_ms) == (None, None, 3.0)
