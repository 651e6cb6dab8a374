"""A measuring run: jobs in, raw times out; rounds in random order, a worker that may die, a journal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from lolat.errors import MeasuringError
from microbench.journal import Journal
from microbench.process import JobFailed, WorkerDied, WorkerProcess
from microbench.timer import (
    LEAST_CALM,
    Clock,
    Visit,
    calls_per_visit,
    calm_limit,
    calm_samples,
)

REQUEST_LIMIT_S = 300.0


@dataclass(frozen=True)
class Job:
    """Something to measure. `payload` is what the worker is told; `need_bytes` is foreseen memory."""

    key: str
    payload: dict[str, Any]
    need_bytes: int = 0
    keep_bytes: int = 0


@dataclass(frozen=True)
class Settings:
    """How long and how often.

    `rounds` over all jobs, in which a job is visited once, for `slice_s` seconds or so; then up to
    `extra_rounds` for the jobs that saw too few calm moments, as long as `extra_s` seconds are left.
    `calm_ms`: up to which time of the reference the machine is calm, where that is known from an
    earlier run; else this run decides.
    """

    rounds: int = 10
    slice_s: float = 0.03
    extra_rounds: int = 10
    extra_s: float = 45.0
    seed: int = 2026
    calm_ms: float | None = None


@dataclass
class Outcome:
    """Raw times: per job its visits; what failed and why."""

    visits: dict[str, list[Visit]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def reference(self) -> list[float]:
        """All times of the reference block, ms."""
        return [t for visits in self.visits.values() for v in visits for t in v.reference]


class Progress(Protocol):
    """Where a run says how far it is."""

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def step(self) -> None:
        """One step of the stage is done."""

    def note(self, text: str) -> None:
        """A remark for the user."""


class Silent:
    """Progress that nobody watches."""

    def start(self, text: str, total: int) -> None:
        """Nothing."""

    def step(self) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


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
        self.clock = clock
        self.worker = self._start()
        self.prepared: dict[str, float] = {}  # key -> estimate in ms, of the present worker
        self.environment: dict[str, Any] = self.worker.request(
            {"do": "environment"}, REQUEST_LIMIT_S
        )["environment"]

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *unused: object) -> None:
        self.worker.close()

    def run(
        self,
        jobs: Sequence[Job],
        reference: Job,
        settings: Settings,
        journal: Journal | None = None,
        available_bytes: int | None = None,
    ) -> Outcome:
        """Measure all jobs. What the journal already holds is not measured again.

        Jobs that need more than `available_bytes` are skipped with a reason. Raises MeasuringError
        when nothing could be measured.
        """
        outcome = Outcome(environment=self.environment)
        recall(outcome, journal.records if journal else [])
        for job in jobs:
            if available_bytes is not None and job.need_bytes > available_bytes:
                outcome.failures[job.key] = (
                    f"skipped: needs about {job.need_bytes / 2**30:.1f} GiB of memory, "
                    f"{available_bytes / 2**30:.1f} GiB are free"
                )
                self.progress.note(f"{job.key}: {outcome.failures[job.key]}")
        parts = groups(jobs, available_bytes)
        for group in parts:
            self._prepare([j for j in group if j.key not in outcome.failures], outcome, journal)
            plan = list(visiting_order(group, settings))
            self.progress.start("measuring", len(plan))
            for number, job in plan:
                self.progress.step()
                if (
                    job.key not in outcome.failures
                    and len(outcome.visits.get(job.key, ())) <= number
                ):
                    self._visit(job, reference, settings, outcome, journal)
            self._extra(group, reference, settings, outcome, journal, settings.extra_s / len(parts))
            if len(parts) > 1:
                self._forget(group)
        if not outcome.visits:
            reasons = "; ".join(f"{k}: {v}" for k, v in list(outcome.failures.items())[:3])
            raise MeasuringError(f"nothing could be measured ({reasons or 'no jobs'})")
        return outcome

    def _extra(
        self,
        group: Sequence[Job],
        reference: Job,
        settings: Settings,
        outcome: Outcome,
        journal: Journal | None,
        limit_s: float,
    ) -> None:
        """More visits for the jobs that saw too few calm moments."""
        end = self.clock() + limit_s
        known = outcome.reference()
        for _ in range(settings.extra_rounds if known else 0):
            calm = settings.calm_ms or calm_limit(outcome.reference())
            restless = [
                j
                for j in group
                if j.key in outcome.visits
                and len(calm_samples(outcome.visits[j.key], calm)) < LEAST_CALM
            ]
            if not restless or self.clock() > end:
                return
            self.progress.start("once more", len(restless))
            for job in restless:
                self.progress.step()
                if self.clock() < end:
                    self._visit(job, reference, settings, outcome, journal)

    def _forget(self, group: Sequence[Job]) -> None:
        """Free the memory of jobs that are done."""
        for job in group:
            if self.prepared.pop(job.key, None) is not None:
                self._ask({"do": "forget", "key": job.key})

    def _prepare(self, jobs: Sequence[Job], outcome: Outcome, journal: Journal | None) -> None:
        self.progress.start("building", len(jobs))
        for job in jobs:
            self._guarded(job, outcome, journal, partial(self._estimate, job))
            self.progress.step()

    def _estimate(self, job: Job) -> float:
        """Prepare a job in the present worker unless it is; its rough time in ms."""
        if job.key not in self.prepared:
            answer = self._ask({"do": "prepare", "key": job.key, "job": job.payload})
            self.prepared[job.key] = answer["estimate_ms"]
        return self.prepared[job.key]

    def _visit(
        self,
        job: Job,
        reference: Job,
        settings: Settings,
        outcome: Outcome,
        journal: Journal | None,
    ) -> None:
        try:
            self._estimate(reference)
        except (WorkerDied, JobFailed) as problem:
            raise MeasuringError(f"the reference block cannot be measured: {problem}") from problem

        def measure() -> None:
            calls = calls_per_visit(self._estimate(job), settings.slice_s)
            answer = self._ask(
                {"do": "time", "key": job.key, "reference": reference.key, "calls": calls}
            )
            keep(outcome, journal, {"key": job.key, **answer})

        self._guarded(job, outcome, journal, measure)

    def _guarded(
        self, job: Job, outcome: Outcome, journal: Journal | None, act: Callable[[], object]
    ) -> None:
        """Do `act`; when the worker dies of it or refuses, record that and go on without the job."""
        try:
            act()
        except (WorkerDied, JobFailed) as problem:
            keep(outcome, journal, {"key": job.key, "failed": str(problem)})
            self.progress.note(f"{job.key}: {problem}; going on without it")
            if isinstance(problem, WorkerDied):
                self.worker.close()
                self.worker = self._start()
                self.prepared = {}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.worker.request(request, REQUEST_LIMIT_S)


def keep(outcome: Outcome, journal: Journal | None, record: dict[str, Any]) -> None:
    """Put a record into the journal first, then into the outcome."""
    if journal is not None:
        journal.append({**record, "at": round(time.time(), 3)})
    recall(outcome, [record])


def recall(outcome: Outcome, records: Sequence[dict[str, Any]]) -> None:
    """Put a journal's records into an outcome."""
    for record in records:
        key = record["key"]
        if "failed" in record:
            outcome.failures[key] = record["failed"]
            outcome.visits.pop(key, None)
        else:
            taken = Visit(tuple(record["samples_ms"]), tuple(record["reference_ms"]))
            outcome.visits.setdefault(key, []).append(taken)


def visiting_order(jobs: Sequence[Job], settings: Settings) -> Iterator[tuple[int, Job]]:
    """(round, job) for all rounds, each round in another random order, the same for the same seed."""
    generator = random.Random(settings.seed)
    for number in range(settings.rounds):
        order = list(jobs)
        generator.shuffle(order)
        for job in order:
            yield number, job


def groups(jobs: Sequence[Job], available_bytes: int | None) -> list[list[Job]]:
    """Jobs that may be held in memory at the same time: half of what is free, at least one job."""
    result: list[list[Job]] = [[]]
    held = 0
    for job in jobs:
        if (
            available_bytes is not None
            and result[-1]
            and held + job.keep_bytes > available_bytes / 2
        ):
            result.append([])
            held = 0
        result[-1].append(job)
        held += job.keep_bytes
    return result
