"""A measuring run: jobs in, raw times out; rounds in random order, a worker that may die, a journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from lolat.errors import MeasuringError
from microbench.journal import Journal
from microbench.outcome import Outcome, keep, missing, recall
from microbench.plan import Job, Settings, groups, visiting_order
from microbench.process import JobFailed, WorkerDied, WorkerProcess
from microbench.timer import Clock, calls_per_visit, calm_limit, calm_samples

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
