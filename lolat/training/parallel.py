"""Data parallelism, sharded or not: memory of each device, messages, and the wait for them.

Every device has its own part of the batch. After the backward pass it needs the sum, over all devices, of
the gradients of all parameters or, if sharded, of the parameters whose optimizer states it has (ZeRO,
Rajbhandari et al. 2020; FSDP, Zhao et al. 2023). Messages travel while other gradients are computed, in
buckets as in PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020), or layer by
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.backward import backward_of
from lolat.graph.modes import DEFAULT_MODE, Mode
from lolat.graph.weights import operations_parameters
from lolat.hardware.links import MACHINE, Link
from lolat.parameters import SHARDINGS
from lolat.training.memory import trained_parameters
from lolat.training.recipe import Shards, gradient_bytes

BUCKET_BYTES = 25 * 2**20
"""The default `bucket_cap_mb` of DistributedDataParallel, 25 MiB."""
FIRST_BUCKET_BYTES = 2**20
"""Bytes of the first bucket of DistributedDataParallel, small so that the link is busy early."""


def exposed_ms(
    gradient_bytes: Sequence[float], backward_ms: Sequence[float], allreduce: Callable[[float], float],
    bucket_bytes: float = BUCKET_BYTES, first_bytes: float = FIRST_BUCKET_BYTES,
) -> float:  # fmt: skip
    """ms from the end of the backward pass to the end of the exchange of gradients.

    `gradient_bytes`, `backward_ms`: (gradients,) bytes of each gradient, and ms of the backward pass that
    computes it, in the order of the forward pass. `allreduce`: bytes -> ms. Gradients fill buckets from the
    last to the first. A bucket is sent when it has `bucket_bytes` (the first: `first_bytes`), one bucket at
    a time.
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
    graph: Graph, backward_ms: np.ndarray | None, mode: Mode = DEFAULT_MODE
) -> tuple[list[float], list[float]]:
    """(bytes of each gradient, ms of the backward pass that computes it).

    There is a gradient for each operation with trained parameters, in the order of the forward pass.
    `backward_ms`: (operations,) ms; the time of operations before the first gradient is divided among all
    gradients. Without `backward_ms` all gradients are one, ready after the whole backward pass.
    """
    size, numbers = gradient_bytes(graph, mode), trained_parameters(graph)
    learned = [i for i, n in enumerate(numbers) if n]
    if backward_ms is None or not learned:
        return [size * sum(numbers)], [0.0]
    parts = np.add.reduceat(backward_ms, learned)
    behind, whole = float(parts.sum()), float(backward_ms.sum())
    parts = parts * (whole / behind) if behind > 0 else np.full(len(parts), whole / len(parts))
    return [size * numbers[i] for i in learned], parts.tolist()


def frozen_weights(graph: Graph, each: float, parts: int) -> np.ndarray:
    """(2, parts) bytes of frozen parameters that the forward (row 0) and the backward pass (row 1) read.

    `each`: bytes of a parameter; `parts`: the number of gradients, see `gradients`. The backward pass reads
    only the parameters of operations that a gradient goes through.
    """
    trained = np.array(trained_parameters(graph), float)
    frozen = each * np.maximum(np.array(operations_parameters(graph), float) - trained, 0.0)
    both = np.array([frozen, frozen * backward_of(graph).first])
    learned = np.flatnonzero(trained) if parts > 1 else np.zeros(1, int)
    found = np.add.reduceat(both, learned, axis=1)
    found[:, 0] += both[:, : learned[0]].sum(1)
    return found


NONE, ZERO1, ZERO2, FSDP, HYBRID = SHARDINGS
BY_LAYER = (ZERO2, FSDP, HYBRID)
"""Kinds of sharding that send a message for each layer."""
GATHER_SHARE = 0.5
"""Share of a network's rate that BY_LAYER messages between machines reach while products run (from MPT 70B
on 64 A100, which waits for its messages)."""


@dataclass(frozen=True)
class Parallel:
    """Devices that train together, with their links and sharding.

    `sharding`: none (every device has everything), zero1 (optimizer states are divided among devices),
    zero2 (gradients too), fsdp (parameters too: ZeRO 3), hybrid (fsdp inside a machine; each machine has
    everything). `link`: the link between all devices; None for one device. `within`: the link inside a
    machine of `machine` devices. InputError for hybrid sharding on several machines that are not all whole.
    """

    devices: int = 1
    link: Link | None = None
    sharding: str = NONE
    within: Link | None = None
    machine: int = MACHINE

    def __post_init__(self) -> None:
        whole, rest = divmod(self.devices, self.machine)
        if self.sharding == HYBRID and whole and rest:
            raise InputError(
                f"{arg('sharding')} {HYBRID}: {self.devices} GPUs are no whole machines of {self.machine}; "
                f"expected {whole * self.machine} or {(whole + 1) * self.machine}",
                code="part-of-machine",
            )

    @property
    def shards(self) -> Shards:
        """The numbers of devices among which parameters, gradients and optimizer states are divided."""
        k = min(self.devices, self.machine) if self.sharding == HYBRID else self.devices
        level = SHARDINGS.index(self.sharding)
        return Shards(*(k if level >= least else 1 for least in (3, 2, 1)))

    def exchange_ms(
        self, gradients: Sequence[float], backward_ms: Sequence[float],
        weights: Sequence[float] = (), forward_ms: Sequence[float] = (), batches: int = 1,
        again: Sequence[float] | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """(ms that an iteration waits for messages, ms of messages hidden behind computing).

        `gradients`, `weights`: bytes of each part's messages, in the order of the forward pass;
        `backward_ms`, `forward_ms`: ms of each part in a micro-batch; `batches`: micro-batches of an
        iteration. zero2 and fsdp send gradients in every micro-batch, other kinds once in an iteration.
        fsdp gathers the parameters of a part before each of its passes (`again`: bytes before the backward
        pass, if different). zero2 gathers them once, during the forward pass, as FSDP's SHARD_GRAD_OP.
        zero1 gathers them after the update, before anything else runs, as PyTorch's ZeroRedundancyOptimizer
        and DeepSpeed.
        """
        if self.devices == 1 or self.link is None:
            return 0.0, 0.0
        none, k, link = [0.0] * len(gradients), self.shards.states, self.link
        over = self.within if self.devices > k and self.within else link

        share = GATHER_SHARE if self.sharding in BY_LAYER and k > self.machine else 1.0

        def ring(size_bytes: float) -> float:
            """ms to gather shards, or to reduce-scatter gradients, among the devices that share them."""
            return _ring_ms(size_bytes, k, over, share)

        def allreduce(size_bytes: float) -> float:
            return 2 * _ring_ms(size_bytes, self.devices, link, 1.0)

        def between(size_bytes: float) -> float:
            return 2 * _ring_ms(size_bytes, self.devices // k, link, GATHER_SHARE)

        def waits(forward: Sequence[float], backward: Sequence[float]) -> float:
            if self.sharding == NONE:
                return exposed_ms(gradients, backward, allreduce)
            if self.sharding == ZERO1:
                return exposed_ms(gradients, backward, ring) + ring(sum(weights))
            gathering = exposed_ms(weights[::-1], forward[::-1], ring, 0.0, 0.0)
            scattering = batches * exposed_ms(gradients, backward, ring, 0.0, 0.0)
            if self.sharding == ZERO2:
                return scattering + gathering
            both = [g + w for g, w in zip(gradients, again or weights, strict=True)]
            every = batches * (exposed_ms(both, backward, ring, 0.0, 0.0) + gathering)
            # Each part's shards, on a stream of their own, once the last batch has their sums.
            return every + exposed_ms(gradients, backward, between, 0.0, 0.0)

        exposed, whole = waits(forward_ms, backward_ms), waits(none, none)
        hidden = whole - exposed
        return exposed, hidden if hidden > 1e-9 * whole else 0.0  # below: rounding


def _ring_ms(size_bytes: float, devices: int, link: Link, share: float) -> float:
    """ms of one round in a ring: a reduce-scatter or an all-gather. `share`: of the link's rate that it
    reaches.

    A round has K-1 steps, each of bytes / K; two rounds are an all-reduce, as in NCCL and gloo (Patarasuk
    and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
    """
    if not size_bytes or devices == 1:
        return 0.0
    return (devices - 1) * link.message_ms(size_bytes / devices / share)
