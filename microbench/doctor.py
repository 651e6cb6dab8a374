"""Measures a few whole networks of a model again, within seconds: does the model still hold here?

Which ones, `microbench.blocks` says. They are measured as learning does it: in loops of their own, in
rounds of random order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lolat.errors import DeviceError, InputError
from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.graph.counts import count
from microbench import environment
from microbench import environment as comparable
from microbench.backends.known import known_blocks
from microbench.blocks import NETWORKS, Predefined
from microbench.environment import Difference
from microbench.learn import BUSY_LOAD, REFERENCES, SLICE_S, free_bytes, job_key, predefined_job
from microbench.runner import Job, Progress, Runner, Settings
from microbench.state import Levels, levels
from microbench.timing import Clock

SETTINGS = Settings(rounds=6, slice_s=SLICE_S)


@dataclass(frozen=True)
class Again:
    """A network then and now, ms."""

    point: Point
    now_ms: float


@dataclass(frozen=True)
class Examination:
    """What was found. Without `again` nothing was measured: the device is another one, or not there.

    `unrest`: the most disturbed tenth of the run over the calmest; `loaded`: by what factor all takes
    longer for the other programs at work, which `again` leaves out; `load` and `threads` of the machine
    before; `seconds` in all and `starting_s` of them until the framework was there; `remark`: why there
    is no such device, or what the model does not say of it.
    """

    again: tuple[Again, ...] = ()
    differences: tuple[Difference, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    unrest: float | None = None
    loaded: float = 1.0
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
    label: str,
    learned: Mapping[str, Any],
    backend: str = "tensorflow",
    device: str = "cpu",
    progress: Progress | None = None,
    clock: Clock = time.monotonic,
    networks: Sequence[Predefined] = NETWORKS,
) -> Examination:
    """Measure some of a model's points again: see the module.

    `label` and `learned`: the model's device and environment. On another device nothing is measured, for
    nothing can be expected to hold; with another version, number of threads or flag of the framework
    it is, and that is listed. A GPU that is not there is a difference too. Raises InputError when there
    is nothing to measure again, LolatError when it cannot be done.
    """
    began = clock()
    chosen = choose(points, known_blocks(backend, networks))
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
        jobs = reference_jobs(chosen)
        outcome = runner.run(jobs, jobs, SETTINGS, None, free_bytes(runner, device))
    found = levels(outcome.visits, environment.cpu_count())
    return Examination(
        again=measured_again(chosen, found),
        differences=differences,
        failures=outcome.failures,
        unrest=found.busy / found.quiet,
        loaded=found.loaded,
        seconds=clock() - began,
        starting_s=starting_s,
        **state,
    )


def reference_jobs(chosen: Sequence[Chosen]) -> list[Job]:
    """The jobs of measuring networks of a model again."""
    return [predefined_job(graph, p.name, p.batch_size, whole=True) for p, graph in chosen]


def measured_again(chosen: Sequence[Chosen], found: Levels) -> tuple[Again, ...]:
    """Those of `chosen` that a run has measured."""
    keyed = [(p, job_key(p.name, p.batch_size)) for p, _ in chosen]
    return tuple(Again(p, found.jobs[key].latency_ms) for p, key in keyed if key in found.jobs)


# ---- Which of a model's points to measure again: whole networks, which tell the state of the
# machine.

SAME = ("acts", "inp", "flops", "weights")
"""A network of this name that counts otherwise is another one."""

Chosen = tuple[Point, Graph]


def choose(points: Sequence[Point], networks: Sequence[Predefined] = NETWORKS) -> list[Chosen]:
    """The points that are REFERENCES of this version, one of each, with their graphs.

    Where none of those is there, all whole networks that are. InputError when there is none.
    """
    known = {n.name: n for n in networks}
    found: dict[str, Chosen] = {}
    for point in points:
        if point.whole and point.name in known and point.name not in found:
            graph = known[point.name].make()
            now = count(graph).total(point.batch_size)._asdict()
            if all(point.counts.get(c) == now[c] for c in SAME):
                found[point.name] = (point, graph)
    if not found:
        raise InputError(
            f"none of the model's {len(points)} points is a whole network of this version, so there is "
            "nothing to measure again; expected a model learned by measuring: python learn_model.py cpu"
        )
    return [c for name, c in found.items() if name in REFERENCES] or list(found.values())
