"""A model's networks measured again by fake workers, in fake seconds."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.errors import DeviceError, InputError, MeasuringError
from lolat.fitting.points import Point
from lolat.graph.counts import count
from microbench import doctor, environment
from microbench.blocks import BLOCKS, Predefined, known_blocks
from microbench.blocks import NETWORKS as ALL_NETWORKS
from microbench.doctor import Difference, Examination, references_of
from microbench.environment import UNSAID
from microbench.learn import REFERENCES
from microbench.runner import Runner
from tests.microbench.conftest import measured_by
from tests.microbench.fakes import START_S, FakeDevice, tiny

VERSIONS = {"framework": "fake", "framework_version": "1", "flags": {}}
LABEL = "a desk (family 25 model 17), 2 threads"
FACTS = {"vendor": "AuthenticAMD", "family": 25, "model": 17, "stepping": 1, "l3_bytes": 2**25}


class Desk(FakeDevice):
    """A machine whose framework takes `start_s` to start, or is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.environment = dict(VERSIONS)
        self.start_s = 0.0
        self.error: BaseException | None = None

    def start(self, backend: str, device: str) -> Any:
        self.now += self.start_s
        if self.error is not None:
            raise self.error
        return super().start(backend, device)


NETWORKS = tuple(Predefined(name, tiny(4 + i), (1,), True) for i, name in enumerate("abcde"))
KEYS = [f"{name} x1" for name in "abcde"]


def learned(networks: tuple[Predefined, ...] = NETWORKS, ms: float = 2.0) -> list[Point]:
    return [Point(b.name, 1, count(b.make()).total(1)._asdict(), ms, whole=True) for b in networks]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    found = Desk()
    measured_by(monkeypatch, found)
    monkeypatch.setattr(environment, "load", lambda: 0.1)
    monkeypatch.setattr(environment, "cpu_model", lambda: "a desk")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment, "processor_facts", lambda: dict(FACTS))
    return found


def examine(desk: Desk, **options: Any) -> Examination:
    points = options.pop("points", learned())
    label = options.pop("label", LABEL)
    where = options.pop("learned", {**VERSIONS, "cpu": "a desk", "threads": 2, "processor": FACTS})
    options = {"backend": "fake", "networks": NETWORKS, "clock": desk.clock, **options}
    found = doctor.examine(points, label, where, **options)
    assert all(w.closed for w in desk.workers), "a worker was left behind"
    return found


def test_every_network_then_and_now(desk: Desk) -> None:
    desk.ms = {"a x1": 2.2, "b x1": 1.0}
    found = examine(desk)
    assert [(a.point.name, a.point.latency_ms) for a in found.again] == [(n, 2.0) for n in "abcde"]
    assert [a.now_ms for a in found.again] == pytest.approx([2.2, 1.0, 2.0, 2.0, 2.0])
    assert found.again[0].ratio == pytest.approx(1.1)
    assert (found.differences, found.failures, found.remark) == ((), {}, "")
    assert found.unrest == pytest.approx(1.0)
    assert (found.others, found.busy) == (0.0, False)
    asked = desk.keys("sample")
    rounds = [sorted(asked[i : i + 5]) for i in range(0, len(asked), 5)]
    assert rounds == [KEYS] * doctor.SETTINGS.rounds
    assert {r["before"] for r in desk.requests if r["do"] == "sample"} == {""}, "loops of their own"


def test_a_machine_that_slows_down_meanwhile_is_said(desk: Desk) -> None:
    # Six rounds of five networks, three calls each: 90 moments, a tenth of a second apart.
    desk.slowness = lambda at: 1.0 if at - START_S < 4.5 else 1.8
    found = examine(desk)
    assert found.unrest == pytest.approx(1.8, rel=0.02)
    ratios = [a.ratio for a in found.again]
    assert max(ratios) / min(ratios) == pytest.approx(1.0, rel=0.02), "all the same"


def test_how_long_it_took(desk: Desk) -> None:
    desk.start_s, desk.request_s = 3.0, 0.1
    found = examine(desk)
    assert found.starting_s == pytest.approx(3.1), "with asking what it is"
    # Five to build, five in each of six rounds.
    assert found.seconds == pytest.approx(3.1 + 0.1 * 35)
    assert found.seconds == pytest.approx(desk.now)


@pytest.mark.parametrize(("others", "busy"), [(0.5, True), (0.1, False), (None, False)])
def test_other_programs_are_seen_meanwhile(desk: Desk, others: float | None, busy: bool) -> None:
    desk.others = others
    found = examine(desk)
    assert (found.others, found.busy) == (pytest.approx(others or 0.0, rel=0.02), busy)


# ---- What differs


HERE = {**VERSIONS, "cpu": "a desk", "threads": 2, "processor": FACTS}
KIND = "AuthenticAMD family 25 model 17 stepping 1"


@pytest.mark.parametrize(
    ("label", "where", "differences"),
    [
        ("a rack, 64 threads", {"cpu": "a rack", "threads": 64}, (
            Difference("processor", "a rack", f"a desk ({KIND})"), Difference("threads_given", 64, 2))),
        ("a desk, 8 threads", HERE | {"threads": 8, "threads_asked": 8}, (
            Difference("threads_given", 8, 2),)),
    ],
    ids=["name and threads", "threads asked for"],
)  # fmt: skip
def test_on_another_processor_nothing_is_measured(
    desk: Desk, label: str, where: dict[str, Any], differences: tuple[Difference, ...]
) -> None:
    """What else makes another processor, tests/microbench/test_comparable.py says."""
    found = examine(desk, label=label, learned=where)
    assert found.differences == differences
    assert (found.again, desk.workers) == ((), [])


def test_a_model_of_the_old_label_does_not_say_its_processor(desk: Desk) -> None:
    """One name, two processors: it holds here, or not, but which one it is of nobody knows."""
    old = {**VERSIONS, "cpu": "a desk", "threads": 2}
    found = examine(desk, label="a desk, 2 threads", learned=old)
    assert (found.differences, len(found.again), found.remark) == ((), 5, UNSAID)


def test_the_models_threads_are_what_is_compared(desk: Desk) -> None:
    one = {**VERSIONS, "cpu": "a desk", "threads": 1, "threads_asked": 1}
    desk.environment |= {"threads": 1, "threads_asked": 1}
    found = examine(desk, label="a desk, 1 thread", learned=one, backend="fake+threads=1")
    assert (found.differences, len(found.again)) == ((), 5)


def test_with_another_version_or_flag_all_is_measured(desk: Desk) -> None:
    desk.environment |= {"framework_version": "2", "flags": {"X": "1"}, "new field": 1}
    found = examine(desk)
    assert found.differences == (
        Difference("framework_version", "1", "2"), Difference("flags", {}, {"X": "1"}),
    )  # fmt: skip
    assert len(found.again) == 5


def test_a_gpu_that_is_not_there(desk: Desk) -> None:
    desk.error = DeviceError("no gpu here: looked under the table")
    found = examine(desk, device="gpu", label="NVIDIA T4")
    assert found.differences == (Difference("device", "NVIDIA T4", None),)
    assert found.remark == "no gpu here: looked under the table"
    with pytest.raises(DeviceError, match="looked under"):
        examine(desk)  # without a CPU there is no answer


def test_a_gpu_of_another_name(desk: Desk) -> None:
    desk.environment["device_name"] = "NVIDIA L4"
    found = examine(desk, device="gpu", label="NVIDIA T4")
    assert found.differences == (Difference("device", "NVIDIA T4", "NVIDIA L4"),)
    assert desk.keys("sample") == []
    found = examine(desk, device="gpu", label="NVIDIA L4")
    assert (found.differences, len(found.again)) == ((), 5)


# ---- What fails


def test_a_network_that_cannot_be_measured(desk: Desk) -> None:
    desk.refuses["prepare", "a x1"] = 1
    found = examine(desk)
    assert [a.point.name for a in found.again] == ["b", "c", "d", "e"]
    assert found.failures == {"a x1": "ResourceExhausted: no"}
    for key in KEYS:
        desk.refuses["prepare", key] = 1
    with pytest.raises(MeasuringError, match="nothing could be measured"):
        examine(desk)


def test_a_model_without_networks_starts_nothing(desk: Desk) -> None:
    blocks = [Point(p.name, 1, p.counts, 2.0) for p in learned()]
    for points in ([], blocks):
        with pytest.raises(
            InputError, match=rf"none of the model's {len(points)} points is a whole"
        ):
            examine(desk, points=points)
    assert desk.workers == []


def test_ctrl_c_ends_the_worker(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*unused: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        examine(desk)
    assert [w.closed for w in desk.workers] == [True]


# ---- Which of a model's points are measured again


def network(name: str, channels: int = 4) -> Predefined:
    return Predefined(name, tiny(channels), (1, 4), True)


A, B = network("a"), network("b", 5)


def point(of: Predefined, batch_size: int = 1, whole: bool = True, **counts: int) -> Point:
    known = count(of.make()).total(batch_size)._asdict() | counts
    return Point(of.name, batch_size, known, 2.0, whole=whole)


FEW = {k: v for k, v in point(A).counts.items() if k in doctor.SAME_COUNTS}


@pytest.mark.parametrize(
    ("points", "names"),
    [
        ([point(A), point(B)], ["a", "b"]),
        *(([point(A, **{c: 1}), point(B)], ["b"]) for c in ("acts", "inp", "flops", "weights")),
        ([point(A), point(B, ops=999)], ["a", "b"]),
        ([point(network("gone")), point(A, whole=False), point(B)], ["b"]),
        ([Point("a", 1, FEW, 2.0, whole=True)], ["a"]),  # without counts that later versions add
    ],
)
def test_networks_of_the_same_name_and_counts(points: list[Point], names: list[str]) -> None:
    found = references_of(points, [B, A])
    assert [r.point.name for r in found] == names
    assert all(r.point in points for r in found)
    assert all(r.graph == {"a": A, "b": B}[r.point.name].make() for r in found)
    (first,) = references_of([point(A, 4), *points, point(A, 1)], [A])
    assert first.point.batch_size == 4, "one of each, at the batch size that comes first"


def test_references_where_there_are_some() -> None:
    some = [network(REFERENCES[0]), network("other"), network(REFERENCES[2])]
    points = [point(n) for n in some]
    found = [r.point.name for r in references_of(points, some)]
    assert found == [REFERENCES[0], REFERENCES[2]]
    assert [r.point.name for r in references_of(points[1:2], some)] == ["other"]


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "onnxruntime+threads=1"])
def test_of_a_model_of_this_version_the_five_references(backend: str) -> None:
    """As the backend knows them: ONNX Runtime has its networks without batch norms."""
    known = known_blocks(backend, [*BLOCKS, *ALL_NETWORKS])
    whole = [b for b in known if b.whole]
    points = [point(b, n, b.whole) for b in (*known[:3], *whole) for n in b.batch_sizes]
    found = references_of(points, whole)
    assert sorted(r.point.name for r in found) == sorted(REFERENCES)
    assert {r.point.batch_size for r in found} == {1}
    if backend.startswith("onnxruntime"):
        with pytest.raises(InputError, match="whole network of this version"):
            references_of([p for p in points if p.name == REFERENCES[0]], ALL_NETWORKS)


# ---- Once more at the end of learning ------------------------------------------------------------


def test_another_process_times_the_networks_once_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "NETWORKS", NETWORKS)
    desk.ms = dict.fromkeys(KEYS, 2.5)
    again = doctor.once_more(learned(ms=2.0), "fake", "cpu")
    assert [a.point.name for a in again] == list("abcde")
    assert [a.ratio for a in again] == pytest.approx([1.25] * 5)
    assert doctor.repeatability(again, CALM) == pytest.approx(0.25)
    with pytest.raises(InputError, match="none of the model's 0 points is a whole network"):
        doctor.once_more([], "fake", "cpu")


CALM = {"quiet": 1.0, "busy": 1.0}


def test_repeatability_by_hand() -> None:
    """The root of the mean square of log(1.1), log(1 / 1.1), 0 and log(1.21); or what moments differ by, if
    that is more: a tenth of a normal distribution is beyond 1.2816 standard deviations on either side.
    """
    point = learned()[0]
    again = [doctor.Again(point, 2.0 * ratio) for ratio in (1.1, 1 / 1.1, 1.0, 1.21)]
    assert doctor.repeatability(again, CALM) == pytest.approx(1.1**1.5**0.5 - 1.0, rel=1e-9)
    assert doctor.repeatability([], CALM) == 0.0
    moments = {"quiet": 1.2**-1.2816, "busy": 1.2**1.2816}
    for times in (again, []):
        assert doctor.repeatability(times, moments) == pytest.approx(0.2, rel=1e-4)


def test_the_ratio_to_a_former_learning_is_of_the_networks_in_common() -> None:
    former, points = learned(ms=2.0), learned(NETWORKS[:3], ms=3.0)
    block = Point("block", 1, former[0].counts, 1.0)
    other = Point("a", 4, former[0].counts, 1.0, whole=True)
    assert doctor.ratio_to([*former, block], [*points, block, other]) == 1.5
    assert doctor.ratio_to(former, []) is None
