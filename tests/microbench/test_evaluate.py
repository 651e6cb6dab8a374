"""Whole networks are measured as blocks are, and say whether they saw calm moments; a fake worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lolat.graph import Graph
from microbench import evaluate
from microbench.layers import Layers
from microbench.runner import Runner
from tests.microbench.fakes import FakeDevice


def graph() -> Graph:
    n = Layers("tiny", 8, 3)
    return n.done(n.conv(n.input, 4))


def test_a_network_without_calm_moments_is_told_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = FakeDevice()
    device.restless = {"d x1"}
    monkeypatch.setattr(
        evaluate, "Runner", lambda b, d, p: Runner(b, d, p, device.start, device.clock)
    )
    monkeypatch.setattr(evaluate, "open_network", lambda *_: SimpleNamespace(graph=graph))
    measured, failures, versions, noise = evaluate.measure_networks("fake", "cpu", "abcd", [1])
    assert failures == {}
    assert versions == device.environment
    assert {m.spec: (m.calm, m.spread) for m in measured} == {
        "a": (True, 0.0), "b": (True, 0.0), "c": (True, 0.0), "d": (False, None),
    }  # fmt: skip
    assert noise["points_without_calm"] == 1
