"""Intervals of predictions: conformal, from held-out points.

The more operations a network has, the more their errors average out. docs/explanation/intervals.md says
what the intervals promise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

import msgspec

from lolat.arrays import np
from lolat.errors import InputError, arg
from lolat.io.documents import MOST, NotNegative, Number
from lolat.parameters import COVERAGE, PARAMETERS

STEEPEST = 0.5  # the exponent at which errors of operations are independent
OTHER_NETWORKS = 1.3
"""Errors on blocks of other networks / errors on held-out predefined blocks, which are similar to blocks in
the fit. OTHER_NETWORKS and STEEP were chosen on the development split of the zoo (docs/results/index.md).
"""
LEAST_REST = 0.25  # least share of the variance that is not from the fit
STEEP = 4  # exponent of the transition from a block's interval to a network's
WIDEST = 100.0
"""An interval says nothing of use if its upper end is more than this times the lower."""
LARGEST = 100.0  # largest half width of a log interval whose factor a float can hold
Operations = Annotated[float, msgspec.Meta(ge=1.0, le=MOST)]


def is_usable(interval: Sequence[float]) -> bool:
    """True unless the upper end of an interval is more than WIDEST times the lower."""
    low, high = interval
    return low <= 0.0 or high <= WIDEST * low


class Interval(msgspec.Struct, frozen=True):
    """The scale of errors as a function of the number of operations n; part of a device file.

    `s(n) = (n / sqrt(low * high)) ** -exponent`, with n clipped to `ops`, the pair (low, high). `scores`:
    |residual| / s(n) of points held out of the fit.
    """

    exponent: Annotated[float, msgspec.Meta(ge=0.0, le=STEEPEST)] = 0.0
    ops: tuple[Operations, Operations] = (1.0, 1.0)
    scores: tuple[Number, ...] = ()


class NetworkErrors(msgspec.Struct, frozen=True, omit_defaults=True):
    """Errors on networks of `count` families, each family held out of the fit.

    `ops`: the lowest decile of the networks' numbers of operations; `spread`: root mean square of
    log(measured / predicted). Errors within a family are alike, so a family is one degree of freedom of
    Student's t. `changes`: relative changes of the coefficients when single blocks or networks are left out
    of the fit. `typical`: the variance that these changes cause for the median network.
    """

    ops: NotNegative
    spread: NotNegative
    count: Annotated[int, msgspec.Meta(ge=2, le=2**63 - 1)]
    changes: tuple[dict[str, Number], ...] = ()
    typical: NotNegative = 0.0

    def deviation(self, terms_ms: Mapping[str, float] | None = None) -> float:
        """The standard deviation of another network's log error; `terms_ms`: its time in ms, by term.

        The variance is a constant for all networks, plus the squared changes of the network's time when
        blocks are left out of the fit.
        """
        terms_ms = terms_ms or {}
        if not (whole := sum(terms_ms.values())) or not self.changes:
            return self.spread
        changed = (
            sum(change * terms_ms.get(name, 0.0) for name, change in changes.items()) / whole
            for changes in self.changes
        )
        rest = max(self.spread**2 - self.typical, LEAST_REST * self.spread**2)
        return math.sqrt(rest + sum(c**2 for c in changed))


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Errors of a formula on points held out of its fit; intervals are made from them.

    `residuals`: log(measured / predicted); `interval`: their scale; `networks`: errors on whole networks;
    `elsewhere`: the additional standard deviation of the log error on another host or framework version.
    """

    residuals: tuple[Number, ...] = ()
    interval: Interval | None = None
    networks: NetworkErrors | None = None
    elsewhere: NotNegative = 0.0

    def half_width(
        self,
        ops: float,
        coverage: float = COVERAGE,
        floor: float = 0.0,
        terms_ms: Mapping[str, float] | None = None,
    ) -> float:
        """Half width of the log interval for `ops` operations; `terms_ms`: the time in ms, by term.

        Without held-out networks it is the half width for a block. With held-out networks it moves from
        OTHER_NETWORKS times a block's half width, at one operation, to a network's half width at
        `networks.ops`. It is at least `floor`, the relative noise floor. InputError for a coverage outside
        (0, 1) or too high for the number of points.
        """
        scale = self.interval or Interval(scores=self.residuals)
        half_width = conformal_quantile(scale.scores, coverage)
        half_width *= math.exp(-scale.exponent * float(logarithms(ops, *scale.ops)))
        if self.networks is not None:
            most = math.log(max(self.networks.ops, math.e))
            part = min(math.log(max(ops, 1.0)) / most, 1.0)
            half_width *= OTHER_NETWORKS
            of_networks = t_quantile(coverage, self.networks.count)
            of_networks *= self.networks.deviation(terms_ms)
            half_width += part**STEEP * (of_networks - half_width)
        elsewhere = normal_quantile(coverage) * self.elsewhere
        return min(max(math.hypot(half_width, elsewhere), math.log1p(floor)), LARGEST)


def conformal_quantile(residuals: Sequence[float], coverage: float) -> float:
    """The ceil((n + 1) * coverage)-th smallest of n |residuals| (or scores) of held-out points.

    Exchangeable new points are within it with probability >= coverage (Vovk et al. 2005; scores divided by
    a scale: Lei et al. 2018). InputError if n points are too few for the coverage.
    """
    PARAMETERS["coverage"].check(coverage)
    n = len(residuals)
    rank = math.ceil((n + 1) * coverage - 1e-9)  # 100 * 0.55 is a little more than 55
    if not n:
        raise InputError(
            "too few blocks were measured to leave one out of the fit; measure more",
            code="coverage-range",
            of_device=True,
            coverage=coverage,
        )
    if rank > n:
        raise InputError(
            f"{arg('coverage')} {coverage:g}: expected at most {math.floor(1000 * n / (n + 1)) / 1000}, "
            f"which is all that {n} held-out points can tell; ask for less, or measure "
            f"{math.ceil(coverage / (1.0 - coverage) - 1e-9)} or more",
            code="coverage-range",
            of_device=True,
            coverage=coverage,
        )
    return float(np.partition(np.abs(residuals), rank - 1)[rank - 1])


SHARED_ERROR = 0.7
"""The fraction of the smaller error variance that two GPUs share: the largest multiple of 0.1 for which the
90 % intervals of ratios cover 90 % on every pair of timm's GPUs (docs/results/index.md)."""


def ratio_half_width(one: float, other: float, are_alike: bool) -> float:
    """The half width of the log interval of a ratio of two times; `one`, `other`: half widths of the times.

    `are_alike`: True if the errors share the fraction SHARED_ERROR, which cancels in a ratio; else they are
    independent.
    """
    half_width = math.hypot(one, other)
    if are_alike and half_width < math.inf:
        half_width = math.sqrt(half_width**2 - 2.0 * SHARED_ERROR * min(one, other) ** 2)
    return half_width


def chance_of_less(one: float, other: float, half_width: float, coverage: float) -> float | None:
    """The probability that `one` is the smaller of two values; None if their ratio's interval is unknown.

    `half_width`, `coverage`: half width and coverage of the log interval of the ratio; log errors are taken
    to be normal.
    """
    if half_width == math.inf:
        return None
    if not (one and other):  # prices may be zero
        return 0.5 if one == other else float(one < other)
    from statistics import NormalDist  # late: a tenth of the time to import LoLat

    deviation = half_width / normal_quantile(coverage)
    return NormalDist(sigma=max(deviation, 1e-12)).cdf(math.log(other / one))


def interval_around(ms: float, half_width: float | None) -> tuple[float, float] | None:
    """(low, high) ms around a time; `half_width`: half width of the log interval; None without one."""
    return None if half_width is None else (ms * math.exp(-half_width), ms * math.exp(half_width))


def normal_quantile(coverage: float) -> float:
    """The z for which a standard normal variable lies in [-z, z] with probability `coverage`."""
    from statistics import NormalDist  # late: a tenth of the time to import LoLat

    return NormalDist().inv_cdf((1.0 + coverage) / 2.0)


FACTOR_QUANTILE = 1.6448536269514722
"""`normal_quantile(0.9)`: assumed error factors hold with a probability of 90 %."""


@cache
def t_quantile(coverage: float, freedom: int) -> float:
    """The t for which Student's t with `freedom` degrees lies in [-t, t] with probability `coverage`.

    It is found by bisection of the finite series (Abramowitz and Stegun 1964, 26.7.3 and 4). From 100
    degrees on it is the normal quantile, which is less than 1 % smaller at 90 %.
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


def as_dict(section: msgspec.Struct) -> dict[str, Any]:
    """A struct as a dict for a profile's JSON."""
    document: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(section, order="deterministic")
    )
    return document


def logarithms(ops: np.ndarray | float, low: float, high: float) -> np.ndarray:
    """Logarithms of the numbers of operations, clipped to (low, high); 0 in the middle of this range."""
    return np.log(np.clip(ops, low, high)) - 0.5 * math.log(low * high)
