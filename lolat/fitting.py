"""Robust, non-negative least squares on the relative error: what all formulas are fitted with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lolat.errors import InputError
from lolat.nnls import solver

BETTER = 0.5  # the other way of fitting is taken where it leaves less than this of the median error


def fit_relative(features: np.ndarray, times: np.ndarray, rounds: int = 20) -> np.ndarray:
    """Coefficients >= 0 that make `features @ coefficients` close to `times`, relatively.

    `features`: (points, columns); `times`: (points,), ms, positive. Minimises the sum of
    huber(prediction / time - 1): latencies span three decades, so a relative error is what matters,
    and a disturbed point must not bend the rest. Solved as iteratively reweighted non-negative least
    squares (Huber 1964; Lawson and Hanson 1974), the threshold being 1.5 times the median absolute error
    of the round before. `rounds`: at most so many.

    Points that are far too fast can pull all others down all the same. So, with more than one round,
    the balanced error |prediction - time| / sqrt(prediction * time), for which twice and half are
    alike, is minimised too, and its coefficients are taken where their median error (of the logarithm)
    is less than BETTER of the first ones'.
    """
    relative = features / times[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    relative = relative / scale
    found = _reweighted(relative, rounds)
    if rounds > 1:
        other = _balanced(relative, found, rounds)
        if _middle(relative @ other) < BETTER * _middle(relative @ found):
            found = other
    return found / scale


def _reweighted(relative: np.ndarray, rounds: int) -> np.ndarray:
    """Coefficients after reweighting until they stay as they are."""
    solve = solver()
    coefficients = found = np.zeros(relative.shape[1])
    root = np.ones(len(relative))
    for _ in range(rounds):
        found = solve(relative * root[:, None], root)
        error = np.abs(relative @ found - 1.0)
        threshold = max(1.5 * float(np.median(error)), 1e-3)
        root = np.sqrt(np.minimum(1.0, threshold / np.maximum(error, 1e-12)))
        if np.allclose(found, coefficients, rtol=1e-4, atol=0.0):
            break
        coefficients = found
    return found


def _balanced(relative: np.ndarray, found: np.ndarray, rounds: int) -> np.ndarray:
    """Coefficients for when a few points that are far too fast have pulled all others down.

    The error of such a point, relative to its time, is that of many points predicted as 0. Relative
    to the geometric mean of time and prediction, twice and half are alike and the majority wins: the
    sum of these errors' absolute values, reweighted from `found` on.
    """
    solve = solver()
    for _ in range(rounds):
        ratio = np.maximum(relative @ found, 1e-3)
        error = np.maximum(np.abs(ratio - 1.0) / np.sqrt(ratio), 1e-3)
        root = 1.0 / np.sqrt(ratio * error)
        found = solve(relative * root[:, None], root)
    return found


def _middle(ratio: np.ndarray) -> float:
    """The median factor by which predictions are off, as a logarithm."""
    return float(np.median(np.abs(np.log(np.maximum(ratio, 1e-9)))))


def leave_out(names: Sequence[str], most: int = 80) -> Iterator[np.ndarray]:
    """Masks of the points to keep, each leaving out one block with all its batch sizes.

    With more than `most` blocks (a long table) several are left out at a time, so that the time to
    fit stays bounded.
    """
    array = np.asarray(names)
    distinct = list(dict.fromkeys(names))
    folds = min(len(distinct), most)
    for fold in range(folds):
        yield ~np.isin(array, distinct[fold::folds])


def require_points(count: int, columns: int) -> None:
    """InputError when there are too few points for so many coefficients."""
    if count < columns + 1:
        raise InputError(
            f"{count} points are too few to fit {columns} coefficients; expected at least "
            f"{columns + 1}, measured or read from a table"
        )


def condition_number(features: np.ndarray, times: np.ndarray) -> float:
    """How well the coefficients can be told apart: of the relative design, columns of unit length.

    1 is perfect; with the square of it measurement noise grows in the worst direction.
    """
    relative = features / times[:, None]
    norms = np.linalg.norm(relative, axis=0)
    return float(np.linalg.cond(relative[:, norms > 0] / norms[norms > 0]))
