"""Measures whole networks with the same care as the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lolat.graph import Graph
from lolat.readers import open_network
from microbench import environment
from microbench.forecast import keep_bytes, peak_bytes
from microbench.learn import describe_noise, job_key, reference_job
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
class MeasuredNetwork:
    """A network at a batch size, measured; `calm`: whether its time is that of calm moments."""

    spec: str
    graph: Graph
    batch_size: int
    latency_ms: float
    spread: float | None
    calm: bool


def measure_networks(
    backend: str,
    device: str,
    networks: Sequence[str],
    batch_sizes: Sequence[int],
    input_size: tuple[int, ...] = (),
    progress: Progress | None = None,
    calm_ms: float | None = None,
) -> tuple[list[MeasuredNetwork], dict[str, str], dict[str, Any], dict[str, Any]]:
    """Measure NETWORKs: (those measured, what failed and why, the backend's environment, noise).

    `calm_ms`: up to which time of the reference block the machine was calm when the model was
    learned, so that the same moments count here; where most networks saw too few of those, this run's own
    calmest count.
    """
    settings = Settings(
        rounds=ROUNDS, slice_s=SLICE_S, extra_rounds=4 * ROUNDS, extra_s=EXTRA_S, calm_ms=calm_ms
    )
    graphs = {spec: open_network(spec, input_size).graph() for spec in dict.fromkeys(networks)}
    jobs, what = [], {}
    for spec, graph in graphs.items():
        for batch_size in dict.fromkeys(batch_sizes):
            job = Job(
                key=job_key(spec, batch_size),
                payload={
                    "network": spec,
                    "input_size": list(input_size),
                    "batch_size": batch_size,
                },
                need_bytes=peak_bytes(graph, batch_size),
                keep_bytes=keep_bytes(graph, batch_size),
            )
            jobs.append(job)
            what[job.key] = (spec, graph, batch_size)
    with Runner(backend, device, progress) as runner:
        outcome = runner.run(jobs, reference_job(), settings, None, environment.available_bytes())
    reference = outcome.reference()
    limit = settled_limit(outcome.visits.values(), calm_ms)
    measured = [
        MeasuredNetwork(
            *what[j.key], centre(visits, limit), spread(visits, limit), is_calm(visits, limit)
        )
        for j in jobs
        if (visits := outcome.visits.get(j.key))
    ]
    noise = describe_noise(
        reference, limit, [m.spread for m in measured], sum(not m.calm for m in measured)
    )
    return measured, outcome.failures, outcome.environment, noise
