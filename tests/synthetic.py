"""Measured points, a model and a network made up by hand: what the tests of fitting and answers share."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.device.predictors.additive import TERMS
from lolat.fitting.blocks import fitted_file
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import COLUMNS, EXTRAS, FEATURES, MEMBERS, behaviors, count
from lolat.tables.blocks import Point

# Milliseconds per unit of each count, like those of a small CPU.
TRUE = {"acts": 2e-6, "inp": 1e-6, "flops": 2e-8, "traffic": 8e-7, "weights": 5e-7, "ops": 0.01}
CALL_MS = 0.15
OF_SIX = {
    "flops": MEMBERS["flops"],
    "weights": MEMBERS["weights"],
    "ops": MEMBERS["ops"],
    "inp": ("conv_reads", "depthwise_reads"),
    "acts": ("conv_writes", "depthwise_writes"),
    "traffic": tuple(n for n in MEMBERS["elements"] if not n.endswith(("_reads", "_writes"))),
}
OF_SIX = {whole: tuple(n for n in kinds if n in TERMS) for whole, kinds in OF_SIX.items()}
"""The six, each of which is the sum of these kinds, which have terms in the formula."""
STAYS = {"weights", "ops", *MEMBERS["weights"], *MEMBERS["ops"]}  # at any batch size


def counts(blocks: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Counts of made-up blocks: each spans some decades, none is a multiple of another."""
    random = np.random.default_rng(seed)

    def spread(low: float, high: float) -> np.ndarray:
        return np.exp(random.uniform(np.log(low), np.log(high), blocks)).round()

    acts = spread(1e4, 3e6)
    made = {
        "acts": acts,
        "inp": (acts * random.uniform(0.2, 3.0, blocks)).round(),
        "flops": (acts * spread(20, 2000)).round(),
        "traffic": (acts * random.uniform(0.5, 6.0, blocks)).round(),
        "weights": spread(1e3, 2e6),
        "ops": random.integers(3, 60, blocks).astype(float),
    }
    return made | {extra: np.zeros(blocks) for extra in EXTRAS} | _apart(made, random)


def _apart(made: dict[str, np.ndarray], random: np.random.Generator) -> dict[str, np.ndarray]:
    """The six told apart by kinds of operations, of which each block has some of each."""
    found = {}
    for whole, kinds in OF_SIX.items():
        parts = random.dirichlet(np.full(len(kinds), 0.5), len(made[whole]))
        rows = np.floor(parts * made[whole][:, None])
        rows[:, 0] += made[whole] - rows.sum(axis=1)
        found |= dict(zip(kinds, rows.T, strict=True))
    return found


def measured(blocks: int = 35, batches: Sequence[int] = (1, 2, 4), noise: float = 0.03,
             seed: int = 0, columns: Sequence[str] = COLUMNS) -> list[Point]:  # fmt: skip
    """Points that follow TRUE but for `noise` (relative); counts but the weights grow with the batch."""
    made = counts(blocks, seed)
    random = np.random.default_rng(seed + 1)
    points = []
    for i in range(blocks):
        for batch in batches:
            row = {c: int(made[c][i]) * (1 if c in STAYS else batch) for c in COLUMNS}
            row["repacked"] = (batch > 1) * (row["pointwise_weights"] + row["spatial_weights"])
            time = CALL_MS + sum(TRUE[c] * row[c] for c in FEATURES)
            time *= float(np.exp(noise * random.standard_normal()))
            known, samples = {c: row[c] for c in columns}, (time, 1.01 * time)
            points.append(Point(f"block {i}", batch, known, time, samples, kinds=kinds()))
    return points


@functools.cache
def kinds() -> tuple[str, ...]:
    """The kinds of work of `network`, as if blocks of it had been measured."""
    return tuple(sorted(behaviors(network().operations)))


def document(points: Sequence[Point] | None = None, **changes: Any) -> dict[str, Any]:
    """A profile's contents, fitted on made-up points."""
    if points is None:
        return copy.deepcopy(_usual()) | changes
    where = {"framework": "tensorflow", "framework_version": "2.21.0", "device": "cpu"}
    noise = {"floor": 0.03}
    made = fitted_file("desk", "a desk, 2 threads", points, where, noise)
    return {**made.document, **changes}


@functools.cache
def _usual() -> dict[str, Any]:
    return document(measured())


def table(points: Sequence[Point], columns: Sequence[str]) -> str:
    """The points as a CSV table with these columns."""
    lines = [",".join(columns)]
    for p in points:
        known = {"name": p.name, "batch_size": p.batch_size, "latency_ms": repr(p.latency_ms)}
        lines.append(",".join(str({**p.counts, **known}[c]) for c in columns))
    return "\n".join(lines) + "\n"


def network(stages: int = 3, width: int = 32, size: int = 56, name: str = "hand made") -> Graph:
    """A residual network of `stages` blocks with a head."""
    builder = GraphBuilder(name)
    shape = (1, size, size, width)
    x = builder.input((1, size, size, 3))
    x = builder.add("conv", [x], shape, "stem_conv", kernel=(3, 3), in_channels=3,
                    out_channels=width, groups=1, bias=False, strides=(1, 1))  # fmt: skip
    for stage in range(1, stages + 1):
        y = x
        for part in ("1", "2"):
            key = f"conv{stage}_block1_{part}"
            y = builder.add("conv", [y], shape, f"{key}_conv", kernel=(3, 3), in_channels=width,
                            out_channels=width, groups=1, bias=False, strides=(1, 1))  # fmt: skip
            y = builder.add("batch_norm", [y], shape, f"{key}_bn")
            y = builder.add("relu", [y], shape, f"{key}_relu")
        x = builder.add("add", [x, y], shape, f"conv{stage}_block1_add")
    x = builder.add("global_average_pool", [x], (1, width), "avg_pool")
    x = builder.add("dense", [x], (1, 1000), "predictions", in_features=width,
                    out_features=1000, bias=True)  # fmt: skip
    return builder.build([x])


def chains(whole: bool) -> Graph:
    """Two chains of modules, b1.0 to b1.2 and b3.0 to b3.3, of which the last has most of the layers.

    A skip connection spans all of b3 if `whole`, else its last three modules.
    """
    b = GraphBuilder("chains")

    def conv(x: int, path: str, name: str = "conv", filters: int = 16) -> int:
        channels = b.tensors[x].shape[-1]
        return b.add("conv", [x], (1, 32, 32, filters), name, path, kernel=(3, 3), strides=(1, 1),
                     in_channels=channels, out_channels=filters, groups=1, bias=False)  # fmt: skip

    x = conv(b.input((1, 32, 32, 3)), "stem")
    for i in range(3):
        x = conv(x, f"b1.{i}")
    skips = []
    for path, name in [
        *((f"b3.{i}", "conv") for i in range(3)),
        *(("b3.3", f"c{i}") for i in range(5)),
    ]:
        skips.append(x)
        x = conv(x, path, name)
    x = b.add("add", [skips[0 if whole else 1], x], b.tensors[x].shape, "add", "b3")
    x = b.add("global_average_pool", [x], (1, 16))
    return b.build([b.add("dense", [x], (1, 10), in_features=16, out_features=10, bias=True)])


def totals(graph: Graph, batch_size: int = 1) -> dict[str, int]:
    """The counts of a whole network, by name."""
    return dict(zip(COLUMNS, map(int, count(graph).at(batch_size).sum(axis=0)), strict=True))


@dataclass(frozen=True)
class Measured:
    """A measured network."""

    spec: str
    graph: Graph
    batch_size: int
    latency_ms: float
    spread: float | None = 0.01
    input_size: tuple[int, ...] = ()
    block: int | None = None


def one(kind: str, inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]],
        constants: Sequence[Sequence[int]] = (), **attributes: Any) -> Graph:  # fmt: skip
    """A graph of one operation; `constants` are further inputs that do not grow with the batch."""
    b = GraphBuilder("one")
    ins = [b.input(shape) for shape in inputs]
    ins += [b.tensor(shape, batched=False) for shape in constants]
    return b.build(b.add_several(kind, ins, outputs, **attributes))
