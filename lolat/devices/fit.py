"""Fits the terms of `predictors.kernels` to a device's times: operations, whole networks, or both.

Few times tell the terms of a class of operations apart only together with what is known of every device:
the logarithm of each term is drawn to that of the device itself (its rate, its bandwidth, its launch, which
are fitted too) times what the class usually has of it. Robust least squares on the logarithms of the times;
a network's is that of the sum of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lolat.fitting.predictors.kernels import (
    LEAST_OPERATIONS,
    RATES,
    TILED,
    Kernels,
    Nearby,
    Ways,
    alone,
    inside,
    moving_slopes,
    moving_time,
)
from lolat.graph import work as c
from lolat.graph.modes import Mode
from lolat.graph.work import (
    CLASSES,
    MOVING_TERMS,
    NEEDED,
    OPTIONAL_TERMS,
    PRODUCT_TERMS,
    PRODUCTS,
    Work,
)

PRIOR, PRIOR_WHOLE = 0.4, 0.1
"""An error of so much of one time, of a step or a network, weighs as much as one term so far off; both as
logarithms."""
OUTLIER = 0.1  # errors beyond it count less
MOST_OPERATIONS = 1000  # operations of a class: more only take longer
LEAST_STEPS = 5
SMALL_TILE = 16.0  # of a CPU, whose vectors are shorter than a GPU has threads
NETWORKS_WEIGHT = 0.25
"""Of the weight of all operations, that networks beside them have together at least."""
MOST_STEPS, FEW_STEPS = 40, 10  # of the search, from nothing and from a formula near by
GRADIENT = 0.01  # of the loss, at which it ends
USUAL = {
    "small": (TILED["small"], 1.0), "tiny": (TILED["tiny"], 1.0), "fill": (TILED["fill"], 1.0),
    "unaligned": (TILED["unaligned"], 2.0), "spread": (TILED["spread"], 2.0),
    "direct": (TILED["direct"], 1.0), "launch": (1.0, 1.0), "corner": (2.0, 0.7),
    "step": (0.003, 1.0), "heavy": (1.0, 1.0), "overlap": (4.0, 0.7),
    "rate": (1.0, 0.2), "bandwidth": (1.0, 0.3),
}  # fmt: skip
"""What a term usually is, and how far from it, as a logarithm; of rate, bandwidth and launch relative to
the device's."""
OF_CLASS: dict[tuple[str, str], tuple[float, float]] = {
    (c.GROUPED, "rate"): (RATES[c.GROUPED], 0.7),
    (c.STEM, "rate"): (RATES[c.STEM], 0.7),
    (c.DEPTHWISE, "rate"): (RATES[c.DEPTHWISE], 1.0),
    (c.DEPTHWISE_LAST, "rate"): (RATES[c.DEPTHWISE_LAST], 1.0),
    (c.MASKED, "rate"): (RATES[c.MASKED], 0.7),
    (c.RECURRENT, "rate"): (RATES[c.RECURRENT], 1.0),
    (c.BATCH_NORM, "bandwidth"): (2.5, 0.7),
    (c.MOVES, "bandwidth"): (1.6, 0.5),
    (c.PARTS, "bandwidth"): (1.7, 0.7),
    (c.CASTS, "bandwidth"): (2.0, 0.7),
    (c.JOINED, "bandwidth"): (0.6, 0.5),
    (c.POOLS, "bandwidth"): (0.6, 0.5),
    (c.SUMS, "bandwidth"): (0.5, 0.5),
    (c.RESIZED, "bandwidth"): (0.1, 1.0),
}
"""The same of some terms of some classes, as RTX 3090 and 4090 have them (docs/results/gpus.md)."""
DEVICE = ("rate", "bandwidth", "launch")
OF_PEAK, OF_BANDWIDTH, LAUNCH = 0.85, (0.8, 0.3), (0.03, 1.0)
"""What large products reach of a data sheet's rate, other operations of its bandwidth; ms of a launch; how
far from it, as a logarithm."""
OFF_OF_SHEET, OFF_OF_FASTEST, OFF_OF_NOTHING = 0.1, 0.5, 3.0
"""How far off a device's rate is, as a logarithm: of a data sheet, a table's fastest, of nothing."""


@dataclass(frozen=True)
class Facts:
    """Of a device: multiprocessors, macs per ms and bytes per ms; `width`: how far off the rate may be,
    as a logarithm; `bound`: by its power, which keeps down what runs for long; `tf32`: how many times
    the rate convolutions are computed at in TF32, 1 of a device without.
    """

    multiprocessors: float
    rate: float
    bandwidth: float
    width: float = OFF_OF_SHEET
    bound: bool = False
    tf32: float = 1.0


@dataclass(frozen=True)
class Times:
    """What was timed: `work`, steps; `owner`, (steps,) the number of the time that each is part of, and
    `often` how many times; `latency_ms`, (times,); `whole`, (times,): of a network, not of a step alone.
    """

    work: Work
    owner: np.ndarray
    often: np.ndarray
    latency_ms: np.ndarray
    whole: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[Work], latency_ms: np.ndarray, whole: np.ndarray) -> Times:
        """`parts`: the work of each time. Steps of a network that are equal are taken together."""
        distinct, owners, often = [], [], []
        for i, part in enumerate(parts):
            first, count = np.zeros(1, int), np.ones(1, int)
            if len(part.kind) > 1:
                table = np.column_stack([getattr(part, name) for name in _SAME]).astype(float)
                _, first, count = np.unique(table, axis=0, return_index=True, return_counts=True)
            distinct.append(part.take(first))
            owners.append(np.full(len(first), i))
            often.append(count)
        return cls(
            Work.joined(distinct) if distinct else Work.none(),
            np.concatenate([np.zeros(0, int), *owners]),
            np.concatenate([np.zeros(0), *often]),
            np.asarray(latency_ms, float),
            np.asarray(whole, bool),
        )

    def take(self, which: np.ndarray) -> Times:
        """Some of the times, (times,) true or false."""
        steps = which[self.owner]
        number = np.cumsum(which) - 1
        return Times(
            self.work.take(steps), number[self.owner[steps]], self.often[steps],
            self.latency_ms[which], self.whole[which],
        )  # fmt: skip

    def total(self, steps_ms: np.ndarray) -> np.ndarray:
        """(times,) the sums of (steps,)."""
        return np.bincount(self.owner, steps_ms * self.often, len(self.latency_ms))


_SAME = ("kind", "number", "rows", "columns", "depth", "bytes", "squares", "narrow", "weights")


def fit_kernels(
    times: Times,
    facts: Facts,
    mode: Mode | None = None,
    near: Kernels | None = None,
    tile: float = 1.0,
) -> Kernels:
    """The formula of a device. Classes with fewer than LEAST_STEPS steps have no terms of their own, but
    for NEEDED ones, which then are what is usual. `near`: a formula to begin at, that of nearly the same
    times; `tile`: of the formula.
    """
    from scipy.optimize import minimize

    tile = tile if near is None else near.tile
    problem = _Problem(times, facts, tile)
    optimum = minimize(
        problem.loss, problem.start(near), jac=lambda unknowns: problem.slopes(unknowns)[0],
        hess=lambda unknowns: problem.slopes(unknowns)[1], method="trust-exact",
        options={"maxiter": MOST_STEPS if near is None else FEW_STEPS, "gtol": GRADIENT},
    )  # fmt: skip
    names = [part.name for part in problem.parts]
    classes = dict(zip(names, problem.terms(optimum.x), strict=True))  # as a model file has them
    formula = Kernels.of(facts.multiprocessors, classes, mode, tile)
    formula = replace(formula, nearby=_nearby(formula, times))
    if facts.bound and not times.whole.any():
        # An operation alone is over before the power is missed.
        formula = replace(formula, sustained=OF_PEAK * facts.rate)
    return formula


def _nearby(formula: Kernels, times: Times) -> dict[str, Nearby]:
    """What operations of each class of products, timed alone, say beyond its terms."""
    single = ~times.whole[times.owner]
    residuals = np.log(times.latency_ms / predicted(formula, times))
    corrections = {}
    for number, name in enumerate(CLASSES):
        which = single & (times.work.kind == number)
        if name in PRODUCTS and which.sum() >= LEAST_OPERATIONS:
            corrections[name] = Nearby.of(times.work.take(which), residuals[times.owner[which]])
    return corrections


class _Problem:
    """The unknowns: logarithms of the device's DEVICE terms, then of each class's, relative to those."""

    def __init__(self, times: Times, facts: Facts, tile: float) -> None:
        self.times, self.log_ms = times, np.log(times.latency_ms)
        self.parts: list[_Class] = []
        self.prior = PRIOR_WHOLE if times.whole.any() else PRIOR
        self._at: np.ndarray | None = None
        self._found = (np.zeros(0), np.zeros((0, 0)))
        by_itself = ~times.whole[times.owner]
        draw = np.random.default_rng(0)
        skipped = np.zeros(len(times.latency_ms), bool)
        for number, name in enumerate(CLASSES):
            which = np.flatnonzero((times.work.kind == number) & (times.work.bytes > 0))
            single = which[by_itself[which]]
            if len(single) > MOST_OPERATIONS:
                single = draw.permutation(single)
                skipped[times.owner[single[MOST_OPERATIONS:]]] = True
                which = np.union1d(which[~by_itself[which]], single[:MOST_OPERATIONS])
            if len(which) >= LEAST_STEPS or name in NEEDED:
                self.parts.append(_Class(name, times, which, (facts.multiprocessors, tile)))
        # A few networks beside thousands of operations would not be heard, and are what is asked about.
        alike = max(
            1.0, NETWORKS_WEIGHT * float((~times.whole).sum()) / max(int(times.whole.sum()), 1)
        )
        self.centers, self.widths = self._drawn_to(facts)
        self.used = np.flatnonzero(~skipped & (self.total(self.centers) > 0.0))
        own = np.where(times.whole, alike, 1.0)[self.used]
        self.weights = np.concatenate([own, np.ones(len(self.centers))])

    def start(self, near: Kernels | None) -> np.ndarray:
        """(unknowns,) of a formula, or what they are drawn to."""
        if near is None:
            return self.centers
        unknowns, at = self.centers.copy(), len(DEVICE)
        for i, term in enumerate(DEVICE):
            known = [t[term] for t in near.classes.values() if term in t]
            unknowns[i] = np.median(np.log(known))
        for part in self.parts:
            own = near.classes.get(part.name, {})
            for term in part.terms:
                if term in own:
                    unknowns[at] = np.log(own[term])
                    if term in DEVICE:
                        unknowns[at] -= unknowns[DEVICE.index(term)]
                at += 1
        return unknowns

    def _drawn_to(self, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
        """(unknowns,) what each is drawn to, and how softly."""
        wide = OFF_OF_NOTHING if facts.width >= OFF_OF_NOTHING else 0.0
        centers = [OF_PEAK * facts.rate, OF_BANDWIDTH[0] * facts.bandwidth, LAUNCH[0]]
        widths = [facts.width, max(OF_BANDWIDTH[1], wide), LAUNCH[1]]
        for name, term in ((part.name, term) for part in self.parts for term in part.terms):
            center, width = OF_CLASS.get((name, term), USUAL[term])
            centers.append(center)
            widths.append(width)
        return np.log(centers), np.array(widths)

    def terms(self, unknowns: np.ndarray) -> list[dict[str, float]]:
        """The terms of each of `parts`."""
        of_parts, at = [], len(DEVICE)
        for part in self.parts:
            own = dict(zip(part.terms, unknowns[at : at + len(part.terms)], strict=True))
            at += len(part.terms)
            for i, term in enumerate(DEVICE):
                if term in own:
                    own[term] += unknowns[i]
            of_parts.append({term: float(np.exp(np.clip(v, -60, 60))) for term, v in own.items()})
        return of_parts

    def total(self, unknowns: np.ndarray) -> np.ndarray:
        """(times,) ms."""
        ms = np.zeros(len(self.log_ms))
        for part, terms in zip(self.parts, self.terms(unknowns), strict=True):
            ms += part.total(part.ms(terms))
        return ms

    def errors(self, unknowns: np.ndarray, total: np.ndarray) -> np.ndarray:
        """Logarithms of predicted / measured, and how far the unknowns are from what they are drawn to;
        `total`: the method's, of the same unknowns.
        """
        logs = np.log(np.maximum(total[self.used], 1e-12)) - self.log_ms[self.used]
        return np.concatenate([logs, self.prior * (unknowns - self.centers) / self.widths])

    def loss(self, unknowns: np.ndarray) -> float:
        """Half the squares of small errors, OUTLIER times large ones."""
        errors = self.errors(unknowns, self.total(unknowns))
        losses = OUTLIER**2 * (np.sqrt(1.0 + (errors / OUTLIER) ** 2) - 1.0)
        return float(self.weights @ losses)

    def slopes(self, unknowns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of `loss` its gradient, (unknowns,), and its curvature, (unknowns, unknowns), as Gauss and Newton
        have it: each error with the weight that it has. Both are asked for, one after the other.
        """
        if self._at is None or not np.array_equal(self._at, unknowns):
            total, slopes = self.derivatives(unknowns)
            errors = self.errors(unknowns, total)
            weights = self.weights / np.sqrt(1.0 + (errors / OUTLIER) ** 2)
            self._found = slopes.T @ (weights * errors), (slopes.T * weights) @ slopes
            self._at = unknowns.copy()
        return self._found

    def derivatives(self, unknowns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The `total`, and the derivatives of `errors`, (errors, unknowns)."""
        total = np.zeros(len(self.log_ms))
        slopes = np.zeros((len(unknowns), len(self.log_ms)))
        at = len(DEVICE)
        for part, terms in zip(self.parts, self.terms(unknowns), strict=True):
            total += part.total(part.ms(terms))
            of_terms = part.slopes(terms)
            for term in part.terms:
                slopes[at] = part.total(of_terms[term])
                if term in DEVICE:
                    slopes[DEVICE.index(term)] += slopes[at]
                at += 1
        relative = (slopes / np.maximum(total, 1e-12)).T[self.used]
        return total, np.concatenate([relative, np.diag(self.prior / self.widths)])


class _Class:
    """The steps of one class of operations, equal ones once."""

    def __init__(
        self, name: str, times: Times, which: np.ndarray, tiles: tuple[float, float]
    ) -> None:
        self.name = name
        self.is_product = name in PRODUCTS
        part = times.work.take(which)
        by_itself = ~times.whole[times.owner[which]]
        table = np.column_stack([by_itself, *(getattr(part, n) for n in _SAME)]).astype(float)
        _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
        self.work, self.alone = part.take(first), by_itself[first]
        self.back = back.reshape(-1)
        self.owner, self.often = times.owner[which], times.often[which]
        self.number = len(times.latency_ms)
        self.ways = Ways.of(self.work, *tiles) if self.is_product else None
        self.terms: tuple[str, ...] = PRODUCT_TERMS if self.is_product else MOVING_TERMS
        if self.is_product and not self.alone.all():
            self.terms += tuple(OPTIONAL_TERMS)

    def ms(self, terms: Mapping[str, float]) -> np.ndarray:
        """(steps,) of each, alone where it was timed alone."""
        if self.ways is None:
            return moving_time(terms, self.work.bytes)
        parts = self.ways.parts(terms)
        if not self.alone.any():
            return inside(terms, *parts)
        return np.where(self.alone, alone(terms, *parts), inside(terms, *parts))

    def slopes(self, terms: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Term -> (steps,) derivative of `ms` by its logarithm."""
        if self.ways is None:
            return moving_slopes(terms, self.work.bytes)
        return self.ways.slopes(terms, self.alone)

    def total(self, steps_ms: np.ndarray) -> np.ndarray:
        """(times,) sums."""
        return np.bincount(self.owner, steps_ms[self.back] * self.often, self.number)


def predicted(formula: Kernels, times: Times) -> np.ndarray:
    """(times,) ms as the formula says; of a step alone, with what starting it costs."""
    single = ~times.whole[times.owner]
    ms = np.empty(len(single))
    waiting = {
        n: {t: v for t, v in terms.items() if t != "step"} for n, terms in formula.classes.items()
    }
    by_itself = replace(formula, sustained=np.inf, tf32=1.0, classes=waiting)
    for which, own in ((single, by_itself), (~single, formula)):
        ms[which], _ = own.times(times.work.take(which))
    for number, name in enumerate(CLASSES):
        if name in formula.classes and name in PRODUCTS:
            which = single & (times.work.kind == number)
            terms = formula.classes[name]
            ms[which] += terms["launch"] * formula.factors(name, times.work.take(which))
    return times.total(ms)
