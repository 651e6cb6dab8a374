"""Users' networks, measured in rounds with some of the model's own; a fake worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lolat.fitting.points import Point
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from microbench import evaluate
from microbench.blocks import Predefined
from tests.microbench.fakes import FakeDevice, tiny


def graph() -> Graph:
    n = Layers.on("tiny", 8, 8, 3)
    return n.done(n.conv(n.input, 4))


OWN = tuple(Predefined(f"own {i}", tiny(4 + i), (1,), True) for i in range(3))
POINTS = [Point(b.name, 1, count(b.make()).total(1)._asdict(), 10.0, whole=True) for b in OWN]


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "read", lambda *_: graph())


def measure(wanted: Sequence[evaluate.Case], **options: Any) -> evaluate.Evaluation:
    options = {"networks": OWN, "points": POINTS, **options}
    backend, where = options.pop("backend", "fake"), options.pop("where", "cpu")
    return evaluate.measure_cases(backend, where, wanted, **options)


def test_every_network_at_every_batch_size_none_twice() -> None:
    found = evaluate.cases(["a", "b", "a"], [4, 1, 4], (96,))
    assert [(c.spec, c.batch_size, c.input_size) for c in found] == [
        ("a", 4, (96,)), ("a", 1, (96,)), ("b", 4, (96,)), ("b", 1, (96,)),
    ]  # fmt: skip
    assert {c.name for c in found} == {"a 96", "b 96"}


def test_sizes_are_measured_apart(device: FakeDevice) -> None:
    found = measure([evaluate.Case("a", 2), evaluate.Case("a", 2, (96,))])
    assert found.failures == {}
    assert [(m.spec, m.batch_size, m.input_size) for m in found.measured] == [
        ("a", 2, ()), ("a", 2, (96,)),
    ]  # fmt: skip


def test_networks_in_loops_of_their_own(device: FakeDevice) -> None:
    measure([evaluate.Case("a")])
    samples = [r for r in device.requests if r["do"] == "sample"]
    assert {r["key"] for r in samples} == {"a x1", *(f"own {i} x1" for i in range(3))}
    assert {r["before"] for r in samples} == {""}
    assert device.keys("sample").count("a x1") == evaluate.SETTINGS.rounds


def test_the_models_networks_are_measured_again_in_the_same_rounds(device: FakeDevice) -> None:
    device.ms = {"a x1": 30.0, "own 0 x1": 12.0, "own 1 x1": 9.0, "own 2 x1": 10.0}
    found = measure([evaluate.Case("a")])
    assert [m.latency_ms for m in found.measured] == pytest.approx([30.0])
    assert {a.point.name: a.now_ms for a in found.again} == pytest.approx(
        {"own 0": 12.0, "own 1": 9.0, "own 2": 10.0}
    )
    keys = device.keys("sample")
    assert {len(set(keys[i : i + 4])) for i in range(0, len(keys), 4)} == {4}, "once a round"
    assert found.environment == {"framework": "fake"}
    assert found.noise == {"floor": 0.0, "quiet": 1.0, "busy": 1.0, "others": 0.0, "trend": 1.0}
    assert found.measured[0].spread == pytest.approx(0.0)


def test_a_network_that_fails_is_said_and_the_others_are_measured(device: FakeDevice) -> None:
    device.refuses["prepare", "b x1"] = 1
    device.refuses["prepare", "own 1 x1"] = 1
    found = measure([evaluate.Case("a"), evaluate.Case("b")])
    assert [m.spec for m in found.measured] == ["a"]
    assert found.failures == dict.fromkeys(["b x1", "own 1 x1"], "ResourceExhausted: no")
    assert [a.point.name for a in found.again] == ["own 0", "own 2"]


def test_a_model_without_networks_has_none_to_measure_again(device: FakeDevice) -> None:
    found = measure([evaluate.Case("a")], points=())
    assert [m.spec for m in found.measured] == ["a"]
    assert found.again == ()


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
    monkeypatch.setattr(evaluate, "read", lambda *_: typed)
    found = measure([evaluate.Case("a")], backend=backend)
    assert {t.dtype for t in found.measured[0].graph.tensors} == dtypes
    assert {t.dtype for t in typed.tensors} == {"float32", "int64"}
