"""How long devices exchange their gradients, and how much of that the backward pass hides.

Every device has the whole network and its own part of the batch; after the backward pass all of them need
the sum of all gradients (an all-reduce). Gradients leave in buckets while others are still computed, as in
PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020): they fill a bucket in the
order in which they become ready, from the last layer to the first; a full bucket is exchanged, one bucket
at a time, while the backward pass goes on. An iteration waits for what is still on its way at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.analysis import FLOAT_BYTES, operation_parameters
from lolat.graph.counts import COLUMNS, count
from lolat.training.link import Link

# ---- The time of one all-reduce.
#
# The bandwidth terms of tree and one-to-all are PALEO's (Qi, Sparks, Talwalkar: "Paleo: a performance model
# for deep neural networks", ICLR 2017; its paleo/comm.py); the ring is Patarasuk and Yuan's ("Bandwidth
# optimal all-reduce algorithms for clusters of workstations", 2009), which NCCL and gloo run. PALEO leaves
# latency out; here every step pays it (Hockney's model, as in Thakur, Rabenseifner, Gropp 2005), because
# with thousands of devices a ring is little else. The adding itself is not counted: memory is far faster
# than a link.

EXCHANGES: Mapping[str, Callable[[int], tuple[int, float]]] = {
    # K-1 steps that scatter sums, K-1 that gather them, each of bytes / K.
    "ring": lambda k: (2 * (k - 1), 1 / k),
    # A binary tree: ceil(log2 K) steps up with sums, as many down, each of all the bytes.
    "tree": lambda k: (2 * (k - 1).bit_length(), 1.0),
    # One device (a parameter server) hears all others, one after the other, then tells each.
    "one-to-all": lambda k: (2 * (k - 1), 1.0),
}
"""Each way: number of devices -> (steps one after the other, part of the bytes in each)."""
MIRRORED = "mirrored"
"""TensorFlow's MirroredStrategy: a ring (NCCL) after the backward pass, and MIRRORED_MS."""
MIRRORED_MS = 1.4
"""Its further cost of an iteration: of two P100s of 2020 (docs/results/index.md)."""
STRATEGIES = (*EXCHANGES, MIRRORED)


def check_strategy(strategy: str) -> None:
    """InputError for a strategy that is none of STRATEGIES."""
    if strategy not in STRATEGIES:
        raise InputError(f"{arg('strategy')} {strategy!r}: expected one of {', '.join(STRATEGIES)}")


def allreduce_ms(way: str, size_bytes: float, devices: int, link: Link) -> float:
    """One exchange of `size_bytes` by one of EXCHANGES: steps x (latency + part of the bytes /
    bandwidth).
    """
    steps, part = EXCHANGES[way](devices)
    return steps * link.message_ms(size_bytes * part)


# ---- Buckets.

BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's `bucket_cap_mb` of 25."""
FIRST_BUCKET_BYTES = 2**20
"""Its first bucket holds 1 MiB, so that the link has something to do early."""


def fill_buckets(
    gradient_bytes: Sequence[float],
    bucket_bytes: float = BUCKET_BYTES,
    first_bytes: float = FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """Which gradients travel together: indices into `gradient_bytes`, in the order of departure.

    `gradient_bytes`: (gradients,), in the order of the forward pass; they leave from the last to the first.
    A bucket leaves as soon as it holds `bucket_bytes` (the first one: `first_bytes`) or more.
    """
    full: list[list[int]] = []
    bucket: list[int] = []
    held, limit = 0.0, first_bytes
    for index in reversed(range(len(gradient_bytes))):
        bucket.append(index)
        held += gradient_bytes[index]
        if held >= limit:
            full.append(bucket)
            bucket, held, limit = [], 0.0, bucket_bytes
    return [*full, bucket] if bucket else full


def exposed_ms(
    gradient_bytes: Sequence[float],
    backward_ms: Sequence[float],
    allreduce: Callable[[float], float],
    bucket_bytes: float = BUCKET_BYTES,
    first_bytes: float = FIRST_BUCKET_BYTES,
) -> float:
    """How long the devices still exchange after their backward pass has ended, ms.

    `gradient_bytes`, `backward_ms`: (gradients,), in the order of the forward pass: the bytes of each, and
    the part of the backward pass that computes it. `allreduce`: bytes -> ms.
    """
    computed = free = 0.0
    for bucket in fill_buckets(gradient_bytes, bucket_bytes, first_bytes):
        computed += sum(backward_ms[i] for i in bucket)
        free = max(computed, free) + allreduce(sum(gradient_bytes[i] for i in bucket))
    return max(0.0, free - computed)


def gradients(graph: Graph, backward_ms: np.ndarray) -> tuple[list[float], list[float]]:
    """(bytes of each gradient, ms of the backward pass from the gradient before it to this one).

    One of each for every operation with parameters, in the order of the forward pass. `backward_ms`:
    (operations,). The backward pass computes the gradients from the last to the first, and goes through the
    operations behind each before it. The operations in front of the first have no backward pass, as nobody
    needs the gradient of an input: their time is shared out among the others, so that the sum stays.
    """
    weights = count(graph).at(1)[:, COLUMNS.index("weights")]
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
    return [float(FLOAT_BYTES * numbers[i]) for i in learned], parts.tolist()


def exchange_ms(
    gradient_bytes: Sequence[float],
    backward_ms: Sequence[float] | None,
    devices: int,
    link: Link,
    strategy: str = "ring",
) -> tuple[float, float]:
    """(ms that an iteration waits for the exchange, ms that the backward pass hides) on `devices` devices.

    `gradient_bytes`, `backward_ms`: as `gradients` gives them. Without `backward_ms`, and by MIRRORED,
    everything is exchanged after the backward pass, at once. One device exchanges nothing.
    """
    if devices == 1:
        return 0.0, 0.0
    way = "ring" if strategy == MIRRORED else strategy

    def allreduce(size_bytes: float) -> float:
        return allreduce_ms(way, size_bytes, devices, link)

    if backward_ms is None or strategy == MIRRORED:
        return allreduce(sum(gradient_bytes)) + MIRRORED_MS * (strategy == MIRRORED), 0.0
    # The wait, if the backward pass took no time, is the whole exchange, bucket by bucket.
    whole = exposed_ms(gradient_bytes, [0.0] * len(backward_ms), allreduce)
    exposed = exposed_ms(gradient_bytes, backward_ms, allreduce)
    return exposed, whole - exposed
