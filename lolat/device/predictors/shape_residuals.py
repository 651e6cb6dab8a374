"""Residuals of operations by their shape: a Gaussian process on the logarithms of a product's sizes.

A library picks a kernel by the shape of an operation, which a formula with a few terms cannot follow. The
mean of the process, fitted to operations timed alone (Rasmussen and Williams 2006, 8.3.1: subset of
regressors), is added to the logarithm of the formula's time; it is 0 far from all these operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from lolat.arrays import np
from lolat.graph.work import SHAPE, Workload
from lolat.io.documents import Number, Positive

LENGTH_SCALE = 2.0  # in logarithms of a size
ERROR_SPREAD = 0.3  # standard deviation of the log correction
TIME_VARIANCE = 0.02  # variance of the log of one time
OUTLIER = 0.15  # residual above which an operation has less weight
MOST_SHAPES = 200  # most shapes in a profile
LEAST_OPERATIONS = 20  # fewest operations of a class that are fitted
ALIGNED_SIZE = 32  # a size that is a multiple of it counts as another kind of size
WEIGHING_ROUNDS = 4
Row = tuple[Positive, Positive, Positive, Positive, Number]
"""(the four sizes of a product as in SHAPE, the weight of this shape)."""


def fit_shape_residuals(work: Workload, residuals: np.ndarray) -> tuple[Row, ...]:
    """Fit weights of shapes to products timed alone; `residuals`: (steps,) log(measured / predicted)."""
    shapes = _shapes(work)
    chosen = shapes
    if len(shapes) > MOST_SHAPES:
        chosen = shapes[np.random.default_rng(0).permutation(len(shapes))[:MOST_SHAPES]]
    chosen = np.unique(chosen, axis=0)
    between, own = _covariance(chosen, shapes), _covariance(chosen, chosen)
    own += 1e-6 * np.eye(len(chosen))  # against rounding errors
    counting = np.ones(len(residuals))
    for _ in range(WEIGHING_ROUNDS):
        counted = between * counting
        weights = np.linalg.solve(counted @ between.T + TIME_VARIANCE * own, counted @ residuals)
        counting = 1.0 / np.sqrt(1.0 + ((residuals - between.T @ weights) / OUTLIER) ** 2)
    table = np.column_stack([chosen, weights])
    return tuple(tuple(round(float(n), 4) for n in row) for row in table)  # type: ignore[misc]


def shape_factors(rows: Sequence[Row], work: Workload) -> np.ndarray:
    """(steps,) factors that correct the formula's times of products."""
    table = np.array(rows, float).reshape(-1, len(SHAPE) + 1)
    return np.asarray(np.exp(_covariance(_shapes(work), table[:, :-1]) @ table[:, -1]))


def _shapes(work: Workload) -> np.ndarray:
    return np.column_stack([getattr(work, size) for size in SHAPE])


def _covariance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Covariance between shapes, (rows of one, rows of other), at most ERROR_SPREAD**2."""
    a, b = (
        np.column_stack([np.log(s) / LENGTH_SCALE, s[:, 2:] % ALIGNED_SIZE == 0])
        for s in (one, other)
    )
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
    return np.asarray(ERROR_SPREAD**2 * np.exp(-0.5 * np.maximum(squares, 0.0)))
