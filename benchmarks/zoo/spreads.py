"""Intervals of the zoo's networks by other rules, and blocks corrected by other devices.

    python -m benchmarks run spreads        # three minutes; nothing is measured

Each device is learned without each block or predefined network in turn. These fits tell how far such
networks are off, and how far the prediction of another network depends on single ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np

from benchmarks.runner import Tables, benchmark, percent
from benchmarks.zoo.judge import HALVES, HERE, PROCESSORS, learn
from lolat.device.intervals import NetworkErrors, t_quantile
from lolat.device.predictors.additive import AdditiveCosts
from lolat.device.predictors.formula import CONSTANT
from lolat.fitting.blocks import DIRECTIONS, fit_changes
from lolat.fitting.cross_validation import folds_of
from lolat.fitting.linear import fit_additive_costs
from lolat.graph.counts import COLUMNS, count
from lolat.tables.blocks import Point, blocks_of, matrix, points_of, times

COVERAGE = 0.9
MOST = 0.4  # an error, as a logarithm, counts as no more where the mean is told


@dataclass(frozen=True)
class Learned:
    """A device learned from `points`, and the fits without each of their `folds`, (points,).

    `left_out`: (points,) log(measured / predicted) by the fit without the point's fold. Of other networks:
    `half`, `counts` and `log_ms`.
    """

    processor: str
    points: list[Point]
    folds: np.ndarray
    formula: AdditiveCosts
    refits: list[AdditiveCosts]
    left_out: np.ndarray
    half: np.ndarray
    counts: np.ndarray
    log_ms: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """(points,) mask of the predefined networks."""
        return np.array([p.whole for p in self.points])

    @property
    def quantile(self) -> float:
        """Student's t with a degree of freedom for each family of predefined networks."""
        return t_quantile(COVERAGE, len({*self.folds[self.whole].tolist()}))

    @property
    def spread(self) -> float:
        """The root mean square error of held-out predefined networks."""
        return float(np.sqrt(np.mean(self.left_out[self.whole] ** 2)))


def fit(points: Sequence[Point], factors: np.ndarray | float = 1.0) -> AdditiveCosts:
    """The formula of points whose times are multiplied by `factors`."""
    whole = np.array([p.whole for p in points])
    return fit_additive_costs(matrix(points, COLUMNS), times(points) * factors, COLUMNS, whole)


def log_predicted(formula: AdditiveCosts, counts: np.ndarray) -> np.ndarray:
    """(rows,) logarithms of ms of (rows, COLUMNS) counts."""
    return np.asarray(np.log(formula.rows(counts[:, formula.columns])))


def learned(path: Path) -> Learned:
    """The device whose results are in `path`, learned again without each block or network."""
    device = learn(path)
    points = points_of(device.model.file.document)
    counts = np.array([count(graph).total(e["batch"]) for e, graph, _ in device.networks], float)
    folds = folds_of(blocks_of(points))
    refits = [fit([*compress(points, folds != fold)]) for fold in range(folds.max() + 1)]
    of_points = np.array([log_predicted(refit, matrix(points, COLUMNS)) for refit in refits])
    left_out = np.log(times(points)) - of_points[folds, np.arange(len(points))]
    half = np.array([entry["half"] for entry, *_ in device.networks])
    measured = np.log([ms for *_, ms in device.networks])
    formula = fit(points)
    return Learned(
        path.parent.name, points, folds, formula, refits, left_out, half, counts, measured
    )


# ---- Intervals: (low, high), each (networks,) logarithms of ms


def by_changes(device: Learned, directions: int) -> tuple[np.ndarray, np.ndarray]:
    """Student's t and the variance of the fit in so many directions, LoLat's with DIRECTIONS."""
    networks = matrix([*compress(device.points, device.whole)], device.formula.features)
    changes = fit_changes(device.formula, device.refits, networks, directions)
    errors = NetworkErrors(0.0, device.spread, 2, **changes)
    center, names = log_predicted(device.formula, device.counts), device.formula.features
    slopes = np.asarray(device.formula.slopes)
    half = [
        device.quantile
        * errors.deviation({**dict(zip(names, ms, strict=True)), CONSTANT: device.formula.constant})
        for ms in (device.counts[:, device.formula.columns] * slopes).tolist()
    ]
    return center - half, center + half


def jackknife_plus(device: Learned) -> tuple[np.ndarray, np.ndarray]:
    """CV+ over predefined networks (Barber et al. 2021): each fit's prediction, off by its own error."""
    fits = [device.refits[fold] for fold in device.folds[device.whole]]
    without = np.array([log_predicted(refit, device.counts) for refit in fits])
    size = np.abs(device.left_out[device.whole])[:, None]
    rank = min((len(size) + 1) * COVERAGE / len(size), 1.0)
    low = np.quantile(without - size, 1.0 - rank, axis=0, method="lower")
    return low, np.quantile(without + size, rank, axis=0, method="higher")


RULES: dict[str, Callable[[Learned], tuple[np.ndarray, np.ndarray]]] = {
    "the same for all networks": partial(by_changes, directions=0),
    **{f"the fit's variance, {n} directions": partial(by_changes, directions=n) for n in (DIRECTIONS, 10)},
    "CV+": jackknife_plus,
}  # fmt: skip


def judged(
    rule: Callable[[Learned], tuple[np.ndarray, np.ndarray]], devices: Sequence[Learned]
) -> Iterator[str]:
    """The share inside, the median half width and the mean interval score of each split.

    The score (Gneiting and Raftery 2007), in logarithms, is the width and 20 times what lies outside.
    """
    for half in HALVES:
        inside, widths, scores = [], [], []
        for device in devices:
            low, high = (end[device.half == half] for end in rule(device))
            measured = device.log_ms[device.half == half]
            beyond = np.maximum(low - measured, 0.0) + np.maximum(measured - high, 0.0)
            inside += (beyond == 0.0).tolist()
            widths += ((high - low) / 2).tolist()
            scores += (high - low + 2.0 / (1.0 - COVERAGE) * beyond).tolist()
        yield from (percent(float(np.mean(inside)), 0), percent(float(np.median(widths))))
        yield f"{np.mean(scores):.3f}"


# ---- Blocks corrected by other devices


def corrected(device: Learned, others: Sequence[Learned], share: float) -> np.ndarray:
    """(networks,) log errors where blocks take less by a share of their mean error on other devices."""
    known: dict[tuple[str, int], list[float]] = {}
    for other in others:
        for point, error in zip(other.points, other.left_out.tolist(), strict=True):
            if other is not device and not point.whole:
                known.setdefault((point.name, point.batch_size), []).append(error)
    errors = [float(np.mean(known.get((p.name, p.batch_size), [0.0]))) for p in device.points]
    formula = fit(device.points, np.exp(-share * np.array(errors)))
    return np.asarray(device.log_ms - log_predicted(formula, device.counts))


def centered(share: float, devices: Sequence[Learned]) -> Iterator[str]:
    """The median error of the middle device and the mean error, of each split."""
    errors = [corrected(device, devices, share) for device in devices]
    for half in HALVES:
        of = [np.abs(e[d.half == half]) for d, e in zip(devices, errors, strict=True)]
        yield percent(float(np.median([np.median(np.expm1(e)) for e in of])))
        yield percent(float(np.mean([np.minimum(e, MOST).mean() for e in of])))


@benchmark("spreads", "accuracy", "extended")
def spreads() -> Tables:
    """Intervals by other rules, and blocks corrected by other devices, on the zoo."""
    with ProcessPoolExecutor() as pool:
        every = list(pool.map(learned, sorted((HERE / "results").glob("*/*.json.xz"))))
    of = [(words, [d for d in every if d.processor == name]) for name, words in PROCESSORS.items()]
    heads = [f"{s}: {c}" for s in HALVES.values() for c in ("inside", "half width", "score")]
    rows = [[f"{cpu}, {w}", *judged(rule, ds)] for cpu, ds in of for w, rule in RULES.items()]
    taken = {"as measured": 0.0, "less half of it": 0.5, "less all of it": 1.0}
    moved = [[f"{cpu}, {w}", *centered(share, ds)] for cpu, ds in of for w, share in taken.items()]
    columns = [f"{s}: {c}" for s in HALVES.values() for c in ("middle device", "mean")]
    return {
        "spreads": (["interval", *heads], rows),
        "shared-errors": (["blocks, by their error on other devices", *columns], moved),
    }
