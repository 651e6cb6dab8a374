"""Robust, non-negative least squares on the relative error: what all formulas are fitted with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lolat.errors import InputError

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


def _solve(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """x >= 0 that minimises |matrix @ x - wanted| (SciPy's, imported when something is fitted)."""
    from scipy.optimize import nnls

    return nnls(matrix, wanted)[0]


def _reweighted(relative: np.ndarray, rounds: int) -> np.ndarray:
    """Coefficients after reweighting until they stay as they are."""
    coefficients = found = np.zeros(relative.shape[1])
    root = np.ones(len(relative))
    for _ in range(rounds):
        found = _solve(relative * root[:, None], root)
        error = np.abs(relative @ found - 1.0)
        threshold = max(1.5 * float(np.median(error)), 1e-3)
        root = np.sqrt(np.minimum(1.0, threshold / np.maximum(error, 1e-12)))
        if np.allclose(found, coefficients, rtol=1e-4, atol=0.0):
            break
        coefficients = found
    return found


def _balanced(
    relative: np.ndarray,
    found: np.ndarray,
    rounds: int,
    base: np.ndarray | float = 1.0,
    prior: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """Coefficients for when a few points that are far too fast have pulled all others down.

    The error of such a point, relative to its time, is that of many points predicted as 0. Relative
    to the geometric mean of time and prediction, twice and half are alike and the majority wins: the
    sum of these errors' absolute values, reweighted from `found` on. `base`: roots of the points'
    weights; `prior`: further rows and what they are to be.
    """
    rows, wanted = (np.zeros((0, relative.shape[1])), np.zeros(0)) if prior is None else prior
    for _ in range(rounds):
        ratio = np.maximum(relative @ found, 1e-3)
        error = np.maximum(np.abs(ratio - 1.0) / np.sqrt(ratio), 1e-3)
        root = base / np.sqrt(ratio * error)
        found = _solve(np.vstack([relative * root[:, None], rows]), np.concatenate([root, wanted]))
    return found


def _middle(ratio: np.ndarray) -> float:
    """The median factor by which predictions are off, as a logarithm."""
    return float(np.median(np.abs(np.log(np.maximum(ratio, 1e-9)))))


SHRINK = 0.3
"""How much a kind's cost is drawn to its family's: in units of one point that is off by as much.
Chosen on the chosen half of the zoo (docs/accuracy.md), as are FAR, WHOLE and SHORT_MS."""
FAR = 0.5  # of the family's cost: a kind that is farther from it is drawn less and less
WHOLE = 10.0  # points that the time of a whole network counts for
SHORT_MS, LEAST_WEIGHT = 2.0, 0.3  # shorter blocks count for less, as far as that: they are noisier


def point_weights(times: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """(points,) what each counts for in a fit; `times`: ms; `whole`: which are whole networks."""
    return np.where(whole, WHOLE, np.clip(times / SHORT_MS, LEAST_WEIGHT, 1.0))


def fit_families(
    features: np.ndarray,
    times: np.ndarray,
    families: Sequence[str | None],
    weights: np.ndarray,
    rounds: int = 12,
) -> np.ndarray:
    """Coefficients >= 0, where those of one family are drawn to a cost that they have in common.

    `features`: (points, columns), the last one the constant; `times`: (points,), ms; `families`:
    (columns,), the family of each, None for a column that stands alone and is drawn to 0; `weights`:
    (points,). First one coefficient for each family is fitted to the sums of its columns, then
    all columns with a ridge around these (a hierarchical prior, as in Gelman and Hill 2007): points
    that tell two kinds apart do so, and a kind of which no point says anything costs what its family
    costs. Where the points say that a kind costs many times what its family does (a depthwise convolution
    without code of its own), the ridge gives way, as of Student's t instead of the normal distribution.
    Robust and relative as `fit_relative`; the constant is free.
    """
    relative = features / times[:, None]
    norms = np.linalg.norm(relative, axis=0)
    norms[norms == 0] = 1.0
    known = [f for f in dict.fromkeys(families) if f is not None]
    of = np.array([[f == name for name in known] for f in families], float)
    constant = np.zeros((len(families), 1))
    constant[-1] = 1.0
    sums = relative @ np.column_stack([of, constant])
    size = np.linalg.norm(sums, axis=0)
    size[size == 0] = 1.0
    rates = (_shrunk(sums / size, weights, rounds) / size)[:-1]
    common = of @ rates
    # A family's member may differ by a factor; what stands alone, or is of a family that costs nothing,
    # may contribute.
    ridge = np.where(common > 0.0, SHRINK / np.maximum(common, 1e-300), SHRINK * norms)
    ridge[-1] = 0.0
    found = _shrunk(relative / norms, weights, rounds, ridge / norms, common * norms)
    return found / norms


def _shrunk(
    relative: np.ndarray,
    weights: np.ndarray,
    rounds: int,
    ridge: np.ndarray | None = None,
    towards: np.ndarray | None = None,
) -> np.ndarray:
    """`_reweighted` with weights of points and a ridge (columns,) around `towards` (columns,)."""
    base = np.sqrt(weights)
    root, found = base, np.zeros(relative.shape[1])
    prior = np.zeros((0, relative.shape[1])) if ridge is None else np.diag(ridge)
    wanted = np.zeros(0) if ridge is None or towards is None else ridge * towards
    for _ in range(rounds):
        before = found
        found = _solve(np.vstack([relative * root[:, None], prior]), np.concatenate([root, wanted]))
        if ridge is not None and towards is not None:
            apart = np.abs(found - towards) / np.where(towards > 0.0, towards, 1.0)
            loose = np.where(towards > 0.0, ridge / np.sqrt(1.0 + (apart / FAR) ** 2), ridge)
            prior, wanted = np.diag(loose), loose * towards
        error = np.abs(relative @ found - 1.0)
        threshold = max(1.5 * float(np.median(error)), 1e-3)
        root = base * np.sqrt(np.minimum(1.0, threshold / np.maximum(error, 1e-12)))
        if np.allclose(found, before, rtol=1e-3, atol=0.0):
            break
    if rounds > 1:
        other = _balanced(relative, found, rounds, base, (prior, wanted))
        if _middle(relative @ other) < BETTER * _middle(relative @ found):
            found = other
    return found


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
