"""Robust least squares on the logarithms of times, with coefficients >= 0: formulas are fitted by it."""

from __future__ import annotations

from collections.abc import Sequence

from lolat.arrays import np
from lolat.errors import InputError
from lolat.units import plural

OFF = 0.08
"""The log error beyond which a point's influence on the fit no longer grows. It, SPREAD and
NETWORK_WEIGHT were chosen on the development split of the zoo and on predefined networks left out
(docs/explanation/formula.md); twice or half of each changes little."""
SPREAD = 1.5
"""The log distance of a term from its family that costs as much as a point that is off by OFF."""
NETWORK_WEIGHT = 5.0  # points that the time of a whole network counts for
FAMILY = 5.0  # the same as SPREAD of a family and its start: hardly held
LEAST_SHARE = 1e-3  # of any point's time: a coefficient of less is 0
START = 0.2  # of the time of a middling point, that a family takes before the fit


def point_weights(whole: np.ndarray) -> np.ndarray:
    """(points,) what each counts for in a fit: a whole network for several blocks.

    `whole`: (points,), which are networks. Where there are not both, all points count alike.
    """
    both = whole.any() and not whole.all()
    return np.where(whole & both, NETWORK_WEIGHT, 1.0)


def fit_relative(features: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Coefficients >= 0, each on its own: as many as there are columns.

    `features`: (points, columns); `times`: (points,), ms. Minimized is the sum of soft(log(predicted /
    time) / OFF), see `fit_families`: latencies span three decades, so a relative error is what matters, and
    a disturbed point must not bend the rest, whether it is too slow or too fast.
    """
    terms = features.shape[1]
    coefficients = _minimum(
        features, times, np.eye(terms), np.full(terms, np.inf), np.ones(len(times))
    )
    shares = (features / times[:, None] * coefficients).max(axis=0, initial=0.0)
    return np.where(shares > LEAST_SHARE, coefficients, 0.0)


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

    A coefficient is exp(family + own), and exp(family) where it is the only one. Minimized is

        sum of weight * soft(log(predicted / time) / OFF) + sum of (own / spread)**2

    with the soft L1 loss soft(z) = 2 * (sqrt(1 + z**2) - 1): for it twice and half are alike, and a point
    that is far off pulls as one that is off a little. It is a hierarchical prior on logarithms (Gelman and
    Hill 2007): points that tell two kinds apart do so, and a kind of which no point says anything costs
    what its family costs.
    """
    known = list(dict.fromkeys(families))
    of_family = np.array([[f == name for name in known] for f in families], float)
    shared = np.flatnonzero(of_family @ of_family.sum(axis=0) > 1.0)
    own = np.eye(len(families))[:, shared]
    widths = np.repeat([FAMILY, spread], [len(known), len(shared)])
    return _minimum(features, times, np.column_stack([of_family, own]), widths, weights, of_family)


def _minimum(
    features: np.ndarray,
    times: np.ndarray,
    turned: np.ndarray,
    widths: np.ndarray,
    weights: np.ndarray,
    of_family: np.ndarray | None = None,
) -> np.ndarray:
    """(columns,) coefficients whose logarithms are a start plus `turned`, (columns, unknowns), @ unknowns.

    `widths`: (unknowns,) of the prior, infinite where there is none; `of_family`: (columns, families),
    which start together. By SciPy's trust region.
    """
    from scipy.optimize import least_squares

    relative = features / times[:, None]
    of_family = np.eye(relative.shape[1]) if of_family is None else of_family
    start = of_family @ [_middle_share(column) for column in (relative @ of_family).T]
    root, points = np.sqrt(weights) / OFF, len(times)

    def errors(x: np.ndarray) -> np.ndarray:
        predicted = relative @ np.exp(start + turned @ x)
        return np.concatenate([root * np.log(predicted), x / widths])

    def slopes(x: np.ndarray) -> np.ndarray:
        parts = relative * np.exp(start + turned @ x)
        own = (root / parts.sum(axis=1))[:, None] * (parts @ turned)
        return np.vstack([own, np.diag(1.0 / widths)])

    def loss(squares: np.ndarray) -> np.ndarray:
        """Soft L1 of points, from OFF on whatever a point weighs; plain squares of the prior."""
        rows = np.vstack([squares, np.ones_like(squares), np.zeros_like(squares)])
        softer = np.sqrt(1.0 + squares[:points] / weights)
        rows[:, :points] = 2.0 * weights * (softer - 1.0), 1.0 / softer, -0.5 / softer**3 / weights
        return rows

    tolerances = {"xtol": 1e-5, "ftol": 1e-6, "gtol": 1e-8, "max_nfev": 200}
    x = least_squares(errors, np.zeros(turned.shape[1]), slopes, loss=loss, **tolerances).x
    return np.asarray(np.exp(start + turned @ x))


def _middle_share(column: np.ndarray) -> float:
    """The logarithm of a coefficient that makes `column`, relative, START of a point in the middle."""
    positive = column[column > 0.0]
    return float(np.log(START / np.median(positive))) if len(positive) else -50.0


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
