"""Robust least squares on logarithms of times, with coefficients >= 0; all formulas are fitted by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lolat.arrays import np
from lolat.errors import InputError
from lolat.units import plural

OUTLYING_POINT = 0.08
"""Log error above which a point's influence on the fit stops growing. OUTLYING_POINT, KIND_SPREAD and
NETWORK_WEIGHT were chosen on the development split of the zoo and on held-out predefined networks
(docs/explanation/formula.md); doubling or halving one of them changes little."""
KIND_SPREAD = 1.5
"""Scale of the prior on log(coefficient / its family's): a coefficient that is off by this costs the fit as
much as one log error of OUTLYING_POINT."""
NETWORK_WEIGHT = 5.0  # weight of a whole network divided by the weight of a block
FAMILY_SPREAD = 5.0  # scale of the prior on log(family / its start), like KIND_SPREAD: a weak prior
LEAST_TERM_SHARE = 1e-3  # a coefficient with a smaller share of every point's time is set to 0
START_SHARE = 0.2  # share of the median point's time that each family starts with


def point_weights(whole: np.ndarray) -> np.ndarray:
    """(points,) weights in a fit: NETWORK_WEIGHT for a network, 1 for a block.

    All weights are 1 if there are only networks or only blocks. `whole`: (points,) mask of the networks.
    """
    both = whole.any() and not whole.all()
    return np.where(whole & both, NETWORK_WEIGHT, 1.0)


def fit_relative(features: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Fit (columns,) coefficients >= 0 without a prior.

    `features`: (points, columns); `times`: (points,), ms. The coefficients minimize the sum of
    soft(log(predicted / time) / OUTLYING_POINT), with `soft` as in `fit_families`. The error is relative
    because times span three decades, and the loss is robust against disturbed points.
    """
    terms = features.shape[1]
    none, alike = np.full(terms, np.inf), np.ones(len(times))
    start = _middle_shares(features, times, np.eye(terms))
    coefficients = minimum(features, times, np.eye(terms), none, alike, start)
    shares = (features / times[:, None] * coefficients).max(axis=0, initial=0.0)
    return np.where(shares > LEAST_TERM_SHARE, coefficients, 0.0)


def fit_families(
    features: np.ndarray,
    times: np.ndarray,
    families: Sequence[str],
    weights: np.ndarray,
    spread: float = KIND_SPREAD,
) -> np.ndarray:
    """Fit (columns,) coefficients > 0, each shrunk toward its family's coefficient.

    `features`: (points, columns); `times`: (points,), ms; `families`: (columns,) names; `weights`:
    (points,); `spread`: standard deviation of the log of a coefficient around its family's.

    A coefficient is exp(family + own), or exp(family) if it is alone in its family. The fit minimizes

        sum of weight * soft(log(predicted / time) / OUTLYING_POINT) + sum of (own / spread)**2

    with the soft L1 loss soft(z) = 2 * (sqrt(1 + z**2) - 1), which treats twice and half alike and bounds
    the influence of a point. The prior is hierarchical (Gelman and Hill 2007): two kinds differ only if the
    points show it, and a kind that no point has costs as much as its family.
    """
    known = list(dict.fromkeys(families))
    of_family = np.array([[f == name for name in known] for f in families], float)
    shared = np.flatnonzero(of_family @ of_family.sum(axis=0) > 1.0)
    own = np.eye(len(families))[:, shared]
    prior_sds = np.repeat([FAMILY_SPREAD, spread], [len(known), len(shared)])
    start = _middle_shares(features, times, of_family)
    return minimum(features, times, np.column_stack([of_family, own]), prior_sds, weights, start)


def minimum(
    features: np.ndarray,
    times: np.ndarray,
    mapping: np.ndarray,
    prior_sds: np.ndarray,
    weights: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """Fit (columns,) coefficients exp(`start` + `mapping` @ unknowns) with SciPy's trust region.

    `features`: (points, columns); `times`: (points,), ms; `mapping`: (columns, unknowns); `prior_sds`:
    (unknowns,) standard deviations of the prior, infinite for an unknown without a prior; `weights`:
    (points,); `start`: (columns,). The loss is that of `fit_families`.
    """
    from scipy.optimize import least_squares

    relative = features / times[:, None]
    loss = soft_loss(np.concatenate([weights, np.ones(len(prior_sds))]), len(prior_sds))

    def residuals(x: np.ndarray) -> np.ndarray:
        predicted = relative @ np.exp(start + mapping @ x)
        return np.concatenate([np.log(predicted) / OUTLYING_POINT, x / prior_sds])

    def jacobian(x: np.ndarray) -> np.ndarray:
        parts = relative * np.exp(start + mapping @ x)
        own = (parts @ mapping) / (OUTLYING_POINT * parts.sum(axis=1))[:, None]
        return np.vstack([own, np.diag(1.0 / prior_sds)])

    tolerances = {"xtol": 1e-5, "ftol": 1e-6, "gtol": 1e-8, "max_nfev": 200}
    x = least_squares(residuals, np.zeros(mapping.shape[1]), jacobian, loss=loss, **tolerances).x
    return np.asarray(np.exp(start + mapping @ x))


def soft_loss(weights: np.ndarray, squares_at_end: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """A `loss` for SciPy's `least_squares`: the soft L1 loss with `weights`, (errors,).

    The last `squares_at_end` errors count by their squares, without weights.
    """

    def loss(squares: np.ndarray) -> np.ndarray:
        more = 1.0 + squares
        rows = weights * np.array([2.0 * (more**0.5 - 1.0), more**-0.5, -0.5 * more**-1.5])
        if squares_at_end:
            rows[0, -squares_at_end:] = squares[-squares_at_end:]
            rows[1:, -squares_at_end:] = [[1.0], [0.0]]
        return rows

    return loss


def _middle_shares(features: np.ndarray, times: np.ndarray, of_family: np.ndarray) -> np.ndarray:
    """(columns,) log coefficients with which each family takes START_SHARE of the median point's time.

    `of_family`: (columns, families), 1 if the column is in the family, else 0.
    """
    starts = []
    for column in (features / times[:, None] @ of_family).T:
        positive = column[column > 0.0]
        starts.append(np.log(START_SHARE / np.median(positive)) if len(positive) else -50.0)
    return np.asarray(of_family @ starts)


def require_points(count: int, columns: int) -> None:
    """Raise InputError if `count` different points are fewer than `columns` + 1."""
    if count < columns + 1:
        raise InputError(
            f"{plural(count, 'point')} {'is' if count == 1 else 'are'} too few to fit {columns} "
            f"coefficients; expected at least {columns + 1} different ones, measured or read from a table",
            code="too-few-points",
            points=count,
            least=columns + 1,
        )
