"""Measures a few blocks of a model again, within seconds, to see whether the model still holds here.

Which ones, `microbench.chosen` says. They are measured as learning does it: each sample between two of
the reference block, in rounds of random order, waiting a little for calm moments.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lolat.errors import DeviceError, MeasuringError
from lolat.points import Point
from microbench import comparable, environment
from microbench.backends.known import known_blocks
from microbench.blocks import BLOCKS, Predefined
from microbench.chosen import Chosen, choose
from microbench.comparable import Difference
from microbench.learn import BUSY_LOAD, job_key, predefined_job, reference_job
from microbench.plan import Job, Settings, visiting_order
from microbench.runner import Progress, Runner, Silent
from microbench.timer import (
    LEAST_CALM,
    Clock,
    Visit,
    calm_limit,
    calm_samples,
    centre,
    is_calm,
    quantile,
    settled_limit,
)

SLICE_S, PATIENCE_S = 0.05, 0.5
LEAST_ROUNDS, MOST_ROUNDS = 4, 60
TOTAL_S, MEASURING_S, LEAST_S = 17.0, 10.0, 3.0
"""Seconds for everything; at most for building and measuring; for those at least, if starting took long."""


@dataclass(frozen=True)
class Again:
    """A block then and now, ms; `calm`: whether the new time is that of calm moments."""

    name: str
    batch_size: int
    role: str
    learned_ms: float
    now_ms: float
    calm: bool


@dataclass(frozen=True)
class Examination:
    """What was found. Without `blocks` nothing was measured: the device is another one, or not there.

    `reference_ms`: the reference block in the moments that counted; `unrest`: its slowest tenth over its
    fastest; `at_known_calm`: whether those moments were as calm as those of learning (None: the model
    does not say how calm those were); `load` and `threads` of the machine before; `seconds` in all and
    `starting_s` of them until the framework was there; `remark`: why there is no such device, or
    what the model does not say of it.
    """

    blocks: tuple[Again, ...] = ()
    differences: tuple[Difference, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    reference_ms: float | None = None
    unrest: float | None = None
    at_known_calm: bool | None = None
    load: float | None = None
    threads: int = 1
    seconds: float = 0.0
    starting_s: float = 0.0
    remark: str = ""

    @property
    def busy(self) -> bool:
        """Whether other programs were at work before."""
        return self.load is not None and self.load > BUSY_LOAD * self.threads


def examine(
    points: Sequence[Point],
    coefficients: Mapping[str, float],
    label: str,
    learned: Mapping[str, Any],
    calm_ms: float | None = None,
    backend: str = "tensorflow",
    device: str = "cpu",
    progress: Progress | None = None,
    clock: Clock = time.monotonic,
    blocks: Sequence[Predefined] = BLOCKS,
) -> Examination:
    """Measure some of a model's points again: see the module.

    `label` and `learned`: the model's device and environment; `calm_ms`: up to which time of the
    reference block a moment was calm when learning. On another device nothing is measured, for nothing
    can be expected to hold; with another version, number of threads or flag of the framework it is,
    and that is listed. A GPU that is not there is a difference too. `clock`: seconds; building and
    measuring end MEASURING_S after the framework has started, or TOTAL_S after the beginning, except
    that one visit of each block is always made. Raises InputError when there is nothing to measure
    again, LolatError when it cannot be done.
    """
    began = clock()
    chosen = choose(points, coefficients, known_blocks(backend, blocks))
    here = comparable.here(learned, device)
    state: dict[str, Any] = {
        "load": here["load_at_start"],
        "threads": environment.cpu_count(),
    }
    if device == "cpu":
        other = comparable.differences_of_device(label, learned, here)
        if other:
            return Examination(differences=other, seconds=clock() - began, **state)
        state["remark"] = comparable.unsaid(learned)
    try:
        runner = Runner(backend, device, progress, clock=clock)
    except DeviceError as error:
        if device == "cpu":
            raise
        missing = (Difference("device", label, None),)
        state["remark"] = str(error)
        return Examination((), missing, seconds=clock() - began, **state)
    with runner:
        starting_s = clock() - began
        versions = here | runner.environment
        if device != "cpu":
            other = comparable.differences_of_device(label, learned, versions)
            if other:
                return Examination((), other, seconds=clock() - began, **state)
        differences = comparable.differences(label, learned, versions)
        left = max(LEAST_S, min(MEASURING_S, TOTAL_S - starting_s))
        visits, failures = _measure(runner, chosen, calm_ms, clock() + left, clock)
    limit = settled_limit(visits.values(), calm_ms)
    reference = [t for taken in visits.values() for v in taken for t in v.reference]
    return Examination(
        blocks=tuple(
            Again(
                c.point.name, c.point.batch_size, c.role, c.point.latency_ms,
                centre(taken, limit), is_calm(taken, limit),
            )
            for c in chosen
            if (taken := visits.get(job_key(c.point.name, c.point.batch_size)))
        ),
        differences=differences,
        failures=failures,
        reference_ms=statistics.median([t for t in reference if t <= limit] or reference),
        unrest=quantile(reference, 0.9) / quantile(reference, 0.1),
        at_known_calm=None if calm_ms is None else limit == calm_ms,
        seconds=clock() - began,
        starting_s=starting_s,
        **state,
    )  # fmt: skip


class _Notes(Silent):
    """Passes on remarks alone: the stages of a single visit are nobody's business."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def note(self, text: str) -> None:
        """A remark for the user."""
        self.progress.note(text)


def _measure(
    runner: Runner, chosen: Sequence[Chosen], calm_ms: float | None, end: float, clock: Clock
) -> tuple[dict[str, list[Visit]], dict[str, str]]:
    """(visits, failures) by key: all blocks once, then each as often as needed, until `end`.

    The clock is looked at between visits, so that blocks that have become slow cost samples, not time.
    """
    jobs = [predefined_job(c.graph, c.point.name, c.point.batch_size) for c in chosen]
    reference = reference_job()
    once = Settings(rounds=1, slice_s=SLICE_S, extra_rounds=0, calm_ms=calm_ms)
    outcome = runner.run(jobs, reference, once, None, environment.available_bytes())
    visits, failures = dict(outcome.visits), dict(outcome.failures)
    over = failures.keys() | outcome.stopped
    progress, runner.progress = runner.progress, _Notes(runner.progress)
    rounds = Settings(rounds=MOST_ROUNDS)
    steps = LEAST_ROUNDS * len(jobs)
    progress.start("measuring", steps)
    for number, job in visiting_order(jobs, rounds):
        if number < LEAST_ROUNDS:
            progress.step()
            steps -= 1
        left = end - clock()
        if left <= 0:
            break
        if job.key in over or (number >= LEAST_ROUNDS and _enough(job, visits, calm_ms)):
            continue
        # Once at once, once after waiting for calm, which the runner does for extra visits.
        twice = Settings(
            rounds=1, slice_s=SLICE_S, extra_rounds=1, extra_s=left, calm_ms=calm_ms,
            patience_s=min(PATIENCE_S, left),
        )  # fmt: skip
        try:
            outcome = runner.run([job], reference, twice)
        except MeasuringError as problem:  # it worked before: keep what there is
            failures[job.key] = str(problem)
            over.add(job.key)
            continue
        visits[job.key] = [*visits[job.key], *outcome.visits[job.key]]
        if outcome.deaths[job.key]:
            over.add(job.key)
    for _ in range(steps):  # that there was no time for
        progress.step()
    return visits, failures


def _enough(job: Job, visits: Mapping[str, Sequence[Visit]], calm_ms: float | None) -> bool:
    """Whether a block has calm samples to spare."""
    limit = calm_ms or calm_limit([t for v in visits.values() for w in v for t in w.reference])
    return len(calm_samples(visits[job.key], limit)) >= 2 * LEAST_CALM
