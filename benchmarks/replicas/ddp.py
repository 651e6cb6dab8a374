"""PyTorch's DistributedDataParallel on this machine: measured, and predicted from replicas and link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lolat.readers import read
from lolat.training.replicas import gradient_parts, parallel_iteration
from microbench.backends.torch.training import Replica
from microbench.exchange import measure_link
from microbench.timing import Clock, timed
from microbench.worker import run_together

NETWORKS = ("conv", "mixed", "dense")
REPLICAS = (2, 4)
BATCH = 32
BACKWARD = (
    2 / 3
)  # of an iteration: the gradients of inputs and of weights are two products of three
LIMIT_S = 300.0


def network(name: str) -> tuple[Any, Any]:
    """(network, a batch): few parameters and much to compute, both, or the other way round."""
    import torch
    from torch import nn

    def convolution(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]

    image, vector = torch.randn(BATCH, 3, 32, 32), torch.randn(BATCH, 1024)
    head = [nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    made = {
        "conv": ([*convolution(3, 64), *convolution(64, 64), *head, nn.Linear(1024, 10)], image),
        "mixed": (
            [*convolution(3, 32), *convolution(32, 64), *head, nn.Linear(1024, 2048), nn.ReLU(),
             nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10)],
            image,
        ),
        "dense": (
            [nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
             nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)],
            vector,
        ),
    }  # fmt: skip
    layers, batch = made[name]
    return nn.Sequential(*layers), batch


def run(request: Mapping[str, Any], clock: Clock) -> list[list[float]]:
    """One replica: iterations of each network without and with exchange, raw times in ms."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    with Replica(request) as replica:
        calls = []
        for name in NETWORKS:
            for wrap in (lambda module: module, replica.parallel):
                made, batch = network(name)
                target = torch.randint(10, (BATCH,))

                def loss(module: Any, x: Any = batch, y: Any = target) -> Any:
                    return nn.functional.cross_entropy(module(x), y)

                calls.append(replica.step(wrap(made), loss))
        return timed(calls, clock, replica.meet)


def table() -> Iterator[str]:
    """A row for each network and number of replicas, each of one thread."""
    yield "| replicas | network | gradients | without exchange | measured | after the pass | in buckets |"
    yield "| --: | --- | --: | --: | --: | --: | --: |"
    for replicas in REPLICAS:
        link = measure_link("ddp", replicas, threads=1)
        request = {"device": "cpu", "replicas": replicas, "threads": 1}
        requests = [{**request, "rank": rank} for rank in range(replicas)]
        told = run_together("benchmarks.replicas.ddp:run", requests, LIMIT_S)
        words = f"{replicas} (link {link.link.gbps:.1f} Gbit/s, {link.link.latency_ms:.2f} ms)"
        for number, name in enumerate(NETWORKS):
            # Every iteration waits for the replica that is slowest then.
            alone, measured = (
                float(np.median(np.max([t[2 * number + w] for t in told], axis=0))) for w in (0, 1)
            )
            model, batch = network(name)
            variables = len(list(model.parameters()))
            graph = read((model, batch))
            sizes, backward = gradient_parts(graph, BATCH, BACKWARD * alone)
            cells = [
                parallel_iteration(
                    alone, sizes, replicas, link.link, "ring", backward_ms=parts,
                    fixed_ms=variables * link.variable_ms,
                )
                for parts in (None, backward)
            ]  # fmt: skip
            predicted = " | ".join(
                f"{c.iteration_ms:.1f} ms, {100 * (c.iteration_ms / measured - 1):+.0f} %"
                for c in cells
            )
            yield (
                f"| {words} | {name} | {sum(sizes) / 1e6:.1f} MB | {alone:.1f} ms "
                f"| {measured:.1f} ms | {predicted} |"
            )
