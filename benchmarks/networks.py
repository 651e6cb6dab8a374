"""Devices fitted to whole networks of others, families left out.

DATA holds tables of pytorch-image-models' results. A fifth of the families is left out in turn. For each
table: the formula by operation; the linear formula on the counts of the same networks, fitted to the same
others; 90 % intervals from the residuals of the folds that a network is not in; and the formula by
operation from 50 and 10 networks drawn at random five times, judged on all others.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.runner import Errors, Tables, benchmark, percent
from lolat.device.intervals import conformal_quantile, ratio_half_width
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


def held_out(timed: TimedRows, gpu: Gpu | None) -> np.ndarray:
    """(networks,) log(measured / predicted), each family predicted by a fit without its fold."""
    times = timed.times
    ms = held_out_of_folds(times, timed.folds(), seen_specs(times, gpu), timed.mode)
    return np.log(times.latency_ms / ms)


def gpu_of(path: Path) -> Gpu | None:
    """The GPU of a table, by its name."""
    return find_gpu(path.name.replace("pro6000maxq", "rtx pro 6000 max-q"))


def row(path: Path) -> list[str]:
    """The row of a table."""
    timed, number = read_timed(path)
    times, fold = timed.times, timed.folds()
    gpu = gpu_of(path)
    off = np.exp(-held_out(timed, gpu))
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


@benchmark("ratios", "gpus", "kernels", data="timm's tables")
def ratios(data: Path) -> Tables:
    """Ratios of two GPUs' times of one network: the shares inside their 90 % intervals."""
    off: dict[str, dict[str, float]] = {}
    modes: dict[str, tuple[bool, bool]] = {}
    for path in sorted(data.glob("infer-*amp*.csv.gz")) + sorted(data.glob("infer-bf16*.csv.gz")):
        timed, _ = read_timed(path)
        of_network = zip(timed.networks, held_out(timed, gpu_of(path)), strict=True)
        off[path.name] = {one.network[0]: float(value) for (one, _), value in of_network}
        modes[path.name] = timed.mode.fused, timed.mode.channels_last
    found: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for one, other in combinations(off, 2):
        both = np.array([[off[one][n], off[other][n]] for n in off[one].keys() & off[other].keys()])
        a, b = (float(np.quantile(np.abs(both[:, i]), 0.9)) for i in (0, 1))
        far = np.abs(both[:, 0] - both[:, 1])
        inside = [float(np.mean(far <= ratio_half_width(a, b, alike))) for alike in (False, True)]
        kinds = sorted({modes[one], modes[other]})
        found[" and ".join(map(kind_words, kinds))].append((len(both), inside[0], inside[1]))
    rows: list[list[str]] = []
    for words, pairs in sorted(found.items()):
        least = [percent(min(pair[i] for pair in pairs), 0) for i in (1, 2)]
        middle = [percent(float(np.median([pair[i] for pair in pairs])), 0) for i in (1, 2)]
        span = f"{min(p[0] for p in pairs):,} .. {max(p[0] for p in pairs):,}"
        rows.append([words, str(len(pairs)), span, middle[0], least[0], middle[1], least[1]])
    return {"ratios": (OF_RATIOS, rows)}


OF_RATIOS = (
    "modes", "pairs of tables", "networks", "independent: inside 90 %", "the lowest",
    "with a shared part: inside 90 %", "its lowest",
)  # fmt: skip


def kind_words(kind: tuple[bool, bool]) -> str:
    """A mode (fused, channels last) in words."""
    fused, last = kind
    return "compiled" if fused else f"eager, channels {'last' if last else 'first'}"
