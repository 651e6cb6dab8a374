"""Fits the terms of `predictors.kernels` to a device's times: operations, whole networks, or both.

Few times tell the terms of a class of operations apart only together with what is known of every device:
the logarithm of each term is drawn to that of the device itself (its rate, its bandwidth, which are fitted
too) times what the class usually has of it. Robust least squares on the logarithms of the times; a
network's is that of the sum of its steps.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from lolat.devices.sheets import OF_PEAK, OFF_OF_NOTHING, Facts
from lolat.devices.times import SAME, Times
from lolat.fitting.predictors.kernels import Kernels, longest, volumes
from lolat.fitting.predictors.nearby import LEAST_OPERATIONS, Row, near_rows
from lolat.graph import work as c
from lolat.graph.modes import FLOAT32, Mode
from lolat.graph.work import CLASSES, PRODUCTS

PRIOR, PRIOR_WHOLE = 0.4, 0.1
"""An error of so much of one time, of a step or a network, weighs as much as one term so far off; both as
logarithms."""
OUTLIER = 0.1  # errors beyond it count less
LEAST_STEPS = 5  # of a class that is measured
NETWORKS_WEIGHT = 0.25
"""Of the weight of all operations, that networks beside them have together at least."""
MOST_TRIALS = 60  # of the search
PRECISION = 1e-5  # of the terms, and of the loss, at which it ends
RATE, BANDWIDTH, LAUNCH = range(3)
"""Of the device, the first unknowns."""
OF_BANDWIDTH = (0.8, 0.3)
"""What operations reach of a data sheet's bandwidth, and how far from it, as a logarithm."""
LAUNCH_MS, STEP_MS = 0.03, 0.004
"""What starting an operation costs that is timed alone, known to a factor of e: the host's time and the
device's, one after the other; and one in a network, where the host is ahead. Networks on RTX 4090 tell
0.002 to 0.006 ms of those; where they are few or large, they cannot."""
DEPTHWISE_RATE, WITHOUT_UNITS = 0.1, 2.0
"""Of depthwise convolutions, relative to the device's; and times as much in float32: they compute without
units for matrices, which in half precision are twice as fast as all else in float32 on RTX 3090 and 4090
(data sheets, sums in float32)."""
USUAL = {
    (c.GROUPED, "rate"): (0.75, 0.7),
    (c.DEPTHWISE, "rate"): (DEPTHWISE_RATE, 1.0),
    (c.BATCH_NORM, "bandwidth"): (2.5, 0.7),
    (c.MOVES, "bandwidth"): (1.6, 0.5),
    (c.PARTS, "bandwidth"): (1.7, 0.7),
    (c.JOINED, "bandwidth"): (0.6, 0.5),
    (c.POOLS, "bandwidth"): (0.6, 0.5),
    (c.SUMS, "bandwidth"): (0.5, 0.5),
    (c.RESIZED, "bandwidth"): (0.1, 1.0),
}
"""What a class has of the device's rate and bandwidth, and how far from it, as a logarithm, as RTX 3090 and
4090 have them (docs/results/index.md); others as in OTHERS."""
OTHERS = {"rate": (1.0, 0.2), "bandwidth": (1.0, 0.3)}


def fit_kernels(
    times: Times, facts: Facts, mode: Mode | None = None, near: Kernels | None = None
) -> Kernels:
    """The formula of a device. `near`: a formula to begin at, that of nearly the same times. Classes of
    which there are no times are what is usual on such a device.
    """
    from scipy.optimize import least_squares

    problem = _Problem(times, facts, mode or Mode())
    optimum = least_squares(
        problem.errors, problem.start(near), problem.slopes, loss=problem.loss, f_scale=OUTLIER,
        max_nfev=MOST_TRIALS, ftol=PRECISION, xtol=PRECISION, gtol=PRECISION,
    )  # fmt: skip
    launch_ms = float(np.exp(optimum.x[LAUNCH]))
    steps = np.bincount(times.work.kind[times.work.bytes > 0], minlength=len(CLASSES))
    measured = [name for name, n in zip(CLASSES, steps, strict=True) if n >= LEAST_STEPS]
    formula = Kernels.of(
        facts.multiprocessors, problem.terms(optimum.x), launch_ms, STEP_MS, measured, mode
    )
    formula = replace(formula, nearby=_nearby(formula, times))
    if facts.bound and not times.whole.any():
        # An operation alone is over before the power is missed.
        formula = replace(formula, sustained=OF_PEAK * facts.rate)
    return formula


def _nearby(formula: Kernels, times: Times) -> dict[str, tuple[Row, ...]]:
    """What operations of each class of products, timed alone, say beyond its terms."""
    single = times.alone
    residuals = np.log(times.latency_ms / predicted(formula, times))
    corrections = {}
    for number, name in enumerate(CLASSES):
        which = single & (times.work.kind == number)
        if name in PRODUCTS and which.sum() >= LEAST_OPERATIONS:
            corrections[name] = near_rows(times.work.take(which), residuals[times.owner[which]])
    return corrections


class _Problem:
    """The unknowns: logarithms of the device's RATE, BANDWIDTH and LAUNCH; then of each class's terms,
    relative to those.
    """

    def __init__(self, times: Times, facts: Facts, mode: Mode) -> None:
        self.log_ms = np.log(times.latency_ms)
        self.parts = [_Class(name, times, facts.multiprocessors, mode) for name in CLASSES]
        # Products timed alone have their launch on top; others start while they move.
        wide = OFF_OF_NOTHING if facts.width >= OFF_OF_NOTHING else 0.0
        usual = [
            (OF_PEAK * facts.rate, facts.width),
            (OF_BANDWIDTH[0] * facts.bandwidth, max(OF_BANDWIDTH[1], wide)),
            (LAUNCH_MS, 1.0),
        ]
        self.own: list[tuple[_Class, str, int]] = []  # each term of a class, and of the device
        for part in self.parts:
            for term, of_device in part.terms:
                center, width = USUAL.get((part.name, term), OTHERS[term])
                if part.name == c.DEPTHWISE and term == "rate" and mode.dtype == FLOAT32:
                    center *= WITHOUT_UNITS
                usual.append((center, width))
                self.own.append((part, term, of_device))
        centers, self.widths = np.array(usual).T
        self.centers = np.log(centers)
        self.prior = PRIOR_WHOLE if times.whole.any() else PRIOR
        # A few networks weigh nothing beside thousands of operations, and users ask about networks.
        of_network = max(
            1.0, NETWORKS_WEIGHT * float((~times.whole).sum()) / max(int(times.whole.sum()), 1)
        )
        self.used = np.flatnonzero(self._totals(self.centers)[0] > 0.0)
        self.weights = np.concatenate(
            [np.where(times.whole, of_network, 1.0)[self.used], np.ones(len(self.centers))]
        )

    def start(self, near: Kernels | None) -> np.ndarray:
        """(unknowns,) of a formula, or what they are drawn to."""
        if near is None:
            return self.centers
        unknowns = self.centers.copy()
        unknowns[LAUNCH] = np.log(near.launch_ms)
        known = np.log([near.classes[part.name][term] for part, term, _ in self.own])
        of_device = np.array([device for _, _, device in self.own])
        relative = known - unknowns[LAUNCH + 1 :]
        for term in (RATE, BANDWIDTH):
            unknowns[term] = np.median(relative[of_device == term])
        unknowns[LAUNCH + 1 :] = known - unknowns[of_device]
        return unknowns

    def terms(self, unknowns: np.ndarray) -> dict[str, dict[str, float]]:
        """The terms of each class."""
        terms: dict[str, dict[str, float]] = {}
        for (part, term, of_device), own in zip(self.own, unknowns[LAUNCH + 1 :], strict=True):
            value = np.exp(np.clip(own + unknowns[of_device], -60, 60))
            terms.setdefault(part.name, {})[term] = float(value)
        return terms

    def errors(self, unknowns: np.ndarray) -> np.ndarray:
        """Logarithms of predicted / measured, and how far the unknowns are from what they are drawn to."""
        total, _ = self._totals(unknowns)
        logs = np.log(np.maximum(total[self.used], 1e-12)) - self.log_ms[self.used]
        return np.concatenate([logs, self.prior * (unknowns - self.centers) / self.widths])

    def slopes(self, unknowns: np.ndarray) -> np.ndarray:
        """(errors, unknowns) derivatives of `errors`."""
        total, slopes = self._totals(unknowns)
        relative = (slopes / np.maximum(total, 1e-12)).T[self.used]
        return np.concatenate([relative, np.diag(self.prior / self.widths)])

    def loss(self, squares: np.ndarray) -> np.ndarray:
        """Soft L1 as scipy's, with weights: the loss and its two derivatives by `squares`."""
        more = 1.0 + squares
        return self.weights * np.array([2.0 * (more**0.5 - 1.0), more**-0.5, -0.5 * more**-1.5])

    def _totals(self, unknowns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(times,) ms; (unknowns, times) their derivatives."""
        total = np.zeros(len(self.log_ms))
        slopes = np.zeros((len(unknowns), len(self.log_ms)))
        launch_ms = float(np.exp(np.clip(unknowns[LAUNCH], -60, 60)))
        terms, at = self.terms(unknowns), LAUNCH + 1
        for part in self.parts:
            ms, by_term, by_start = part.times(terms[part.name], launch_ms)
            total += part.total(ms)
            for (_, of_device), by in zip(part.terms, by_term, strict=True):
                slopes[at] = part.total(by)
                slopes[of_device] += slopes[at]
                at += 1
            slopes[LAUNCH] += part.total(by_start * part.alone)
        return total, slopes


class _Class:
    """The steps of one class of operations, equal ones once. `terms`: (name, the device's) of each."""

    def __init__(self, name: str, times: Times, multiprocessors: float, mode: Mode) -> None:
        self.name, self.is_product = name, name in PRODUCTS
        self.terms = [("rate", RATE)] * self.is_product + [("bandwidth", BANDWIDTH)]
        which = (times.work.kind == CLASSES.index(name)) & (times.work.bytes > 0)
        steps, by_itself = times.work.take(which), ~times.whole[times.owner[which]]
        table = np.column_stack([by_itself, *(getattr(steps, n) for n in SAME)]).astype(float)
        _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
        self.alone, self.back = by_itself[first], back.reshape(-1)
        self.owner, self.often = times.owner[which], times.often[which]
        self.number = len(times.latency_ms)
        self.volume = volumes(name, steps.take(first), multiprocessors, mode)
        self.bytes = steps.bytes[first]

    def times(
        self, terms: dict[str, float], launch_ms: float
    ) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """(steps,) ms; their derivatives by the logarithm of each of `terms`, and of what starts them."""
        start = np.where(self.alone, launch_ms, STEP_MS)
        later = np.where(self.alone & self.is_product, start, 0.0)  # of products, then alone
        sizes = {"rate": self.volume, "bandwidth": self.bytes}
        parts = [sizes[term] / terms[term] for term, _ in self.terms]
        ms, shares = longest(*parts, start - later)
        return ms + later, [-ms * share for share in shares[:-1]], ms * shares[-1] + later

    def total(self, steps_ms: np.ndarray) -> np.ndarray:
        """(times,) sums."""
        return np.bincount(self.owner, steps_ms[self.back] * self.often, self.number)


def predicted(formula: Kernels, times: Times) -> np.ndarray:
    """(times,) ms as the formula says; of a step alone, as it is timed alone."""
    single = times.alone
    ms = np.empty(len(single))
    ms[single] = formula.times_alone(times.work.take(single))
    ms[~single], _ = formula.times(times.work.take(~single))
    return times.total(ms)
