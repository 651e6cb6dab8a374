"""Devices fitted to whole networks of others, families left out.

DATA holds tables of pytorch-image-models' results. A fifth of the families is left out in turn. For each
table: the formula by operation; the linear formula on the counts of the same networks, fitted to the same
others; 90 % intervals from the residuals of the folds that a network is not in; and the formula by
operation from 50 and 10 networks drawn at random five times, judged on all others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.runner import Errors, Tables, benchmark, percent
from lolat.device.intervals import conformal_quantile
from lolat.fitting.from_tables import FOLDS, TimedRows, held_out_of_folds, linear_entry
from lolat.fitting.roofline import fit_roofline, predicted
from lolat.fitting.times import Times, seen_specs
from lolat.hardware.card_names import find_gpu
from lolat.hardware.gpus import Gpu
from lolat.tables.counted import Counted, counts_of
from lolat.tables.networks import read_networks

HEADER = (
    "table", "networks", "median", "within 10 %", "bias", "Spearman", "inside 90 %", "width",
    "linear: median", "linear: within 10 %", "50 networks", "10 networks",
)  # fmt: skip


def read_timed(path: Path) -> tuple[TimedRows, int]:
    """The networks of a table that can be read, and how many it has."""
    rows = read_networks(path).rows
    known = zip(rows, counts_of(rows), strict=True)
    pairs = [(row, counts) for row, counts in known if isinstance(counts, Counted)]
    return TimedRows([], pairs, rows[0].mode.inference), len(rows)


def few(times: Times, number: int, timed: TimedRows, gpu: Gpu | None) -> float:
    """Median error of all others from `number` networks drawn at random, the mean of five draws."""
    found = []
    for seed in range(5):
        drawn = np.zeros(len(times.whole), bool)
        drawn[np.random.default_rng(seed).permutation(len(drawn))[:number]] = True
        part = times.take(drawn)
        formula = fit_roofline(part, seen_specs(part, gpu), timed.mode)
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


def row(path: Path) -> list[str]:
    """The row of a table."""
    timed, number = read_timed(path)
    times, fold = timed.times, timed.folds()
    gpu = find_gpu(path.name.replace("pro6000maxq", "rtx pro 6000 max-q"))
    facts = seen_specs(times, gpu)
    off = held_out_of_folds(times, fold, facts, timed.mode) / times.latency_ms
    linear = linear_entry(timed, times, fold)
    errors = Errors(off - 1)
    plain = Errors(np.full(len(off), np.nan) if linear is None else np.exp(-linear[1]) - 1)
    inside, width = intervals(np.log(off), fold)
    rank = spearmanr(off * times.latency_ms, times.latency_ms)[0]
    return [
        path.name.removesuffix(".csv.gz"), f"{len(off)} of {number}", errors.median, errors.within,
        errors.bias, f"{rank:.3f}", percent(inside, 0), percent(width, 0), plain.median, plain.within,
        percent(few(times, 50, timed, gpu)), percent(few(times, 10, timed, gpu)),
    ]  # fmt: skip


@benchmark("networks", "gpus", "kernels", data="timm's tables")
def networks(data: Path, table: str = "*") -> Tables:
    """GPUs and CPUs from whole networks of timm, families left out."""
    return {"networks": (HEADER, [row(path) for path in sorted(data.glob(f"{table}.csv.gz"))])}
