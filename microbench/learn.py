"""Measures the predefined blocks of this device into points; the frame of every run with a journal."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.graph.counts import behaviors, count
from lolat.io.paths import near
from lolat.io.progress import Progress
from microbench import environment
from microbench.blocks import BLOCKS, NETWORKS, Predefined, as_known, known_blocks
from microbench.journal import Journal
from microbench.runner import Job, Outcome, Runner, Settings, graph_job, job_key
from microbench.timing import Level, Levels, Visit, levels

USUAL = Settings(rounds=6, most_rounds=24, enough_s=50.0)
"""A fast machine measures more rounds in the time that a slow one needs for the first 6."""
# From these values on there is a warning.
UNSTEADY = 1.5  # the most disturbed tenth of a run over the calmest
APART = 0.08  # how far repeated measurements are apart
OTHERS = 0.2  # processors that other programs use
REFERENCES = (
    "residual 34 3x128x128", "inverted 3x224x224", "vgg 11 3x96x96", "u-net 3x96x96",
    "transformer 3x224x224",
)  # fmt: skip
"""The networks that tell how fast the machine is, measured anew by `doctor` and `evaluate`: of
different work, and quickly built."""

Check = Callable[[Mapping[str, Any]], object]
"""Gets the environment before anything is measured, and may raise."""


class MeasuredBlocks(NamedTuple):
    """Measured blocks; the journal is still on disk."""

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

    For the other arguments and the errors, see `run_jobs`.
    """
    blocks = (*BLOCKS, *NETWORKS) if blocks is None else blocks
    graphs = {b.name: as_known(backend, b.make()) for b in blocks}
    jobs = [graph_job(graphs[b.name], b.name, n, b.whole) for b in blocks for n in b.batch_sizes]
    smallest = {job_key(b.name, b.batch_sizes[0]) for b in blocks if b.whole}
    before = [j for j in jobs if j.key in smallest]
    with run_jobs(
        backend, device, jobs, before, settings or USUAL, journal_path, now, restart, progress
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
    remarks = warnings(noise, outcome.failures)
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
    """Run `jobs` with a journal, as `Runner.run` does; an error in the context closes the journal.

    Goes on from the journal if it is of the same run; `now` is in seconds since the epoch. Raises
    LolatError when device or backend are not there, or nothing could be measured.
    """
    with Runner(backend, device, progress) as runner:
        where = environment.describe(device) | runner.environment
        if check is not None:
            check(where)
        key = run_key(runner.environment, device, [*jobs, *networks], settings)
        journal = Journal(journal_path, key | {"backend": backend}, now, restart)
        if journal.dropped:
            runner.progress.note(f"starting anew, not from {near(journal_path)}: {journal.dropped}")
        elif journal.records:
            runner.progress.note(
                f"going on from {near(journal_path)}: {len(journal.records)} measurements are there "
                "already (with `restart` they are thrown away)"
            )
        try:
            outcome = runner.run(jobs, networks, settings, journal)
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
    own: Mapping[str, Any], device: str, jobs: Sequence[Job], settings: Settings
) -> dict[str, Any]:
    """What makes the times of two runs comparable, as JSON has it; `own`: the backend's environment."""
    payloads = json.dumps([[j.key, j.payload] for j in jobs], sort_keys=True)
    processor = environment.processor_facts() if device == "cpu" else {}
    key = {
        "jobs": hashlib.sha256(payloads.encode()).hexdigest()[:16],
        "settings": asdict(settings),
        "device": environment.label_of(device, own),
        "processor": processor,
        **own,
    }
    made: dict[str, Any] = json.loads(json.dumps(key))
    return made


def _point(
    block: Predefined, graph: Graph, batch_size: int, visits: Sequence[Visit], level: Level
) -> Point:
    return Point(
        name=block.name,
        batch_size=batch_size,
        counts=count(graph).total(batch_size)._asdict(),
        latency_ms=round(level.latency_ms, 6),
        samples_ms=tuple(t for v in visits for t in v.samples_ms),
        reference_ms=tuple(t for v in visits for t in v.reference_ms),
        spread=None if level.spread is None else round(level.spread, 5),
        kinds=tuple(sorted(behaviors(graph.operations))),
        whole=block.whole,
    )


# ---- How steady the machine was, and the warnings about a run


def noise_of(measured: Levels) -> dict[str, Any]:
    """How steady the machine was, as a model file has it.

    `floor`: the median over the points of how far two halves of a point's samples are apart, the machine's
    state taken out. `quiet`, `busy`: how long things took in the calmest and the most disturbed tenth of
    the run, as factors of the usual. `others`: how many processors other programs used; it corrects
    nothing.
    """
    return {n: round(getattr(measured, n), 4) for n in ("floor", "quiet", "busy", "others")}


def warnings(noise: Mapping[str, Any], failures: Mapping[str, str]) -> list[str]:
    """Remarks on a run, each with what to do about it."""
    remarks = []
    factor = noise["busy"] / noise["quiet"]
    if factor > UNSTEADY or noise["floor"] > APART:
        remarks.append(
            f"unsteady machine: everything took {factor:.1f} times as long in its busiest tenth as in its "
            f"calmest, and repeated measurements were {100 * noise['floor']:.0f} % apart: close other "
            "programs and run again for narrower intervals (on a virtual machine, neighbors may be the "
            "cause: docs/how-to/measure.md)"
        )
    if noise["others"] > OTHERS:
        remarks.append(
            f"other programs used {noise['others']:.1f} processors while learning, and the times are with "
            "them: learn again when they have ended, or keep this for a machine that is as busy"
        )
    if failures:
        key, reason = next(iter(failures.items()))
        remarks.append(
            f"{len(failures)} point{'s' * (len(failures) > 1)} could not be measured (first: {key}: "
            f"{reason}); the model is fitted on the others"
        )
    return remarks
