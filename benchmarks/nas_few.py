"""How well a search space's latency on a new device is learned from a few measured networks.

    python benchmarks/nas_few.py DATA [--draws 50] [--write docs/results/nas.md]

DATA: a folder with nasbench201_latency.csv.gz and fbnet_latency.csv.gz, the latencies that HELP (Lee et
al., NeurIPS 2021) measured: a column `arch` and one column of milliseconds a device. Samples are drawn at
random, the same number of times on every device, each device alone. Spearman's rank correlation with
average ranks for ties, over all networks of the table. With --write, the tables go between the markers in
that page.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.pages import update  # noqa: E402
from lolat.nas import Space, fit  # noqa: E402
from lolat.nas.fewshot import Samples, rounding  # noqa: E402
from lolat.nas.spaces import SPACES  # noqa: E402

HELP = {
    "titan_rtx_256": 0.987,
    "gold_6226": 0.989,
    "pixel2": 0.802,
    "raspi4": 0.890,
    "eyeriss": 0.940,
    "fpga": 0.985,
}
"""HELP's Spearman with ten samples, on its six test devices (NAS-Bench-201)."""
CHOSEN_ON = {
    "nasbench201": "1080ti_1 2080ti_256 essential_ph_1 pixel3 silver_4114 titanx_32 titan_rtx_1 "
    "titanxp_256",
    "fbnet-cifar": "1080ti_1 2080ti_64 essential_ph_1 pixel3 silver_4114 titanx_32 titan_rtx_1 titanxp_64",
}
"""The devices that were looked at while terms and priors were chosen."""
FILES = {"nasbench201": "nasbench201_latency.csv.gz", "fbnet-cifar": "fbnet_latency.csv.gz"}
FIFTY = 10  # draws of fifty samples


@dataclass(frozen=True)
class Table:
    """A space's networks, measured: `texts` as they stand in the file, `times` by device, ms."""

    space: Space
    archs: list[str]
    rows: np.ndarray
    texts: dict[str, list[str]]
    times: dict[str, np.ndarray]

    def samples(self, device: str, chosen: np.ndarray) -> Samples:
        """The samples of a device with those indices."""
        step = rounding([self.texts[device][i] for i in chosen])
        archs = tuple(self.archs[i] for i in chosen)
        return Samples(archs, self.rows[chosen], self.times[device][chosen], step, ())


@dataclass(frozen=True)
class Scores:
    """Over draws: mean and worst Spearman, median relative error, share inside the 90 % interval."""

    spearman: float
    worst: float
    error: float
    inside: float


def read(path: Path, name: str) -> Table:
    """The table of a space."""
    with gzip.open(path, "rt", newline="") as file:
        cells = list(csv.DictReader(file))
    devices = [c for c in cells[0] if c not in ("index", "arch")]
    texts = {d: [row[d] for row in cells] for d in devices}
    times = {d: np.array(texts[d], dtype=float) for d in devices}
    space, archs = SPACES[name](), [row["arch"] for row in cells]
    return Table(space, archs, space.parse(archs), texts, times)


def judge(table: Table, device: str, draws: list[np.ndarray]) -> Scores:
    """Fit each draw of samples and compare with all networks."""
    times = table.times[device]
    ranks = rankdata(times)
    found = []
    for chosen in draws:
        scorer = fit(table.space, table.samples(device, chosen))
        predicted = scorer.latency(table.rows)
        low, high = scorer.interval(table.rows, 0.9)
        found.append(
            (
                float(np.corrcoef(rankdata(predicted), ranks)[0, 1]),
                float(np.median(np.abs(predicted / times - 1.0))),
                float(np.mean((low <= times) & (times <= high))),
            )
        )
    spearman, error, inside = np.array(found).T
    return Scores(spearman.mean(), spearman.min(), float(error.mean()), inside.mean())


def random_draws(table: Table, device: str, count: int, draws: int) -> list[np.ndarray]:
    """Indices of samples: the same for every run, others for every device."""
    names = sorted(table.times)
    return [
        np.random.default_rng([2026, names.index(device), count, draw]).choice(
            len(table.rows), count, replace=False
        )
        for draw in range(draws)
    ]


def report(table: Table, draws: int) -> list[str]:
    """The lines of one space's table."""
    chosen_on = CHOSEN_ON[table.space.name].split()
    known = HELP if table.space.name == "nasbench201" else {}
    lines = [
        f"| device |{' HELP, ten |' * bool(known)} ten, random | worst draw | twenty "
        "| fifty: Spearman | fifty: median error | in 90 % interval (ten) |",
        f"| --- |{' --: |' * (6 + bool(known))}",
    ]
    rows: dict[str, list[float]] = {}
    for device in sorted(table.times, key=lambda d: (d not in HELP, d in chosen_on, d)):
        ten, twenty = (
            judge(table, device, random_draws(table, device, k, draws)) for k in (10, 20)
        )
        fifty = judge(table, device, random_draws(table, device, 50, FIFTY))
        figures = [ten.spearman, ten.worst, twenty.spearman]
        rows[device] = [*figures, fifty.spearman, fifty.error, ten.inside]
        mark = " *" if device in chosen_on else ""
        lines.append(_line(device + mark, known, known.get(device), rows[device]))
        print(lines[-1], flush=True)
    groups = {
        "HELP's test devices": [d for d in rows if d in HELP],
        "others, not chosen on": [d for d in rows if d not in HELP and d not in chosen_on],
        "all": list(rows),
    }
    for words, devices in groups.items():
        mean = np.mean([rows[d] for d in devices], axis=0)
        helped = float(np.mean(list(HELP.values()))) if words == "HELP's test devices" else None
        lines.append(_line(f"**{words}, mean**", known, helped, mean))
    fine = [rows[d][4] for d in rows if rounding(table.texts[d][:200]) < 1.0]
    lines += [
        "",
        f"Median error with fifty samples on the {len(fine)} devices that are not rounded to whole "
        f"milliseconds: {100 * float(np.median(fine)):.1f} % at the middle device, "
        f"{100 * float(np.mean(fine)):.1f} % on average, at most 3 % on "
        f"{sum(e <= 0.03 for e in fine)}.",
    ]
    return lines


def _line(
    words: str, known: dict[str, float], helped: float | None, figures: list[float] | np.ndarray
) -> str:
    """A row of the table; HELP's figure only in the table where it has some."""
    *ranks, error, inside = figures
    cells = [words, *(["" if helped is None else f"{helped:.3f}"] if known else [])]
    cells += [*(f"{r:.3f}" for r in ranks), f"{100 * error:.1f} %", f"{100 * inside:.0f} %"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the two tables")
    parser.add_argument("--draws", type=int, default=50, help="random draws on each device")
    parser.add_argument("--space", choices=sorted(CHOSEN_ON), action="append")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    asked = parser.parse_args()
    for name in asked.space or sorted(CHOSEN_ON, reverse=True):
        lines = report(read(asked.data / FILES[name], name), asked.draws)
        print("\n".join(lines), "\n")
        if asked.write:
            update(asked.write, {name: lines})


if __name__ == "__main__":
    main()
