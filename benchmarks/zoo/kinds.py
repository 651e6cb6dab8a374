"""How honest intervals are where a kind of operation was not measured; nothing is measured here.

    python benchmarks/zoo/kinds.py [--on PROCESSOR ...]

Of each device of the zoo every kind in KINDS is left out once: a model is fitted to the blocks and networks
without it, and predicts all other networks. The table: by the share of the time that is inside, how many
networks lie in the 90 % interval, how wide that is, and how far off the prediction is.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from judge import HERE, learn

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


def main() -> None:
    """Print the table."""
    on = sys.argv[sys.argv.index("--on") + 1 :] if "--on" in sys.argv else None
    paths = [
        p
        for p in sorted((HERE / "results").glob("*/*.json.xz"))
        if on is None or p.parent.name in on
    ]
    with ProcessPoolExecutor() as pool:
        found = [row for of_device in pool.map(rows, paths) for row in of_device]
    header = (
        "inside",
        "predictions",
        "in the interval",
        "half of it",
        "half off by",
        "a tenth by more than",
    )
    print("| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
    for low, high in reversed(list(pairwise(SHARES))):
        own = [r for r in found if low <= r[0] < high]
        if own:
            off = np.abs([r[3] for r in own])
            numbers = (np.median([r[2] for r in own]), np.median(off), np.quantile(off, 0.9))
            cells = [f"{low:.0%} ..", str(len(own)), f"{np.mean([r[1] for r in own]):.0%}"]
            print("| " + " | ".join([*cells, *(f"x {np.exp(n):.2f}" for n in numbers)]) + " |")


if __name__ == "__main__":
    main()
