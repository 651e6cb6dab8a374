"""The latency of a search space on a new device, learned from a few measured networks.

DATA holds the latencies that HELP (Lee et al., NeurIPS 2021) measured: a column `arch` and one column of
milliseconds a device. Samples are drawn at random, the same number of times on every device, each device
alone. Spearman's rank correlation with average ranks for ties, over all networks of the table.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from benchmarks.runner import Tables, benchmark, percent
from lolat.nas import Space, fit
from lolat.nas.fewshot import Samples, rounding
from lolat.nas.spaces import SPACES

HELP = {
    "titan_rtx_256": 0.987, "gold_6226": 0.989, "pixel2": 0.802, "raspi4": 0.890, "eyeriss": 0.940,
    "fpga": 0.985,
}  # fmt: skip
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
        return Samples(archs, self.rows[chosen], self.times[device][chosen], step)


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
        estimator = fit(table.space, table.samples(device, chosen))
        predicted = estimator.latency(table.rows)
        low, high = estimator.interval(table.rows, 0.9)
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


FIGURES = (
    "LoLat, ten samples", "worst draw", "twenty samples", "fifty samples", "median error, fifty samples",
    "inside the 90 % interval, ten samples",
)  # fmt: skip


def lines(table: Table, draws: int) -> Iterator[list[str]]:
    """The rows of one space's table: each device, then means of groups."""
    chosen_on = CHOSEN_ON[table.space.name].split()
    known = HELP if table.space.name == "nasbench201" else {}
    rows: dict[str, list[float]] = {}
    for device in sorted(table.times, key=lambda d: (d not in HELP, d in chosen_on, d)):
        ten, twenty = (
            judge(table, device, random_draws(table, device, k, draws)) for k in (10, 20)
        )
        fifty = judge(table, device, random_draws(table, device, 50, FIFTY))
        figures = [ten.spearman, ten.worst, twenty.spearman]
        rows[device] = [*figures, fifty.spearman, fifty.error, ten.inside]
        mark = " *" if device in chosen_on else ""
        yield [device + mark, *cells(known, known.get(device), rows[device])]
    groups = {
        "HELP's test devices": [d for d in rows if d in HELP],
        "others, not chosen on": [d for d in rows if d not in HELP and d not in chosen_on],
        "all": list(rows),
    }
    for words, devices in groups.items():
        mean = np.mean([rows[d] for d in devices], axis=0)
        helped = float(np.mean(list(HELP.values()))) if words == "HELP's test devices" else None
        yield [f"{words}, mean", *cells(known, helped, list(mean))]


def cells(known: dict[str, float], helped: float | None, figures: list[float]) -> list[str]:
    """The figures of a row; HELP's only in the table where it has some."""
    *ranks, error, inside = figures
    own = [*(f"{r:.3f}" for r in ranks), percent(error), percent(inside, 0)]
    return [*(["" if helped is None else f"{helped:.3f}"] if known else []), *own]


@benchmark("few-shot", "nas", "few-shot", data=" and ".join(FILES.values()))
def few_shot(data: Path, draws: str = "50", space: str = "") -> Tables:
    """Rank correlations from ten, twenty and fifty measured networks, on 22 devices."""
    made = {}
    for name in [space] if space else sorted(CHOSEN_ON, reverse=True):
        heads = ["device", *(["HELP, ten samples"] if name == "nasbench201" else []), *FIGURES]
        made[name] = (heads, list(lines(read(data / FILES[name], name), int(draws))))
    return made
