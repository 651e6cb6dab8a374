"""How sure a prediction is: conformal intervals from left-out points, narrower where more averages out.

What is promised, and what is not: docs/explanation/intervals.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Self

import msgspec

from lolat.arrays import np
from lolat.errors import InputError, arg
from lolat.io.documents import MOST, NotNegative, Number

COVERAGE = 0.9  # of an interval, where nobody asks for another
STEEPEST = 0.5  # errors of independent operations average out with the root of their number
STEPS = 50  # exponents tried between no averaging out and that
TAIL = 0.1  # of the points lie beyond either end of the range in which the scale changes
LEAST_POINTS = 30  # fewer cannot tell how the error depends on anything
UNLIKE = 1.3
"""Errors of blocks of other networks over those of predefined blocks left out, which have sisters among the
rest. It and STEEP were chosen on the first half of the zoo (docs/results/index.md)."""
STEEP = 4  # how late, as operations grow, the interval of a block becomes that of a network
LARGEST = 100.0  # half an interval, as a logarithm: a factor that a float still holds
Operations = Annotated[float, msgspec.Meta(ge=1.0, le=MOST)]


class Interval(msgspec.Struct, frozen=True):
    """How the errors of points depend on their number of operations n, in the model file.

    The scale is `s(n) = (n / sqrt(low * high)) ** -exponent`, with n clipped to `ops`, low .. high: it
    never rises with n. `scores`: |residual| / s(n) of the points left out of the fit.
    """

    exponent: Annotated[float, msgspec.Meta(ge=0.0, le=STEEPEST)] = 0.0
    ops: tuple[Operations, Operations] = (1.0, 1.0)
    scores: tuple[Number, ...] = ()

    def scale(self, ops: float) -> float:
        """s(n) of something of `ops` operations."""
        return math.exp(-self.exponent * float(_logarithms(ops, *self.ops)))

    @classmethod
    def fit(cls, residuals: np.ndarray, ops: np.ndarray) -> Self:
        """The scale of (points,) `residuals`, log(measured / predicted), of blocks of `ops` operations.

        One parameter: the exponent from 0 to STEEPEST that maximizes the likelihood of the residuals
        as Laplace's, of spread proportional to s (its level cancels). The range is where all but TAIL
        of the points lie on either side. Constant where there are fewer than LEAST_POINTS.
        """
        ends = np.quantile(ops, (TAIL, 1.0 - TAIL), method="nearest")
        low, high = (max(float(end), 1.0) for end in ends)
        if len(ops) < LEAST_POINTS or low == high:
            return cls()
        return cls(_exponent(residuals, _logarithms(ops, low, high)), (low, high))


class Networks(msgspec.Struct, frozen=True):
    """How far off predictions of left-out networks were, of `count` families, each left out whole.

    `ops`: nine tenths of them have more operations; `spread`: the root mean square of
    log(measured / predicted).
    """

    ops: NotNegative
    spread: NotNegative
    count: Annotated[int, msgspec.Meta(ge=2, le=2**63 - 1)]

    def half_width(self, coverage: float) -> float:
        """Half the interval of another network, as a logarithm: that of Student's t, a family a degree of
        freedom, as networks of one family are off together.
        """
        return t_quantile(coverage, self.count) * self.spread


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far off a formula was on points left out of its fit: what its intervals are made of.

    `residuals`: log(measured / predicted); `interval`: how they depend on operations; `networks`: those of
    whole networks; `elsewhere`: what another host and another version of the framework add, a standard
    deviation as a logarithm.
    """

    residuals: tuple[Number, ...] = ()
    interval: Interval | None = None
    networks: Networks | None = None
    elsewhere: NotNegative = 0.0

    def half_width(self, ops: float, coverage: float = COVERAGE, floor: float = 0.0) -> float:
        """Half the width, as a logarithm, of the interval of something of `ops` operations.

        It is that of blocks; where networks were left out, that of networks for so many operations and
        more, and between that and UNLIKE times a block's for fewer. `floor`: the noise floor, relative;
        nothing is known better than it can be measured. Raises InputError for a coverage that is not
        between 0 and 1, and for one that the points cannot give.
        """
        check_coverage(coverage)
        scale = self.interval or Interval(scores=self.residuals)
        half = conformal_quantile(scale.scores, coverage) * scale.scale(ops)
        if self.networks is not None:
            most = math.log(max(self.networks.ops, math.e))
            part = min(math.log(max(ops, 1.0)) / most, 1.0)
            half *= UNLIKE
            half += part**STEEP * (self.networks.half_width(coverage) - half)
        elsewhere = normal_quantile(coverage) * self.elsewhere
        return min(max(math.hypot(half, elsewhere), math.log1p(floor)), LARGEST)


def half_width_if_known(
    calibration: Calibration,
    document: Mapping[str, Any],
    coverage: float | None,
    ops: float,
) -> tuple[float | None, tuple[str, ...]]:
    """Half the width of a prediction's interval, as a logarithm, and why there is none.

    `document`: the model file; `ops`: how many operations it is of. Where `coverage` is None and the points
    cannot give the usual one, the half is None; a coverage that somebody asks for and the points cannot
    give is an InputError.
    """
    floor = noise_floor(document) or 0.0
    wanted = COVERAGE if coverage is None else coverage
    try:
        return calibration.half_width(ops, wanted, floor), ()
    except InputError as error:
        if coverage is not None:
            raise
        return None, (f"no interval: {error}",)


def conformal_quantile(residuals: Sequence[float], coverage: float) -> float:
    """The conformal quantile of |residuals|: the ceil((n + 1) * coverage)-th smallest of n.

    `residuals` (or scores) are of points left out of the fit. With it, exchangeable new points fall
    inside with probability >= coverage (Vovk et al. 2005; scores divided by a scale: Lei et al. 2018).
    Raises InputError when n points cannot give that coverage.
    """
    check_coverage(coverage)
    n = len(residuals)
    rank = math.ceil((n + 1) * coverage - 1e-9)  # 100 * 0.55 is a little more than 55
    if not n:
        raise InputError(
            "too few blocks were measured to leave one out of the fit; measure more",
            code="coverage-range",
            coverage=coverage,
        )
    if rank > n:
        raise InputError(
            f"{arg('coverage')} {coverage:g}: expected at most {math.floor(1000 * n / (n + 1)) / 1000}, "
            f"which is all that {n} left-out points can tell; ask for less, or measure "
            f"{math.ceil(coverage / (1.0 - coverage) - 1e-9)} or more",
            code="coverage-range",
            coverage=coverage,
        )
    return float(np.partition(np.abs(residuals), rank - 1)[rank - 1])


def check_coverage(coverage: float) -> None:
    """InputError unless `coverage` is a number between 0 and 1."""
    if not isinstance(coverage, (int, float)) or not 0.0 < coverage < 1.0:
        raise InputError(
            f"{arg('coverage')} {coverage!r}: expected a number above 0 and below 1, such as 0.9",
            code="coverage-range",
            coverage=coverage,
        )


# ---- What a model file says of its machine.


def noise_floor(document: Mapping[str, Any]) -> float | None:
    """How far repeated measurements of a block disagree, relative; None where a file does not say."""
    floor: float | None = document.get("noise", {}).get("floor")
    return floor


def repeatability_of(document: Mapping[str, Any]) -> float | None:
    """The standard deviation of times of the same networks, minutes apart, relative (`microbench.doctor`);
    None where a file does not say.
    """
    repeatability: float | None = document.get("noise", {}).get("repeatability")
    return repeatability


def machine(document: Mapping[str, Any], coverage: float) -> float:
    """Half of the interval, as a logarithm, of the machine's own speed; 0 where a file does not say."""
    return math.log1p(repeatability_of(document) or 0.0) * normal_quantile(coverage)


def normal_quantile(coverage: float) -> float:
    """The standard normal distribution is so far from 0 at most, in a share `coverage` of all cases."""
    from statistics import NormalDist  # a tenth of the time to import LoLat, needed here alone

    return NormalDist().inv_cdf((1.0 + coverage) / 2.0)


@cache
def t_quantile(coverage: float, freedom: int) -> float:
    """Student's t with so many degrees of freedom is so far from 0 at most, in a share `coverage` of all
    cases.

    The probability by its finite series (Abramowitz and Stegun 1964, 26.7.3 and 4), the quantile by
    bisection; from 100 degrees on the normal one, which is less than 1 % narrower at 90 %.
    """
    if freedom >= 100:
        return normal_quantile(coverage)
    odd = freedom % 2
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        term = math.cos(angle) if odd else 1.0
        total = term if freedom > 1 else 0.0
        for i in range(2 if odd else 1, freedom - 2, 2):
            term *= i / (i + 1) * math.cos(angle) ** 2
            total += term
        share = math.sin(angle) * total
        if odd:
            share = (angle + share) * 2.0 / math.pi
        low, high = (angle, high) if share < coverage else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


# ---- From a fit to what a model file says.


def interval_entry(
    residuals: np.ndarray, ops: np.ndarray, folds: Iterable[np.ndarray]
) -> dict[str, Any] | None:
    """An Interval as the model file holds it: the scale and the scores of the points.

    `residuals`: (points,), log(measured / predicted) of left-out points; `ops`: (points,), operations;
    `folds`: masks of the points that were fitted without the others. The scale of a score is fitted
    without the other points of its fold, so that no point has a say in its own scale. None where the scale
    is constant: then the residuals are the scores.
    """
    scale = Interval.fit(residuals, ops)
    if scale.exponent == 0.0:
        return None
    x = _logarithms(ops, *scale.ops)
    scores = np.empty(len(residuals))
    for fitted in folds:
        exponent = _exponent(residuals[fitted], x[fitted])
        scores[~fitted] = np.abs(residuals[~fitted]) * np.exp(exponent * x[~fitted])
    rounded = tuple(round(float(s), 6) for s in scores)
    return as_dict(Interval(scale.exponent, scale.ops, rounded))


def network_entry(residuals: np.ndarray, ops: np.ndarray, families: int) -> dict[str, Any]:
    """Networks as the model file holds them.

    `residuals`: (networks,), log(measured / predicted); `ops`: (networks,); `families`: that they are of.
    """
    spread = round(math.sqrt(float((residuals**2).mean())), 6)
    return as_dict(Networks(float(np.quantile(ops, TAIL)), spread, families))


def as_dict(section: msgspec.Struct) -> dict[str, Any]:
    """A struct as a model file holds it."""
    document: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(section, order="deterministic")
    )
    return document


def _logarithms(ops: np.ndarray | float, low: float, high: float) -> np.ndarray:
    """log of the clipped operations, 0 in the middle of the range."""
    return np.log(np.clip(ops, low, high)) - 0.5 * math.log(low * high)


def _exponent(residuals: np.ndarray, x: np.ndarray) -> float:
    """The likeliest exponent; `x`: `_logarithms`. The smallest of those that are as likely."""
    tried = np.linspace(0.0, STEEPEST, STEPS + 1)
    size = np.maximum(np.abs(residuals), 1e-9)
    # -log likelihood / points with the best level: mean(log s) + log(mean(|r| / s)), log s = -b * x.
    loss = np.log((size * np.exp(np.outer(tried, x))).mean(axis=1)) - tried * x.mean()
    return round(float(tried[np.argmin(loss)]), 6)
