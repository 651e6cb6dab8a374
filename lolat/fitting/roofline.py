"""Fitting the terms of a `Roofline` to a device's times: operations, whole networks, or both.

The fit is robust least squares on logarithms of times with a hierarchical prior, because few times cannot
tell all classes of operations apart. A class's term shrinks toward the device's rate or bandwidth times the
share that the class usually reaches. The device's terms are fitted too, and shrink toward the data sheet.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec.structs import replace

from lolat.device.predictors.host import launches_alone
from lolat.device.predictors.operation_classes import OPERATION_CLASSES
from lolat.device.predictors.roofline import (
    CLASS_TERMS,
    LAYOUT_FACTORS,
    TERM_NAMES,
    TILE,
    WINOGRAD,
    Roofline,
    has_winograd,
    longest,
    volumes,
)
from lolat.device.predictors.shape_residuals import LEAST_OPERATIONS, Row, fit_shape_residuals
from lolat.fitting.least_squares import soft_loss
from lolat.fitting.times import SAME, Times
from lolat.graph import work as c
from lolat.graph.modes import DEFAULT_MODE, Mode
from lolat.graph.work import CLASSES, PRODUCTS
from lolat.hardware.gpus import OF_PEAK
from lolat.hardware.specs import LOG_ERROR_OF_UNKNOWN, Specs

PRIOR, PRIOR_WHOLE = 0.4, 0.1
"""Prior weight: a time with this log error costs the fit as much as a term that is one standard deviation
from its center. PRIOR_WHOLE is for MANY_NETWORKS and more; fewer networks cannot tell all terms apart (four
gave an H100 ten times its bandwidth)."""
MANY_NETWORKS = 30
OUTLYING_TIME = 0.1  # log error beyond which a time counts less
LEAST_OF_CLASS = 5  # steps from which a class counts as measured
NETWORKS_WEIGHT = 0.25  # least ratio of the weight of all networks to the weight of all operations
ONE_HOST = 1.0
"""Weight of the prior of `common_ratio`: the ratio 1 counts as this many measured times. Times vary between
hosts and versions (`lolat.fitting.from_tables.OTHER_HOST_SPREAD`) about as much as between a formula and
single networks."""
MOST_TRIALS = 60  # evaluations of the search
SEARCH_TOLERANCE = 1e-5  # relative changes of the terms and of the loss at which the search ends
ROOM = 0.05  # least log distance between the start of the search and the data sheet
LAUNCH, SHARP = 2, 3
"""Positions in the unknowns, whose first four are the device's rate, bandwidth, launch and sharpness."""
USUAL_SHARPNESS = (2.0, 0.4)
"""(the usual sharpness, standard deviation of its log)."""
MOST_SHARPNESS, BLUNT = 8.0, 1.2  # the largest sharpness, the one of a second start of the search
OF_BANDWIDTH = (0.8, 0.3)
"""(share of a data sheet's bandwidth that operations reach, standard deviation of its log)."""
LAUNCH_MS, STEP_MS = 0.03, 0.004
"""Usual launch overhead of an operation in ms. LAUNCH_MS: timed alone, on host and device together, right
within a factor of e. STEP_MS: in a network, where the host runs ahead of the device; it is not fitted,
because few networks, or large ones alone, do not determine it (0.002 to 0.006 ms on an RTX 4090)."""


def fit_roofline(
    times: Times, specs: Specs, mode: Mode = DEFAULT_MODE, of: type[Roofline] = Roofline
) -> Roofline:
    """Fit the roofline of a device; classes without times get usual terms.

    `of`: the class of the formula. A Roofline gets one factor for all training steps; a TrainingSteps,
    which is fitted to training steps alone, has no such factor.
    """
    from scipy.optimize import least_squares

    problem = _Problem(times, specs, mode, of)
    search = partial(
        least_squares, problem.residuals, jac=problem.jacobian, bounds=(problem.lower, problem.upper),
        loss=soft_loss(problem.weights), f_scale=OUTLYING_TIME, max_nfev=MOST_TRIALS,
        ftol=SEARCH_TOLERANCE, xtol=SEARCH_TOLERANCE, gtol=SEARCH_TOLERANCE,
    )  # fmt: skip
    optimum = search(x0=problem.start)
    # The loss has several minima along the sharpness.
    blunt = np.where(np.arange(len(optimum.x)) == SHARP, np.log(BLUNT), optimum.x)
    optimum = min(optimum, search(x0=blunt), key=lambda found: found.cost)
    launch_ms, table = problem.terms(optimum.x)
    terms = {
        name: {term: float(table[TERM_NAMES.index(term), kind]) for term in CLASS_TERMS[name]}
        for kind, name in enumerate(CLASSES)
    }
    steps = np.bincount(times.work.kind[times.work.bytes > 0], minlength=len(CLASSES))
    measured = [name for name, n in zip(CLASSES, steps, strict=True) if n >= LEAST_OF_CLASS]
    formula = of.of(
        specs.multiprocessors, terms, launch_ms, STEP_MS, measured, mode, specs.tile or TILE
    )
    most = specs.most(mode.dtype)
    formula = replace(
        formula,
        tf32=specs.tf32,
        sheet_peak=most if np.isfinite(most).all() else None,
        channels_last_terms=mode.half and mode.runs_channels_last,
        layout_factor=LAYOUT_FACTORS[specs.gpu is not None and specs.gpu.channels_last],
        sharpness=float(np.exp(optimum.x[SHARP])),
    )
    formula = replace(formula, shape_residuals=_shape_residuals(formula, times))
    if specs.power_bound and not times.whole.any():
        # An operation timed alone ends before the power limit slows it down.
        formula = replace(formula, sustained=OF_PEAK * specs.rate)
    if of is Roofline and (trained := times.trained).any():
        off = np.log(times.latency_ms / predicted(formula, times))
        formula = replace(formula, training=common_ratio(off[trained]))
    return formula


def common_ratio(residuals: np.ndarray) -> float:
    """The ratio of measured to predicted time that all times share; with few times it shrinks toward 1.

    `residuals`: (times,) log(measured / predicted).
    """
    number = len(residuals)
    return float(np.exp(np.median(residuals) * number / (number + ONE_HOST)) if number else 1.0)


def _shape_residuals(formula: Roofline, times: Times) -> dict[str, tuple[Row, ...]]:
    """The shape residuals of each class of products, fitted to operations timed alone."""
    residuals = np.log(times.latency_ms / predicted(formula, times))
    corrections = {}
    for name in PRODUCTS:
        which = times.alone & times.work.is_of(name)
        if which.sum() >= LEAST_OPERATIONS:
            corrections[name] = fit_shape_residuals(
                times.work.take(which), residuals[times.owner[which]]
            )
    return corrections


class _Problem:
    """The least-squares problem of a roofline.

    The unknowns are logarithms of the device's four terms, then of each class's terms. `upper`: bounds of
    the unknowns from the data sheet. Without them a fit to whole networks could give a convolution the time
    of the operations after it. Equal steps are computed once.
    """

    def __init__(self, times: Times, specs: Specs, mode: Mode, of: type[Roofline]) -> None:
        self.log_ms = np.log(times.latency_ms)
        moving = times.work.bytes > 0
        self.owner, self.multiplicity = times.owner[moving], times.multiplicity[moving]
        steps, alone = times.work.take(moving), times.alone[moving]
        table = np.column_stack([alone, *(getattr(steps, n) for n in SAME)]).astype(float)
        _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
        steps, self.alone, self.back = steps.take(first), alone[first], back.reshape(-1)
        self.kind, self.bytes = steps.kind, steps.bytes
        self.volume = volumes(steps, specs.multiprocessors, mode, specs.tile or TILE)
        self.volume = self.volume / of.faster(steps, mode.dtype, specs.tf32)
        self.slower, self.launches = of.slower(steps), launches_alone(steps)
        factor = LAYOUT_FACTORS[specs.gpu is not None and specs.gpu.channels_last]
        moved = of.layout_bytes(steps, mode, mode.runs_channels_last, factor)
        self.layout_ms = moved / specs.most(mode.dtype)[1]
        # A product timed alone waits for its launch; other operations launch while data moves.
        self.on_top = self.alone & steps.is_of(*PRODUCTS)
        wide = LOG_ERROR_OF_UNKNOWN if specs.width >= LOG_ERROR_OF_UNKNOWN else 0.0
        usual = [
            (OF_PEAK * specs.rate, specs.width),
            (OF_BANDWIDTH[0] * specs.bandwidth, max(OF_BANDWIDTH[1], wide)),
            (LAUNCH_MS, 1.0),
            USUAL_SHARPNESS,
        ]
        self.class_terms: list[tuple[int, int]] = []  # (class, RATE or BANDWIDTH)
        is_first = not (mode.half or mode.runs_channels_last)
        for kind, name in enumerate(CLASSES):
            of_class = OPERATION_CLASSES[name]
            priors = {"rate": of_class.rate, "bandwidth": of_class.bandwidth}
            if is_first and of_class.float32_bandwidth:
                priors["bandwidth"] = of_class.float32_bandwidth
            for term in CLASS_TERMS[name]:
                center, width = priors[term]
                if of_class.on_vectors and term == "rate":
                    center *= specs.vector_share(mode)
                usual.append((center, width))
                self.class_terms.append((kind, TERM_NAMES.index(term)))
        centers, self.prior_sds = np.array(usual).T
        self.centers = np.log(centers)
        of_device = [part for _, part in self.class_terms]
        self.upper = np.log([*specs.most(mode.dtype), np.inf, MOST_SHARPNESS])[
            [0, 1, 2, 3, *of_device]
        ]
        self.lower = np.full(len(centers), -np.inf)
        self.lower[SHARP] = 0.0  # sharpness 1: the parts of a step add up
        if has_winograd(mode.dtype, specs.tf32):
            of_convolutions = self.class_terms.index((CLASSES.index(c.CONVOLUTION), 0))
            self.upper[SHARP + 1 + of_convolutions] += np.log(WINOGRAD)
        # The center of a class's term is relative to the device's term.
        self.relative = np.eye(len(centers))
        self.relative[np.arange(SHARP + 1, len(centers)), of_device] = -1.0
        self.start = np.minimum(np.linalg.solve(self.relative, self.centers), self.upper - ROOM)
        self.prior = PRIOR_WHOLE if times.whole.sum() >= MANY_NETWORKS else PRIOR
        # Users ask about networks, so thousands of operations must not outweigh a few networks.
        networks = int(times.whole.sum())
        weight = max(1.0, NETWORKS_WEIGHT * (len(times.whole) - networks) / max(networks, 1))
        self.used = np.flatnonzero(self._totals(self.centers)[0] > 0.0)
        weights = np.where(times.whole, weight, 1.0)[self.used]
        self.weights = np.concatenate([weights, np.ones(len(self.centers))])

    def terms(self, unknowns: np.ndarray) -> tuple[float, np.ndarray]:
        """(ms of a launch, (TERM_NAMES, CLASSES) rates and bandwidths); missing terms are infinite."""
        table = np.full((len(TERM_NAMES), len(CLASSES)), np.inf)
        for (kind, part), own in zip(self.class_terms, unknowns[SHARP + 1 :], strict=True):
            table[part, kind] = np.exp(np.clip(own, -60, 60))
        return float(np.exp(np.clip(unknowns[LAUNCH], -60, 60))), table

    def residuals(self, unknowns: np.ndarray) -> np.ndarray:
        """log(predicted / measured) of the times, then scaled distances of unknowns from their centers."""
        total, _ = self._totals(unknowns)
        logs = np.log(np.maximum(total[self.used], 1e-12)) - self.log_ms[self.used]
        off = self.relative @ unknowns - self.centers
        return np.concatenate([logs, self.prior * off / self.prior_sds])

    def jacobian(self, unknowns: np.ndarray) -> np.ndarray:
        """(residuals, unknowns) derivatives of `residuals`."""
        total, slopes = self._totals(unknowns)
        relative = (slopes / np.maximum(total, 1e-12)).T[self.used]
        return np.concatenate([relative, self.prior / self.prior_sds[:, None] * self.relative])

    def _totals(self, unknowns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(predicted (times,) ms, their derivatives (unknowns, times))."""
        launch_ms, table = self.terms(unknowns)
        rate, bandwidth = table[:, self.kind]
        start = np.where(self.alone, launch_ms * self.launches, STEP_MS)
        later = np.where(self.on_top, start, 0.0)
        sharpness = float(np.exp(unknowns[SHARP]))
        parts = self.volume / rate, self.bytes / bandwidth, start - later
        ms, shares = longest(sharpness, *parts)
        # d log(t) / d log(s) of t = (sum of a ** s) ** (1 / s): the shares' mean of log(a / t)
        sharper = (shares * np.log(np.maximum(parts / ms, 1e-12))).sum(axis=0)
        ms = ms * self.slower
        slopes = np.zeros((len(unknowns), len(self.log_ms)))
        for at, (kind, part) in enumerate(self.class_terms, SHARP + 1):
            slopes[at] = self._sums(-ms * shares[part] * (self.kind == kind))
        slopes[LAUNCH] = self._sums((ms * shares[-1] + later) * self.alone)
        slopes[SHARP] = self._sums(ms * sharper)
        return self._sums(ms + later + self.layout_ms), slopes

    def _sums(self, steps_ms: np.ndarray) -> np.ndarray:
        """(times,) sums over each time's steps; `steps_ms`: (distinct steps,)."""
        return np.bincount(self.owner, steps_ms[self.back] * self.multiplicity, len(self.log_ms))


def predicted(formula: Roofline, times: Times) -> np.ndarray:
    """(times,) ms predicted by the formula, for networks and for operations timed alone."""
    alone, ms = times.alone, np.empty(len(times.owner))
    ms[alone] = formula.times_alone(times.work.take(alone))
    ms[~alone], _ = formula.times(times.work.take(~alone))
    return times.total(ms) * np.where(times.trained, formula.training, 1.0)
