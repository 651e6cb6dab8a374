"""Measures the predefined blocks of this device into points."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.graph.counts import behaviors, count
from microbench import environment
from microbench import environment as processor
from microbench.backends.known import as_known
from microbench.blocks import BLOCKS, NETWORKS, REFERENCE_BLOCK, Predefined
from microbench.forecast import keep_bytes, peak_bytes
from microbench.journal import Journal, fingerprint
from microbench.runner import Job, Progress, Runner, Settings
from microbench.state import Level, Levels, levels
from microbench.timing import Visit, quantile

ROUNDS, SLICE_S = 8, 0.1
MOST_ROUNDS, ENOUGH_S = 24, 90.0
USUAL = Settings(rounds=ROUNDS, slice_s=SLICE_S, most_rounds=MOST_ROUNDS, enough_s=ENOUGH_S)
"""Of every job in each round: a block once, a network for so long (`Runner`). A fast machine measures
more rounds in the time that a slow one needs for ROUNDS."""
UNSTEADY = 1.5  # slowest over fastest tenth of a run, from which on it is said
BUSY_LOAD = 0.6
CALM_SHARE = 0.5
FLOOR = 0.08


def job_key(name: str, batch_size: int) -> str:
    """What a point is called in the journal."""
    return f"{name} x{batch_size}"


def predefined_job(graph: Graph, name: str, batch_size: int, whole: bool = False) -> Job:
    """The job of measuring a Graph at a batch size; `whole`: as a network in a loop of its own."""
    return Job(
        key=job_key(name, batch_size),
        payload={"graph": graph.to_dict(), "batch_size": batch_size},
        need_bytes=peak_bytes(graph, batch_size),
        keep_bytes=keep_bytes(graph, batch_size),
        whole=whole,
    )


def measure_blocks(
    backend: str,
    device: str,
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
    settings: Settings | None = None,
    blocks: Sequence[Predefined] | None = None,
    check: Callable[[Mapping[str, Any]], object] | None = None,
) -> tuple[list[Point], dict[str, Any], dict[str, Any], list[str], Journal]:
    """Measure `blocks`: (points, environment, noise, warnings, the journal, still on disk).

    Without `blocks`: BLOCKS and NETWORKS. Blocks are measured after whole networks: those among `blocks`,
    or REFERENCES where there are none. Goes on from the journal if it is of the same run; `now` is in
    seconds since the epoch. `check` gets the environment before anything is measured, and may raise. Raises
    LolatError when device or backend are not there, or nothing could be measured.
    """
    settings = settings or USUAL
    blocks = (*BLOCKS, *NETWORKS) if blocks is None else blocks
    extra = () if any(b.whole for b in blocks) else references()
    with Runner(backend, device, progress) as runner:
        graphs = {b.name: as_known(backend, b.make()) for b in (*blocks, *extra)}
        jobs = [
            predefined_job(graphs[b.name], b.name, n, b.whole)
            for b in (*blocks, *extra)
            for n in b.batch_sizes
        ]
        small = {job_key(b.name, b.batch_sizes[0]) for b in (*blocks, *extra) if b.whole}
        before = [j for j in jobs if j.key in small]
        where = environment.describe(device) | runner.environment
        if check is not None:
            check(where)
        key = run_key(runner, device, jobs, before[0], settings)
        journal = open_journal(
            journal_path, {**key, "backend": backend}, now, restart, runner.progress
        )
        try:
            outcome = runner.run(jobs, before, settings, journal, free_bytes(runner, device))
        except BaseException:
            journal.close()
            raise
    found = levels(outcome.visits, environment.cpu_count())
    points = [
        _point(b, graphs[b.name], n, outcome.visits[name], found.jobs[name])
        for b in blocks
        for n in b.batch_sizes
        if (name := job_key(b.name, n)) in found.jobs
    ]
    noise = noise_of(found)
    return points, where, noise, remarks(where, noise, outcome.failures), journal


def references() -> tuple[Predefined, ...]:
    """The REFERENCES, each at one batch size."""
    return tuple(
        replace(b, batch_sizes=b.batch_sizes[:1]) for b in NETWORKS if b.name in REFERENCES
    )


REFERENCES = (
    "residual 34 3x128x128", "inverted 3x224x224", "vgg 11 3x96x96", "u-net 3x96x96",
    "transformer 3x224x224",
)  # fmt: skip
"""The networks that tell the machine's state, measured anew by `doctor`, `evaluate` and `extend`: of
different work, and quickly built."""


def run_key(
    runner: Runner,
    device: str,
    jobs: Sequence[Job],
    reference: Job,
    settings: Settings,
    what: str = "blocks",
) -> dict[str, Any]:
    """What makes the times of two runs comparable; `what` the jobs are."""
    return {
        what: fingerprint({j.key: json.dumps(j.payload, sort_keys=True) for j in jobs}),
        "reference": fingerprint(reference.payload),
        "settings": asdict(settings),
        "device": environment.label_of(device, runner.environment),
        "processor": processor.kind(environment.processor_facts()) if device == "cpu" else {},
        **{k: runner.environment[k] for k in sorted(runner.environment)},
    }


def open_journal(
    path: Path, key: Mapping[str, Any], now: float, restart: bool, progress: Progress
) -> Journal:
    """The journal of a run, which says whether it goes on from what is there; see `Journal`."""
    journal = Journal(path, key, now, restart)
    if journal.dropped:
        progress.note(
            f"starting anew, not from {path}: {journal.dropped}; it is kept as {journal.aside}"
        )
    elif journal.records:
        progress.note(
            f"going on from {path}: {len(journal.records)} measurements are there already (--restart "
            "throws them away)"
        )
    return journal


def free_bytes(runner: Runner, device: str) -> int | None:
    """Memory that jobs on `device` can have: a GPU's own where the backend knows it, else the host's."""
    own = runner.available_bytes() if device != "cpu" else None
    return environment.available_bytes() if own is None else own


def reference_job() -> Job:
    """The block that is timed beside every sample."""
    return predefined_job(REFERENCE_BLOCK.make(), "reference", REFERENCE_BLOCK.batch_sizes[0])


def _point(
    block: Predefined, graph: Graph, batch_size: int, visits: Sequence[Visit], level: Level
) -> Point:
    return Point(
        name=block.name,
        batch_size=batch_size,
        counts=count(graph).total(batch_size)._asdict(),
        latency_ms=round(level.latency_ms, 6),
        samples_ms=tuple(t for v in visits for t in v.samples),
        reference_ms=tuple(t for v in visits for t in v.reference),
        spread=None if level.spread is None else round(level.spread, 5),
        kinds=tuple(sorted(behaviors(graph.operations))),
        whole=block.whole,
    )


def noise_of(found: Levels) -> dict[str, Any]:
    """How steady the machine was, as a model file has it.

    `floor`: what measuring a point again gives (median over the points of how far two halves of its samples
    are apart, the machine's state taken out); `quiet`, `busy`: how long things took in the calmest and the
    most disturbed tenth of the run, as factors of the usual; `others`: how many processors other programs
    used on average, whose effect is taken out.
    """
    return {
        "floor": round(found.floor, 5),
        "quiet": round(found.quiet, 4),
        "busy": round(found.busy, 4),
        "others": round(found.others, 3),
    }


def remarks(
    where: Mapping[str, Any], noise: Mapping[str, Any], failures: Mapping[str, str]
) -> list[str]:
    """What is to be said of a run, each with what to do about it."""
    found = busy_before(where)
    apart = noise["busy"] / noise["quiet"]
    if apart > UNSTEADY or noise["floor"] > FLOOR:
        found.append(
            f"unsteady machine: all took {apart:.1f} times as long in its busiest tenth as in its calmest, "
            f"repeated measurements were {100 * noise['floor']:.0f} % apart; it is taken out as far as it "
            "can be; close other programs and run again for narrower intervals (on a virtual machine, "
            "neighbours may be the cause: docs/why-different.md)"
        )
    return found + failed(failures)


def describe_noise(
    reference: Sequence[float],
    limit: float,
    spreads: Sequence[float | None],
    points_without_calm: int,
) -> dict[str, Any]:
    """How steady the machine was.

    `floor`: what measuring a point again gives (median over the points of how far two halves of its
    visits are apart, where that is known); `reference_ms`: what the reference block takes in calm
    moments, `calm_ms`: up to which time a moment is calm, `calm_share`: how much of the run was;
    `slow_factor`: how much longer the reference took in the slowest tenth of the run;
    `points_without_calm`: how many points' times are not those of calm moments.
    """
    calm = [t for t in reference if t <= limit]
    middle = statistics.median(calm)
    known = [s for s in spreads if s is not None]
    return {
        "floor": round(statistics.median(known), 5) if known else 0.0,
        "reference_ms": round(middle, 5),
        "calm_ms": round(limit, 5),
        "calm_share": round(len(calm) / len(reference), 4),
        "slow_factor": round(quantile(reference, 0.9) / middle, 4),
        "points_without_calm": points_without_calm,
    }


def warnings(
    where: Mapping[str, Any],
    noise: Mapping[str, Any],
    failures: Mapping[str, str],
    restless: Sequence[str] = (),
) -> list[str]:
    """Remarks on a run, each with what to do about it; `restless`: points that saw no calm moment."""
    remarks = busy_before(where)
    if noise["calm_share"] < CALM_SHARE or noise["floor"] > FLOOR:
        remarks.append(
            f"unsteady machine: calm for {100 * noise['calm_share']:.0f} % of the run, the reference "
            f"block {noise['slow_factor']:.1f} times as slow at worst, repeated measurements "
            f"{100 * noise['floor']:.0f} % apart; close other programs and run again "
            "(on a virtual machine, neighbours may be the cause: docs/why-different.md)"
        )
    if restless:
        several = len(restless) > 1
        remarks.append(
            f"{len(restless)} point{'s' * several} saw no calm moment (first: {restless[0]}): "
            f"{'their times are' if several else 'its time is'} the fastest of disturbed ones; run "
            "again when the machine is quieter"
        )
    return remarks + failed(failures)


def busy_before(where: Mapping[str, Any]) -> list[str]:
    """A remark where other programs were at work before the run."""
    load = where.get("load_at_start")
    # Of the machine, whose load it is; a framework may have been given fewer.
    threads = where.get("processor", {}).get("threads", where["threads"])
    if load is None or load <= BUSY_LOAD * threads:
        return []
    return [
        f"the machine was busy before the run (load {load} on {threads} threads): close other "
        "programs and run again"
    ]


def failed(failures: Mapping[str, str]) -> list[str]:
    """A remark where points could not be measured."""
    if not failures:
        return []
    key, reason = next(iter(failures.items()))
    return [
        f"{len(failures)} point{'s' * (len(failures) > 1)} could not be measured (first: {key}: "
        f"{reason}); the model is fitted on the others"
    ]
