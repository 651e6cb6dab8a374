"""Predicts how long devices that train together exchange their gradients.

Every device has the whole network and its own part of the batch, and after the backward pass needs the sum
of all gradients: an all-reduce in a ring. Gradients leave in buckets while others are still computed, as
in PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lolat.graph import Graph
from lolat.graph.analysis import operation_parameters
from lolat.graph.counts import COLUMNS, count
from lolat.graph.modes import Mode
from lolat.hardware.links import Link
from lolat.training.iteration import state_bytes

BUCKET_BYTES = 25 * 2**20
"""The default `bucket_cap_mb` of DistributedDataParallel, 25 MiB."""
FIRST_BUCKET_BYTES = 2**20
"""The first bucket of DistributedDataParallel, small so that the link is busy early."""


def exposed_ms(
    gradient_bytes: Sequence[float],
    backward_ms: Sequence[float],
    allreduce: Callable[[float], float],
    bucket_bytes: float = BUCKET_BYTES,
    first_bytes: float = FIRST_BUCKET_BYTES,
) -> float:
    """Return the ms that the exchange goes on after the backward pass has ended.

    `gradient_bytes`, `backward_ms`: (gradients,) bytes, and ms of the backward pass that computes each, in
    the order of the forward pass. `allreduce`: bytes -> ms. Gradients become ready from the last to the
    first and fill a bucket, which leaves with `bucket_bytes` or more (the first with `first_bytes`). The
    link exchanges one bucket at a time.
    """
    computed = free = bucket = 0.0
    limit = first_bytes
    for index in reversed(range(len(gradient_bytes))):
        computed += backward_ms[index]
        bucket += gradient_bytes[index]
        if bucket >= limit or index == 0:
            free = max(computed, free) + allreduce(bucket)
            bucket, limit = 0.0, bucket_bytes
    return max(0.0, free - computed)


def gradients(
    graph: Graph, backward_ms: np.ndarray, mode: Mode | None = None
) -> tuple[list[float], list[float]]:
    """Return the bytes of each gradient, and the ms of the backward pass that each one waits for.

    One of both for every operation with parameters, in the order of the forward pass. `backward_ms`:
    (operations,) ms. Operations in front of the first such one have no backward pass, as nobody needs the
    gradient of an input; their time is divided among the others, so that the sum stays.
    """
    weights = count(graph).at(1)[:, COLUMNS.index("weights")]
    size = state_bytes(graph, mode)
    numbers = [
        operation_parameters(graph, o, int(w))
        for o, w in zip(graph.operations, weights, strict=True)
    ]
    learned = [i for i, n in enumerate(numbers) if n]
    if not learned:
        return [], []
    parts = np.add.reduceat(backward_ms, learned)
    behind, whole = float(parts.sum()), float(backward_ms.sum())
    parts = parts * (whole / behind) if behind > 0 else np.full(len(parts), whole / len(parts))
    return [size * numbers[i] for i in learned], parts.tolist()


def exchange_ms(
    gradient_bytes: Sequence[float],
    backward_ms: Sequence[float] | None,
    devices: int,
    link: Link,
) -> tuple[float, float]:
    """Return the ms that an iteration waits for the exchange, and the ms that the backward pass hides.

    `gradient_bytes`, `backward_ms`: as `gradients` returns them. Without `backward_ms` all gradients are
    exchanged at once after the backward pass. One device exchanges nothing.
    """

    def allreduce(size_bytes: float) -> float:
        """Return the ms of an all-reduce in a ring, as in NCCL and gloo.

        K-1 steps scatter sums and K-1 gather them, each of bytes / K (Patarasuk and Yuan, "Bandwidth
        optimal all-reduce algorithms for clusters of workstations", 2009). Adding costs nothing: memory is
        far faster than a link.
        """
        return 2 * (devices - 1) * link.message_ms(size_bytes / devices)

    if devices == 1 or backward_ms is None:
        return allreduce(sum(gradient_bytes)), 0.0
    # If the backward pass took no time, the wait would be the whole exchange, bucket by bucket.
    whole = exposed_ms(gradient_bytes, [0.0] * len(backward_ms), allreduce)
    exposed = exposed_ms(gradient_bytes, backward_ms, allreduce)
    hidden = whole - exposed
    return exposed, hidden if hidden > 1e-9 * whole else 0.0  # below: rounding
