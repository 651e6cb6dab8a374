"""How sure a prediction is: conformal intervals from left-out points, narrower where more averages out.

What is promised, and what is not: docs/explanation/intervals.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from lolat.errors import InputError, arg

COVERAGE = 0.9  # of an interval, where nobody asks for another
STEEPEST = 0.5  # errors of operations that know nothing of each other average out with the root
STEPS = 50  # tried between no averaging out and that
TAIL = 0.1  # of the points lie beyond either end of the range in which the scale changes
LEAST_POINTS = 30  # fewer cannot tell how the error depends on anything
OUTLIER = 2.5
UNLIKE = 1.3
"""Errors of blocks of other networks over those of predefined blocks left out, which have sisters among the
rest. It and STEEP were chosen on the chosen half of the zoo (docs/results/accuracy.md)."""
STEEP = 4  # how late, as operations grow, a block's interval goes over into a network's
LARGEST = 100.0  # half an interval, as a logarithm: a factor that a float still holds


@dataclass(frozen=True)
class Scale:
    """How large the error of something of `n` operations is, relative to a middling block's.

    `s(n) = (n / sqrt(low * high)) ** -exponent`, n clipped to low .. high: it never rises with n, and
    stays what it is beyond the range that was measured.
    """

    exponent: float = 0.0
    low: float = 1.0
    high: float = 1.0

    def of(self, ops: float) -> float:
        """The scale, above 0, of something of `ops` operations (see `effective_ops`)."""
        if self.exponent == 0.0:
            return 1.0
        clipped = min(max(ops, self.low), self.high)
        middle = 0.5 * (math.log(self.low) + math.log(self.high))
        return math.exp(min(self.exponent * (middle - math.log(clipped)), LARGEST))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Scale:
        """Read what `interval_entry` wrote."""
        low, high = (max(float(n), 1.0) for n in document["ops"])
        return cls(float(document["exponent"]), low, high)

    @classmethod
    def fit(cls, residuals: np.ndarray, ops: np.ndarray) -> Scale:
        """The scale of (points,) `residuals`, log(measured / predicted), of blocks of `ops` operations.

        One parameter: the exponent from 0 to STEEPEST that maximizes the likelihood of the residuals
        as Laplace's, of spread proportional to s (its level cancels). The range is where all but TAIL
        of the points lie on either side. Constant where there are fewer than LEAST_POINTS.
        """
        low, high = (float(q) for q in np.quantile(ops, (TAIL, 1.0 - TAIL), method="nearest"))
        low, high = max(low, 1.0), max(high, 1.0)
        if len(ops) < LEAST_POINTS or low == high:
            return cls()
        return cls(_exponent(residuals, _logarithms(ops, low, high)), low, high)


@dataclass(frozen=True)
class Width:
    """How wide intervals of one coverage are: `quantile` times the scale, and at least `floor`.

    `networks`: (of how many operations, half the width) of whole networks, where some were left out: from
    as many operations on that is it; below, it goes over into UNLIKE times a block's.
    `elsewhere`: half of what another host and another version of the framework add, as errors of their own.
    """

    quantile: float
    scale: Scale
    floor: float = 0.0
    networks: tuple[float, float] | None = None
    elsewhere: float = 0.0

    def half(self, ops: float) -> float:
        """Half the width, as a logarithm, of the interval of something of `ops` operations."""
        half_width = self.quantile * self.scale.of(ops)
        if self.networks is not None:
            large, half = self.networks
            part = min(max(math.log(max(ops, 1.0)) / math.log(max(large, math.e)), 0.0), 1.0)
            half_width = half_width * UNLIKE + part**STEEP * (half - half_width * UNLIKE)
        return min(max(math.hypot(half_width, self.elsewhere), self.floor), LARGEST)


def network_entry(residuals: np.ndarray, ops: np.ndarray) -> dict[str, Any]:
    """What a predictor's entry says of whole networks that were left out, each with its family.

    `residuals`: (networks,), log(measured / predicted); `ops`: (networks,). Of residuals beyond OUTLIER
    times what is usual among them only as much counts.
    """
    usual = 1.4826 * float(np.median(np.abs(residuals)))
    tamed = np.minimum(np.abs(residuals), OUTLIER * usual)
    return {
        "ops": float(np.quantile(ops, TAIL)),
        "spread": round(math.sqrt(float((tamed**2).mean())), 6),
        "count": len(residuals),
    }


def machine(document: Mapping[str, Any], coverage: float) -> float:
    """Half of the interval, as a logarithm, of the machine's own speed; 0 where a file does not say.

    Times of the same networks, minutes apart, are off by `repeatability` (`microbench.doctor`): the
    standard deviation of a normal distribution.
    """
    repeatability = document["noise"].get("repeatability", 0.0)
    return math.log1p(repeatability) * NormalDist().inv_cdf((1.0 + coverage) / 2.0)


def effective_ops(times: np.ndarray, ops: np.ndarray) -> float:
    """Of how many equal operations the error of a whole averages out like that of these parts.

    `times`: (parts,), ms; `ops`: (parts,). Operations with errors of their own, the time of a part
    shared equally among its operations, make a relative variance of sum(time**2 / ops) / total**2,
    n equal ones 1 / n. It is the number of all operations where all take as long, and fewer where
    some take most of the time.
    """
    total = float(times.sum())
    if total <= 0.0:
        return float(max(ops.sum(), 1))
    shares = times / total  # first: the squares of tiny times are 0
    return 1.0 / float(shares @ (shares / np.maximum(ops, 1)))


def interval_entry(
    residuals: np.ndarray, ops: np.ndarray, folds: Iterable[np.ndarray]
) -> dict[str, Any] | None:
    """What a predictor's entry in a model file says of intervals: its scale, the points' scores.

    `residuals`: (points,), log(measured / predicted) of left-out points; `ops`: (points,), operations;
    `folds`: masks of the points kept, as they were fitted without the others. A score is |residual| /
    scale, the scale fitted without the fold's other points too, so that no point has a say in what it is
    measured by. None where the scale is constant: the residuals say it all.
    """
    scale = Scale.fit(residuals, ops)
    if scale.exponent == 0.0:
        return None
    x = _logarithms(ops, scale.low, scale.high)
    scores = np.empty(len(residuals))
    for kept in folds:
        exponent = _exponent(residuals[kept], x[kept])
        scores[~kept] = np.abs(residuals[~kept]) * np.exp(exponent * x[~kept])
    return {
        "exponent": scale.exponent,
        "ops": [scale.low, scale.high],
        "scores": [round(float(s), 6) for s in scores],
    }


def interval_width(entry: Mapping[str, Any], coverage: float, floor: float = 0.0) -> Width:
    """The width of intervals of `coverage` from a predictor's entry in a model file.

    `floor`: the noise floor, relative; nothing is known better than it can be measured. A file
    without a scale has the same width for everything. Raises InputError for a coverage that is none,
    that the points cannot give, and where there are no left-out points.
    """
    check_coverage(coverage)
    scores = _scores(entry)
    if not scores:
        raise InputError(
            f"{arg('coverage')} {coverage}: this model has no errors of left-out points, so it cannot "
            "compute intervals; learn it again, or fit it on points of more blocks (`lolat fit`)",
            code="too-few-points",
        )
    scale = Scale.from_dict(entry["interval"]) if "interval" in entry else Scale()
    networks = None
    if (whole := entry.get("networks")) is not None:
        half = NormalDist().inv_cdf((1.0 + coverage) / 2) * float(whole["spread"])
        networks = (float(whole["ops"]), half)
    elsewhere = NormalDist().inv_cdf((1.0 + coverage) / 2) * float(entry.get("elsewhere", 0.0))
    quantile = conformal_quantile(scores, coverage)
    return Width(quantile, scale, math.log1p(floor), networks, elsewhere)


class Intervals:
    """How wide the intervals of a model file's predictors are; each width is made once."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self._widths: dict[tuple[str, float], Width] = {}

    def machine(self, coverage: float | None) -> float:
        """Half of the interval of the machine's speed, as of `machine`; None: of the usual coverage."""
        return machine(self.document, COVERAGE if coverage is None else coverage)

    def half(
        self, predictor: str, coverage: float | None, times: np.ndarray, ops: np.ndarray
    ) -> tuple[float | None, tuple[str, ...]]:
        """Half the width of a prediction's interval, as a logarithm, and what is to be said of it.

        `times`: (parts,) ms by `predictor`; `ops`: (parts,) operations. Where nobody asked for a `coverage`
        (None) and the usual one cannot be had, there is None, and why; one that is asked for and cannot
        be had is an InputError.
        """
        wanted = COVERAGE if coverage is None else coverage
        check_coverage(wanted)
        width = self._widths.get((predictor, wanted))
        if width is None:
            entry = self.document["predictors"][predictor]
            try:
                width = interval_width(entry, wanted, noise_floor(self.document) or 0.0)
            except InputError:
                if coverage is not None:
                    raise
                points = len(_scores(entry))
                why = (
                    f"{points} points cannot give {100 * COVERAGE:g} % coverage; measure more blocks, or "
                    "ask for less coverage"
                    if points
                    else "the model has no errors of left-out points; learn it again, or fit it on points "
                    "of more blocks (lolat fit)"
                )
                return None, (f"no interval: {why}",)
            self._widths[predictor, wanted] = width
        return width.half(effective_ops(times, ops)), ()


def conformal_quantile(residuals: Sequence[float], coverage: float) -> float:
    """The conformal quantile of |residuals|: the ceil((n + 1) * coverage)-th smallest of n.

    `residuals` (or scores) are of points left out of the fit. With it, exchangeable new points fall
    inside with probability >= coverage (Vovk et al. 2005; scores divided by a scale: Lei et al. 2018).
    Raises InputError when n points cannot give that coverage.
    """
    check_coverage(coverage)
    n = len(residuals)
    rank = math.ceil((n + 1) * coverage - 1e-9)  # 100 * 0.55 is a little more than 55
    if rank > n:
        raise InputError(
            f"{arg('coverage')} {coverage}: expected at most {math.floor(1000 * n / (n + 1)) / 1000}, "
            f"which is all that {n} left-out points can tell; ask for less, or measure more blocks",
            code="coverage-range",
            coverage=coverage,
        )
    return float(np.partition(np.abs(residuals), rank - 1)[rank - 1])


def noise_floor(document: Mapping[str, Any]) -> float | None:
    """How far repeated measurements of a block disagree, relative; None where a file does not say."""
    floor = document.get("noise", {}).get("floor")
    good = isinstance(floor, (int, float)) and not isinstance(floor, bool) and floor >= 0.0
    return float(floor) if good else None


def check_coverage(coverage: float) -> None:
    """InputError unless `coverage` is a number between 0 and 1."""
    if not isinstance(coverage, (int, float)) or not 0.0 < coverage < 1.0:
        raise InputError(
            f"{arg('coverage')} {coverage!r}: expected a number above 0 and below 1, such as 0.9",
            code="coverage-range",
            coverage=coverage,
        )


def _scores(entry: Mapping[str, Any]) -> Sequence[float]:
    interval = entry.get("interval")
    return (interval["scores"] if interval else entry.get("residuals")) or ()


def _logarithms(ops: np.ndarray, low: float, high: float) -> np.ndarray:
    """log of the clipped operations, 0 in the middle of the range."""
    return np.log(np.clip(ops, low, high)) - 0.5 * math.log(low * high)


def _exponent(residuals: np.ndarray, x: np.ndarray) -> float:
    """The likeliest exponent; `x`: `_logarithms`. The smallest of those that are as likely."""
    tried = np.linspace(0.0, STEEPEST, STEPS + 1)
    size = np.maximum(np.abs(residuals), 1e-9)
    # -log likelihood / points with the best level: mean(log s) + log(mean(|r| / s)), log s = -b * x.
    loss = np.log((size * np.exp(np.outer(tried, x))).mean(axis=1)) - tried * x.mean()
    return round(float(tried[np.argmin(loss)]), 6)
