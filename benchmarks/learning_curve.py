"""How many operations to time on a GPU: the curve of docs/results/gpus.md, at random and as suggested.

    python benchmarks/learning_curve.py FOLDER [--seeds 3]

FOLDER holds NeuSight's measurements. Of each GPU 600 operations are drawn, of these some are taken, at
random or as `lolat suggest` orders them by the data sheet, before it knows any time; a model is fitted to
them and the data sheet, and its inference of whole transformers compared with the measured one. The last
column: all rows of the table. Draws docs/figures/learning-curve.svg.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpus import drawn

from lolat.devices.fit import Facts, Times, fit_kernels, suggested
from lolat.devices.from_tables import read_facts
from lolat.devices.tables import TimedOperation, counts_of, read_networks, read_operations
from lolat.graph.modes import Mode
from lolat.graph.work import Work, work_of
from lolat.report.plots import STYLE

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "learning-curve.svg"
POOL, MOST = 600, 20_000
NUMBERS = (0, 5, 10, 20, 50, 100, 200)
HOW = ("at random", "suggested")
NETWORKS = list[tuple[Work, float]]


def errors(rows: list[TimedOperation], facts: Facts, networks: NETWORKS) -> list[float]:
    """Relative errors of the networks, as a model of these operations has them."""
    parts = [work_of(row.graph, row.batch_size) for row in rows]
    ms = np.array([row.latency_ms for row in rows])
    formula = fit_kernels(Times.of(parts, ms, np.zeros(len(rows), bool)), facts)
    return [float(formula.times(work)[0].sum()) / ms - 1.0 for work, ms in networks]


def curve(
    rows: list[TimedOperation], facts: Facts, networks: NETWORKS, seeds: int
) -> dict[str, list[float]]:
    """HOW -> mean errors after each of NUMBERS, and after all."""
    found = {how: list[float]() for how in HOW}
    everything = random.Random(0).sample(rows, min(len(rows), MOST))
    last = float(np.mean(np.abs(errors(everything, facts, networks))))
    pools = [drawn(rows, POOL, seed) for seed in range(seeds)]
    orders = [suggested(pool, max(NUMBERS), facts) for pool in pools]
    for how in HOW:
        for number in NUMBERS:
            off = []
            for seed, (pool, order) in enumerate(zip(pools, orders, strict=True)):
                some = [pool[i] for i in order[:number]]
                if how == HOW[0]:
                    some = random.Random(seed).sample(pool, min(number, len(pool)))
                off += errors(some, facts, networks)
            found[how].append(float(np.mean(np.abs(off))))
        found[how].append(last)
    return found


def draw(curves: dict[str, dict[str, list[float]]]) -> None:
    """The figure."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(2, 3, figsize=(7.5, 4.2), sharex=True, sharey=True)
        for axes, (device, found) in zip(grid.flat, curves.items(), strict=False):
            for how, style in zip(HOW, ("o--", "o-"), strict=True):
                axes.plot(
                    range(len(NUMBERS)), 100 * np.array(found[how][:-1]), style, label=how, ms=3
                )
            axes.set_title(device, fontsize=8)
            axes.set_xticks(range(len(NUMBERS)), [str(n) for n in NUMBERS])
            axes.set_ylim(0, 20)
        grid[0, 0].legend(fontsize=7)
        figure.supxlabel("operations timed", fontsize=8)
        figure.supylabel("mean error of transformers, %", fontsize=8)
        figure.tight_layout()
        figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    """Print the table, draw the figure."""
    given = sys.argv[1:]
    folder = Path(given[0])
    seeds = int(given[given.index("--seeds") + 1]) if "--seeds" in given else 3
    print("| GPU | | " + " | ".join(map(str, (*NUMBERS, "all"))) + " |")
    print("| --- | --- |" + " --: |" * (len(NUMBERS) + 1))
    curves = {}
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
        curves[device] = curve(rows, read_facts(folder / "devices.csv", device), networks, seeds)
        for how, found in curves[device].items():
            print(
                f"| {device} | {how} | " + " | ".join(f"{100 * e:.1f} %" for e in found) + " |",
                flush=True,
            )
    draw(curves)


if __name__ == "__main__":
    main()
