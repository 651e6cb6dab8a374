"""How many operations to time on a GPU: the learning curve.

DATA holds NeuSight's measurements. Of each GPU 600 operations are drawn, and some of these at random; a
model is fitted to them and the data sheet, and its inference of whole transformers compared with the
measured one. The last column: all rows of the table.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from benchmarks.gpus import devices, drawn
from benchmarks.runner import Tables, benchmark, percent
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


@benchmark("curve", "gpus", "kernels", data="NeuSight's tables")
def learning_curve(data: Path, seeds: str = "3") -> Tables:
    """Errors of transformers after 0 to 200 timed operations."""
    lines = []
    for device in devices(data):
        rows, mode = read_operations(data / f"kernels-{device}.csv.gz"), Mode()
        timed = [r for r in read_networks(data / "networks.csv", [device]).rows if r.mode == mode]
        pairs = zip(timed, counts_of(timed), strict=True)
        networks = [(c.work(r.batch_size), r.latency_ms) for r, c in pairs]
        if networks and any(row.name == "linear" for row in rows):
            facts = read_facts(data / "devices.csv", device)
            lines.append([device, *map(percent, curve(rows, facts, networks, int(seeds)))])
    return {"curve": (["GPU", *map(str, NUMBERS), "all"], lines)}
