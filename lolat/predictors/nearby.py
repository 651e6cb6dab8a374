"""What operations of nearly the same shape took more, or less, than the formula says.

Which of its kernels a library takes for a shape no formula of a few terms tells. The mean of a Gaussian
process on the logarithms of the shapes, with operations that were timed alone (Rasmussen and Williams 2006,
8.3.1: subset of regressors) is added to the logarithm of the formula; far from all of them it is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lolat.kernel_terms import SHAPE
from lolat.work import Work

REACH = 2.0  # logarithms of a size over which operations have much in common
SPREAD, NOISE = (
    0.3,
    0.02,
)  # standard deviation of what is corrected; variance of one time, as logarithms
FAR = 0.15  # residuals beyond it count less
MOST = 200  # shapes kept
LEAST = 20  # operations of a class
WHOLE = 32  # sizes that this divides are unlike others
ROUNDS = 4  # of weighing


@dataclass(frozen=True)
class Nearby:
    """`shapes`, (shapes, SHAPE), of products; `weights`, (shapes,)."""

    shapes: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, work: Work, residuals: np.ndarray) -> Nearby:
        """Of products timed alone, with (steps,) log(measured / predicted)."""
        shapes = _shapes(work)
        some = shapes
        if len(shapes) > MOST:
            some = shapes[np.random.default_rng(0).permutation(len(shapes))[:MOST]]
        some = np.unique(some, axis=0)
        between, own = _alike(some, shapes), _alike(some, some)
        own += 1e-6 * np.eye(len(some))  # equal up to rounding
        counting = np.ones(len(residuals))
        for _ in range(ROUNDS):
            found = between * counting
            weights = np.linalg.solve(found @ between.T + NOISE * own, found @ residuals)
            counting = 1.0 / np.sqrt(1.0 + ((residuals - between.T @ weights) / FAR) ** 2)
        return cls(some, np.round(weights, 4))

    def factors(self, work: Work) -> np.ndarray:
        """(steps,) what the formula's times of products are to be multiplied by."""
        return np.asarray(np.exp(_alike(_shapes(work), self.shapes) @ self.weights))

    def to_list(self) -> list[list[float]]:
        """A row for each shape: SHAPE, weight."""
        rows = np.column_stack([self.shapes, self.weights])
        return [[round(float(n), 4) for n in row] for row in rows]

    @classmethod
    def from_list(cls, rows: Sequence[Sequence[float]]) -> Nearby:
        """Read what `to_list` wrote."""
        table = np.array(rows, float).reshape(-1, len(SHAPE) + 1)
        return cls(table[:, :-1], table[:, -1])


def alike(work: Work) -> np.ndarray:
    """(steps, steps) what the errors of a formula for products are expected to have in common."""
    shapes = _shapes(work)
    return _alike(shapes, shapes)


def _shapes(work: Work) -> np.ndarray:
    return np.column_stack([getattr(work, size) for size in SHAPE])


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(one, other) how much shapes have in common, up to SPREAD**2."""
    a, b = (np.column_stack([np.log(s) / REACH, s[:, 2:] % WHOLE == 0]) for s in (one, other))
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
    return np.asarray(SPREAD**2 * np.exp(-0.5 * np.maximum(squares, 0.0)))
