"""Non-negative least squares with NumPy alone, for machines that have no SciPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Solver = Callable[[np.ndarray, np.ndarray], np.ndarray]


def solver() -> Solver:
    """What solves: SciPy's, many times as fast, where it is installed; else `active_set`."""
    try:
        from scipy.optimize import nnls
    except ImportError:
        return active_set
    return lambda matrix, wanted: nnls(matrix, wanted)[0]


def active_set(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """x >= 0 that minimises |matrix @ x - wanted|, by active sets.

    `matrix`: (rows, columns); `wanted`: (rows,); the answer: (columns,). The algorithm NNLS of Lawson
    and Hanson, Solving Least Squares Problems (1974), chapter 23: columns enter by the steepest gradient,
    and leave where the solution on those that are in would make them negative.
    """
    columns = matrix.shape[1]
    inside = np.zeros(columns, bool)
    x = np.zeros(columns)
    largest = float(np.abs(matrix).sum(axis=0).max(initial=0.0))
    tolerance = 10 * max(matrix.shape) * np.finfo(float).eps * largest
    refused = np.zeros(columns, bool)  # entered in vain since the last step: rounding, no descent
    for _ in range(30 * columns):
        gradient = matrix.T @ (wanted - matrix @ x)
        able = ~inside & ~refused & (gradient > tolerance)
        if not able.any():
            break
        entering = int(np.argmax(np.where(able, gradient, -np.inf)))
        inside[entering] = True
        while True:
            best = np.zeros(columns)
            best[inside] = np.linalg.lstsq(matrix[:, inside], wanted, rcond=None)[0]
            low = inside & (best <= 0.0)
            if not low.any():
                break
            if low[entering] and x[entering] == 0.0:
                inside[entering], refused[entering] = False, True
                best = x
                break
            # How far each can go towards `best`. The first to arrive at 0 leaves by name: its x, rounded,
            # may be a little above 0, and the same step would be taken for ever.
            far = np.full(columns, np.inf)
            far[low] = x[low] / (x[low] - best[low])
            first = int(np.argmin(far))
            x = x + far[first] * (best - x)
            inside &= x > 0.0
            inside[first] = False
            x[~inside] = 0.0
        if not refused[entering]:
            refused[:] = False
        x = best
    return x
