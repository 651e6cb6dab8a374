"""A measuring run: jobs in, raw times out; rounds in random order, a worker that may die, a journal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from lolat.errors import MeasuringError
from lolat.graph import Graph
from lolat.graph.counts import FEATURES, count
from lolat.io.process import ProcessDied, RequestFailed
from lolat.io.progress import Progress, Silent
from microbench import environment
from microbench.journal import Journal
from microbench.timing import Clock, Visit, loops
from microbench.worker import WorkerProcess

REQUEST_LIMIT_S = 300.0
MOST_DEATHS = 3  # of workers in a run: then it is not the jobs
ITEM_BYTES = 4  # float32
OVERHEAD_BYTES = 32 * 2**20  # a compiled function, workspaces of small kernels


# ---- Jobs, in which order, which of them together, and the memory that they need, foreseen


@dataclass(frozen=True)
class Job:
    """Something to measure. `payload` is what the worker is told.

    `need_bytes`: foreseen memory while it is made or runs; `keep_bytes`: what it holds in between.
    `whole`: a whole network, timed in a loop of its own; anything else is timed after one.
    """

    key: str
    payload: dict[str, Any]
    need_bytes: int = 0
    keep_bytes: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Settings:
    """How often.

    `rounds` over all jobs, in which a job is visited once, and further ones, up to `most_rounds`, while
    `enough_s` seconds have not passed.
    """

    rounds: int
    most_rounds: int = 0
    enough_s: float = 0.0
    seed: int = 2026


def job_key(name: str, batch_size: int) -> str:
    """What a point is called in the journal."""
    return f"{name} x{batch_size}"


def graph_job(graph: Graph, name: str, batch_size: int, whole: bool = False) -> Job:
    """The job of measuring a Graph at a batch size; `whole`: as a network in a loop of its own."""
    return Job(
        key=job_key(name, batch_size),
        payload={"graph": graph.to_dict(), "batch_size": batch_size},
        need_bytes=peak_bytes(graph, batch_size),
        keep_bytes=keep_bytes(graph, batch_size),
        whole=whole,
    )


def visiting_order(jobs: Sequence[Job], settings: Settings) -> Iterator[tuple[int, Job]]:
    """(round, job) for all rounds, each round in another random order, the same for the same seed.

    Those of `most_rounds` come after the others.
    """
    generator = random.Random(settings.seed)
    for number in range(max(settings.rounds, settings.most_rounds)):
        order = list(jobs)
        generator.shuffle(order)
        for job in order:
            yield number, job


def groups(jobs: Sequence[Job], available_bytes: int | None) -> list[list[Job]]:
    """Jobs that may be held in memory at the same time, at least one job each.

    Together they keep at most half of what is free, and with the one that runs at most all of it.
    """
    result: list[list[Job]] = [[]]
    held = extra = 0
    for job in jobs:
        more = max(0, job.need_bytes - job.keep_bytes)
        keep = held + job.keep_bytes
        full = available_bytes is not None and (
            keep > available_bytes / 2 or keep + max(extra, more) > available_bytes
        )
        if full and result[-1]:
            result.append([])
            held = extra = 0
        result[-1].append(job)
        held, extra = held + job.keep_bytes, max(extra, more)
    return result


def weight_bytes(graph: Graph) -> int:
    """Bytes of the weights of `graph` (float32)."""
    return ITEM_BYTES * int(count(graph).fixed[:, FEATURES.index("weights")].sum())


def keep_bytes(graph: Graph, batch_size: int) -> int:
    """Memory that `graph` holds between its runs at `batch_size`: its weights and its inputs."""
    inputs = sum(graph.tensors[i].elements(batch_size) for i in graph.inputs)
    return weight_bytes(graph) + ITEM_BYTES * inputs


def activation_bytes(graph: Graph, batch_size: int) -> int:
    """Largest sum of tensors that are alive at the same time, at `batch_size` (float32)."""
    last_use = {i: len(graph.operations) for i in graph.outputs}
    born = dict.fromkeys(graph.inputs, 0)
    for position, operation in enumerate(graph.operations):
        for index in operation.inputs:
            last_use[index] = max(last_use.get(index, position), position)
        born.update(dict.fromkeys(operation.outputs, position))
    change = [0] * (len(graph.operations) + 2)
    for index, position in born.items():
        size = ITEM_BYTES * graph.tensors[index].elements(batch_size)
        change[position] += size
        change[last_use.get(index, position) + 1] -= size
    return max(accumulate(change))


def peak_bytes(graph: Graph, batch_size: int) -> int:
    """Memory to build and run `graph`: weights (twice while they are made), activations, workspaces.

    A convolution may unfold its input into patches; twice the activations covers what was seen.
    """
    return 2 * weight_bytes(graph) + 2 * activation_bytes(graph, batch_size) + OVERHEAD_BYTES


# ---- A run


@dataclass
class Outcome:
    """What a run has so far. Raw times: per job its visits; what failed and why; its journal, if any."""

    visits: dict[str, list[Visit]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    journal: Journal | None = None

    def number(self, key: str) -> int:
        """How many visits a job has."""
        return len(self.visits.get(key, ()))

    def keep(self, record: dict[str, Any]) -> None:
        """Put a record into the journal first, then in here."""
        if self.journal is not None:
            self.journal.append({**record, "at": round(time.time(), 3)})
        self.recall([record])

    def recall(self, records: Sequence[dict[str, Any]]) -> None:
        """Put a journal's records in here; the times of a job that failed later do not count."""
        for record in records:
            if "failed" in record:
                self.failures[record["key"]] = record["failed"]
                self.visits.pop(record["key"], None)
            elif "samples_ms" in record:
                taken = Visit(
                    tuple(record["samples_ms"]),
                    tuple(record["reference_ms"]),
                    tuple(record["at_s"]),
                    record["before"],
                    record.get("others_s"),
                )
                self.visits.setdefault(record["key"], []).append(taken)


class Runner:
    """Measures jobs with one backend on one device, replacing the worker when it dies."""

    def __init__(
        self,
        backend: str,
        device: str,
        progress: Progress | None = None,
        start_worker: Callable[[str, str], WorkerProcess] = WorkerProcess,
        clock: Clock = time.monotonic,
    ) -> None:
        """Start the worker; LolatError when backend or device are not there."""
        self._start = lambda: start_worker(backend, device)
        self.progress: Progress = progress or Silent()
        self.clock, self.device = clock, device
        self.worker = self._start()
        self.prepared: dict[str, float] = {}  # key -> estimate in ms, of the present worker
        self.deaths = 0
        self.turn = 0  # which network a block is measured after
        try:
            self.environment: dict[str, Any] = self._ask({"do": "environment"})["environment"]
        except BaseException as problem:
            self.worker.close()
            if isinstance(problem, (ProcessDied, RequestFailed)):
                raise MeasuringError(f"the backend does not say what it is: {problem}") from problem
            raise

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *unused: object) -> None:
        self.worker.close()

    def available_bytes(self) -> int | None:
        """Memory that jobs can have: a GPU's own where the backend knows it, else the host's."""
        free: int | None = None
        try:
            if self.device != "cpu":
                free = self._ask({"do": "memory"})["available_bytes"]
        except RequestFailed:
            pass
        except ProcessDied as problem:
            raise MeasuringError(f"the backend does not say what is free: {problem}") from problem
        return environment.available_bytes() if free is None else free

    def run(
        self,
        jobs: Sequence[Job],
        networks: Sequence[Job],
        settings: Settings,
        journal: Journal | None = None,
        available_bytes: int | None = None,
    ) -> Outcome:
        """Measure all jobs. What the journal already holds is not measured again.

        `networks`: whole ones, of which one in turns runs before each sample (`timing.sample`) of jobs that
        are no whole networks themselves.

        A job that failed stays out, also when the run goes on later. Jobs that need more than
        `available_bytes` are skipped with a reason. Raises MeasuringError when nothing could be measured
        or MOST_DEATHS workers died; what was measured is in the journal.
        """
        outcome = Outcome(environment=self.environment, journal=journal)
        outcome.recall(journal.records if journal else [])
        if outcome.failures:
            key, reason = next(iter(outcome.failures.items()))
            self.progress.note(
                f"{len(outcome.failures)} skipped, failed before (first: {key}: {reason})"
            )

        def is_missing(job: Job) -> bool:
            return job.key not in outcome.failures and outcome.number(job.key) < settings.rounds

        if available_bytes is not None:
            for job in jobs:
                if job.need_bytes > available_bytes and is_missing(job):
                    outcome.failures[job.key] = (
                        f"skipped: needs about {job.need_bytes / 2**30:.1f} GiB of memory, "
                        f"{available_bytes / 2**30:.1f} GiB are free"
                    )
                    self.progress.note(f"{job.key}: {outcome.failures[job.key]}")
        able = [j for j in jobs if j.key not in outcome.failures]
        parts = groups(able, available_bytes)
        for group in parts:
            missing = [j for j in group if is_missing(j)]
            self.progress.start("building", len(missing))
            for job in missing:
                self._guarded(job, outcome, partial(self._estimate, job))
                self.progress.step()
            end = self.clock() + settings.enough_s / len(parts)
            for number, job in self._visits(group, settings, end):
                if job.key not in outcome.failures and outcome.number(job.key) <= number:
                    take = partial(self._visit, job, networks, outcome)
                    self._guarded(job, outcome, take)
            if len(parts) > 1:
                self._forget(group)
        if not outcome.visits:
            reasons = "; ".join(f"{k}: {v}" for k, v in list(outcome.failures.items())[:3])
            raise MeasuringError(f"nothing could be measured ({reasons or 'no jobs'})")
        return outcome

    def _visits(
        self, group: Sequence[Job], settings: Settings, end: float
    ) -> Iterator[tuple[int, Job]]:
        """(round, job) of what is to be visited, with progress; no further round begins that `end` cuts."""
        began = self.clock()
        for at, (number, job) in enumerate(visiting_order(group, settings)):
            if at == 0:
                self.progress.start("measuring", settings.rounds * len(group))
            elif at % len(group) == 0 and number >= settings.rounds:
                left = int((end - self.clock()) / max(self.clock() - began, 1e-9) * number)
                if left < 1:
                    return
                if number == settings.rounds:
                    more = min(left, settings.most_rounds - number)
                    self.progress.start("measuring on, while there is time", more * len(group))
            self.progress.step()
            yield number, job

    def _visit(self, job: Job, networks: Sequence[Job], outcome: Outcome) -> None:
        """Take samples of a job as it is in use; see `timing.sample`."""
        before = "" if job.whole else self._network(networks, outcome)
        estimate = self._estimate(job)
        calls = loops(estimate) if job.whole else 1
        answer = self._ask({"do": "sample", "key": job.key, "before": before, "calls": calls})
        outcome.keep({"key": job.key, **answer})

    def _network(self, networks: Sequence[Job], outcome: Outcome) -> str:
        """The network whose turn it is, prepared; one that cannot be, or kills the worker, is out."""
        while able := [n for n in networks if n.key not in outcome.failures]:
            self.turn += 1
            network = able[self.turn % len(able)]
            self._guarded(network, outcome, partial(self._estimate, network))
            if network.key not in outcome.failures:
                return network.key
        first = next((f"{n.key}: {outcome.failures[n.key]}" for n in networks), "none")
        raise MeasuringError(f"no network to measure blocks after can be run (first: {first})")

    def _estimate(self, job: Job) -> float:
        """Prepare a job in the present worker unless it is; its rough time in ms."""
        if job.key not in self.prepared:
            answer = self._ask({"do": "prepare", "key": job.key, "job": job.payload})
            self.prepared[job.key] = answer["estimate_ms"]
        return self.prepared[job.key]

    def _forget(self, group: Sequence[Job]) -> None:
        """Free the memory of jobs that are done."""
        keys = [j.key for j in group if self.prepared.pop(j.key, None) is not None]
        try:
            self._ask({"do": "forget", "keys": keys})
        except (ProcessDied, RequestFailed):
            self._replace_worker()

    def _guarded(self, job: Job, outcome: Outcome, act: Callable[[], object]) -> None:
        """Do `act`; when the worker dies of it or refuses, record that and go on without the job."""
        try:
            act()
        except (ProcessDied, RequestFailed) as problem:
            outcome.keep({"key": job.key, "failed": str(problem)})
            if isinstance(problem, ProcessDied):
                self.deaths += 1
                if self.deaths == MOST_DEATHS:
                    mend = "mend that and run again"
                    if outcome.journal is not None:
                        mend = "the same command goes on where it was, without what it died of"
                    raise MeasuringError(
                        f"the measuring process died {MOST_DEATHS} times, last of {job.key}: {problem}; "
                        f"{mend}"
                    ) from problem
                self._replace_worker()
            self.progress.note(f"{job.key}: {problem}; going on without it")

    def _replace_worker(self) -> None:
        """A new process; what the old one had prepared is gone."""
        self.worker.close()
        self.prepared = {}
        self.worker = self._start()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.worker.request(request, REQUEST_LIMIT_S)
