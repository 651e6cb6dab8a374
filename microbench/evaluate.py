"""Measures whole networks, and blocks cut from them, with the same care as the predefined blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lolat.graph import Graph
from lolat.readers import open_network
from lolat.subgraph import block_graph
from microbench import backends
from microbench.forecast import keep_bytes, peak_bytes
from microbench.learn import describe_noise, free_bytes, job_key, predefined_job, reference_job
from microbench.plan import Job, Settings
from microbench.runner import Progress, Runner
from microbench.timer import centre, is_calm, settled_limit, spread

DEFAULT_NETWORKS = (
    "keras:ResNet50", "keras:MobileNetV2", "keras:EfficientNetB0", "keras:DenseNet121",
    "keras:InceptionV3", "keras:VGG16", "keras:NASNetMobile", "keras:Xception",
    "keras:MobileNetV3Large", "keras:ResNet101V2",
)  # fmt: skip
"""Ten architectures, as whole networks not measured when learning; four of them share a block with the
predefined ones."""
DEFAULT_BATCH_SIZES = (1, 4)
ROUNDS, SLICE_S, EXTRA_S = 8, 0.2, 150.0


@dataclass(frozen=True)
class Case:
    """What is measured: a NETWORK at a size, or its block number `block` (`lolat.blocks.block_graph`)."""

    spec: str
    batch_size: int = 1
    input_size: tuple[int, ...] = ()
    block: int | None = None

    @property
    def name(self) -> str:
        """Tells it from others in messages and journals."""
        size = "x".join(map(str, self.input_size))
        part = "" if self.block is None else f" block {self.block}"
        return self.spec + (f" {size}" if size else "") + part


@dataclass(frozen=True)
class MeasuredNetwork:
    """A case, measured; `calm`: whether its time is that of calm moments."""

    spec: str
    graph: Graph
    batch_size: int
    latency_ms: float
    spread: float | None
    calm: bool
    input_size: tuple[int, ...] = ()
    block: int | None = None


def measure_networks(
    backend: str,
    device: str,
    networks: Sequence[str],
    batch_sizes: Sequence[int],
    input_size: tuple[int, ...] = (),
    progress: Progress | None = None,
    calm_ms: float | None = None,
) -> tuple[list[MeasuredNetwork], dict[str, str], dict[str, Any], dict[str, Any]]:
    """`measure_cases` of every network at every batch size, none twice."""
    sizes = list(dict.fromkeys(batch_sizes))
    wanted = [Case(spec, n, input_size) for spec in dict.fromkeys(networks) for n in sizes]
    return measure_cases(backend, device, wanted, progress, calm_ms)


def measure_cases(
    backend: str,
    device: str,
    wanted: Sequence[Case],
    progress: Progress | None = None,
    calm_ms: float | None = None,
    extra_s: float = EXTRA_S,
) -> tuple[list[MeasuredNetwork], dict[str, str], dict[str, Any], dict[str, Any]]:
    """Measure `wanted`: (those measured, what failed and why, the backend's environment, noise).

    `calm_ms`: up to which time of the reference block the machine was calm when the model was
    learned, so that the same moments count here; where most networks saw too few of those, this run's own
    calmest count. `extra_s`: at most so many seconds of waiting for those. InputError for a block that
    a network does not have.
    """
    settings = Settings(
        rounds=ROUNDS, slice_s=SLICE_S, extra_rounds=4 * ROUNDS, extra_s=extra_s, calm_ms=calm_ms
    )
    read = {(c.spec, c.input_size): None for c in wanted}
    whole = {(spec, size): open_network(spec, size).graph() for spec, size in read}
    graphs = [case_graph(c, whole[c.spec, c.input_size]) for c in wanted]
    jobs = [_job(c, g) for c, g in zip(wanted, graphs, strict=True)]
    with Runner(backend, device, progress) as runner:
        free = free_bytes(runner, device)
        outcome = runner.run(jobs, reference_job(), settings, None, free)
    limit = settled_limit(outcome.visits.values(), calm_ms)
    measured = [
        MeasuredNetwork(
            case.spec,
            as_run(backend, graph),
            case.batch_size,
            centre(visits, limit),
            spread(visits, limit),
            is_calm(visits, limit),
            case.input_size,
            case.block,
        )
        for case, graph, job in zip(wanted, graphs, jobs, strict=True)
        if (visits := outcome.visits.get(job.key))
    ]
    noise = describe_noise(
        outcome.reference(),
        limit,
        [m.spread for m in measured],
        sum(not m.calm for m in measured),
    )
    return measured, outcome.failures, outcome.environment, noise


def as_run(backend: str, graph: Graph) -> Graph:
    """`graph` in the data type that `backend` runs it in: float16 where it has the option `half`."""
    if "half" not in backends.split(backend)[1]:
        return graph
    tensors = (replace(t, dtype=t.dtype.replace("float32", "float16")) for t in graph.tensors)
    return replace(graph, tensors=tuple(tensors), cache={})


def case_graph(case: Case, network: Graph) -> Graph:
    """What a case of `network` consists of; InputError for a block that it does not have."""
    if case.block is None:
        return network
    return block_graph(network, case.block, case.name)


def _job(case: Case, graph: Graph) -> Job:
    """A network is built by its own framework's code, a block from its Graph."""
    if case.block is not None:
        return predefined_job(graph, case.name, case.batch_size)
    return Job(
        key=job_key(case.name, case.batch_size),
        payload={
            "network": case.spec,
            "input_size": list(case.input_size),
            "batch_size": case.batch_size,
        },
        need_bytes=peak_bytes(graph, case.batch_size),
        keep_bytes=keep_bytes(graph, case.batch_size),
    )
