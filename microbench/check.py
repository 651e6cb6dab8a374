"""Measuring whole networks on this machine: a user's networks, and references of the learned device.

A network is timed in its own loop, in rounds of random order. The ratios of the references' new to learned
times show how fast the machine is now.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from lolat.graph import Graph
from lolat.io.progress import Progress
from lolat.readers import read
from lolat.readers.reading import check_has_code
from lolat.readers.size import OWN_SIZE, Size
from lolat.tables.blocks import Point

from . import backends
from .blocks import Predefined, known_graphs
from .learn import references
from .runner import Job, Runner, Settings, graph_job, job_key, keep_bytes
from .timing import BUSY, Latencies, latencies, unrest

SETTINGS = Settings(rounds=6)


@dataclass(frozen=True)
class NetworkAgain:
    """A reference that was measured again, in ms; `ratio`: new / learned time."""

    name: str
    batch_size: int
    learned_ms: float
    now_ms: float
    ratio: float


@dataclass(frozen=True)
class Case:
    """A NETWORK to measure at an input size and a batch size."""

    spec: str
    batch_size: int = 1
    input_size: Size = OWN_SIZE

    @property
    def key(self) -> str:
        """The key of the job that measures the case."""
        size = "x".join(map(str, self.input_size.numbers or self.input_size.shapes))
        return job_key(f"{self.spec} {size}".rstrip(), self.batch_size)


@dataclass(frozen=True)
class MeasuredNetwork:
    """A measured case with its latency, which includes the load of the machine during the run.

    `unrest`: median / fastest time of a round.
    """

    case: Case
    graph: Graph
    latency_ms: float
    spread: float | None
    unrest: float = 1.0


@dataclass(frozen=True)
class Measured:
    """The networks of one run, and the references (`again`); `failures`: key of a job -> the reason."""

    networks: tuple[MeasuredNetwork, ...]
    again: tuple[NetworkAgain, ...]
    failures: Mapping[str, str]
    latencies: Latencies


def read_cases(
    backend: str, networks: Sequence[str], batch_sizes: Sequence[int], input_size: Size = OWN_SIZE
) -> list[tuple[Case, Graph]]:
    """Read each network once, and pair it with each batch size.

    Raises as `lolat.readers.read`, and NetworkError for a network that `backend` cannot run.
    """
    for spec in networks:
        check_has_code(spec)
    graphs = {}
    for spec in dict.fromkeys(networks):
        graphs[spec] = read(spec, input_size.given)
        backends.check_runs(backend, spec, graphs[spec])
    sizes = dict.fromkeys(batch_sizes)
    return [(Case(spec, n, input_size), graph) for spec, graph in graphs.items() for n in sizes]


def references_of(
    measurements: Sequence[Point], backend: str, networks: Sequence[Predefined] | None = None
) -> list[tuple[Point, Graph]]:
    """(first measurement, Graph for `backend`) of each reference; `networks`: None for the REFERENCES."""
    known = known_graphs(backend, networks or references())
    first: dict[str, Point] = {}
    for one in measurements:
        if one.whole and one.name in known:
            first.setdefault(one.name, one)
    return [(p, known[name]) for name, p in first.items()]


def measure(
    runner: Runner,
    backend: str,
    wanted: Sequence[tuple[Case, Graph]],
    references: Sequence[tuple[Point, Graph]],
) -> Measured:
    """Measure networks and references in the same rounds; raises as `Runner.run`."""
    jobs = []  # networks that their own framework's code builds
    for c, graph in wanted:
        job = {"network": c.spec, "input_size": c.input_size.given, "batch_size": c.batch_size}
        jobs.append(Job(c.key, job, keep_bytes(graph, c.batch_size), whole=True))
    again = [graph_job(graph, p.name, p.batch_size, whole=True) for p, graph in references]
    outcome = runner.run([*jobs, *again], [], SETTINGS)
    result = latencies(outcome.visits)
    networks = tuple(
        MeasuredNetwork(
            case,
            as_run(backend, graph),
            found.latency_ms,
            found.spread,
            unrest(outcome.visits[case.key]),
        )
        for case, graph in wanted
        if (found := result.jobs.get(case.key))
    )
    repeated = tuple(
        NetworkAgain(p.name, p.batch_size, p.latency_ms, ms, ms / p.latency_ms)
        for (p, _), job in zip(references, again, strict=True)
        if job.key in result.jobs
        for ms in [result.jobs[job.key].latency_ms]
    )
    return Measured(networks, repeated, outcome.failures, result)


def measure_again(
    measurements: Sequence[Point], backend: str, device: str, progress: Progress | None = None
) -> tuple[NetworkAgain, ...]:
    """Time the references among `measurements` in a new process, in some ten seconds.

    () if there are no references among them. LolatError if they cannot be measured.
    """
    references = references_of(measurements, backend)
    if not references:
        return ()
    with Runner(backend, device, progress) as runner:
        return measure(runner, backend, (), references).again


def as_run(backend: str, graph: Graph) -> Graph:
    """`graph` in the data type that `backend` runs it in: float16 with the option `half`."""
    if "half" not in backends.split(backend)[1]:
        return graph
    tensors = (replace(t, dtype=t.dtype.replace("float32", "float16")) for t in graph.tensors)
    return replace(graph, tensors=tuple(tensors))


def median_ratio(again: Sequence[NetworkAgain]) -> float | None:
    """New / learned time, the median over networks; None without networks."""
    return statistics.median(a.ratio for a in again) if again else None


def repeatability(again: Sequence[NetworkAgain], noise: Mapping[str, Any]) -> float:
    """Relative standard deviation of repeated times: the larger of two estimates.

    One is from the end of learning: the root mean square of the ratios' logarithms. The other is from the
    run itself: `quiet` and `busy` in `noise` are taken as the first and last tenth of a normal
    distribution.
    """
    squares = [math.log(a.ratio) ** 2 for a in again]
    at_the_end = math.sqrt(statistics.fmean(squares)) if squares else 0.0
    tenth = statistics.NormalDist().inv_cdf(BUSY)
    return math.expm1(max(at_the_end, math.log(noise["busy"] / noise["quiet"]) / (2.0 * tenth)))
