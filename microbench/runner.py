"""A measuring run: jobs in, raw times out; rounds in random order, a worker that may die, a journal."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from lolat.errors import MeasuringError
from microbench.journal import Journal
from microbench.process import JobFailed, WorkerDied, WorkerProcess
from microbench.timing import (
    ENOUGH_CALM,
    LEAST_CALM,
    Clock,
    Visit,
    calls_per_visit,
    calm_limit,
    calm_samples,
)

# ---- What a run measures and in which order: jobs, how long, rounds, what is in memory
# together.


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
    """How long and how often.

    `rounds` over all jobs, in which a job is visited once, for `slice_s` seconds or so, and further ones,
    up to `most_rounds`, while `enough_s` seconds have not passed; beside a reference block then up to
    `extra_rounds` for the jobs that saw too few calm moments, as long as `extra_s` seconds are left.
    An extra visit waits up to `patience_s` for a calm moment.
    `least_calm`: fewer calm samples than that are too few. `together`: at most so many jobs are held in
    memory and measured in turns, then the next so many; None: as many as there is room for.
    """

    rounds: int = 10
    slice_s: float = 0.03
    extra_rounds: int = 20
    extra_s: float = 100.0
    seed: int = 2026
    patience_s: float = 3.0
    least_calm: int = LEAST_CALM
    together: int | None = None
    most_rounds: int = 0
    enough_s: float = 0.0


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


def groups(
    jobs: Sequence[Job], available_bytes: int | None, most: int | None = None
) -> list[list[Job]]:
    """Jobs that may be held in memory at the same time, at least one job each, at most `most`.

    Together they keep at most half of what is free, and with the one that runs at most all of it.
    """
    result: list[list[Job]] = [[]]
    held = extra = 0
    for job in jobs:
        more = max(0, job.need_bytes - job.keep_bytes)
        full = len(result[-1]) == most or (
            available_bytes is not None
            and (
                held + job.keep_bytes > available_bytes / 2
                or held + job.keep_bytes + max(extra, more) > available_bytes
            )
        )
        if full and result[-1]:
            result.append([])
            held = extra = 0
        result[-1].append(job)
        held, extra = held + job.keep_bytes, max(extra, more)
    return result


# ---- What a run has found so far: raw times, what failed, what is to be tried again; as the
# journal has it.


@dataclass
class Outcome:
    """Raw times: per job its visits; what failed and why.

    `stopped`: jobs that killed the worker after they had been timed often enough; their visits count,
    but they get no more. `deaths`: how often a job did so, in this run and its earlier parts.
    `forgivable`: jobs whose last failure was their first death, to be tried again by a resumed run.
    """

    visits: dict[str, list[Visit]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    deaths: Counter[str] = field(default_factory=Counter)
    forgivable: set[str] = field(default_factory=set)

    def over(self, key: str) -> bool:
        """Whether a job gets no more visits."""
        return key in self.failures or key in self.stopped

    def forgive(self) -> list[str]:
        """Let the jobs of a first death be tried again, which may have been the system's; their keys."""
        again = sorted(self.forgivable)
        for key in again:
            self.failures.pop(key, None)
            self.stopped.discard(key)
        self.forgivable.clear()
        return again

    def reference(self) -> list[float]:
        """All times of the reference block, ms."""
        return [t for visits in self.visits.values() for v in visits for t in v.reference]


def missing(job: Job, outcome: Outcome, settings: Settings) -> bool:
    """Whether `job` still has to be visited."""
    return not outcome.over(job.key) and len(outcome.visits.get(job.key, ())) < settings.rounds


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
            died = record.get("died") is True
            outcome.deaths[key] += died
            if died and outcome.deaths[key] == 1:
                outcome.forgivable.add(key)
            else:
                outcome.forgivable.discard(key)
            if died and sum(len(v.samples) for v in outcome.visits.get(key, ())) >= ENOUGH_CALM:
                outcome.stopped.add(key)
                continue
            outcome.failures[key] = record["failed"]
            outcome.visits.pop(key, None)
        else:
            taken = Visit(
                tuple(record["samples_ms"]),
                tuple(record["reference_ms"]),
                tuple(record.get("at_s", ())),
                str(record.get("before") or ""),
                record.get("others_s"),
            )
            outcome.visits.setdefault(key, []).append(taken)


# ---- runner ----------------------------------------

REQUEST_LIMIT_S = 300.0
MOST_DEATHS = 5  # in a row: then it is not the jobs
MOST_LOOPS = 3  # calls of a network in a row that count


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
        self.deaths = 0
        self.turn = 0  # which network a block is measured after
        try:
            self.environment: dict[str, Any] = self._ask({"do": "environment"})["environment"]
        except BaseException as problem:
            self.worker.close()
            if isinstance(problem, (WorkerDied, JobFailed)):
                raise MeasuringError(f"the backend does not say what it is: {problem}") from problem
            raise

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *unused: object) -> None:
        self.worker.close()

    def available_bytes(self) -> int | None:
        """Free memory of the device that is measured; None where that is the host's, or not known."""
        try:
            free: int | None = self._ask({"do": "memory"})["available_bytes"]
        except JobFailed:
            return None
        except WorkerDied as problem:
            raise MeasuringError(f"the backend does not say what is free: {problem}") from problem
        return free

    def run(
        self,
        jobs: Sequence[Job],
        reference: Job | Sequence[Job],
        settings: Settings,
        journal: Journal | None = None,
        available_bytes: int | None = None,
    ) -> Outcome:
        """Measure all jobs. What the journal already holds is not measured again.

        `reference`: what is timed beside each sample (`timer.visit`); or whole networks, of which one runs
        before each sample in turns (`timer.sample`), for jobs that are no whole networks themselves.

        A job that failed stays out, but one that killed the worker is tried once more.
        Jobs that need more than `available_bytes` are skipped with a reason. Raises MeasuringError
        when nothing could be measured.
        """
        outcome = Outcome(environment=self.environment)
        recall(outcome, journal.records if journal else [])
        self._say_resumed(outcome)
        for job in jobs:
            if (
                available_bytes is not None
                and job.need_bytes > available_bytes
                and missing(job, outcome, settings)
            ):
                outcome.failures[job.key] = (
                    f"skipped: needs about {job.need_bytes / 2**30:.1f} GiB of memory, "
                    f"{available_bytes / 2**30:.1f} GiB are free"
                )
                self.progress.note(f"{job.key}: {outcome.failures[job.key]}")
        able = [j for j in jobs if j.key not in outcome.failures]
        parts = groups(able, available_bytes, settings.together)
        for group in parts:
            todo = [j for j in group if missing(j, outcome, settings)]
            self._prepare(todo, outcome, journal)
            end = self.clock() + settings.enough_s / len(parts)
            for number, job in self._plan(group, settings, end):
                if not outcome.over(job.key) and len(outcome.visits.get(job.key, ())) <= number:
                    self._visit(job, reference, settings, outcome, journal)
            if isinstance(reference, Job):
                limit_s = settings.extra_s / len(parts)
                self._extra(group, reference, settings, outcome, journal, limit_s)
            if len(parts) > 1:
                self._forget(group)
        if not outcome.visits:
            reasons = "; ".join(f"{k}: {v}" for k, v in list(outcome.failures.items())[:3])
            raise MeasuringError(f"nothing could be measured ({reasons or 'no jobs'})")
        return outcome

    def _plan(
        self, group: Sequence[Job], settings: Settings, end: float
    ) -> Iterator[tuple[int, Job]]:
        """(round, job) of what is to be visited, with progress; no further round begins that `end` cuts."""
        began = self.clock()
        for at, (number, job) in enumerate(visiting_order(group, settings)):
            rounds, first = divmod(at, len(group))
            if at == 0:
                self.progress.start("measuring", settings.rounds * len(group))
            elif first == 0 and rounds >= settings.rounds:
                left = int((end - self.clock()) / max(self.clock() - began, 1e-9) * rounds)
                if left < 1:
                    return
                if rounds == settings.rounds:
                    more = min(left, settings.most_rounds - rounds)
                    self.progress.start("measuring on, while there is time", more * len(group))
            self.progress.step()
            yield number, job

    def _say_resumed(self, outcome: Outcome) -> None:
        """Say what becomes of the jobs that failed in an earlier part of the run."""
        again = outcome.forgive()
        if again:
            self.progress.note(
                f"trying again what the measuring process died of: {', '.join(again[:3])}"
                + (f" and {len(again) - 3} more" if len(again) > 3 else "")
            )
        if outcome.failures:
            key, reason = next(iter(outcome.failures.items()))
            self.progress.note(
                f"{len(outcome.failures)} skipped, failed before (first: {key}: {reason})"
            )

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
            calm = calm_limit(outcome.reference())
            restless = [
                j
                for j in group
                if j.key in outcome.visits
                and not outcome.over(j.key)
                and len(calm_samples(outcome.visits[j.key], calm)) < settings.least_calm
            ]
            if not restless or self.clock() > end:
                return
            self.progress.start("once more", len(restless))
            for job in restless:
                self.progress.step()
                if self.clock() < end:
                    self._visit(job, reference, settings, outcome, journal, calm)

    def _forget(self, group: Sequence[Job]) -> None:
        """Free the memory of jobs that are done."""
        keys = [j.key for j in group if self.prepared.pop(j.key, None) is not None]
        try:
            self._ask({"do": "forget", "keys": keys})
        except (WorkerDied, JobFailed):
            self._replace_worker()

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
        reference: Job | Sequence[Job],
        settings: Settings,
        outcome: Outcome,
        journal: Journal | None,
        wait_for: float | None = None,
    ) -> None:
        """Take some samples of a job, waiting a while for a reference of `wait_for` ms if given."""
        if not isinstance(reference, Job):
            self._guarded(
                job,
                outcome,
                journal,
                partial(self._sample, job, reference, settings, outcome, journal),
            )
            return
        try:
            self._estimate(reference)
        except (WorkerDied, JobFailed) as problem:
            raise MeasuringError(f"the reference block cannot be measured: {problem}") from problem

        def measure() -> None:
            calls = calls_per_visit(self._estimate(job), settings.slice_s)
            request = {"do": "time", "key": job.key, "reference": reference.key, "calls": calls}
            if wait_for is not None:
                request |= {"calm_ms": wait_for, "patience_s": settings.patience_s}
            answer = self._ask(request)
            keep(outcome, journal, {"key": job.key, **answer})

        self._guarded(job, outcome, journal, measure)

    def _sample(
        self,
        job: Job,
        networks: Sequence[Job],
        settings: Settings,
        outcome: Outcome,
        journal: Journal | None,
    ) -> None:
        """Take some samples of a job as it is in use; see `timer.sample`."""
        before = "" if job.whole else self._network(networks, outcome, journal)
        estimate = self._estimate(job)
        calls = calls_per_visit(estimate, settings.slice_s, most=MOST_LOOPS) if job.whole else 1
        request = {"do": "sample", "key": job.key, "before": before, "calls": calls}
        keep(outcome, journal, {"key": job.key, **self._ask(request)})

    def _network(self, networks: Sequence[Job], outcome: Outcome, journal: Journal | None) -> str:
        """The network whose turn it is, prepared; one that cannot be, or kills the worker, is out."""
        while able := [n for n in networks if not outcome.over(n.key)]:
            self.turn += 1
            chosen = able[self.turn % len(able)]
            deaths = self.deaths
            self._guarded(chosen, outcome, journal, partial(self._estimate, chosen))
            if not outcome.over(chosen.key):
                self.deaths = deaths  # of jobs in a row: that a network can be built ends no row
                return chosen.key
        first = next(
            (f"{n.key}: {outcome.failures.get(n.key, 'it ended')}" for n in networks), "none"
        )
        raise MeasuringError(f"no network to measure blocks after can be run (first: {first})")

    def _guarded(
        self, job: Job, outcome: Outcome, journal: Journal | None, act: Callable[[], object]
    ) -> None:
        """Do `act`; when the worker dies of it or refuses, record that and go on without the job."""
        try:
            act()
            self.deaths = 0
        except (WorkerDied, JobFailed) as problem:
            died = isinstance(problem, WorkerDied)
            keep(outcome, journal, {"key": job.key, "failed": str(problem), "died": died})
            rest = "with the times that it has" if job.key in outcome.stopped else "without it"
            self.progress.note(f"{job.key}: {problem}; going on {rest}")
            if died:
                self.deaths += 1
                if self.deaths >= MOST_DEATHS:
                    raise MeasuringError(
                        f"the measuring process died {self.deaths} times in a row, last: {problem}; "
                        "run again when that is mended"
                    ) from problem
                self._replace_worker()

    def _replace_worker(self) -> None:
        """A new process; what the old one had prepared is gone."""
        self.worker.close()
        self.prepared = {}
        self.worker = self._start()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.worker.request(request, REQUEST_LIMIT_S)
