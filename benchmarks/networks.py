"""Devices fitted to whole networks of others, families left out: the tables of docs/results/gpus.md.

    python benchmarks/networks.py FOLDER [TABLE ...]

FOLDER holds tables of pytorch-image-models' results. A fifth of the families is left out in turn. For each
table: the formula by operation, the published two-regime formula on the same networks, fitted to the same
others; 90 % intervals from the residuals of the folds that a network is not in; and the formula from 50 and
10 networks drawn at random five times, judged on all others.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lolat.devices.fit import Times, predicted
from lolat.devices.from_tables import FOLDS, Timed, fitted, left_out_of_folds, seen_facts
from lolat.devices.tables import Counted, counts_of, read_networks
from lolat.fitting.intervals import conformal_quantile
from lolat.fitting.predictors.two_regime import FEATURES, TwoRegime

HEADER = (
    "table", "networks", "median", "within 10 %", "bias", "Spearman", "inside 90 %", "width",
    "two-regime", "50 networks", "10 networks", "fit, s",
)  # fmt: skip


def two_regime(timed: Timed, times: Times) -> np.ndarray:
    """(times,) ms by the published formula, fitted to the other folds."""
    counts = [c.total(n.batch_size) for n, c in timed.networks]
    features = np.array([[c[f] for f in FEATURES] for c in counts], float)
    found, fold = np.empty(len(features)), timed.folds()
    for i in range(FOLDS):
        formula = TwoRegime.fit(features[fold != i], times.latency_ms[fold != i])
        found[fold == i] = [formula.one(list(row)) for row in features[fold == i]]
    return found


def few(times: Times, number: int, timed: Timed) -> float:
    """Median error of all others from `number` networks drawn at random, the mean of five draws."""
    found = []
    for seed in range(5):
        drawn = np.zeros(len(times.whole), bool)
        drawn[np.random.default_rng(seed).permutation(len(drawn))[:number]] = True
        part = times.take(drawn)
        formula = fitted(part, seen_facts(part), timed.mode, True)
        rest = times.take(~drawn)
        found.append(np.median(np.abs(predicted(formula, rest) / rest.latency_ms - 1)))
    return float(np.mean(found))


def intervals(log_off: np.ndarray, fold: np.ndarray) -> tuple[float, float]:
    """(share inside, mean width) of 90 % intervals, each from the other folds."""
    inside, widths = [], []
    for i in range(FOLDS):
        half = conformal_quantile(list(log_off[fold != i]), 0.9)
        inside += list(np.abs(log_off[fold == i]) <= half)
        widths.append(np.exp(half) - np.exp(-half))
    return float(np.mean(inside)), float(np.mean(widths))


def main() -> None:
    """Print a row for each table."""
    folder = Path(sys.argv[1])
    paths = [folder / name for name in sys.argv[2:]] or sorted(folder.glob("*.csv.gz"))
    print("| " + " | ".join(HEADER) + " |\n| --- |" + " --: |" * (len(HEADER) - 1))
    for path in paths:
        rows = read_networks(path).rows
        pairs = [
            (row, known)
            for row, known in zip(rows, counts_of(rows), strict=True)
            if isinstance(known, Counted)
        ]
        timed = Timed([], pairs, rows[0].mode.inference)
        times = timed.times
        facts = seen_facts(times)
        begun = time.perf_counter()
        formula = fitted(times, facts, timed.mode, True)
        seconds = time.perf_counter() - begun
        off = left_out_of_folds(times, timed.folds(), facts, formula) / times.latency_ms
        plain = two_regime(timed, times) / times.latency_ms
        inside, width = intervals(np.log(off), timed.folds())
        rank = spearmanr(off * times.latency_ms, times.latency_ms)[0]
        cells = [
            path.name.removesuffix(".csv.gz"),
            f"{len(pairs)} of {len(rows)}",
            f"{100 * np.median(np.abs(off - 1)):.1f} %",
            f"{100 * np.mean(np.abs(off - 1) <= 0.1):.0f} %",
            f"{100 * np.median(off - 1):+.1f} %",
            f"{rank:.3f}",
            f"{100 * inside:.0f} %",
            f"{100 * width:.0f} %",
            f"{100 * np.median(np.abs(plain - 1)):.0f} %",
            f"{100 * few(times, 50, timed):.1f} %",
            f"{100 * few(times, 10, timed):.1f} %",
            f"{seconds:.1f}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
