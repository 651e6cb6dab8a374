"""A run over a fake device: what is measured when, what is lost when something dies, and going on."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lolat.errors import MeasuringError
from lolat.graph import Graph
from lolat.graph.layers import Layers
from lolat.microbench.journal import Journal, read
from lolat.microbench.runner import Job, Outcome, Runner, Settings, groups, keep_bytes
from lolat.microbench.timing import MOST_LOOPS, latencies
from tests.microbench.fakes import ALWAYS, FakeDevice, Watcher

BLOCKS = [Job(key, {"graph": key}) for key in "abcdef"]
NETWORKS = [Job(key, {"graph": key}, whole=True) for key in ("n1", "n2", "n3")]
JOBS = [*BLOCKS, *NETWORKS]
KEYS = [j.key for j in JOBS]
ROUNDS = 3
USUAL = Settings(ROUNDS)
HOW = pytest.mark.parametrize("how", ["dies", "refuses"])


def run(
    jobs: list[Job] = JOBS, networks: list[Job] = NETWORKS, settings: Settings = USUAL,
    path: Path | None = None, progress: Watcher | None = None,
) -> Outcome:  # fmt: skip
    """A run on the fake device; `path`: with a journal there."""
    with Runner("fake", "cpu", progress) as runner:
        if path is None:
            return runner.run(jobs, networks, settings)
        with closing(Journal(path, {"run": "this"}, 0.0)) as journal:
            return runner.run(jobs, networks, settings, journal)


def visits(outcome: Outcome) -> dict[str, int]:
    return {key: len(some) for key, some in outcome.visits.items()}


def ran_before(device: FakeDevice) -> Counter[str]:
    """The number of times that each network ran before a block."""
    return Counter(r["before"] for r in device.requests if r["do"] == "sample" and r["before"])


# ---- The state machine: whatever happens between and within parts of a run


class Interruptions(RuleBasedStateMachine):
    """Parts of one run, each of which ends by itself, by Ctrl-C or by three deaths of its worker.

    Nothing is measured twice, at most one visit is lost by an interruption, no worker is left, and in the
    end the points are those of a run that nobody disturbed, but for the jobs that failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "m.json.journal.jsonl"
        self.device = FakeDevice()
        self.device.ms = {key: 1.0 + i for i, key in enumerate(KEYS)}
        self.patch = mock.patch("lolat.microbench.runner.WorkerProcess", self.device.start)
        self.patch.start()
        self.lost = 0
        self.done = False

    def teardown(self) -> None:
        self.patch.stop()
        self.folder.cleanup()

    def part(self) -> None:
        """The run, until it ends."""
        started, workers = len(self.device.asked), len(self.device.workers)
        try:
            outcome = run(path=self.path)
        except KeyboardInterrupt:
            self.lost += 1
        except MeasuringError:
            assert [w.dead for w in self.device.workers[workers:]] == [True] * 3
        else:
            self.done = True
            failed = set(self.device.failed)
            assert set(outcome.failures) == failed
            found = {k: v.latency_ms for k, v in latencies(outcome.visits).jobs.items()}
            assert found == pytest.approx(
                {k: ms for k, ms in self.device.ms.items() if k not in failed}
            )
        self.device.at_request = lambda request: None
        assert len(self.device.asked) > started

    @precondition(lambda self: not self.done)
    @rule(after=st.integers(1, 60))
    def interrupted(self, after: int) -> None:
        """Ctrl-C at some request of the next part."""
        left = [after]

        def stop(request: dict[str, Any]) -> None:
            left[0] -= 1
            if left[0] == 0 and request["do"] in ("prepare", "sample"):
                raise KeyboardInterrupt

        self.device.at_request = stop
        self.part()

    @precondition(lambda self: not self.done)
    @rule(key=st.sampled_from("abcdef"), verb=st.sampled_from(["prepare", "sample"]))
    def fails(self, key: str, verb: str) -> None:
        """A block that is refused from now on, if it is asked for."""
        self.device.refuses[verb, key] = ALWAYS

    @precondition(lambda self: not self.done)
    @rule(key=st.sampled_from(KEYS[:7]), verb=st.sampled_from(["prepare", "sample"]))
    def kills(self, key: str, verb: str) -> None:
        """A job whose next request the worker dies of."""
        self.device.dies[verb, key] = 1

    @rule()
    def undisturbed(self) -> None:
        if not self.done:
            self.part()

    @invariant()
    def nothing_is_left_running(self) -> None:
        assert all(w.closed for w in self.device.workers)

    @invariant()
    def what_was_measured_is_on_disk_once(self) -> None:
        records = read(self.path)[1:]
        measured = Counter(r["key"] for r in records if "visit" in r)
        asked = Counter(self.device.keys("sample"))
        assert all(measured[key] <= ROUNDS for key in KEYS)
        failed = [r["key"] for r in records if "failed" in r]
        assert failed == self.device.failed, "each once, and not tried again"
        # A sample that failed, or that an interruption cut, is no visit.
        assert sum(asked.values()) - sum(measured.values()) <= len(failed) + self.lost


TestInterruptions = Interruptions.TestCase
TestInterruptions.settings = settings(
    max_examples=40, stateful_step_count=8, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip


# ---- What is measured when


def test_every_job_is_visited_once_a_round_in_random_order(device: FakeDevice) -> None:
    outcome = run()
    timed = device.keys("sample")
    rounds = [timed[i : i + len(KEYS)] for i in range(0, len(timed), len(KEYS))]
    assert [sorted(one) for one in rounds] == [sorted(KEYS)] * ROUNDS
    assert len({tuple(one) for one in rounds}) == ROUNDS
    assert visits(outcome) == dict.fromkeys(KEYS, ROUNDS)
    assert sorted(device.keys("prepare")) == sorted(KEYS), "each once"
    again = FakeDevice()
    with mock.patch("lolat.microbench.runner.WorkerProcess", again.start):
        run()
        assert again.keys("sample") == timed, "the same order for the same seed"
        run(settings=Settings(ROUNDS, seed=1))
    assert again.keys("sample")[len(timed) :] != timed


def test_blocks_come_after_the_networks_in_turns(device: FakeDevice) -> None:
    run(BLOCKS)
    before = [r["before"] for r in device.requests if r["do"] == "sample"]
    assert ran_before(device) == {"n1": 6, "n2": 6, "n3": 6}
    assert all(len(set(before[i : i + 3])) == 3 for i in range(len(before) - 2))


def test_a_block_is_timed_once_a_visit_and_a_network_in_a_loop(device: FakeDevice) -> None:
    device.estimate_ms = {"a": 0.01, "n1": 1.0, "n2": 45.0, "n3": 900.0}
    device.ms = {"a": 3.0, "n1": 40.0}
    outcome = run(settings=Settings(1))
    calls = {k: len(v[0].samples_ms) for k, v in outcome.visits.items()}
    assert calls == {**dict.fromkeys("abcdef", 1), "n1": MOST_LOOPS, "n2": 2, "n3": 1}
    for key, (visit,) in outcome.visits.items():
        alone = key.startswith("n")
        assert ((visit.before == ""), len(visit.reference_ms)) == (alone, 0 if alone else 1)
    assert outcome.visits["a"][0].samples_ms == (3.0,)
    assert set(outcome.visits["n1"][0].samples_ms) == {40.0}


# A round: six blocks after a network, 4 ms each; three networks of three calls and one that is not
# timed, 8 ms each: 48 ms.
@pytest.mark.parametrize(
    ("enough_s", "rounds"), [(0.24, 5), (0.2875, 5), (10.0, 9), (0.1, ROUNDS), (0.0, ROUNDS)]
)
def test_more_rounds(device: FakeDevice, tmp_path: Path, enough_s: float, rounds: int) -> None:
    more = Settings(ROUNDS, most_rounds=9, enough_s=enough_s)
    watcher = Watcher()
    outcome = run(settings=more, path=tmp_path / "j", progress=watcher)
    assert visits(outcome) == dict.fromkeys(KEYS, rounds)
    assert watcher.steps == sum(total for _, total in watcher.stages) == rounds * len(KEYS)
    asked = len(device.asked)
    again = Watcher()
    run(settings=more, path=tmp_path / "j", progress=again)
    assert (again.steps, again.done) == (0, watcher.steps), "what was measured is no new step"
    assert len(device.asked) == asked + 1, "a finished run asks for the environment alone"


# ---- Memory


def test_jobs_that_do_not_fit_are_measured_in_groups(device: FakeDevice) -> None:
    device.free_bytes = 120
    jobs = [Job(k, {}, keep_bytes=30) for k in "abcd"]
    outcome = run(jobs, [Job("n1", {}, whole=True)])
    assert visits(outcome) == dict.fromkeys("abcd", ROUNDS)
    groups_measured = [
        {key for worker, verb, key in device.asked if worker == number and verb == "sample"}
        for number in range(len(device.workers))
    ]
    assert groups_measured == [{"a", "b"}, {"c", "d"}], "each in a new worker"


@pytest.mark.parametrize(
    ("free", "sizes", "wanted"),
    [
        (None, [50, 50, 50], [[50, 50, 50]]),
        (100, [50, 10, 40, 1, 90, 1], [[50], [10, 40], [1], [90], [1]]),
        (10, [50, 50], [[50], [50]]),
        (100, [], [[]]),
    ],
)
def test_groups_of_jobs(free: int | None, sizes: list[int], wanted: list[list[int]]) -> None:
    jobs = [Job(str(i), {}, keep_bytes=size) for i, size in enumerate(sizes)]
    assert [[j.keep_bytes for j in group] for group in groups(jobs, free)] == wanted


def test_a_block_keeps_its_weights_and_its_inputs() -> None:
    """3x3x2x7 weights with 7 biases and 7x4 weights, an input of 3x5x2, in float32."""
    n = Layers.on("chain", 3, 5, 2)
    graph: Graph = n.done(n.conv(n.same("relu", n.conv(n.input, 7, 3, bias=True)), 4))
    assert keep_bytes(graph, 3) == 4 * (126 + 7 + 28) + 3 * 4 * 30


# ---- What fails


def test_three_deaths_end_a_run(device: FakeDevice) -> None:
    device.dies.update(dict.fromkeys((("sample", key) for key in "bdf"), ALWAYS))
    with pytest.raises(MeasuringError, match=r"died 3 times, last of .*the same command"):
        run()


@HOW
def test_a_network_that_cannot_be_built_is_left_out(device: FakeDevice, how: str) -> None:
    getattr(device, how)["prepare", "n2"] = ALWAYS
    outcome = run()
    assert list(outcome.failures) == ["n2"]
    assert device.keys("prepare").count("n2") == 1
    assert set(ran_before(device)) == {"n1", "n3"}
    assert set(visits(outcome).values()) == {ROUNDS}


def test_without_any_network_blocks_are_not_measured(device: FakeDevice) -> None:
    for network in NETWORKS:
        device.refuses["prepare", network.key] = ALWAYS
    with pytest.raises(MeasuringError, match="no network"):
        run(BLOCKS)
    assert run([Job("whole", {}, whole=True)], []).visits.keys() == {"whole"}, "networks need none"


def test_where_nothing_can_be_measured(device: FakeDevice) -> None:
    for key in KEYS:
        device.refuses["prepare", key] = ALWAYS
    with pytest.raises(MeasuringError, match=r"nothing could be measured .*ResourceExhausted"):
        run(NETWORKS)
    with pytest.raises(MeasuringError, match="no jobs"):
        run([])


@HOW
def test_a_worker_that_does_not_say_its_environment(device: FakeDevice, how: str) -> None:
    getattr(device, how)["environment", ""] = ALWAYS
    with pytest.raises(MeasuringError, match="no answer from the backend"):
        run()
    assert device.workers[-1].closed
