"""When a backward pass has which gradients ready: per operation with parameters, from the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lolat.counts import COLUMNS, count
from lolat.graph import Graph
from lolat.training.memory import FLOAT_BYTES, operation_parameters

MACS_PER_ELEMENT = 10.0
"""Multiply-accumulates that take as long as moving an element, where nothing tells it: the order of CPUs
and GPUs alike (an H200 of 30 TMAC/s and 4.8 TB/s: 25; a core of 50 GMAC/s and 20 GB/s: 10)."""


def gradient_parts(
    graph: Graph, batch_size: int, backward_ms: float, weights: Sequence[float] | None = None
) -> tuple[list[float], list[float]]:
    """(bytes of the gradient, ms of the backward pass until it is ready since the one before it).

    One of each for every operation that has parameters, in the order of the forward pass; the backward
    pass goes through them from the last to the first, and through what lies behind each before it. What
    lies in front of the first is not gone through: nobody needs the gradient of an input. The first list
    adds up to the network's gradients, the second to `backward_ms` (without parameters both are empty).
    `weights`: (operations,), what each takes, to share `backward_ms` out; None: by what it multiplies and
    moves.
    """
    rows = count(graph).at(batch_size)
    column = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
    if weights is None:
        moved = column["acts"] + column["inp"] + column["traffic"] + column["weights"]
        weights = (column["flops"] / MACS_PER_ELEMENT + moved).tolist()
    one = count(graph).at(1)[:, COLUMNS.index("weights")]
    numbers = [
        operation_parameters(graph, o, int(w)) for o, w in zip(graph.operations, one, strict=True)
    ]
    having = [i for i, n in enumerate(numbers) if n]
    if not having:
        return [], []
    ends = [*having[1:], len(numbers)]
    parts = np.array(
        [sum(weights[start:end]) for start, end in zip(having, ends, strict=True)], dtype=float
    )
    whole = float(parts.sum())
    shares = parts / whole if whole > 0 else np.full(len(parts), 1.0 / len(parts))
    return [float(FLOAT_BYTES * numbers[i]) for i in having], (backward_ms * shares).tolist()
