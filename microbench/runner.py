"""A measuring run: jobs in, raw times out; rounds in random order, a worker that may die, a journal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from lolat.errors import MeasuringError
from lolat.graph import Graph
from lolat.graph.counts import FEATURES, count
from lolat.io.process import ProcessDied, RequestFailed
from lolat.io.progress import Progress
from lolat.units import plural

from .journal import Journal
from .probe import Probe
from .timing import Visit, loops
from .worker import WorkerProcess, ask_environment

REQUEST_LIMIT_S = 300.0
MOST_DEATHS = 3
"""Number of dead workers that ends a run, because the cause is then not in a job."""
ITEM_BYTES = 4  # float32
PROBED = 3
"""Number of rounds between two probes of the machine."""


@dataclass(frozen=True)
class Job:
    """Something to measure.

    `payload`: the worker's job, see `Worker.prepare`. `keep_bytes`: the memory that the job holds between
    its runs. `whole`: True for a whole network, which is timed in its own loop; anything else is timed
    after a network.
    """

    key: str
    payload: dict[str, Any]
    keep_bytes: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Settings:
    """The number of rounds; a round visits every job once.

    A fast machine measures more than `rounds`, up to `most_rounds`, if these fit into `enough_s` seconds.
    """

    rounds: int
    most_rounds: int = 0
    enough_s: float = 0.0
    seed: int = 2026


@dataclass
class Outcome:
    """Results of a run, by key of the job.

    `visits`: times of each visit; `once_ms`: times taken once; `failures`: reasons of failures; `probes`:
    the probes of the machine throughout the run.
    """

    journal: Journal | None = None
    visits: dict[str, list[Visit]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    once_ms: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)

    def __post_init__(self) -> None:
        for record in self.journal.records if self.journal else ():
            self._add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a record into the journal, then into this outcome."""
        if self.journal is not None:
            self.journal.append(record)
        self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        key = record["key"]
        if "failed" in record:
            self.failures[key] = record["failed"]
            self.visits.pop(key, None)  # the visits of a job that fails later do not count
        elif "once_ms" in record:
            self.once_ms[key] = record["once_ms"]
        else:
            self.visits.setdefault(key, []).append(msgspec.convert(record["visit"], Visit))


def job_key(name: str, batch_size: int) -> str:
    """The key of the job of a block or network."""
    return f"{name} x{batch_size}"


def graph_job(graph: Graph, name: str, batch_size: int, whole: bool = False) -> Job:
    """The job of measuring a Graph at a batch size."""
    payload = {"graph": graph.to_dict(), "batch_size": batch_size}
    return Job(job_key(name, batch_size), payload, keep_bytes(graph, batch_size), whole)


def keep_bytes(graph: Graph, batch_size: int) -> int:
    """Bytes that `graph` holds between its runs at `batch_size`: its weights and its inputs (float32)."""
    weights = int(count(graph).fixed[:, FEATURES.index("weights")].sum())
    inputs = sum(graph.tensors[i].elements(batch_size) for i in graph.inputs)
    return ITEM_BYTES * (weights + inputs)


def groups(jobs: Sequence[Job], available_bytes: int | None) -> list[list[Job]]:
    """Split jobs into groups that each take at most half of the available memory, or are a single job."""
    result: list[list[Job]] = [[]]
    for job in jobs:
        taken = sum(j.keep_bytes for j in result[-1]) + job.keep_bytes
        if result[-1] and available_bytes is not None and taken > available_bytes / 2:
            result.append([])
        result[-1].append(job)
    return result


def rounds_in_time(jobs: Sequence[Job], settings: Settings, outcome: Outcome, share: float) -> int:
    """The number of rounds over `jobs` that fit into `share` of `enough_s`, judged by the first rounds.

    Only times of visits enter the estimate, so that an interrupted run gets the same number of rounds.
    """
    visits = [outcome.visits.get(job.key, [])[: settings.rounds] for job in jobs]
    round_s = sum(sum(v.seconds for v in one) / len(one) for one in visits if one)
    fitting = int(share * settings.enough_s / round_s) if round_s else 0
    return max(settings.rounds, min(settings.most_rounds, fitting))


class Runner:
    """Measures jobs with one backend on one device, and replaces the worker when it dies."""

    def __init__(self, backend: str, device: str, progress: Progress | None = None) -> None:
        """Start the worker; LolatError if the backend or device is not available."""
        self.backend, self._start = backend, lambda: WorkerProcess(backend, device)
        self.progress: Progress = progress or Progress()
        self.worker = self._start()
        self.estimates_ms: dict[str, float] = {}
        """Approximate times of the jobs that the present worker has prepared."""
        self.deaths = 0
        self.turn = 0  # chooses the network that runs before a block
        try:
            answer = ask_environment(self.worker)
        except BaseException:
            self.worker.close()
            raise
        self.environment: dict[str, Any] = answer["environment"]
        self.available_bytes: int | None = answer["available_bytes"]
        """Bytes of memory for jobs: a GPU's own if the backend knows it, else the host's."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *unused: object) -> None:
        self.worker.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer to a request; raises ProcessDied and RequestFailed."""
        answer: dict[str, Any] = self.worker.request(request, REQUEST_LIMIT_S)
        return answer

    def run(
        self,
        jobs: Sequence[Job],
        networks: Sequence[Job],
        settings: Settings,
        journal: Journal | None = None,
        probe: Callable[[], Probe] | None = None,
    ) -> Outcome:
        """Measure all jobs, except visits that the journal already has and jobs that failed before.

        `networks`: whole networks that take turns, one before each sample of a job that is not a network. A
        job is prepared right before its first visit. `probe`: called every PROBED rounds, and at the end.
        MeasuringError if nothing could be measured or MOST_DEATHS workers died.
        """
        outcome = Outcome(journal)
        for key, reason in outcome.failures.items():
            self.progress.note(f"{key}: failed before, skipped: {reason}")
        parts = groups(jobs, self.available_bytes)
        for part, group in enumerate(parts):
            if part:
                self._replace_worker()  # which frees the memory
            for number, job in self._rounds(group, settings, outcome, len(parts)):
                if probe is not None and number >= PROBED * len(outcome.probes):
                    outcome.probes.append(probe())
                taken = len(outcome.visits.get(job.key, ()))
                if job.key not in outcome.failures and taken <= number:
                    self._try(job.key, outcome, partial(self._visit, job, networks, outcome))
        if not outcome.visits:
            reasons = "; ".join(f"{k}: {v}" for k, v in list(outcome.failures.items())[:3])
            raise MeasuringError(f"nothing could be measured ({reasons or 'no jobs'})")
        if probe is not None:
            outcome.probes.append(probe())
        return outcome

    def once(self, key: str, request: dict[str, Any], outcome: Outcome) -> float | None:
        """A time in ms that is taken only once; None if that failed."""

        def measure() -> None:
            outcome.add({"key": key, "once_ms": round(float(self.ask(request)["once_ms"]), 3)})

        if key not in outcome.once_ms and key not in outcome.failures:
            self._try(key, outcome, measure)
        return outcome.once_ms.get(key)

    def _rounds(
        self, group: Sequence[Job], settings: Settings, outcome: Outcome, parts: int
    ) -> Iterator[tuple[int, Job]]:
        """Yield (round, job) for all rounds; each round has a random order, the same for the same seed."""
        generator = random.Random(settings.seed)

        def take(text: str, numbers: range) -> Iterator[tuple[int, Job]]:
            had = {job.key: len(outcome.visits.get(job.key, ())) for job in group}
            had |= dict.fromkeys(had.keys() & outcome.failures.keys(), numbers.stop)
            done = sum(number < visits for number in numbers for visits in had.values())
            self.progress.start(text, len(numbers) * len(group), done)
            for number in numbers:
                for job in generator.sample(group, len(group)):
                    if number >= had[job.key]:
                        self.progress.step()
                    yield number, job

        # The first round builds what it measures and takes several times as long as another.
        yield from take(f"building and measuring by {self.backend}", range(1))
        if settings.rounds > 1:
            more = f"measuring, {plural(settings.rounds - 1, 'more round')}"
            yield from take(more, range(1, settings.rounds))
        wanted = rounds_in_time(group, settings, outcome, 1 / parts)
        if wanted > settings.rounds:
            yield from take("measuring on, while there is time", range(settings.rounds, wanted))

    def _visit(self, job: Job, networks: Sequence[Job], outcome: Outcome) -> None:
        """Take samples of a job: a network runs in its own loop, anything else after a network."""
        before = "" if job.whole else self._network(networks, outcome)
        estimate = self._prepare(job)
        calls = loops(estimate) if job.whole else 1
        visit = self.ask({"do": "sample", "key": job.key, "before": before, "calls": calls})
        outcome.add({"key": job.key, "visit": visit})

    def _network(self, networks: Sequence[Job], outcome: Outcome) -> str:
        """Prepare the next network and return its key; networks that cannot be prepared are skipped."""
        while able := [n for n in networks if n.key not in outcome.failures]:
            self.turn += 1
            network = able[self.turn % len(able)]
            self._try(network.key, outcome, partial(self._prepare, network))
            if network.key not in outcome.failures:
                return network.key
        raise MeasuringError("no network to measure blocks after can be run")

    def _prepare(self, job: Job) -> float:
        """Prepare a job in the worker, unless that is done already; return its approximate time in ms."""
        if job.key not in self.estimates_ms:
            answer = self.ask({"do": "prepare", "key": job.key, "job": job.payload})
            self.estimates_ms[job.key] = answer["estimate_ms"]
        return self.estimates_ms[job.key]

    def _try(self, key: str, outcome: Outcome, act: Callable[[], object]) -> None:
        """Call `act`; if the worker dies or refuses, record the failure and continue without the job."""
        try:
            act()
        except (ProcessDied, RequestFailed) as problem:
            outcome.add({"key": key, "failed": str(problem)})
            self.progress.note(f"{key}: {problem}; going on without it")
            if isinstance(problem, RequestFailed):
                return
            self.deaths += 1
            if self.deaths == MOST_DEATHS:
                raise MeasuringError(
                    f"the measuring process died {MOST_DEATHS} times, last of {key}: {problem}; the "
                    "same command goes on without the jobs that it died of"
                ) from problem
            self._replace_worker()

    def _replace_worker(self) -> None:
        """Start a new worker process, which has no prepared jobs yet."""
        self.worker.close()
        self.estimates_ms = {}
        self.worker = self._start()
