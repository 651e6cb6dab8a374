"""How many operations to time on a GPU: the learning curve of docs/results/index.md.

    python benchmarks/learning_curve.py FOLDER [--seeds 3]

FOLDER holds NeuSight's measurements. Of each GPU 600 operations are drawn, and some of these at random; a
model is fitted to them and the data sheet, and its inference of whole transformers compared with the
measured one. The last column: all rows of the table.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpus import drawn

from lolat.devices.fit import fit_kernels
from lolat.devices.sheets import Facts, read_facts
from lolat.devices.tables import TimedOperation, counts_of, read_networks, read_operations
from lolat.devices.times import Times
from lolat.graph.modes import Mode
from lolat.graph.work import Work, work_of

POOL, MOST = 600, 20_000
NUMBERS = (0, 5, 10, 20, 50, 100, 200)
NETWORKS = list[tuple[Work, float]]


def errors(rows: list[TimedOperation], facts: Facts, networks: NETWORKS) -> list[float]:
    """Relative errors of the networks, as a model of these operations has them."""
    parts = [work_of(row.graph, row.batch_size) for row in rows]
    ms = np.array([row.latency_ms for row in rows])
    formula = fit_kernels(Times.of(parts, ms, np.zeros(len(rows), bool)), facts)
    return [float(formula.times(work)[0].sum()) / ms - 1.0 for work, ms in networks]


def curve(rows: list[TimedOperation], facts: Facts, networks: NETWORKS, seeds: int) -> list[float]:
    """Mean errors after each of NUMBERS, and after all."""
    everything = random.Random(0).sample(rows, min(len(rows), MOST))
    pools = [drawn(rows, POOL, seed) for seed in range(seeds)]
    found = []
    for number in NUMBERS:
        off = []
        for seed, pool in enumerate(pools):
            some = random.Random(seed).sample(pool, min(number, len(pool)))
            off += errors(some, facts, networks)
        found.append(float(np.mean(np.abs(off))))
    return [*found, float(np.mean(np.abs(errors(everything, facts, networks))))]


def main() -> None:
    """Print the table."""
    given = sys.argv[1:]
    folder = Path(given[0])
    seeds = int(given[given.index("--seeds") + 1]) if "--seeds" in given else 3
    print("| GPU | " + " | ".join(map(str, (*NUMBERS, "all"))) + " |")
    print("| --- |" + " --: |" * (len(NUMBERS) + 1))
    for path in sorted(folder.glob("kernels-*.csv.gz")):
        device = path.name.removeprefix("kernels-").removesuffix(".csv.gz")
        rows = read_operations(path)
        mode = Mode()
        timed = [r for r in read_networks(folder / "networks.csv", device).rows if r.mode == mode]
        counts = counts_of(timed)
        networks = [
            (c.work(r.batch_size), r.latency_ms) for r, c in zip(timed, counts, strict=True)
        ]
        if not networks or not any(row.name == "linear" for row in rows):
            continue  # none to judge by, or no products among the operations
        found = curve(rows, read_facts(folder / "devices.csv", device), networks, seeds)
        print(f"| {device} | " + " | ".join(f"{100 * e:.1f} %" for e in found) + " |", flush=True)


if __name__ == "__main__":
    main()
