"""What a run measures: jobs, the memory that they need, in which order and which of them together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lolat.graph import Graph
from lolat.graph.counts import FEATURES, count
from microbench.blocks import REFERENCE_BLOCK
from microbench.timing import LEAST_QUIET

ITEM_BYTES = 4  # float32
OVERHEAD_BYTES = 32 * 2**20  # a compiled function, workspaces of small kernels


@dataclass(frozen=True)
class Job:
    """Something to measure. `payload` is what the worker is told.

    `need_bytes`: foreseen memory while it is made or runs; `keep_bytes`: what it holds in between.
    `whole`: a whole network, timed in a loop of its own; anything else is timed after one.
    """

    key: str
    payload: dict[str, Any]
    need_bytes: int = 0
    keep_bytes: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Settings:
    """How long and how often.

    `rounds` over all jobs, in which a job is visited once, for `slice_s` seconds or so, and further ones,
    up to `most_rounds`, while `enough_s` seconds have not passed; beside a reference block then up to
    `extra_rounds` for the jobs that saw too few quiet moments, as long as `extra_s` seconds are left.
    An extra visit waits up to `patience_s` for a quiet moment.
    `least_quiet`: fewer quiet samples than that are too few. `together`: at most so many jobs are held in
    memory and measured in turns, then the next so many; None: as many as there is room for.
    """

    rounds: int = 10
    slice_s: float = 0.03
    extra_rounds: int = 20
    extra_s: float = 100.0
    seed: int = 2026
    patience_s: float = 3.0
    least_quiet: int = LEAST_QUIET
    together: int | None = None
    most_rounds: int = 0
    enough_s: float = 0.0


def job_key(name: str, batch_size: int) -> str:
    """What a point is called in the journal."""
    return f"{name} x{batch_size}"


def graph_job(graph: Graph, name: str, batch_size: int, whole: bool = False) -> Job:
    """The job of measuring a Graph at a batch size; `whole`: as a network in a loop of its own."""
    return Job(
        key=job_key(name, batch_size),
        payload={"graph": graph.to_dict(), "batch_size": batch_size},
        need_bytes=peak_bytes(graph, batch_size),
        keep_bytes=keep_bytes(graph, batch_size),
        whole=whole,
    )


def reference_job() -> Job:
    """The block that is timed beside every sample."""
    return graph_job(REFERENCE_BLOCK.make(), "reference", REFERENCE_BLOCK.batch_sizes[0])


def visiting_order(jobs: Sequence[Job], settings: Settings) -> Iterator[tuple[int, Job]]:
    """(round, job) for all rounds, each round in another random order, the same for the same seed.

    Those of `most_rounds` come after the others.
    """
    generator = random.Random(settings.seed)
    for number in range(max(settings.rounds, settings.most_rounds)):
        order = list(jobs)
        generator.shuffle(order)
        for job in order:
            yield number, job


def groups(
    jobs: Sequence[Job], available_bytes: int | None, most: int | None = None
) -> list[list[Job]]:
    """Jobs that may be held in memory at the same time, at least one job each, at most `most`.

    Together they keep at most half of what is free, and with the one that runs at most all of it.
    """
    result: list[list[Job]] = [[]]
    held = extra = 0
    for job in jobs:
        more = max(0, job.need_bytes - job.keep_bytes)
        keep = held + job.keep_bytes
        full = len(result[-1]) == most or (
            available_bytes is not None
            and (keep > available_bytes / 2 or keep + max(extra, more) > available_bytes)
        )
        if full and result[-1]:
            result.append([])
            held = extra = 0
        result[-1].append(job)
        held, extra = held + job.keep_bytes, max(extra, more)
    return result


# ---- Memory that a network needs, foreseen from its graph, so that what cannot fit is not tried


def weight_bytes(graph: Graph) -> int:
    """Bytes of the weights of `graph` (float32)."""
    return ITEM_BYTES * int(count(graph).fixed[:, FEATURES.index("weights")].sum())


def keep_bytes(graph: Graph, batch_size: int) -> int:
    """Memory that `graph` holds between its runs at `batch_size`: its weights and its inputs."""
    inputs = sum(graph.tensors[i].elements(batch_size) for i in graph.inputs)
    return weight_bytes(graph) + ITEM_BYTES * inputs


def activation_bytes(graph: Graph, batch_size: int) -> int:
    """Largest sum of tensors that are alive at the same time, at `batch_size` (float32)."""
    last_use = {i: len(graph.operations) for i in graph.outputs}
    born = dict.fromkeys(graph.inputs, 0)
    for position, operation in enumerate(graph.operations):
        for index in operation.inputs:
            last_use[index] = max(last_use.get(index, position), position)
        born.update(dict.fromkeys(operation.outputs, position))
    change = [0] * (len(graph.operations) + 2)
    for index, position in born.items():
        size = ITEM_BYTES * graph.tensors[index].elements(batch_size)
        change[position] += size
        change[last_use.get(index, position) + 1] -= size
    return max(accumulate(change))


def peak_bytes(graph: Graph, batch_size: int) -> int:
    """Memory to build and run `graph`: weights (twice while they are made), activations, workspaces.

    A convolution may unfold its input into patches; twice the activations covers what was seen.
    """
    return 2 * weight_bytes(graph) + 2 * activation_bytes(graph, batch_size) + OVERHEAD_BYTES
