"""Users' networks and some of a model's own, measured in the same rounds; a fake worker."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from lolat.errors import NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.microbench import check
from lolat.microbench.blocks import Predefined
from lolat.microbench.check import Case, NetworkAgain
from lolat.microbench.runner import Runner
from lolat.readers.size import Size
from lolat.tables.blocks import Point
from tests.microbench.fakes import FakeDevice, tiny


def graph(*_: object) -> Graph:
    n = Layers.on("tiny", 8, 8, 3)
    return n.done(n.conv(n.input, 4))


OWN = tuple(Predefined(f"own {i}", tiny(4 + i), (1,), True) for i in range(3))


def point(of: Predefined, batch_size: int = 1, whole: bool = True, **counts: int) -> Point:
    """A point of a predefined network, 10 ms."""
    known = count(of.make()).total(batch_size)._asdict() | counts
    return Point(of.name, batch_size, known, 10.0, whole=whole)


POINTS = [point(network) for network in OWN]


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "read", graph)


def measure(*networks: str, backend: str = "fake", sizes: Sequence[int] = (1,)) -> check.Measured:
    """Some networks, with the three of POINTS."""
    references = check.references_of(POINTS, "fake", OWN)
    with Runner(backend, "cpu") as runner:
        return check.measure(
            runner, backend, check.read_cases(backend, networks, sizes), references
        )


def test_every_network_at_every_batch_size_none_twice() -> None:
    cases = [case for case, _ in check.read_cases("fake", ["a", "b", "a"], [4, 1, 4], Size((96,)))]
    assert cases == [Case(name, n, Size((96,))) for name in ("a", "b") for n in (4, 1)]
    assert cases[0].key == "a 96 x4"


@pytest.mark.parametrize(
    ("backend", "framework", "own"),
    [
        ("torch+compile", "keras", "tensorflow"),
        ("onnxruntime", "torch", "torch"),
        ("tensorflow", "torch", "torch"),
        ("torch+threads=1", "torch", ""),
        ("onnxruntime", "onnx", ""),
        ("tensorflow+jit", "keras", ""),
    ],
)
def test_a_network_of_another_framework_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, backend: str, framework: str, own: str
) -> None:
    monkeypatch.setattr(check, "read", lambda *_: replace(graph(), framework=framework))
    if not own:
        assert len(check.read_cases(backend, ["a"], [1, 4])) == 2
        return
    with pytest.raises(NetworkError, match=f"'a' is no network of .* .--backend {own}.$"):
        check.read_cases(backend, ["a"], [1, 4])


def test_networks_in_loops_of_their_own_with_those_of_the_model(device: FakeDevice) -> None:
    device.ms = {"a x1": 30.0, "a x2": 50.0, "own 0 x1": 12.0, "own 1 x1": 9.0, "own 2 x1": 10.0}
    found = measure("a", sizes=(1, 2))
    assert [(m.case.key, m.latency_ms) for m in found.networks] == [
        ("a x1", pytest.approx(30.0)), ("a x2", pytest.approx(50.0)),
    ]  # fmt: skip
    assert [(a.name, a.learned_ms, a.now_ms, a.ratio) for a in found.again] == [
        (f"own {i}", 10.0, pytest.approx(ms), pytest.approx(ms / 10))
        for i, ms in enumerate((12, 9, 10))
    ]
    assert {r["before"] for r in device.requests if r["do"] == "sample"} == {""}
    keys = device.keys("sample")
    rounds = [sorted(keys[i : i + 5]) for i in range(0, len(keys), 5)]
    assert rounds == [sorted(device.ms)] * check.SETTINGS.rounds
    assert (found.failures, found.networks[0].spread) == ({}, pytest.approx(0.0))


def test_a_network_that_fails_is_said_and_the_others_are_measured(device: FakeDevice) -> None:
    for key in ("b x1", "own 1 x1"):
        device.refuses["prepare", key] = 1
    found = measure("a", "b")
    assert [m.case.spec for m in found.networks] == ["a"]
    assert found.failures == dict.fromkeys(["b x1", "own 1 x1"], "ResourceExhausted: no")
    assert [a.name for a in found.again] == ["own 0", "own 2"]


@pytest.mark.parametrize(
    ("backend", "dtypes"), [("torch+half", {"float16", "int64"}), ("torch", {"float32", "int64"})]
)
def test_a_network_is_of_the_type_that_it_was_run_in(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, backend: str, dtypes: set[str]
) -> None:
    """So that a model of half precision is not told that it was asked for float32."""
    b = GraphBuilder("typed")
    indices = b.input((1, 4), dtype="int64")
    table = b.add("embedding", [indices], (1, 4, 8), dtype="float32", rows=9, out_features=8)
    typed = b.build([table])
    monkeypatch.setattr(check, "read", lambda *_: typed)
    found = measure("a", backend=backend)
    assert {t.dtype for t in found.networks[0].graph.tensors} == dtypes
    assert {t.dtype for t in typed.tensors} == {"float32", "int64"}


def test_networks_are_timed_again(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    references = check.references_of(POINTS, "fake", OWN)
    monkeypatch.setattr(check, "references_of", lambda points, _: references if points else [])
    device.ms = {f"own {i} x1": 12.5 for i in range(3)}
    again = check.measure_again(POINTS, "fake", "cpu")
    assert [a.ratio for a in again] == pytest.approx([1.25] * 3)
    assert check.repeatability(again, CALM) == pytest.approx(0.25)
    assert check.measure_again([], "fake", "cpu") == ()
    assert len(device.workers) == 1


# ---- Which of a model's points are measured again


def test_networks_of_the_same_name() -> None:
    """One of each, at the batch size that comes first; a block of that name is none."""
    a, b = (Predefined(name, tiny(c), (1, 4), True) for name, c in (("a", 4), ("b", 5)))
    gone = point(Predefined("gone", tiny(4), (1,)))
    given = [gone, point(a, whole=False), point(b, 4), point(a), point(b, 1)]
    found = check.references_of(given, "tensorflow", [b, a])
    assert [(p.name, p.batch_size) for p, _ in found] == [("b", 4), ("a", 1)]
    assert [g for _, g in found] == [b.make(), a.make()]
    assert check.references_of([], "tensorflow", [b, a]) == []


# ---- How well times repeat

CALM = {"quiet": 1.0, "busy": 1.0}


def test_repeatability_by_hand() -> None:
    """The root of the mean square of log(1.1), log(1 / 1.1), 0 and log(1.21); or what moments differ by, if
    that is more: a tenth of a normal distribution is beyond 1.2816 standard deviations on either side.
    """
    again = [NetworkAgain("n", 1, 2.0, 2.0 * r, r) for r in (1.1, 1 / 1.1, 1.0, 1.21)]
    expected = math.exp(math.sqrt((1 + 1 + 0 + 4) / 4) * math.log(1.1)) - 1.0
    assert check.repeatability(again, CALM) == pytest.approx(expected, rel=1e-9)
    assert check.repeatability([], CALM) == 0.0
    moments = {"quiet": 1.2**-1.2816, "busy": 1.2**1.2816}
    for times in (again, []):
        assert check.repeatability(times, moments) == pytest.approx(0.2, rel=1e-4)
    assert check.median_ratio(again) == pytest.approx(1.05)
    assert check.median_ratio([]) is None
