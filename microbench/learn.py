"""Measures the predefined blocks of this device into points."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lolat.counts import behaviours, count
from lolat.graph import Graph
from lolat.points import Point
from microbench import environment, processor
from microbench.backends.known import as_known
from microbench.blocks import BLOCKS, REFERENCE_BLOCK, Predefined
from microbench.forecast import keep_bytes, peak_bytes
from microbench.journal import Journal, fingerprint
from microbench.plan import Job, Settings
from microbench.runner import Progress, Runner
from microbench.timer import Visit, centre, is_calm, quantile, settled_limit, spread

BUSY_LOAD = 0.6
CALM_SHARE = 0.5
FLOOR = 0.08


def job_key(name: str, batch_size: int) -> str:
    """What a point is called in the journal."""
    return f"{name} x{batch_size}"


def predefined_job(graph: Graph, name: str, batch_size: int) -> Job:
    """The job of measuring a Graph at a batch size."""
    return Job(
        key=job_key(name, batch_size),
        payload={"graph": graph.to_dict(), "batch_size": batch_size},
        need_bytes=peak_bytes(graph, batch_size),
        keep_bytes=keep_bytes(graph, batch_size),
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
    """Measure `blocks`, BLOCKS if None: (points, environment, noise, warnings, the journal, still on disk).

    Goes on from the journal if it is of the same run; `now` is in seconds since the epoch. `check` gets
    the environment before anything is measured, and may raise. Raises LolatError when device or
    backend are not there, or nothing could be measured.
    """
    settings = settings or Settings()
    blocks = BLOCKS if blocks is None else blocks
    with Runner(backend, device, progress) as runner:
        graphs = {b.name: as_known(backend, b.make()) for b in blocks}
        jobs = [predefined_job(graphs[b.name], b.name, n) for b in blocks for n in b.batch_sizes]
        reference = reference_job()
        where = environment.describe(device) | runner.environment
        if check is not None:
            check(where)
        key = run_key(runner, device, jobs, reference, settings)
        journal = open_journal(
            journal_path, {**key, "backend": backend}, now, restart, runner.progress
        )
        try:
            outcome = runner.run(jobs, reference, settings, journal, free_bytes(runner, device))
        except BaseException:
            journal.close()
            raise
    limit = settled_limit(outcome.visits.values(), settings.calm_ms)
    points = [
        _point(b, graphs[b.name], n, visits, limit)
        for b in blocks
        for n in b.batch_sizes
        if (visits := outcome.visits.get(job_key(b.name, n)))
    ]
    restless = [key for key, visits in outcome.visits.items() if not is_calm(visits, limit)]
    noise = describe_noise(outcome.reference(), limit, [p.spread for p in points], len(restless))
    return points, where, noise, warnings(where, noise, outcome.failures, restless), journal


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
    block: Predefined, graph: Graph, batch_size: int, visits: Sequence[Visit], limit: float
) -> Point:
    apart = spread(visits, limit)
    return Point(
        name=block.name,
        batch_size=batch_size,
        counts=count(graph).total(batch_size)._asdict(),
        latency_ms=round(centre(visits, limit), 6),
        samples_ms=tuple(t for v in visits for t in v.samples),
        reference_ms=tuple(t for v in visits for t in v.beside()),
        spread=None if apart is None else round(apart, 5),
        kinds=tuple(sorted(behaviours(graph.operations))),
    )


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
    remarks = []
    load = where.get("load_at_start")
    # Of the machine, whose load it is; a framework may have been given fewer.
    threads = where.get("processor", {}).get("threads", where["threads"])
    if load is not None and load > BUSY_LOAD * threads:
        remarks.append(
            f"the machine was busy before the run (load {load} on {threads} threads): close other "
            "programs and run again"
        )
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
    if failures:
        key, reason = next(iter(failures.items()))
        remarks.append(
            f"{len(failures)} point{'s' * (len(failures) > 1)} could not be measured (first: {key}: "
            f"{reason}); the model is fitted on the others"
        )
    return remarks
