"""Measures the predefined blocks of this device into points; the frame of every run with a journal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.graph.counts import behaviors, count
from lolat.io.paths import near
from lolat.io.progress import Progress
from lolat.units import changed, off
from microbench import environment
from microbench.blocks import BLOCKS, NETWORKS, Predefined, as_known, known_blocks
from microbench.journal import Journal, fingerprint
from microbench.runner import Job, Outcome, Runner, Settings, graph_job, job_key
from microbench.timing import Level, Levels, Visit, levels

USUAL = Settings(rounds=6, most_rounds=24, enough_s=50.0)
"""A fast machine measures more rounds in the time that a slow one needs for the first 6."""
UNSTEADY = 1.5  # slowest over fastest tenth of a run, from which on it is said
BUSY_LOAD = 0.6
FLOOR = 0.08
OTHERS = 0.2  # processors that other programs use, from which on it is said
MOVED = 0.1  # as much faster or slower than before is said
USUAL_SHARE = 0.4  # of a processor's nominal peak that large convolutions reach, at least
STEADY = {"first_ms": 1.0, "last_ms": 1.0}
LARGE_FLOPS = 2e8  # multiply-accumulates of what is large
REFERENCES = (
    "residual 34 3x128x128", "inverted 3x224x224", "vgg 11 3x96x96", "u-net 3x96x96",
    "transformer 3x224x224",
)  # fmt: skip
"""The networks that tell how fast the machine is, measured anew by `doctor` and `evaluate`: of
different work, and quickly built."""

Check = Callable[[Mapping[str, Any]], object]
"""Gets the environment before anything is measured, and may raise."""


class MeasuredBlocks(NamedTuple):
    """What measuring blocks gives; the journal is still on disk."""

    points: list[Point]
    environment: dict[str, Any]
    noise: dict[str, Any]
    warnings: list[str]
    journal: Journal


def measure_blocks(
    backend: str,
    device: str,
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
    settings: Settings | None = None,
    blocks: Sequence[Predefined] | None = None,
) -> MeasuredBlocks:
    """Measure `blocks`: BLOCKS and NETWORKS if None; the blocks after the whole networks among them.

    For the others, and what is raised, see `run_jobs`.
    """
    blocks = (*BLOCKS, *NETWORKS) if blocks is None else blocks
    graphs = {b.name: as_known(backend, b.make()) for b in blocks}
    jobs = [graph_job(graphs[b.name], b.name, n, b.whole) for b in blocks for n in b.batch_sizes]
    small = {job_key(b.name, b.batch_sizes[0]) for b in blocks if b.whole}
    before = [j for j in jobs if j.key in small]
    settings = settings or USUAL
    with run_jobs(
        backend, device, jobs, before, settings, journal_path, now, restart, progress
    ) as (_, outcome, journal):
        visits = outcome.visits
    measured = levels(visits)
    points = [
        _point(b, graphs[b.name], n, visits[key], measured.jobs[key])
        for b in blocks
        for n in b.batch_sizes
        if (key := job_key(b.name, n)) in measured.jobs
    ]
    noise = noise_of(measured)
    remarks = warnings(outcome.environment, noise, outcome.failures)
    return MeasuredBlocks(points, outcome.environment, noise, remarks, journal)


@contextlib.contextmanager
def run_jobs(
    backend: str,
    device: str,
    jobs: Sequence[Job],
    networks: Sequence[Job],
    settings: Settings,
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
    check: Check | None = None,
) -> Iterator[tuple[Runner, Outcome, Journal]]:
    """Run `jobs`, as `Runner.run` does, with a journal, which is closed where anything goes wrong in here.

    Goes on from the journal if it is of the same run; `now` is in seconds since the epoch. Raises
    LolatError when device or backend are not there, or nothing could be measured.
    """
    with Runner(backend, device, progress) as runner:
        where = environment.describe(device) | runner.environment
        if check is not None:
            check(where)
        key = run_key(runner, device, jobs, networks, settings) | {"backend": backend}
        journal = Journal(journal_path, key, now, restart)
        if journal.dropped:
            runner.progress.note(
                f"starting anew, not from {near(journal_path)}: {journal.dropped}; it is kept as "
                f"{near(journal.aside)}"
            )
        elif journal.records:
            runner.progress.note(
                f"going on from {near(journal_path)}: {len(journal.records)} measurements are there "
                "already (with `restart` they are thrown away)"
            )
        try:
            outcome = runner.run(jobs, networks, settings, journal, runner.available_bytes())
            outcome.environment = where
            yield runner, outcome, journal
        except BaseException:
            journal.close()
            raise


def references() -> tuple[Predefined, ...]:
    """The REFERENCES, each at one batch size."""
    return tuple(
        replace(b, batch_sizes=b.batch_sizes[:1]) for b in NETWORKS if b.name in REFERENCES
    )


def network_jobs(backend: str) -> list[Job]:
    """The REFERENCES as jobs, for others to be measured after."""
    known = known_blocks(backend, references())
    return [graph_job(b.make(), b.name, b.batch_sizes[0], whole=True) for b in known]


def run_key(
    runner: Runner,
    device: str,
    jobs: Sequence[Job],
    networks: Sequence[Job],
    settings: Settings,
) -> dict[str, Any]:
    """What makes the times of two runs comparable."""
    return {
        "jobs": fingerprint({j.key: json.dumps(j.payload, sort_keys=True) for j in jobs}),
        "networks": fingerprint({j.key: json.dumps(j.payload, sort_keys=True) for j in networks}),
        "settings": asdict(settings),
        "device": environment.label_of(device, runner.environment),
        "processor": environment.kind(environment.processor_facts()) if device == "cpu" else {},
        **{k: runner.environment[k] for k in sorted(runner.environment)},
    }


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


# ---- How steady the machine was, and what is to be said of a run


def noise_of(measured: Levels) -> dict[str, Any]:
    """How steady the machine was, as a model file has it.

    `floor`: what measuring a point again gives (median over the points of how far two halves of its samples
    are apart, the machine's state taken out); `quiet`, `busy`: how long things took in the calmest and the
    most disturbed tenth of the run, as factors of the usual; `others`: how many processors other programs
    used, which is told and corrects nothing; `trend`: the last quarter of the run over the first.
    """
    return {
        "floor": round(measured.floor, 5),
        "quiet": round(measured.quiet, 4),
        "busy": round(measured.busy, 4),
        "others": round(measured.others, 3),
        "trend": round(measured.trend, 4),
    }


def warnings(
    where: Mapping[str, Any], noise: Mapping[str, Any], failures: Mapping[str, str]
) -> list[str]:
    """Remarks on a run, each with what to do about it."""
    remarks = []
    load = where.get("load_at_start")
    # Of the machine, whose load it is; a framework may have been given fewer.
    threads = where.get("processor", {}).get("threads", where["threads"])
    if load is not None and load > BUSY_LOAD * threads:
        remarks.append(
            f"the machine was busy before the run (load {load} on {threads} threads): close other "
            "programs and run again"
        )
    factor = noise["busy"] / noise["quiet"]
    if factor > UNSTEADY or noise["floor"] > FLOOR:
        remarks.append(
            f"unsteady machine: all took {factor:.1f} times as long in its busiest tenth as in its "
            f"calmest, repeated measurements were {100 * noise['floor']:.0f} % apart; it is taken out as "
            "far as it can be; close other programs and run again for narrower intervals (on a virtual "
            "machine, neighbors may be the cause: docs/explanation/stopwatch.md)"
        )
    if noise["others"] > OTHERS:
        remarks.append(
            f"other programs used {noise['others']:.1f} of {threads} processors while learning, and the "
            "times are with them: learn again when they have ended, or keep this for a machine that is "
            "as busy"
        )
    if off(noise["trend"]) > MOVED:
        remarks.append(
            f"the machine became {changed(noise['trend'])} while learning (the last quarter of the run "
            "against the first): heat, or neighbors on a virtual machine; learn again when it has settled"
        )
    if failures:
        key, reason = next(iter(failures.items()))
        remarks.append(
            f"{len(failures)} point{'s' * (len(failures) > 1)} could not be measured (first: {key}: "
            f"{reason}); the model is fitted on the others"
        )
    return remarks


def slow_spell(noise: Mapping[str, Any], where: Mapping[str, Any]) -> list[str]:
    """Remarks on a whole learning: whether this may be a slow hour of the machine.

    `noise`: with `repeatability` and `again`, `former` where this machine was learned before; `where`: its
    environment, with `peak_share`.
    """
    remarks = []
    if noise.get("repeatability", 0.0) > MOVED:
        ratio = median(a["last_ms"] / a["first_ms"] for a in noise.get("again") or [STEADY])
        moved = (
            f"the same networks, timed again at the end by another process, took {ratio:.2f} times as "
            "long; "
        )
        remarks.append(
            f"{moved if off(ratio) > MOVED else ''}times on this machine repeat within "
            f"{100 * noise['repeatability']:.0f} %, and a prediction cannot be surer: close other "
            "programs and learn again"
        )
    if (former := noise.get("former")) and off(former["ratio"]) > MOVED:
        remarks.append(
            f"this machine is {changed(former['ratio'])} than when it was learned on "
            f"{former['date'][:10]}: learn again later, and keep what agrees"
        )
    share = where.get("peak_share")
    if share is not None and share < USUAL_SHARE:
        remarks.append(
            f"large convolutions reach {100 * share:.0f} % of the processor's nominal peak; usual are 60 "
            "to 130: a slow hour of the machine, or a framework that does not use its vectors"
        )
    return remarks


def peak_share(points: Sequence[Point], where: Mapping[str, Any]) -> float | None:
    """The part of a processor's nominal peak that the fastest large point reaches; None if not known."""
    peak = environment.peak_macs(where.get("processor", {}), where["threads"])
    large = [p for p in points if p.counts["flops"] > LARGE_FLOPS]
    if peak is None or not large or where["device"] != "cpu":
        return None
    return round(max(p.counts["flops"] / p.latency_ms for p in large) / peak, 3)
