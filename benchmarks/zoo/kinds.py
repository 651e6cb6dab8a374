"""How honest intervals are where a kind of operation was not measured; nothing is measured here.

Of each device of the zoo every kind in KINDS is left out once: a model is fitted to the blocks and networks
without it, and predicts all other networks.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.runner import Tables, benchmark
from benchmarks.zoo.judge import HERE, learn
from lolat.fitting.points import Point
from lolat.model import Model
from lolat.model.learning import model_document

KINDS = (
    ("depthwise_conv",), ("layer_norm",), ("silu", "gelu", "sigmoid", "hard_silu", "hard_sigmoid"),
    ("grouped_conv",), ("matmul",), ("dense",),
)  # fmt: skip
LEAST_POINTS = 30
SHARES = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.999, 1.01)

Row = tuple[
    float, bool, float, float
]  # share inside, in the interval, half of it, log(measured / predicted)


def rows(path: Path) -> list[Row]:
    """What the models of a device's results file, each without a kind, say of its networks."""
    device = learn(path)
    document = device.model.document
    found: list[Row] = []
    for kinds in KINDS:
        points = [Point.from_dict(p) for p in document["points"]]
        kept = [p for p in points if not {*kinds} & {*p.kinds}]
        if LEAST_POINTS <= len(kept) < len(points):
            made = model_document(
                device.name, device.name, kept, document["environment"], document["noise"]
            )
            model = Model(made)
            for entry, graph, ms in device.networks:
                p = model.predict(graph, entry["batch"])
                assert p.interval_ms is not None
                assert p.inside_share is not None
                low, high = p.interval_ms
                half, off = float(np.log(high / low) / 2), float(np.log(ms / p.latency_ms))
                found.append((p.inside_share, low <= ms <= high, half, off))
    return found


HEADS = (
    "inside",
    "predictions",
    "in the interval",
    "half of it",
    "half off by",
    "a tenth by more than",
)


@benchmark("kinds", "accuracy", "extended")
def kinds(processor: str = "*") -> Tables:
    """By the share of the time inside the domain: how many times are in the interval, how wide it is."""
    paths = sorted((HERE / "results").glob(f"{processor}/*.json.xz"))
    with ProcessPoolExecutor() as pool:
        every = [row for of_device in pool.map(rows, paths) for row in of_device]
    lines = []
    for low, high in reversed(list(pairwise(SHARES))):
        some = [r for r in every if low <= r[0] < high]
        if some:
            off = np.abs([r[3] for r in some])
            numbers = (np.median([r[2] for r in some]), np.median(off), np.quantile(off, 0.9))
            held = f"{np.mean([r[1] for r in some]):.0%}"
            lines.append(
                [f"{low:.0%} ..", str(len(some)), held, *(f"x {np.exp(n):.2f}" for n in numbers)]
            )
    return {"kinds": (HEADS, lines)}
