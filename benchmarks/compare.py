"""Predictors side by side on the points of a model.

A tenth of the blocks is left out at a time, with all their batch sizes, the same for all predictors.
Each is fitted to the others and judged on those left out. The learners are scikit-learn's. They see
logarithms of counts and of times: latencies span three decades, and a relative error is what is judged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np

import lolat
from benchmarks.runner import Table, Tables, benchmark, percent
from lolat.device.predictors.two_regime import THREE
from lolat.fitting.blocks import predicted_ms
from lolat.fitting.cross_validation import cross_validate, figures, folds_of
from lolat.fitting.least_squares import fit_relative
from lolat.fitting.linear import fit_additive_costs, fit_two_regime
from lolat.tables.blocks import Point, known_features, matrix, points_of, times

FOLDS = 10
SEED = 0
FARTHEST = 30.0  # |log ms| of any answer: far from its points a process may run off to infinity
ELEMENT_BYTES = 4
MOVED = ("acts", "inp", "traffic", "weights")

Predict = Callable[[Sequence[Point]], np.ndarray]
"""Points to milliseconds; a predictor makes one of the points that it is fitted to."""


def extended(points: Sequence[Point]) -> Predict:
    """LoLat's formula on all counts."""
    names, whole = known_features(points), np.array([p.whole for p in points])
    formula = fit_additive_costs(matrix(points, names), times(points), names, whole)
    return lambda others: predicted_ms(formula, others)


def two_regime(points: Sequence[Point]) -> Predict:
    """The published formula, continuous and increasing as LoLat has it."""
    formula = fit_two_regime(matrix(points, THREE), times(points))
    return lambda others: predicted_ms(formula, others)


def flops(points: Sequence[Point]) -> Predict:
    """`c*FLOPs + d`. With the constant: without it a small block is off by the whole cost of a call."""

    def design(some: Sequence[Point]) -> np.ndarray:
        return np.column_stack([matrix(some, ("flops",)), np.ones(len(some))])

    solution = fit_relative(design(points), times(points))
    return lambda others: design(others) @ solution


def paleo(points: Sequence[Point]) -> Predict:
    """`FLOPs / peak + bytes / bandwidth`, both rates the highest of any point.

    Qi, Sparks, Talwalkar: PALEO, a performance model for deep neural networks, ICLR 2017. There the rates
    are those of data sheets, times a platform's percent of peak; those that were reached have that in them.
    """

    def work(some: Sequence[Point]) -> np.ndarray:
        moved = ELEMENT_BYTES * matrix(some, MOVED).sum(axis=1)
        return np.column_stack([matrix(some, ("flops",))[:, 0], moved])

    peaks = (work(points) / times(points)[:, None]).max(axis=0)
    return lambda others: (work(others) / peaks).sum(axis=1)


def forest(points: Sequence[Point]) -> Predict:
    """A random forest (Breiman 2001) with scikit-learn's defaults."""
    from sklearn.ensemble import RandomForestRegressor

    return _learned(RandomForestRegressor(random_state=SEED), points)


def process(points: Sequence[Point]) -> Predict:
    """A Gaussian process: squared exponential with a length per count, linear and noise.

    The linear kernel is there because the other alone falls back to the mean away from its points.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    lengths = RBF(np.full(len(known_features(points)), 3.0), (0.1, 1e3))
    linear = ConstantKernel(1.0, (1e-4, 1e3)) * DotProduct(1.0, (1e-3, 1e3))
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * lengths + linear + WhiteKernel(0.01, (1e-5, 1.0))
    model = GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=1, random_state=SEED
    )
    return _learned(make_pipeline(StandardScaler(), model), points)


def _learned(model: Any, points: Sequence[Point]) -> Predict:
    """A model of scikit-learn, fitted to the logarithms."""
    names = known_features(points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length at its bound is a count that tells nothing
        model.fit(np.log1p(matrix(points, names)), np.log(times(points)))
    return lambda others: np.exp(
        np.clip(model.predict(np.log1p(matrix(others, names))), -FARTHEST, FARTHEST)
    )


PREDICTORS: dict[str, Callable[[Sequence[Point]], Predict]] = {
    "extended": extended, "two-regime": two_regime, "FLOPs alone": flops, "roofline (PALEO)": paleo,
    "random forest": forest, "Gaussian process": process,
}  # fmt: skip


def left_out(points: Sequence[Point], fit: Callable[[Sequence[Point]], Predict]) -> np.ndarray:
    """(points,) ms of each point by a fit without its block."""
    return cross_validate(
        folds_of([p.name for p in points], FOLDS),
        lambda kept, out: fit([*compress(points, kept)])([*compress(points, out)]),
    )


COLUMNS = {
    "median": "median", "mean": "mean", "within 10 %": "within_10_percent",
    "from 2 ms": "median_from_2_ms", "below 2 ms": "median_below_2_ms",
}  # fmt: skip


def table(points: Sequence[Point]) -> Table:
    """The table, the smallest median error first."""
    judged = {
        name: figures(left_out(points, fit), times(points)) for name, fit in PREDICTORS.items()
    }
    rows = []
    for name, found in sorted(judged.items(), key=lambda item: item[1]["median"]):
        shares = ["-" if found[c] is None else percent(found[c]) for c in COLUMNS.values()]
        rows.append([name, *shares, f"{found['spearman']:.3f}"])
    return ["predictor", *COLUMNS, "Spearman"], rows


@benchmark("compare", "compare", "extended")
def compare(model: str = "epyc-2t") -> Tables:
    """LoLat's formulas beside FLOPs, a roofline, a random forest and a Gaussian process."""
    return {"left-out": table(points_of(lolat.load(model).file.document))}
