"""Blocks measured after whole networks: whose turn it is, and what happens when one of them fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import MeasuringError
from microbench.jobs import Job, Settings
from microbench.journal import Journal
from microbench.runner import MOST_DEATHS, MOST_LOOPS, Outcome, Runner
from tests.microbench.fakes import START_S, FakeDevice

NETWORKS = [Job(key, {"graph": key}, whole=True) for key in ("n1", "n2", "n3")]
BLOCKS = [Job(key, {"graph": key}) for key in "abcdef"]
JOBS = [*BLOCKS, *NETWORKS]
ALWAYS = 10**6
Act = Callable[[FakeDevice], object]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


class Watch:
    """Progress that notes what is said, and does something to the device ahead of each measurement."""

    def __init__(self, device: FakeDevice, act: Act = lambda device: None) -> None:
        self.device, self.act = device, act
        self.notes: list[str] = []
        self.stages: list[tuple[str, int]] = []

    def start(self, text: str, total: int) -> None:
        self.stages.append((text, total))

    def step(self) -> None:
        if self.stages[-1][0] == "measuring":
            self.act(self.device)

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(
    device: FakeDevice,
    jobs: list[Job] = JOBS,
    networks: list[Job] = NETWORKS,
    settings: Settings = Settings(rounds=3),  # noqa: B008 - frozen
    journal: Journal | None = None,
    progress: Watch | None = None,
    available_bytes: int | None = None,
) -> Outcome:
    with Runner("fake", "cpu", progress, device.start, device.clock) as runner:
        return runner.run(jobs, networks, settings, journal, available_bytes)


def ran_before(device: FakeDevice) -> list[str]:
    """Which network ran before each block, in order."""
    return [r["before"] for r in device.requests if r["do"] == "sample" and r["key"] in "abcdef"]


def test_every_job_once_a_round_and_no_more(device: FakeDevice) -> None:
    outcome = run(device)
    asked = device.keys("sample")
    everything = sorted(j.key for j in JOBS)
    assert [sorted(asked[i : i + 9]) for i in (0, 9, 18)] == [everything] * 3
    assert device.keys("time") == [], "no reference block, no extra rounds"
    assert {k: len(v) for k, v in outcome.visits.items()} == dict.fromkeys(everything, 3)
    assert sorted(device.keys("prepare")) == everything


def test_blocks_come_after_the_networks_in_turns(device: FakeDevice) -> None:
    run(device)
    before = ran_before(device)
    assert len(before) == 18
    assert Counter(before) == {"n1": 6, "n2": 6, "n3": 6}
    for i in range(15):
        assert before[i] == before[i + 3]
        assert len(set(before[i : i + 3])) == 3


def test_a_block_is_measured_once_and_a_network_in_a_loop(device: FakeDevice) -> None:
    device.estimate_ms = {"a": 0.01, "n1": 1.0, "n2": 45.0, "n3": 900.0}
    outcome = run(device, settings=Settings(rounds=1, slice_s=0.1))
    calls = {k: len(v[0].samples) for k, v in outcome.visits.items()}
    assert calls == {**dict.fromkeys("abcdef", 1), "n1": MOST_LOOPS, "n2": 2, "n3": 1}
    for key, (visit,) in outcome.visits.items():
        alone = key.startswith("n")
        assert (visit.before == "") == alone
        assert len(visit.reference) == (0 if alone else 1)
        assert len(visit.at_s) == len(visit.samples)


def test_what_is_kept_is_what_the_worker_said(device: FakeDevice, tmp_path: Path) -> None:
    device.ms = {"a": 3.0, "n1": 40.0}
    journal = Journal(tmp_path / "j", {}, 0)
    outcome = run(device, [BLOCKS[0], NETWORKS[0]], NETWORKS[:1], Settings(rounds=1), journal)
    journal.close()
    (visit,) = outcome.visits["a"]
    assert (visit.samples, visit.reference, visit.before) == ((3.0,), (40.0,), "n1")
    assert START_S < visit.at_s[0] < START_S + 1
    records = {r["key"]: r for r in journal.records}
    assert records["a"].keys() == {"key", "samples_ms", "reference_ms", "at_s", "before", "at"}
    assert (records["a"]["before"], records["n1"]["before"]) == ("n1", "")


@pytest.mark.parametrize("how", ["refuses", "dies"])
def test_a_network_that_cannot_be_built_is_left_out_and_the_blocks_are_not(
    device: FakeDevice, how: str
) -> None:
    getattr(device, how)["prepare", "n2"] = ALWAYS
    outcome = run(device)
    assert list(outcome.failures) == ["n2"]
    assert device.keys("prepare").count("n2") == 1, "and is not tried again"
    assert Counter(ran_before(device)) == {"n1": 9, "n3": 9}
    assert {len(v) for v in outcome.visits.values()} == {3}


@pytest.mark.parametrize("how", ["refuses", "dies"])
def test_a_network_that_cannot_be_built_again_is_not_the_blocks_fault(
    device: FakeDevice, how: str
) -> None:
    """The worker died of something else; in the new one a network that was there cannot be built."""

    def break_n1(device: FakeDevice) -> None:
        if len(device.workers) == 2:
            getattr(device, how)["prepare", "n1"] = ALWAYS

    device.dies["sample", "b"] = ALWAYS
    watch = Watch(device, break_n1)
    outcome = run(device, progress=watch)
    assert set(outcome.failures) | outcome.stopped == {"b", "n1"}
    assert {k: len(v) for k, v in outcome.visits.items() if k in "acdef"} == dict.fromkeys(
        "acdef", 3
    )
    assert any(n.startswith("n1: ") for n in watch.notes)


def test_a_network_of_a_later_group_that_cannot_be_built_is_not_the_blocks_fault(
    device: FakeDevice,
) -> None:
    """Too little memory for all at once: blocks are measured before the networks' own turn comes."""
    device.refuses["prepare", "n1"] = ALWAYS
    outcome = run(device, settings=Settings(rounds=3, together=3))
    assert list(outcome.failures) == ["n1"]
    assert sorted(outcome.visits) == ["a", "b", "c", "d", "e", "f", "n2", "n3"]
    assert "n1" not in ran_before(device)


def test_a_network_that_kills_the_worker_in_its_own_loop(device: FakeDevice) -> None:
    device.dies["sample", "n3"] = ALWAYS
    outcome = run(device)
    assert outcome.failures == {"n3": "the measuring process was killed"}
    assert device.keys("sample").count("n3") == 1
    assert {k: len(v) for k, v in outcome.visits.items()} == dict.fromkeys(
        [*"abcdef", "n1", "n2"], 3
    )
    death = next(i for i, asked in enumerate(device.asked) if asked == (0, "sample", "n3"))
    after = [r["before"] for r in device.requests[death:] if r["do"] == "sample" and r["before"]]
    assert set(after) <= {"n1", "n2"}


@pytest.mark.parametrize("how", ["refuses", "dies"])
def test_without_any_network_there_is_no_run(device: FakeDevice, how: str) -> None:
    for network in NETWORKS:
        getattr(device, how)["prepare", network.key] = ALWAYS
    with pytest.raises(MeasuringError) as caught:
        run(device)
    reason = {"refuses": "ResourceExhausted: no", "dies": "the measuring process was killed"}[how]
    assert str(caught.value) == (
        f"no network to measure blocks after can be run (first: n1: {reason})"
    )
    with pytest.raises(MeasuringError, match=r"can be run \(first: none\)"):
        run(FakeDevice(), networks=[])


def test_networks_alone_need_no_others(device: FakeDevice) -> None:
    assert sorted(run(device, NETWORKS, [], Settings(rounds=2)).visits) == ["n1", "n2", "n3"]


def test_networks_that_are_no_jobs_are_built_when_their_turn_comes(device: FakeDevice) -> None:
    outcome = run(device, BLOCKS, NETWORKS)
    assert sorted(outcome.visits) == list("abcdef")
    assert Counter(ran_before(device)) == {"n1": 6, "n2": 6, "n3": 6}
    assert Counter(device.keys("prepare")) == Counter([*"abcdef", "n1", "n2", "n3"])


def test_blocks_that_all_kill_the_worker_are_not_the_blocks(device: FakeDevice) -> None:
    """A network is built anew between two deaths, which does not make them fewer in a row."""
    for block in BLOCKS:
        device.dies["sample", block.key] = ALWAYS
    with pytest.raises(MeasuringError, match=f"died {MOST_DEATHS} times in a row"):
        run(device, BLOCKS)


def test_a_block_that_dies_before_it_was_seen_often_enough_is_out(device: FakeDevice) -> None:
    """Three samples are enough, one a round; two are not."""
    for rounds, kept in ((2, False), (3, True)):
        fake = FakeDevice()

        def die(device: FakeDevice, rounds: int = rounds) -> None:
            if device.keys("sample").count("b") == rounds:
                device.dies["sample", "b"] = ALWAYS

        outcome = run(fake, settings=Settings(rounds=5), progress=Watch(fake, die))
        assert ("b" in outcome.visits) == kept
        assert ("b" in outcome.failures) != kept
        assert fake.keys("sample").count("b") == rounds + 1


@pytest.mark.parametrize("after", [1, 5, 13, 26])
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, after: int) -> None:
    first, second = FakeDevice(), FakeDevice()

    def stop(device: FakeDevice) -> None:
        if len(device.keys("sample")) == after:
            raise KeyboardInterrupt

    journal = Journal(tmp_path / "j", {}, 0)
    with pytest.raises(KeyboardInterrupt):
        run(first, journal=journal, progress=Watch(first, stop))
    journal.close()
    journal = Journal(tmp_path / "j", {}, 1)
    outcome = run(second, journal=journal)
    journal.close()
    assert len(first.keys("sample")) + len(second.keys("sample")) == 27
    assert {k: len(v) for k, v in outcome.visits.items()} == {j.key: 3 for j in JOBS}
    assert not any(
        visit.reference and not visit.before for v in outcome.visits.values() for visit in v
    )


def test_a_network_that_needs_too_much_memory_is_not_run_before_others(device: FakeDevice) -> None:
    big = Job("n2", {}, need_bytes=2**40, whole=True)
    networks: list[Any] = [NETWORKS[0], big, NETWORKS[2]]
    outcome = run(device, [*BLOCKS, *networks], networks, available_bytes=2**30)
    assert list(outcome.failures) == ["n2"]
    assert "skipped: needs about 1024.0 GiB" in outcome.failures["n2"]
    assert Counter(ran_before(device)) == {"n1": 9, "n3": 9}
