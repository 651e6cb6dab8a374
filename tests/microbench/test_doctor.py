"""A model's blocks measured again by fake workers, in fake seconds."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.counts import count
from lolat.errors import DeviceError, InputError, MeasuringError
from lolat.points import Point
from microbench import doctor, environment
from microbench.blocks import Predefined
from microbench.comparable import UNSAID
from microbench.doctor import LEAST_ROUNDS, Difference, Examination
from microbench.layers import Layers
from microbench.runner import Runner
from tests.microbench.fakes import FakeDevice, FakeWorker
from tests.microbench.test_learn import Notes

VERSIONS = {"framework": "fake", "framework_version": "1", "flags": {}}
LABEL = "a desk (family 25 model 17), 2 threads"
FACTS = {"vendor": "AuthenticAMD", "family": 25, "model": 17, "stepping": 1, "l3_bytes": 2**25}


class Desk(FakeDevice):
    """A machine that takes `ms` for each block, and `reference_ms`; `dies_at`: in a block's n-th visit."""

    def __init__(self) -> None:
        super().__init__()
        self.environment = dict(VERSIONS)
        self.ms: dict[str, float] = {}
        self.reference_ms = 5.0
        self.dies_at: dict[str, int] = {}
        self.start_s = 0.0
        self.error: BaseException | None = None

    def start(self, backend: str, device: str) -> Any:
        self.now += self.start_s
        if self.error is not None:
            raise self.error
        self.workers.append(DeskWorker(self, len(self.workers)))
        return self.workers[-1]


class DeskWorker(FakeWorker):
    device: Desk

    def request(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        key, device = document.get("key", ""), self.device
        if document["do"] == "time" and device.keys("time").count(key) == device.dies_at.get(key):
            device.dies["time", key] = 1
        answer = super().request(document, limit_s)
        if "samples_ms" in answer and key not in device.restless:
            answer["reference_ms"] = [device.reference_ms] * len(answer["reference_ms"])
        if "samples_ms" in answer:
            answer["samples_ms"] = [device.ms.get(key, 2.0)] * len(answer["samples_ms"])
        return answer


def tiny(channels: int) -> Any:
    def make() -> Any:
        n = Layers(f"tiny {channels}", 8, 3)
        return n.done(n.cba(n.input, channels, 3))

    return make


BLOCKS = tuple(Predefined(name, tiny(4 + i), (1,)) for i, name in enumerate("abcde"))
KEYS = [f"{name} x1" for name in "abcde"]


def learned(blocks: tuple[Predefined, ...] = BLOCKS, ms: float = 2.0) -> list[Point]:
    return [Point(b.name, 1, count(b.make()).total(1)._asdict(), ms, spread=0.01) for b in blocks]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    found = Desk()
    monkeypatch.setattr(
        doctor, "Runner", lambda b, d, p, clock: Runner(b, d, p, found.start, clock)
    )
    monkeypatch.setattr(environment, "load", lambda: 0.1)
    monkeypatch.setattr(environment, "cpu_model", lambda: "a desk")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment, "processor_facts", lambda: dict(FACTS))
    return found


def examine(desk: Desk, **options: Any) -> Examination:
    points = options.pop("points", learned())
    label = options.pop("label", LABEL)
    where = options.pop("learned", {**VERSIONS, "cpu": "a desk", "threads": 2, "processor": FACTS})
    options = {"calm_ms": 6.5, "backend": "fake", "blocks": BLOCKS, "clock": desk.clock, **options}
    found = doctor.examine(points, {}, label, where, **options)
    assert all(w.closed for w in desk.workers), "a worker was left behind"
    return found


def test_every_block_then_and_now(desk: Desk) -> None:
    desk.ms = {"a x1": 2.2, "b x1": 1.0}
    found = examine(desk)
    assert sorted((b.name, b.batch_size, b.learned_ms, b.now_ms) for b in found.blocks) == [
        ("a", 1, 2.0, 2.2), ("b", 1, 2.0, 1.0), ("c", 1, 2.0, 2.0), ("d", 1, 2.0, 2.0),
        ("e", 1, 2.0, 2.0),
    ]  # fmt: skip
    assert all(b.calm for b in found.blocks)
    assert (found.differences, found.failures, found.remark) == ((), {}, "")
    assert (found.reference_ms, found.unrest, found.at_known_calm) == (5.0, 1.0, True)
    assert (found.load, found.threads, found.busy) == (0.1, 2, False)


def test_a_calm_machine_is_not_kept_longer_than_needed(desk: Desk) -> None:
    examine(desk)
    for key in KEYS:  # all once, then some rounds with one visit at once and one after a wait
        assert desk.keys("time").count(key) == 1 + 2 * LEAST_ROUNDS
    waits = [r for r in desk.requests if r.get("patience_s")]
    assert len(waits) == LEAST_ROUNDS * len(KEYS)
    assert all(r["calm_ms"] == 6.5 for r in waits)


@pytest.mark.parametrize("request_s", [0.05, 0.3, 0.7])
def test_slow_blocks_cost_samples_not_time(desk: Desk, request_s: float) -> None:
    desk.request_s, desk.reference_ms = request_s, 50.0  # never calm: as long as it may
    found = examine(desk)
    assert len(found.blocks) == 5
    one_more = 2 * request_s  # the clock is looked at before each pair of visits
    assert 10 - one_more <= found.seconds <= 10 + request_s + one_more
    assert found.seconds < 20
    assert found.seconds == pytest.approx(desk.now)
    assert found.starting_s == pytest.approx(request_s)


def test_one_visit_of_each_block_is_always_made(desk: Desk) -> None:
    desk.request_s = 2.0
    found = examine(desk)
    assert sorted(desk.keys("time")) == KEYS
    assert len(found.blocks) == 5


def test_a_slow_start_leaves_some_time_to_measure(desk: Desk) -> None:
    desk.start_s, desk.request_s, desk.reference_ms = 15.0, 0.1, 50.0
    found = examine(desk)
    assert found.starting_s == pytest.approx(15.1)
    assert 18.0 <= found.seconds <= 18.4


def test_moments_as_calm_as_those_of_learning_are_sought(desk: Desk) -> None:
    desk.restless = {"c x1"}
    found = examine(desk)
    assert {b.name: b.calm for b in found.blocks} == {n: n != "c" for n in "abcde"}
    assert (found.at_known_calm, found.reference_ms) == (True, 5.0)
    desk.restless, desk.reference_ms = set(), 8.0
    found = examine(desk)
    assert (found.at_known_calm, found.reference_ms) == (False, 8.0)
    found = examine(desk, calm_ms=None)
    assert (found.at_known_calm, found.reference_ms) == (None, 8.0)


def test_a_busy_machine(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "load", lambda: 1.3)
    assert examine(desk).busy
    monkeypatch.setattr(environment, "load", lambda: None)
    assert not examine(desk).busy


def test_on_another_processor_nothing_is_measured(desk: Desk) -> None:
    where = {"cpu": "a rack", "threads": 64}
    found = examine(desk, label="a rack, 64 threads", learned=where)
    assert found.differences == (
        Difference("processor", "a rack", "a desk (AuthenticAMD family 25 model 17 stepping 1)"),
        Difference("threads", 64, 2),
    )
    assert (found.blocks, desk.workers) == ((), [])
    # A file that says no more than its label.
    found = examine(desk, label="a phone", learned={})
    assert found.differences == (Difference("device", "a phone", LABEL),)


def test_a_model_of_the_old_label_does_not_say_its_processor(desk: Desk) -> None:
    """One name, two processors: it holds here, or not, but which one it is of nobody knows."""
    old = {**VERSIONS, "cpu": "a desk", "threads": 2}
    found = examine(desk, label="a desk, 2 threads", learned=old)
    assert (found.differences, len(found.blocks), found.remark) == ((), 5, UNSAID)


@pytest.mark.parametrize(
    ("field", "then", "differs"),
    [
        ("model", 1, Difference(
            "processor", "a desk (AuthenticAMD family 25 model 1 stepping 1)",
            "a desk (AuthenticAMD family 25 model 17 stepping 1)")),
        ("l3_bytes", 2**24, Difference("l3_bytes", 2**24, 2**25)),
    ],
)  # fmt: skip
def test_a_processor_of_the_same_name_is_another_one(
    desk: Desk, field: str, then: int, differs: Difference
) -> None:
    where = {**VERSIONS, "cpu": "a desk", "threads": 2, "processor": FACTS | {field: then}}
    found = examine(desk, learned=where)
    assert found.differences == (differs,)
    assert (found.blocks, desk.workers) == ((), [])


def test_the_models_threads_are_what_is_compared(desk: Desk) -> None:
    one = {**VERSIONS, "cpu": "a desk", "threads": 1, "threads_asked": 1}
    desk.environment |= {"threads": 1, "threads_asked": 1}
    found = examine(desk, label="a desk, 1 thread", learned=one, backend="fake+threads=1")
    assert (found.differences, len(found.blocks)) == ((), 5)
    assert found.threads == 2, "of the machine, whose load it is"
    eight = one | {"threads": 8, "threads_asked": 8}
    workers = len(desk.workers)
    found = examine(desk, label="a desk, 8 threads", learned=eight, backend="fake+threads=8")
    assert found.differences == (Difference("threads", 8, 2),)
    assert len(desk.workers) == workers


def test_with_another_version_or_flag_all_is_measured(desk: Desk) -> None:
    desk.environment |= {"framework_version": "2", "flags": {"X": "1"}, "new field": 1}
    found = examine(desk)
    assert found.differences == (
        Difference("framework_version", "1", "2"), Difference("flags", {}, {"X": "1"}),
    )  # fmt: skip
    assert len(found.blocks) == 5


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
    assert desk.keys("time") == []
    found = examine(desk, device="gpu", label="NVIDIA L4")
    assert (found.differences, len(found.blocks)) == ((), 5)


def test_a_block_that_cannot_be_measured(desk: Desk) -> None:
    desk.refuses["prepare", "a x1"] = 1
    found = examine(desk)
    assert sorted(b.name for b in found.blocks) == ["b", "c", "d", "e"]
    assert found.failures == {"a x1": "ResourceExhausted: no"}
    for key in KEYS:
        desk.refuses["prepare", key] = 1
    with pytest.raises(MeasuringError, match="nothing could be measured"):
        examine(desk)


@pytest.mark.parametrize("visit", [1, 2, 4])
def test_a_block_that_fails_later_keeps_the_times_that_it_has(desk: Desk, visit: int) -> None:
    desk.dies_at = {"a x1": visit}
    found = examine(desk)
    assert len(found.blocks) == 5
    assert desk.keys("time").count("a x1") == visit + 1
    assert len(desk.workers) == 2


def test_a_model_without_points_starts_nothing(desk: Desk) -> None:
    with pytest.raises(InputError, match="no points"):
        examine(desk, points=[])
    assert desk.workers == []


def test_remarks_reach_the_user_and_stages_of_single_visits_do_not(desk: Desk) -> None:
    class Stages(Notes):
        def __init__(self) -> None:
            super().__init__()
            self.stages: list[tuple[str, int]] = []
            self.done = 0

        def start(self, text: str, total: int) -> None:
            self.stages.append((text, total))

        def step(self) -> None:
            self.done += 1

    desk.dies_at, seen = {"a x1": 3}, Stages()
    examine(desk, progress=seen)
    assert seen.stages == [("building", 5), ("measuring", 5), ("measuring", 5 * LEAST_ROUNDS)]
    assert seen.done == sum(total for _, total in seen.stages)
    assert len(seen.notes) == 1
    assert "a x1: the measuring process was killed" in seen.notes[0]


def test_ctrl_c_ends_the_worker(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*unused: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        examine(desk)
    assert [w.closed for w in desk.workers] == [True]


def test_the_stage_is_done_when_the_time_is(desk: Desk) -> None:
    class Steps(Notes):
        left = 0

        def start(self, text: str, total: int) -> None:
            self.left += total

        def step(self) -> None:
            self.left -= 1

    desk.request_s, seen = 2.0, Steps()
    examine(desk, progress=seen)
    assert seen.left == 0
