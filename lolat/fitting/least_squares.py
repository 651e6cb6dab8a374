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
    return _robust(relative / scale, rounds, 1e-4) / scale


def _lengths(columns: np.ndarray) -> np.ndarray:
    """(columns,) their lengths, 1 for empty ones."""
    lengths = np.linalg.norm(columns, axis=0)
    lengths[lengths == 0] = 1.0
    return np.asarray(lengths)


def _solve(relative: np.ndarray, root: np.ndarray) -> np.ndarray:
    """x >= 0 that minimizes |root * (relative @ x - 1)|; `root`: of the points' weights.

    SciPy's, imported when something is fitted.
    """
    from scipy.optimize import nnls

    return nnls(relative * root[:, None], root)[0]


def _robust(relative: np.ndarray, rounds: int, tolerance: float) -> np.ndarray:
    """Coefficients after reweighting until they stay as they are, to a relative `tolerance`.

    `relative`: (points, columns) over their times.
    """
    root, coefficients = np.ones(len(relative)), np.zeros(relative.shape[1])
    for _ in range(rounds):
        before = coefficients
        coefficients = _solve(relative, root)
        error = np.abs(relative @ coefficients - 1.0)
        threshold = max(1.5 * float(np.median(error)), 1e-3)
        root = np.sqrt(np.minimum(1.0, threshold / np.maximum(error, 1e-12)))
        if np.allclose(coefficients, before, rtol=tolerance, atol=0.0):
            break
    if rounds > 1:
        balanced = _balanced(relative, coefficients, rounds)
        if _middle(relative @ balanced) < MUCH_BETTER * _middle(relative @ coefficients):
            return balanced
    return coefficients


def _balanced(relative: np.ndarray, coefficients: np.ndarray, rounds: int) -> np.ndarray:
    """Coefficients for when a few points that are far too fast have pulled all others down.

    The error of such a point, relative to its time, is that of many points predicted as 0. Relative
    to the geometric mean of time and prediction, twice and half are alike and the majority wins: the
    sum of these errors' absolute values, reweighted from `coefficients` on.
    """
    for _ in range(rounds):
        ratio = np.maximum(relative @ coefficients, 1e-3)
        error = np.maximum(np.abs(ratio - 1.0) / np.sqrt(ratio), 1e-3)
        coefficients = _solve(relative, 1.0 / np.sqrt(ratio * error))
    return coefficients


def _middle(ratio: np.ndarray) -> float:
    """The median factor by which predictions are off, as a logarithm."""
    return float(np.median(np.abs(np.log(np.maximum(ratio, 1e-9)))))


OFF = 0.08
"""An error, as a logarithm, from which on a point's pull grows no more with it. It, SPREAD and
NETWORK_WEIGHT were chosen on the chosen half of the zoo and on predefined networks left out
(docs/explanation/formula.md); twice or half of each changes little."""
SPREAD = (
    1.5  # how far a term may be from its family, as a logarithm, for what a point off by OFF weighs
)
NETWORK_WEIGHT = 5.0  # points that the time of a whole network counts for
FAMILY = 5.0  # how far a family may be from a fifth of a middling point's time: not held
START = 0.2


def point_weights(whole: np.ndarray) -> np.ndarray:
    """(points,) what each counts for in a fit: a whole network for several blocks.

    `whole`: (points,), which are networks. Where there are not both, all points count alike.
    """
    both = whole.any() and not whole.all()
    return np.where(whole & both, NETWORK_WEIGHT, 1.0)


def fit_families(
    features: np.ndarray,
    times: np.ndarray,
    families: Sequence[str],
    weights: np.ndarray,
    spread: float = SPREAD,
) -> np.ndarray:
    """Coefficients > 0, each drawn to that of its family: as many as there are columns.

    `features`: (points, columns); `times`: (points,), ms; `families`: (columns,) names; `weights`:
    (points,); `spread`: how far a column may be from its family, as a logarithm.

    A coefficient is exp(family + own), and exp(family) where it is the only one. Minimized is, by SciPy's
    trust region,

        sum of weight * soft(log(predicted / time) / OFF) + sum of (own / spread)**2

    with the soft L1 loss 2 * (sqrt(1 + z**2) - 1): for it twice and half are alike, and a point that is
    far off pulls as one that is off a little. It is a hierarchical prior on logarithms (Gelman and Hill
    2007): points that tell two kinds apart do so, and a kind of which no point says anything costs what its
    family costs.
    """
    from scipy.optimize import least_squares

    relative = features / times[:, None]
    known = list(dict.fromkeys(families))
    of = np.array([[f == name for name in known] for f in families], float)
    own = np.flatnonzero(of @ of.sum(axis=0) > 1.0)
    turned = np.column_stack([of, np.eye(len(families))[:, own]])  # unknowns -> log coefficients
    widths = np.repeat([FAMILY, spread], [len(known), len(own)])
    start = of @ [_middle_share(column) for column in (relative @ of).T]
    root = np.sqrt(weights) / OFF
    points = len(times)

    def errors(x: np.ndarray) -> np.ndarray:
        predicted = relative @ np.exp(start + turned @ x)
        return np.concatenate([root * np.log(predicted), x / widths])

    def slopes(x: np.ndarray) -> np.ndarray:
        parts = relative * np.exp(start + turned @ x)
        return np.vstack(
            [(root / parts.sum(axis=1))[:, None] * (parts @ turned), np.diag(1.0 / widths)]
        )

    def loss(squares: np.ndarray) -> np.ndarray:
        """Soft L1 of points, from OFF on whatever a point weighs; plain squares of the prior."""
        found = np.vstack([squares, np.ones_like(squares), np.zeros_like(squares)])
        softer = np.sqrt(1.0 + squares[:points] / weights)
        found[:, :points] = 2.0 * weights * (softer - 1.0), 1.0 / softer, -0.5 / softer**3 / weights
        return found

    x = np.zeros(turned.shape[1])
    found = least_squares(
        errors, x, slopes, loss=loss, xtol=1e-5, ftol=1e-6, gtol=1e-8, max_nfev=200
    ).x
    return np.asarray(np.exp(start + turned @ found))


def _middle_share(column: np.ndarray) -> float:
    """The logarithm of a coefficient that makes `column`, relative, START of a point in the middle."""
    some = column[column > 0.0]
    return float(np.log(START / np.median(some))) if len(some) else -50.0


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
