"""Measuring the predefined blocks on this device, and the common part of all runs with a journal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lolat.device.schema import OTHERS
from lolat.device.state import LIMIT
from lolat.graph import Graph
from lolat.io.paths import relative_path
from lolat.io.progress import Progress
from lolat.tables.blocks import Point
from lolat.units import changed, deviation, percent, plural

from . import environment
from .blocks import NETWORKS, Predefined, for_device, known_graphs
from .journal import Journal
from .probe import MOST_THREADS, probe
from .runner import Job, Outcome, Runner, Settings, graph_job, job_key
from .timing import JobLatency, Latencies, Visit, latencies

DEFAULT_SETTINGS = Settings(rounds=6, most_rounds=24, enough_s=50.0)
"""A fast machine measures as many rounds as fit into the time that a slow machine takes for 6."""
# Above these values a run gets a warning.
UNSTEADY = 1.5  # times in the most disturbed tenth of a run / in the calmest
UNREPEATABLE = 0.08  # relative difference of repeated measurements
LONGEST_WAIT_S, WATCH_S, CALM_S = 600.0, 2.0, 6.0
"""(longest wait for a calm moment, time between two looks, length of a calm moment), in seconds."""
MOVED = 0.1  # relative change of the machine's speed
REFERENCES = (
    "residual 34 3x128x128", "inverted 3x224x224", "vgg 11 3x96x96", "u-net 3x96x96",
    "transformer 3x224x224",
)  # fmt: skip
"""Networks that `doctor` and `evaluate` measure again: they do different work and are built quickly."""

CheckEnvironment = Callable[[Mapping[str, Any]], object]
"""A function that is called with the environment before anything is measured; it may raise."""


@dataclass(frozen=True)
class Run:
    """A run with a journal in the file `journal`.

    `now`: seconds since the epoch; `restart`: True to discard the journal; `settings`: None for
    DEFAULT_SETTINGS.
    """

    backend: str
    device: str
    journal: Path
    now: float
    restart: bool = False
    progress: Progress = field(default_factory=Progress)
    check: CheckEnvironment | None = None
    settings: Settings | None = None


class MeasuredBlocks(NamedTuple):
    """The result of a run; the file of the `journal` is still on disk."""

    points: list[Point]
    environment: dict[str, Any]
    noise: dict[str, Any]
    failures: dict[str, str]
    journal: Journal


def measure_blocks(run: Run, blocks: Sequence[Predefined] | None = None) -> MeasuredBlocks:
    """Measure `blocks` after the whole networks among them; raises as `run_jobs`.

    `blocks`: None for the blocks of the device and the backend.
    """
    blocks = for_device(run.device, run.backend) if blocks is None else blocks
    graphs = known_graphs(run.backend, blocks)
    sized = {job_key(b.name, n): (b, n) for b in blocks for n in b.batch_sizes}
    jobs = [graph_job(graphs[b.name], b.name, n, b.whole) for b, n in sized.values()]
    smallest = {job_key(b.name, b.batch_sizes[0]) for b in blocks if b.whole and not b.scheme}
    networks = [j for j in jobs if j.key in smallest]
    probed = run.device == "cpu"
    with run_jobs(run, jobs, networks, probed) as (_, outcome, journal):
        visits, where = outcome.visits, outcome.environment
    fitted = latencies(visits)
    measurements = [
        _point(b, graphs[b.name], n, visits[key], fitted.jobs[key])
        for key, (b, n) in sized.items()
        if key in fitted.jobs
    ]
    noise = noise_of(fitted)
    if outcome.probes:
        middle_ms = np.median(outcome.probes, axis=0)
        noise["probe"] = {"forks": middle_ms.round(4).tolist()}
    return MeasuredBlocks(measurements, where, noise, outcome.failures, journal)


@contextlib.contextmanager
def run_jobs(
    run: Run, jobs: Sequence[Job], networks: Sequence[Job], probed: bool = False
) -> Iterator[tuple[Runner, Outcome, Journal]]:
    """Run `jobs` as `Runner.run` does; continue from the journal if it belongs to the same run.

    `probed`: True to probe the machine's speed. An error in the context closes the journal. LolatError if
    the device or backend is not available, or if nothing could be measured.
    """
    settings = run.settings or DEFAULT_SETTINGS
    before = environment.describe(run.device) | {"others_at_start": environment.other_programs()}
    with Runner(run.backend, run.device, run.progress) as runner:
        where = before | runner.environment
        # The remark waits for the backend to start, so that it does not precede an error.
        if remark := busy(before):
            has_several = run.device == "cpu" and where.get("threads", 1) > 1
            run.progress.note(remark + ONE_THREAD * has_several)
        if run.check is not None:
            run.check(where)
        key = run_key(runner.environment, run.device, [*jobs, *networks], settings)
        journal = Journal(run.journal, key | {"backend": run.backend}, run.now, run.restart)
        if journal.dropped:
            runner.progress.note(
                f"starting anew, not from {relative_path(run.journal)}: {journal.dropped}"
            )
        elif journal.records:
            runner.progress.note(
                f"going on from {relative_path(run.journal)}: {len(journal.records)} measurements are "
                "there already (--restart, in Python restart=True, throws them away)"
            )
        try:
            threads = probe_threads(where)  # a single thread waits for no other
            timed = partial(probe, threads) if probed and threads > 1 else None
            outcome = runner.run(jobs, networks, settings, journal, timed)
            outcome.environment = where
            yield runner, outcome, journal
        except BaseException:
            journal.close()
            raise


def references() -> tuple[Predefined, ...]:
    """The REFERENCES, each at one batch size."""
    found = (b for b in NETWORKS if b.name in REFERENCES)
    return tuple(replace(b, batch_sizes=b.batch_sizes[:1]) for b in found)


def network_jobs(backend: str) -> list[Job]:
    """Jobs of the REFERENCES, which run before the samples of other jobs."""
    known, graphs = references(), known_graphs(backend, references())
    return [graph_job(graphs[b.name], b.name, b.batch_sizes[0], whole=True) for b in known]


def run_key(
    own: Mapping[str, Any], device: str, jobs: Sequence[Job], settings: Settings
) -> dict[str, Any]:
    """Everything that two runs must share to be comparable, as JSON; `own`: the backend's environment."""
    payloads = json.dumps([[j.key, j.payload] for j in jobs], sort_keys=True)
    key = {
        "jobs": hashlib.sha256(payloads.encode()).hexdigest()[:16],
        "settings": asdict(settings),
        "device": environment.label_of(device, own),
        "processor": environment.processor_facts() if device == "cpu" else {},
        **own,
    }
    made: dict[str, Any] = json.loads(json.dumps(key))
    return made


def _point(
    block: Predefined, graph: Graph, batch_size: int, visits: Sequence[Visit], found: JobLatency
) -> Point:
    return Point.from_graph(
        block.name,
        graph,
        batch_size,
        round(found.latency_ms, 6),
        samples_ms=tuple(t for v in visits for t in v.samples_ms),
        reference_ms=tuple(t for v in visits for t in v.reference_ms),
        spread=None if found.spread is None else round(found.spread, 5),
        whole=block.whole,
        scheme=block.scheme,
    )


# ---- How steady the machine was, and the warnings about a run


def noise_of(measured: Latencies) -> dict[str, Any]:
    """The figures of `Latencies` as stored in a profile; none of them corrects a latency."""
    names = ("floor", "quiet", "busy", "others", "trend")
    return {name: round(getattr(measured, name), 4) for name in names}


def probe_threads(where: Mapping[str, Any]) -> int:
    """Number of threads for a probe: the environment's, but at most one per processor."""
    able = min(environment.cpu_count(), MOST_THREADS)
    return min(where.get("threads") or able, able)


def _processors(where: Mapping[str, Any]) -> int:
    """Number of processors of an environment's machine, of which its framework may use fewer."""
    number: int = where.get("processor", {}).get("threads", where["threads"])
    return number


def wait_until_calm(
    progress: Progress,
    most_s: float = LONGEST_WAIT_S,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Wait until no other programs have run for CALM_S seconds, at most `most_s` seconds."""
    waited = calm = 0.0
    while waited < most_s and calm < CALM_S:
        used = environment.other_programs()
        if used is None:
            progress.note("whether other programs run cannot be told here: not waiting")
            return
        if used > OTHERS and not waited:
            progress.note(
                f"waiting for a calm moment, {most_s / 60:.0f} minutes at most (other programs use "
                f"{used:.1f} processors)"
            )
        calm = calm + WATCH_S if used <= OTHERS else 0.0
        if calm < CALM_S:
            sleep(WATCH_S)
            waited += WATCH_S
    if calm < CALM_S:
        progress.note(
            f"no calm moment in {most_s / 60:.0f} minutes: the times include other programs"
        )
    else:
        progress.note("a calm moment: starting")


WAITING = "start again (--wait waits for them), or the times include them"
ONE_THREAD = "; --threads 1 is much faster beside them, for a profile of one thread"


def busy(where: Mapping[str, Any], remedy: str = WAITING) -> str | None:
    """A remark if other programs are running just before a run; None if none are, or if unknown.

    `remedy`: the words that follow "close them and ".
    """
    others = where.get("others_at_start") or 0.0
    if others <= OTHERS:
        return None
    return (
        f"the machine is busy before the run (other programs use {others:.1f} of {_processors(where)} "
        f"processors): close them and {remedy}"
    )


def warnings(
    where: Mapping[str, Any], noise: Mapping[str, Any], failures: Mapping[str, str]
) -> list[str]:
    """Remarks on a run, each with its remedy: too many threads, a busy or unsteady machine, failures."""
    remarks, able = [], _processors(where)
    if where["threads"] > able:
        remarks.append(
            f"{where['framework']} started {where['threads']} threads, and this process may use {able} "
            f"processors: learn again with `threads` {able}"
        )
    if found := [*unrest(noise, able)]:
        remarks.append(
            f"the machine was busy or unsteady while learning ({'; '.join(found)}): close other programs "
            "and learn again for narrower intervals, or keep the profile for a machine as busy (neighbors "
            "on a virtual machine or heat may be the cause: docs/how-to/measure.md)"
        )
    if failures:
        key, reason = next(iter(failures.items()))
        remarks.append(
            f"{plural(len(failures), 'measurement')} failed (first: {key}: {reason}); the profile is "
            "fitted to the others"
        )
    return remarks


def unrest(noise: Mapping[str, Any], able: int | None = None) -> Iterator[str]:
    """Yield the signs of a busy or unsteady machine in a run's `noise`; `able`: number of processors."""
    if noise["others"] > OTHERS:
        yield f"other programs used {noise['others']:.1f}{f' of {able}' if able else ''} processors"
    if (factor := noise["busy"] / noise["quiet"]) > UNSTEADY:
        yield f"everything took {factor:.1f} times as long in the busiest tenth as in the calmest"
    if noise["floor"] > UNREPEATABLE:
        yield f"repeated measurements were {percent(noise['floor'])} apart"
    if deviation(noise["trend"]) > MOVED:
        yield f"it became {changed(noise['trend'])} from the first quarter of the run to the last"
    if (repeated := noise.get("repeatability", 0.0)) > LIMIT:
        yield f"times repeat within {percent(repeated)}"
