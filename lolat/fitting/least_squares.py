"""Robust, non-negative least squares on the relative error: what all formulas are fitted with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lolat.arrays import np
from lolat.errors import InputError
from lolat.units import plural

MUCH_BETTER = 0.5
"""The balanced way of fitting is taken where it leaves less than this of the other's median error."""


def fit_relative(features: np.ndarray, times: np.ndarray, rounds: int = 20) -> np.ndarray:
    """Coefficients >= 0 that make `features @ coefficients` close to `times`, relatively.

    `features`: (points, columns); `times`: (points,), ms, positive. Minimizes the sum of
    huber(prediction / time - 1): latencies span three decades, so a relative error is what matters,
    and a disturbed point must not bend the rest. Solved as iteratively reweighted non-negative least
    squares (Huber 1964; Lawson and Hanson 1974), the threshold being 1.5 times the median absolute error
    of the round before. `rounds`: at most so many.

    Points that are far too fast can pull all others down all the same. So, with more than one round,
    the balanced error |prediction - time| / sqrt(prediction * time), for which twice and half are
    alike, is minimized too, and its coefficients are taken where their median error (of the logarithm)
    is less than MUCH_BETTER of the first ones'.
    """
    relative = features / times[:, None]
    scale = _lengths(relative)
    return _robust(relative / scale, np.ones(len(times)), rounds, 1e-4) / scale


def _lengths(columns: np.ndarray) -> np.ndarray:
    """(columns,) their lengths, 1 for empty ones."""
    lengths = np.linalg.norm(columns, axis=0)
    lengths[lengths == 0] = 1.0
    return np.asarray(lengths)


def _solve(
    relative: np.ndarray, root: np.ndarray, prior: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """x >= 0 that minimizes |root * (relative @ x - 1)| beside |prior @ x - wanted|.

    SciPy's, imported when something is fitted. `root`: of the points' weights.
    """
    from scipy.optimize import nnls

    rows = np.vstack([relative * root[:, None], prior])
    return nnls(rows, np.concatenate([root, wanted]))[0]


def _robust(
    relative: np.ndarray,
    weights: np.ndarray,
    rounds: int,
    tolerance: float,
    ridge: np.ndarray | None = None,
    towards: np.ndarray | None = None,
) -> np.ndarray:
    """Coefficients after reweighting until they stay as they are, to a relative `tolerance`.

    `relative`: (points, columns) over their times; `weights`: (points,); `ridge`: (columns,) around
    `towards`, (columns,), loosened where a coefficient is far from it.
    """
    columns = relative.shape[1]
    base = np.sqrt(weights)
    root, coefficients = base, np.zeros(columns)
    prior, wanted = np.zeros((0, columns)), np.zeros(0)
    if ridge is not None and towards is not None:
        prior, wanted = np.diag(ridge), ridge * towards
    for _ in range(rounds):
        before = coefficients
        coefficients = _solve(relative, root, prior, wanted)
        if ridge is not None and towards is not None:
            apart = np.abs(coefficients - towards) / np.where(towards > 0.0, towards, 1.0)
            loose = ridge / np.sqrt(1.0 + (apart / FAR_FROM_FAMILY) ** 2)
            loose = np.where(towards > 0.0, loose, ridge)
            prior, wanted = np.diag(loose), loose * towards
        error = np.abs(relative @ coefficients - 1.0)
        threshold = max(1.5 * float(np.median(error)), 1e-3)
        root = base * np.sqrt(np.minimum(1.0, threshold / np.maximum(error, 1e-12)))
        if np.allclose(coefficients, before, rtol=tolerance, atol=0.0):
            break
    if rounds > 1:
        balanced = _balanced(relative, coefficients, rounds, base, prior, wanted)
        if _middle(relative @ balanced) < MUCH_BETTER * _middle(relative @ coefficients):
            return balanced
    return coefficients


def _balanced(
    relative: np.ndarray,
    coefficients: np.ndarray,
    rounds: int,
    base: np.ndarray,
    prior: np.ndarray,
    wanted: np.ndarray,
) -> np.ndarray:
    """Coefficients for when a few points that are far too fast have pulled all others down.

    The error of such a point, relative to its time, is that of many points predicted as 0. Relative
    to the geometric mean of time and prediction, twice and half are alike and the majority wins: the
    sum of these errors' absolute values, reweighted from `coefficients` on. `base`: roots of the points'
    weights; `prior`: further rows and what they are to be, `wanted`.
    """
    for _ in range(rounds):
        ratio = np.maximum(relative @ coefficients, 1e-3)
        error = np.maximum(np.abs(ratio - 1.0) / np.sqrt(ratio), 1e-3)
        root = base / np.sqrt(ratio * error)
        coefficients = _solve(relative, root, prior, wanted)
    return coefficients


def _middle(ratio: np.ndarray) -> float:
    """The median factor by which predictions are off, as a logarithm."""
    return float(np.median(np.abs(np.log(np.maximum(ratio, 1e-9)))))


SHRINK = 0.3
"""How much a kind's cost is drawn to its family's: in units of one point that is off by as much.
Chosen on the chosen half of the zoo (docs/results/accuracy.md), as are FAR_FROM_FAMILY, NETWORK_WEIGHT and
SHORT_MS."""
FAR_FROM_FAMILY = 0.5  # of the family's cost: a kind that is farther from it is drawn less and less
NETWORK_WEIGHT = 10.0  # points that the time of a whole network counts for
SHORT_MS, LEAST_WEIGHT = 2.0, 0.3  # shorter blocks count for less, as far as that: they are noisier


def point_weights(times: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """(points,) what each counts for in a fit; `times`: ms; `whole`: which are whole networks."""
    return np.where(whole, NETWORK_WEIGHT, np.clip(times / SHORT_MS, LEAST_WEIGHT, 1.0))


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
    norms = _lengths(relative)
    known = [f for f in dict.fromkeys(families) if f is not None]
    of = np.array([[f == name for name in known] for f in families], float)
    constant = np.zeros((len(families), 1))
    constant[-1] = 1.0
    sums = relative @ np.column_stack([of, constant])
    size = _lengths(sums)
    rates = (_robust(sums / size, weights, rounds, 1e-3) / size)[:-1]
    common = of @ rates
    # A family's member may differ by a factor; what stands alone, or is of a family that costs nothing,
    # may contribute.
    ridge = np.where(common > 0.0, SHRINK / np.maximum(common, 1e-300), SHRINK * norms)
    ridge[-1] = 0.0
    return _robust(relative / norms, weights, rounds, 1e-3, ridge / norms, common * norms) / norms


def leave_out(names: Sequence[str], most: int = 80) -> Iterator[np.ndarray]:
    """Masks of the points to keep, each leaving out one block with all its batch sizes.

    With more than `most` blocks (a long table) several are left out at a time, so that the time to
    fit stays bounded.
    """
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    folds = min(len(number), most)
    of = np.array([number[name] % folds for name in names])
    for fold in range(folds):
        yield of != fold


def require_points(count: int, columns: int) -> None:
    """InputError when there are too few different points for so many coefficients."""
    if count < columns + 1:
        raise InputError(
            f"{plural(count, 'point')} {'is' if count == 1 else 'are'} too few to fit {columns} "
            f"coefficients; expected at least {columns + 1} different ones, measured or read from a table",
            code="too-few-points",
            points=count,
            least=columns + 1,
        )
