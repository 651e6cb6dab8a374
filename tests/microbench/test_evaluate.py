"""Whole networks are measured as blocks are, and say whether they saw calm moments; a fake worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lolat.errors import InputError, MeasuringError
from lolat.graph import Graph, GraphBuilder
from microbench import evaluate
from microbench.layers import Layers
from microbench.runner import Runner
from tests.microbench.fakes import FakeDevice


def graph() -> Graph:
    n = Layers("tiny", 8, 3)
    return n.done(n.conv(n.input, 4))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice()
    monkeypatch.setattr(
        evaluate, "Runner", lambda b, d, p: Runner(b, d, p, device.start, device.clock)
    )
    monkeypatch.setattr(evaluate, "open_network", lambda *_: SimpleNamespace(graph=graph))
    return device


def test_sizes_and_blocks_are_measured_apart(device: FakeDevice) -> None:
    wanted = [
        evaluate.Case("a", 2),
        evaluate.Case("a", 2, (96,)),
        evaluate.Case("a", 2, (96,), 0),
    ]
    measured, failures, _, _ = evaluate.measure_cases("fake", "cpu", wanted)
    assert failures == {}
    assert [(m.spec, m.batch_size, m.input_size, m.block) for m in measured] == [
        ("a", 2, (), None), ("a", 2, (96,), None), ("a", 2, (96,), 0),
    ]  # fmt: skip
    assert [m.graph.name for m in measured] == ["tiny", "tiny", "a 96 block 0"]
    with pytest.raises(InputError, match="no block 7: expected 0 to 0"):
        evaluate.measure_cases("fake", "cpu", [evaluate.Case("a", 1, (), 7)])


def test_a_network_without_calm_moments_is_told_from_the_others(
    device: FakeDevice,
) -> None:
    device.restless = {"d x1"}
    measured, failures, versions, noise = evaluate.measure_networks("fake", "cpu", "abcd", [1])
    assert failures == {}
    assert versions == device.environment
    assert {m.spec: (m.calm, m.spread) for m in measured} == {
        "a": (True, 0.0), "b": (True, 0.0), "c": (True, 0.0), "d": (False, None),
    }  # fmt: skip
    assert noise["points_without_calm"] == 1


@pytest.mark.parametrize(
    ("backend", "dtypes"),
    [
        ("fake", {"float32", "int64"}),
        ("torch+half", {"float16", "int64"}),
        ("torch", {"float32", "int64"}),
    ],
)
def test_a_network_is_of_the_type_that_it_was_run_in(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, backend: str, dtypes: set[str]
) -> None:
    """So that a model of half precision is not told that it was asked for float32."""
    b = GraphBuilder("typed")
    indices = b.input((1, 4), dtype="int64")
    table = b.add("embedding", [indices], (1, 4, 8), dtype="float32", rows=9, out_features=8)
    typed = b.build([table])
    monkeypatch.setattr(evaluate, "open_network", lambda *_: SimpleNamespace(graph=lambda: typed))
    measured, *_ = evaluate.measure_cases(backend, "cpu", [evaluate.Case("a")])
    assert {t.dtype for t in measured[0].graph.tensors} == dtypes
    assert {t.dtype for t in typed.tensors} == {"float32", "int64"}


def test_a_gpus_own_memory_says_what_fits(device: FakeDevice) -> None:
    device.free_bytes = 2**20
    wanted = [evaluate.Case("a")]
    with pytest.raises(MeasuringError, match="a x1: skipped: needs about"):
        evaluate.measure_cases("fake", "gpu", wanted)
    assert evaluate.measure_cases("fake", "cpu", wanted)[1] == {}
