"""What a run does, after networks, and when its worker dies; a fake one."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import DeviceError, MeasuringError
from microbench.journal import Journal
from microbench.runner import MOST_DEATHS, Job, Outcome, Runner, Settings
from microbench.timing import MOST_LOOPS
from tests.microbench.fakes import START_S, FakeDevice, Watcher

NET = Job("net", {}, whole=True)
ABC = [Job(key, {"graph": key}) for key in "abc"]
NETWORKS = [Job(key, {"graph": key}, whole=True) for key in ("n1", "n2", "n3")]
BLOCKS = [Job(key, {"graph": key}) for key in "abcdef"]
MANY = [Job(key, {"graph": key}) for key in "abcdefghijkl"]
MIXED = [*BLOCKS, *NETWORKS]
ALWAYS = 10**6
HOW = pytest.mark.parametrize("how", ["dies", "refuses"])
REASONS = {"refuses": "ResourceExhausted: no", "dies": "the measuring process was killed"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.json.journal.jsonl"


def run(
    device: FakeDevice,
    jobs: list[Job] = ABC,
    networks: Any = (NET,),
    settings: Settings = Settings(rounds=3),  # noqa: B008 - frozen
    journal: Journal | None = None,
    available_bytes: int | None = None,
    progress: Watcher | None = None,
) -> Outcome:
    """A run, and a check that no worker is left."""
    try:
        with Runner("fake", "cpu", progress, device.start, device.clock) as runner:
            return runner.run(jobs, networks, settings, journal, available_bytes)
    finally:
        assert all(w.closed for w in device.workers)


def after(
    device: FakeDevice, jobs: list[Job] = MIXED, networks: Any = NETWORKS, **o: Any
) -> Outcome:
    """A run of blocks after several networks, which are jobs themselves."""
    return run(device, jobs, networks, **o)


def visits(outcome: Outcome) -> dict[str, int]:
    return {key: len(taken) for key, taken in outcome.visits.items()}


def ran_before(device: FakeDevice) -> Counter[str]:
    """How often each network ran before a block."""
    requests = (r for r in device.requests if r["do"] == "sample" and r["key"] in "abcdef")
    return Counter(r["before"] for r in requests)


def breaking(device: FakeDevice, key: str, number: int, how: str, verb: str = "sample") -> Watcher:
    """Makes a job fail after some visits."""

    def act() -> None:
        if device.keys(verb).count(key) == number:
            getattr(device, how)[verb, key] = ALWAYS

    return Watcher(act)


# ---- After one network


def test_every_job_is_visited_once_a_round(device: FakeDevice) -> None:
    outcome = run(device)
    timed = device.keys("sample")
    assert [sorted(timed[i : i + 3]) for i in (0, 3, 6)] == [["a", "b", "c"]] * 3
    assert visits(outcome) == {"a": 3, "b": 3, "c": 3}
    assert (outcome.failures, outcome.environment) == ({}, {"framework": "fake"})
    assert sorted(device.keys("prepare")) == ["a", "b", "c", "net"]


@pytest.mark.parametrize(
    ("request_s", "rounds"),
    [(10, 4), (0, 9), (1e4, 2)],  # a round takes three requests, and one for the network once
    ids=["as many as there is time for", "no more than the most", "the first ones in any case"],
)
def test_more_rounds_while_there_is_time(
    device: FakeDevice, path: Path, request_s: float, rounds: int
) -> None:
    settings = Settings(rounds=2, most_rounds=9, enough_s=135.0)
    device.request_s = request_s
    with closing(Journal(path, {}, 0.0)) as journal:
        outcome = run(device, settings=settings, journal=journal)
    assert visits(outcome) == dict.fromkeys("abc", rounds)
    timed = device.keys("sample")
    assert all(sorted(timed[i : i + 3]) == ["a", "b", "c"] for i in range(0, 3 * rounds, 3))
    if rounds == 9:  # all of it is in the journal
        again = FakeDevice()
        with closing(Journal(path, {}, 0.0)) as journal:
            run(again, settings=settings, journal=journal)
        assert again.keys("sample") == []


class TestMemory:
    def test_what_does_not_fit_is_skipped_with_a_reason(self, device: FakeDevice) -> None:
        big = Job("big", {}, need_bytes=3 * 2**30)
        outcome = run(device, [*ABC, big], available_bytes=2**31)
        assert "needs about 3.0 GiB of memory, 2.0 GiB are free" in outcome.failures.pop("big")
        assert outcome.failures == {}
        assert "big" not in [key for _, _, key in device.asked]
        assert sorted(outcome.visits) == ["a", "b", "c"]
        assert device.keys("forget") == [], "what is skipped makes no groups"
        assert "big" in run(FakeDevice(), [big]).visits, "where memory is not known all is tried"

    @pytest.mark.parametrize("dies", [0, 1])
    def test_groups_are_forgotten_one_after_the_other(self, device: FakeDevice, dies: int) -> None:
        jobs = [Job(k, {}, need_bytes=40, keep_bytes=30) for k in "abcd"]
        device.dies["forget", ""] = dies
        outcome = run(device, jobs, available_bytes=120)
        forgotten = [r["keys"] for r in device.requests if r["do"] == "forget"]
        assert forgotten == [["a", "b"], ["c", "d"]]
        assert set(device.keys("sample")[:6]) == {"a", "b"}
        assert set(device.keys("sample")[6:]) == {"c", "d"}
        assert sorted(outcome.visits) == ["a", "b", "c", "d"]


class TestDeath:
    @pytest.mark.parametrize("verb", ["prepare", "sample"])
    @HOW
    def test_what_fails_is_left_out_and_not_tried_again(
        self, device: FakeDevice, path: Path, verb: str, how: str
    ) -> None:
        getattr(device, how)[verb, "b"] = ALWAYS
        with closing(Journal(path, {}, 0)) as journal:
            outcome = run(device, journal=journal)
        assert outcome.failures == {"b": REASONS[how]}
        assert visits(outcome) == {"a": 3, "c": 3}
        assert device.keys(verb).count("b") == 1
        assert len(device.workers) == (2 if how == "dies" else 1)
        assert [r["key"] for r in journal.records if "failed" in r] == ["b"]
        if how == "dies" and verb == "sample":
            again = {k for worker, do, k in device.asked if (worker, do) == (1, "prepare")}
            assert again == {"a", "c", "net"}

    def test_times_of_a_job_that_is_refused_later_do_not_count(self, device: FakeDevice) -> None:
        progress = breaking(device, "b", 2, "refuses")
        assert "b" not in run(device, progress=progress).visits
        assert device.keys("sample").count("b") == 3
        assert "b: ResourceExhausted: no; going on without it" in progress.notes

    def test_times_before_a_death_do_not_count(self, device: FakeDevice) -> None:
        progress = breaking(device, "b", 1, "dies")
        outcome = run(device, progress=progress)
        assert list(outcome.failures) == ["b"]
        assert visits(outcome) == {"a": 3, "c": 3}
        assert device.keys("sample").count("b") == 2, "what kills is not tried again"

    def test_three_dead_workers_end_the_run_which_goes_on_without_what_killed(
        self, device: FakeDevice, path: Path
    ) -> None:
        """However many jobs between them are fine; all that was measured is in the journal."""
        deadly = ["b", "f", "k"]
        for key in deadly:
            device.dies["sample", key] = ALWAYS
        with (
            closing(Journal(path, {}, 0.0)) as journal,
            pytest.raises(
                MeasuringError, match=r"died 3 times, last of .*the same command goes on"
            ),
        ):
            run(device, MANY, journal=journal)
        assert (MOST_DEATHS, len(device.workers)) == (3, 3)
        measured = Counter(r["key"] for r in journal.records if "samples_ms" in r)
        again, progress = FakeDevice(), Watcher()
        with closing(Journal(path, {}, 0.0)) as journal:
            outcome = run(again, MANY, journal=journal, progress=progress)
        assert sorted(outcome.failures) == deadly
        assert visits(outcome) == {j.key: 3 for j in MANY if j.key not in deadly}
        assert Counter(again.keys("sample")) == {
            key: 3 - measured[key] for key in visits(outcome) if measured[key] < 3
        }
        assert "3 skipped, failed before (first: " in progress.notes[0]

    @HOW
    def test_a_worker_that_does_not_say_what_it_is(self, device: FakeDevice, how: str) -> None:
        getattr(device, how)["environment", ""] = ALWAYS
        with pytest.raises(MeasuringError, match="does not say what it is"):
            run(device)

    def test_nothing_measurable(self, device: FakeDevice) -> None:
        for key in "abc":
            device.refuses["prepare", key] = ALWAYS
        with pytest.raises(
            MeasuringError, match=r"nothing could be measured \(a: ResourceExhausted"
        ):
            run(device)
        with pytest.raises(MeasuringError, match="no jobs"):
            run(FakeDevice(), [])


def test_what_a_worker_cannot_start_with_is_said_as_it_is() -> None:
    def refuse(backend: str, device: str) -> Any:
        raise DeviceError(f"no {device} for {backend}")

    with pytest.raises(DeviceError, match="no gpu for fake"):
        Runner("fake", "gpu", None, refuse)


class TestResume:
    def resumed(self, device: FakeDevice, path: Path, progress: Any = None, **o: Any) -> Outcome:
        with closing(Journal(path, {"same": "run"}, 0.0)) as journal:
            return run(device, journal=journal, progress=progress, **o)

    def interrupted(self, device: FakeDevice, path: Path, after: int) -> None:
        """A run that is stopped after some visits."""

        class Stopping(Journal):
            def append(self, record: Any) -> None:
                super().append(record)
                if len(self.records) == after:
                    raise KeyboardInterrupt

        with (
            closing(Stopping(path, {"same": "run"}, 0.0)) as journal,
            pytest.raises(KeyboardInterrupt),
        ):
            run(device, journal=journal)

    @pytest.mark.parametrize("after", range(1, 10))
    def test_measures_what_is_missing_and_nothing_else(self, path: Path, after: int) -> None:
        first, second = FakeDevice(), FakeDevice()
        self.interrupted(first, path, after)
        outcome = self.resumed(second, path)
        assert len(first.keys("sample")) + len(second.keys("sample")) == 9
        assert visits(outcome) == {"a": 3, "b": 3, "c": 3}
        missing = set(second.keys("sample"))
        assert set(second.keys("prepare")) == (missing | {"net"} if missing else set())

    @HOW
    def test_a_job_that_failed_stays_out(self, path: Path, device: FakeDevice, how: str) -> None:
        getattr(device, how)["prepare", "b"] = ALWAYS
        self.interrupted(device, path, 3)
        again, progress = FakeDevice(), Watcher()
        assert self.resumed(again, path, progress).failures == {"b": REASONS[how]}
        assert "b" not in [key for _, _, key in again.asked]
        (note,) = progress.notes
        assert f"1 skipped, failed before (first: b: {REASONS[how]})" in note

    def test_what_is_measured_already_needs_no_memory(self, path: Path) -> None:
        self.interrupted(FakeDevice(), path, 9)
        jobs = [Job(j.key, j.payload, need_bytes=100) for j in ABC]
        outcome = self.resumed(FakeDevice(), path, jobs=jobs, available_bytes=10)
        assert (outcome.failures, len(outcome.visits)) == ({}, 3)


# ---- After several networks


@pytest.mark.parametrize("jobs", [MIXED, BLOCKS], ids=["jobs too", "no jobs"])
def test_blocks_come_after_the_networks_in_turns(device: FakeDevice, jobs: list[Job]) -> None:
    outcome = after(device, jobs)
    asked, keys = device.keys("sample"), sorted(j.key for j in jobs)
    number = len(jobs)
    assert [sorted(asked[i * number : (i + 1) * number]) for i in range(3)] == [keys] * 3
    assert visits(outcome) == dict.fromkeys(keys, 3)
    assert sorted(device.keys("prepare")) == sorted(j.key for j in MIXED), "each once"
    before = [r["before"] for r in device.requests if r["do"] == "sample" and r["before"]]
    assert ran_before(device) == {"n1": 6, "n2": 6, "n3": 6}
    assert all(before[i] == before[i + 3] for i in range(15))
    assert all(len(set(before[i : i + 3])) == 3 for i in range(15))


def test_a_block_is_measured_once_and_a_network_in_a_loop(device: FakeDevice) -> None:
    device.estimate_ms = {"a": 0.01, "n1": 1.0, "n2": 45.0, "n3": 900.0}
    outcome = after(device, settings=Settings(rounds=1))
    calls = {k: len(v[0].samples) for k, v in outcome.visits.items()}
    assert calls == {**dict.fromkeys("abcdef", 1), "n1": MOST_LOOPS, "n2": 2, "n3": 1}
    for key, (visit,) in outcome.visits.items():
        alone = key.startswith("n")
        assert ((visit.before == ""), len(visit.reference)) == (alone, 0 if alone else 1)
        assert len(visit.at_s) == len(visit.samples)


def test_what_is_kept_is_what_the_worker_said(device: FakeDevice, path: Path) -> None:
    device.ms = {"a": 3.0, "n1": 40.0}
    with closing(Journal(path, {}, 0)) as journal:
        outcome = after(
            device, [BLOCKS[0], NETWORKS[0]], NETWORKS[:1], settings=Settings(1), journal=journal
        )
    (visit,) = outcome.visits["a"]
    assert (visit.samples, visit.reference, visit.before) == ((3.0,), (40.0,), "n1")
    assert START_S < visit.at_s[0] < START_S + 1
    records = {r["key"]: r for r in journal.records}
    assert records["a"].keys() >= {"key", "samples_ms", "reference_ms", "at_s", "before", "at"}
    assert (records["a"]["before"], records["n1"]["before"]) == ("n1", "")


@pytest.mark.parametrize("kept_bytes", [0, 30], ids=["at once", "blocks first"])
@HOW
def test_a_network_that_cannot_be_built_is_left_out_and_the_blocks_are_not(
    device: FakeDevice, how: str, kept_bytes: int
) -> None:
    getattr(device, how)["prepare", "n2"] = ALWAYS
    jobs = [replace(job, keep_bytes=kept_bytes) for job in MIXED]
    outcome = after(device, jobs, available_bytes=200)  # three blocks at a time, or all
    assert list(outcome.failures) == ["n2"]
    assert device.keys("prepare").count("n2") == 1, "and is not tried again"
    assert set(ran_before(device)) == {"n1", "n3"}
    assert set(visits(outcome).values()) == {3}


@HOW
def test_a_network_that_cannot_be_built_again_is_not_the_blocks_fault(
    device: FakeDevice, how: str
) -> None:
    """The worker died of something else; in the new one a network that was there cannot be built."""

    def break_n1() -> None:
        if len(device.workers) == 2:
            getattr(device, how)["prepare", "n1"] = ALWAYS

    device.dies["sample", "b"] = ALWAYS
    watch = Watcher(break_n1)
    outcome = after(device, progress=watch)
    assert set(outcome.failures) == {"b", "n1"}
    assert {k: n for k, n in visits(outcome).items() if k in "acdef"} == dict.fromkeys("acdef", 3)
    assert any(n.startswith("n1: ") for n in watch.notes)


def test_a_network_that_kills_the_worker_in_its_own_loop(device: FakeDevice) -> None:
    device.dies["sample", "n3"] = ALWAYS
    outcome = after(device)
    assert list(outcome.failures) == ["n3"]
    assert device.keys("sample").count("n3") == 1
    assert visits(outcome) == dict.fromkeys([*"abcdef", "n1", "n2"], 3)
    death = next(i for i, asked in enumerate(device.asked) if asked == (0, "sample", "n3"))
    later = {r["before"] for r in device.requests[death:] if r["do"] == "sample" and r["before"]}
    assert later <= {"n1", "n2"}


@HOW
def test_without_any_network_there_is_no_run(device: FakeDevice, how: str) -> None:
    for network in NETWORKS[:2]:
        getattr(device, how)["prepare", network.key] = ALWAYS
    with pytest.raises(MeasuringError, match=rf"can be run \(first: n1: {REASONS[how]}"):
        after(device, networks=NETWORKS[:2])
    with pytest.raises(MeasuringError, match=r"can be run \(first: none\)"):
        after(FakeDevice(), networks=[])


def test_networks_alone_need_no_others(device: FakeDevice) -> None:
    assert sorted(after(device, NETWORKS, []).visits) == ["n1", "n2", "n3"]


def test_a_network_that_needs_too_much_memory_is_not_run_before_others(device: FakeDevice) -> None:
    networks = [NETWORKS[0], Job("n2", {}, need_bytes=2**40, whole=True), NETWORKS[2]]
    outcome = after(device, [*BLOCKS, *networks], networks, available_bytes=2**30)
    assert list(outcome.failures) == ["n2"]
    assert ran_before(device) == {"n1": 9, "n3": 9}
