"""A run's order, its groups, and what it does when a worker dies; with a fake worker and clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lolat.errors import DeviceError, MeasuringError
from microbench.jobs import Job, Settings
from microbench.journal import Journal
from microbench.runner import Outcome, Runner
from microbench.timing import LEAST_QUIET
from tests.microbench.fakes import FakeDevice

REFERENCE = Job("reference", {})
ABC = [Job(key, {"graph": key}) for key in "abc"]
ALWAYS = 10**6


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def run(
    device: FakeDevice,
    jobs: list[Job] = ABC,
    settings: Settings = Settings(rounds=3, extra_rounds=0),  # noqa: B008 - frozen
    journal: Journal | None = None,
    available_bytes: int | None = None,
    progress: FailAfter | None = None,
) -> Outcome:
    """A run, and a check that no worker is left."""
    with Runner("fake", "cpu", progress, device.start, device.clock) as runner:
        try:
            return runner.run(jobs, REFERENCE, settings, journal, available_bytes)
        finally:
            runner.__exit__()
            assert all(w.closed for w in device.workers)


def test_every_job_is_visited_once_a_round(device: FakeDevice) -> None:
    outcome = run(device)
    timed = device.keys("time")
    assert [sorted(timed[i : i + 3]) for i in (0, 3, 6)] == [["a", "b", "c"]] * 3
    assert {key: len(visits) for key, visits in outcome.visits.items()} == {"a": 3, "b": 3, "c": 3}
    assert outcome.failures == {}
    assert outcome.environment == {"framework": "fake"}
    assert sorted(device.keys("prepare")) == ["a", "b", "c", "reference"]


def test_a_visit_is_as_long_as_a_slice(device: FakeDevice) -> None:
    device.estimate_ms = {"a": 1.0, "b": 12.0, "c": 400.0}
    outcome = run(device, settings=Settings(rounds=1, slice_s=0.03, extra_rounds=0))
    assert {k: len(v[0].samples) for k, v in outcome.visits.items()} == {"a": 4, "b": 2, "c": 1}


class TestWhileThereIsTime:
    """Three jobs, 10 s each (and 10 s once for the reference): a round takes 30 s."""

    SETTINGS = Settings(rounds=2, extra_rounds=0, most_rounds=9, enough_s=135.0)

    def test_there_are_more_rounds(self, device: FakeDevice) -> None:
        device.request_s = 10
        outcome = run(device, settings=self.SETTINGS)
        assert {k: len(v) for k, v in outcome.visits.items()} == {"a": 4, "b": 4, "c": 4}
        timed = device.keys("time")
        assert [sorted(timed[i : i + 3]) for i in (0, 3, 6, 9)] == [["a", "b", "c"]] * 4

    def test_there_are_no_more_than_the_most(self, device: FakeDevice) -> None:
        outcome = run(device, settings=self.SETTINGS)
        assert {len(v) for v in outcome.visits.values()} == {9}

    def test_the_first_rounds_take_the_time_that_they_take(self, device: FakeDevice) -> None:
        device.request_s = 1e4
        outcome = run(device, settings=self.SETTINGS)
        assert {len(v) for v in outcome.visits.values()} == {2}

    def test_what_a_journal_holds_is_not_measured_again(
        self, device: FakeDevice, tmp_path: Path
    ) -> None:
        journal = Journal(tmp_path / "j", {}, 0.0)
        run(device, settings=self.SETTINGS, journal=journal)
        journal.close()
        again = FakeDevice()
        run(again, settings=self.SETTINGS, journal=Journal(tmp_path / "j", {}, 0.0))
        assert again.keys("time") == []


class TestExtraRounds:
    def test_only_for_those_that_saw_no_calm(self, device: FakeDevice) -> None:
        device.noisy = {"b"}
        jobs = [Job(k, {}) for k in "abcdefghijkl"]
        run(device, jobs, Settings(rounds=2, extra_rounds=3, extra_s=1e9))
        assert device.keys("time")[24:] == ["b", "b", "b"]

    def test_end_when_it_has_seen_enough(self, device: FakeDevice) -> None:
        # one calm sample a visit, two of them after the rounds
        device.estimate_ms = {"a": 400.0}
        run(device, [Job("a", {})], Settings(rounds=2, extra_rounds=9, extra_s=1e9))
        assert len(device.keys("time")) == LEAST_QUIET

    def test_end_with_their_time(self, device: FakeDevice) -> None:
        device.noisy = {"b"}
        device.request_s = 10
        jobs = [Job(k, {}) for k in "abcdefghijkl"]
        run(device, jobs, Settings(rounds=2, extra_rounds=9, extra_s=25))
        assert device.keys("time")[24:] == ["b", "b", "b"]  # at 0, 10 and 20 of 25 s

    def test_wait_for_a_calm_moment(self, device: FakeDevice) -> None:
        device.noisy = {"b"}
        jobs = [Job(k, {}) for k in "abcdefghijkl"]
        run(device, jobs, Settings(rounds=2, extra_rounds=2, extra_s=1e9, patience_s=0.7))
        asked = [(r.get("quiet_ms"), r.get("patience_s")) for r in device.requests if "calls" in r]
        # the reference takes 5 ms everywhere but beside b
        assert asked == [(None, None)] * 24 + [(pytest.approx(6.5), 0.7)] * 2

    def test_not_for_a_job_that_failed(self, device: FakeDevice) -> None:
        device.noisy = {"b"}
        device.refuses["prepare", "b"] = ALWAYS
        jobs = [Job(k, {}) for k in "abcdefghijkl"]
        outcome = run(device, jobs, Settings(rounds=2, extra_rounds=3, extra_s=1e9))
        assert device.keys("time").count("b") == 0
        assert list(outcome.failures) == ["b"]


class TestMemory:
    def test_what_does_not_fit_is_skipped_with_a_reason(self, device: FakeDevice) -> None:
        big = Job("big", {}, need_bytes=3 * 2**30)
        outcome = run(device, [*ABC, big], available_bytes=2**31)
        assert outcome.failures == {
            "big": "skipped: needs about 3.0 GiB of memory, 2.0 GiB are free"
        }
        assert "big" not in [key for _, _, key in device.asked]
        assert sorted(outcome.visits) == ["a", "b", "c"]
        assert device.keys("forget") == [], "what is skipped makes no groups"

    def test_where_memory_is_not_known_everything_is_tried(self, device: FakeDevice) -> None:
        assert "big" in run(device, [Job("big", {}, need_bytes=2**60)]).visits

    def test_groups_are_forgotten_one_after_the_other(self, device: FakeDevice) -> None:
        jobs = [Job(k, {}, need_bytes=40, keep_bytes=30) for k in "abcd"]
        outcome = run(device, jobs, available_bytes=120)
        forgotten = [r["keys"] for r in device.requests if r["do"] == "forget"]
        assert forgotten == [["a", "b"], ["c", "d"]]
        assert set(device.keys("time")[:6]) == {"a", "b"}
        assert set(device.keys("time")[6:]) == {"c", "d"}
        assert sorted(outcome.visits) == ["a", "b", "c", "d"]

    def test_a_worker_that_dies_while_forgetting_is_replaced(self, device: FakeDevice) -> None:
        jobs = [Job(k, {}, keep_bytes=30) for k in "abcd"]
        device.dies["forget", ""] = 1
        assert sorted(run(device, jobs, available_bytes=120).visits) == ["a", "b", "c", "d"]


class TestDeath:
    def test_while_preparing(self, device: FakeDevice) -> None:
        device.dies["prepare", "b"] = ALWAYS
        outcome = run(device)
        assert outcome.failures == {"b": "the measuring process was killed"}
        assert {k: len(v) for k, v in outcome.visits.items()} == {"a": 3, "c": 3}
        assert device.keys("prepare").count("b") == 1, "what kills is not tried again"

    def test_while_timing(self, device: FakeDevice, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "j", {}, 0)
        device.dies["time", "b"] = ALWAYS
        outcome = run(device, journal=journal)
        assert list(outcome.failures) == ["b"]
        assert {k: len(v) for k, v in outcome.visits.items()} == {"a": 3, "c": 3}
        second = [(verb, key) for worker, verb, key in device.asked if worker == 1]
        assert {k for verb, k in second if verb == "prepare"} == {"a", "c", "reference"}
        assert next(r for r in journal.records if "failed" in r)["key"] == "b"

    def test_refusing_a_job_is_not_dying(self, device: FakeDevice) -> None:
        device.refuses["time", "b"] = ALWAYS
        outcome = run(device)
        assert outcome.failures == {"b": "ResourceExhausted: no"}
        assert len(device.workers) == 1
        assert device.keys("time").count("b") == 1

    def test_times_of_a_job_that_fails_later_do_not_count(self, device: FakeDevice) -> None:
        settings = Settings(rounds=3, extra_rounds=0)
        with Runner("fake", "cpu", None, device.start, device.clock) as runner:
            progress = FailAfter(device, "b", visits=2)
            runner.progress = progress
            outcome = runner.run(ABC, REFERENCE, settings)
        assert device.keys("time").count("b") == 3
        assert "b" not in outcome.visits
        assert "b: ResourceExhausted: no; going on without it" in progress.notes

    def test_times_before_a_death_count_if_there_are_enough(self, device: FakeDevice) -> None:
        # four samples a visit; with two, one visit is too few
        for estimate_ms, kept in ((1.0, True), (12.0, False)):
            fake = FakeDevice()
            fake.estimate_ms = {"b": estimate_ms}
            progress = FailAfter(fake, "b", 1, "dies")
            outcome = run(fake, progress=progress, settings=Settings(rounds=3, extra_rounds=5))
            assert ("b" in outcome.visits) == kept
            assert ("b" in outcome.failures) != kept
            assert fake.keys("time").count("b") == 2, "what kills is not tried again"
            assert progress.notes[0].endswith(
                "going on with the times that it has" if kept else "going on without it"
            )

    def test_five_in_a_row_are_not_the_jobs(self, device: FakeDevice) -> None:
        jobs = [Job(str(i), {}) for i in range(20)]
        for job in jobs:
            device.dies["prepare", job.key] = ALWAYS
        with pytest.raises(MeasuringError, match="died 5 times in a row"):
            run(device, jobs)
        assert len(device.workers) == 5

    def test_five_with_others_between_are(self, device: FakeDevice) -> None:
        jobs = [Job(str(i), {}) for i in range(20)]
        for job in jobs[::2]:
            device.dies["prepare", job.key] = ALWAYS
        assert len(run(device, jobs).failures) == 10


class FailAfter:
    """Progress that makes a job fail after some visits."""

    def __init__(self, device: FakeDevice, key: str, visits: int, how: str = "refuses") -> None:
        self.device, self.key, self.visits, self.how = device, key, visits, how
        self.notes: list[str] = []

    def start(self, text: str, total: int) -> None:
        pass

    def step(self) -> None:
        if self.device.keys("time").count(self.key) == self.visits:
            getattr(self.device, self.how)["time", self.key] = ALWAYS

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("how", ["dies", "refuses"])
def test_without_the_reference_there_is_no_run(device: FakeDevice, how: str) -> None:
    getattr(device, how)["prepare", "reference"] = ALWAYS
    with pytest.raises(MeasuringError, match="reference block cannot be measured"):
        run(device)


@pytest.mark.parametrize("how", ["dies", "refuses"])
def test_a_backend_that_does_not_say_what_it_is(device: FakeDevice, how: str) -> None:
    getattr(device, how)["environment", ""] = ALWAYS
    with pytest.raises(MeasuringError, match="does not say what it is"):
        run(device)
    assert device.workers[0].closed


def test_what_a_worker_cannot_start_with_is_said_as_it_is() -> None:
    def refuse(backend: str, device: str) -> Any:
        raise DeviceError(f"no {device} for {backend}")

    with pytest.raises(DeviceError, match="no gpu for fake"):
        Runner("fake", "gpu", None, refuse)


def test_nothing_measurable(device: FakeDevice) -> None:
    for key in "abc":
        device.refuses["prepare", key] = ALWAYS
    with pytest.raises(MeasuringError, match=r"nothing could be measured \(a: ResourceExhausted"):
        run(device)
    with pytest.raises(MeasuringError, match="no jobs"):
        run(FakeDevice(), [])


class TestResume:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "m.json.journal.jsonl"

    def interrupted(self, device: FakeDevice, path: Path, after: int) -> None:
        """A run that is stopped after some visits."""
        with OpenJournal(path) as journal:
            append = journal.append

            def stop(record: Any) -> None:
                append(record)
                if len(journal.records) == after:
                    raise KeyboardInterrupt

            journal.append = stop  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                run(device, journal=journal)

    @pytest.mark.parametrize("after", range(1, 9))
    def test_measures_what_is_missing_and_nothing_else(self, path: Path, after: int) -> None:
        first, second = FakeDevice(), FakeDevice()
        self.interrupted(first, path, after)
        with OpenJournal(path) as journal:
            outcome = run(second, journal=journal)
        assert len(first.keys("time")) + len(second.keys("time")) == 9
        assert {k: len(v) for k, v in outcome.visits.items()} == {"a": 3, "b": 3, "c": 3}
        missing = set(second.keys("time"))
        assert set(second.keys("prepare")) == missing | {"reference"}

    def test_of_a_run_that_was_done_asks_nothing(self, path: Path) -> None:
        self.interrupted(FakeDevice(), path, 9)
        device = FakeDevice()
        with OpenJournal(path) as journal:
            run(device, journal=journal)
        assert [verb for _, verb, _ in device.asked] == ["environment"]

    def test_a_job_that_failed_stays_out(self, path: Path, device: FakeDevice) -> None:
        device.refuses["prepare", "b"] = ALWAYS
        self.interrupted(device, path, 3)
        again, notes = FakeDevice(), FailAfter(FakeDevice(), "", -1)
        with OpenJournal(path) as journal:
            outcome = run(again, journal=journal, progress=notes)
        assert outcome.failures == {"b": "ResourceExhausted: no"}
        assert "b" not in [key for _, _, key in again.asked]
        assert notes.notes == ["1 skipped, failed before (first: b: ResourceExhausted: no)"]

    def test_a_job_that_the_worker_died_of_is_tried_once_more(
        self, path: Path, device: FakeDevice
    ) -> None:
        device.dies["prepare", "b"] = ALWAYS
        self.interrupted(device, path, 3)
        notes = FailAfter(FakeDevice(), "", -1)
        with OpenJournal(path) as journal:
            outcome = run(FakeDevice(), journal=journal, progress=notes)
        assert notes.notes == ["trying again what the measuring process died of: b"]
        assert outcome.failures == {}
        assert {k: len(v) for k, v in outcome.visits.items()} == {"a": 3, "b": 3, "c": 3}

    @pytest.mark.parametrize("how", ["dies", "refuses"])
    def test_and_not_a_second_time(self, path: Path, device: FakeDevice, how: str) -> None:
        device.dies["prepare", "b"] = ALWAYS
        self.interrupted(device, path, 3)
        again, third = FakeDevice(), FakeDevice()
        getattr(again, how)["prepare", "b"] = ALWAYS
        for fake in (again, third):
            with OpenJournal(path) as journal:
                outcome = run(fake, journal=journal)
            assert list(outcome.failures) == ["b"]
        assert again.keys("prepare").count("b") == 1
        assert "b" not in [key for _, _, key in third.asked]

    def test_what_a_job_had_before_the_death_is_kept(self, path: Path, device: FakeDevice) -> None:
        with OpenJournal(path) as journal:
            run(device, journal=journal, progress=FailAfter(device, "b", 2, "dies"))
        again = FakeDevice()
        with OpenJournal(path) as journal:
            outcome = run(again, journal=journal)
        assert again.keys("time") == ["b"], "the third visit, and nothing else"
        assert len(outcome.visits["b"]) == 3

    def test_a_second_death_leaves_the_times_and_asks_no_more(
        self, path: Path, device: FakeDevice
    ) -> None:
        again, third = FakeDevice(), FakeDevice()
        again.dies["time", "b"] = 1
        with OpenJournal(path) as journal:
            run(device, journal=journal, progress=FailAfter(device, "b", 2, "dies"))
        for fake in (again, third):
            with OpenJournal(path) as journal:
                outcome = run(fake, journal=journal)
            assert (len(outcome.visits["b"]), outcome.failures) == (2, {})
        assert again.keys("time") == ["b"]
        assert [verb for _, verb, _ in third.asked] == ["environment"]

    def test_what_is_measured_already_needs_no_memory(self, path: Path) -> None:
        self.interrupted(FakeDevice(), path, 9)
        jobs = [Job(j.key, j.payload, need_bytes=100) for j in ABC]
        with OpenJournal(path) as journal:
            outcome = run(FakeDevice(), jobs, journal=journal, available_bytes=10)
        assert outcome.failures == {}
        assert len(outcome.visits) == 3


class OpenJournal(Journal):
    """The journal of these tests, closed at the end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, {"same": "run"}, 0.0)

    def __enter__(self) -> OpenJournal:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()
