"""Fits the terms of `lolat.predictors.kernels` to operations that were timed alone, class by class.

Few operations tell nine terms apart only together with what is known of every GPU: the logarithm of each
term is drawn to what the data sheet says, or to a usual value. SciPy's robust least squares on the
logarithms of the times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from lolat.kernel_terms import CLASSES, MOVING_TERMS, NEEDED, PRODUCT_TERMS, PRODUCTS
from lolat.predictors.kernels import Kernels, moving_time, product_time
from lolat.work import Work

PRIOR = 0.4  # an error of so much, as a logarithm, of one operation weighs as much as one term so far off
FAR = 0.1  # errors beyond it count less
MOST = 1000  # operations of a class: more only take longer
LEAST = 5
USUAL = {
    "small": (0.2, 1.0), "tiny": (0.3, 1.0), "fill": (16.0, 1.0), "launch": (0.03, 1.0),
    "unaligned": (0.2, 2.0), "spread": (3.0, 2.0), "direct": (0.3, 1.0), "corner": (2.0, 0.7),
}  # fmt: skip
"""What a term usually is, and how far from it, as a logarithm."""
OF_PEAK, OF_BANDWIDTH = (0.85, 0.5), (0.8, 0.3)
"""The same of the data sheet's rate of multiply-accumulates and bandwidth."""


def fit_kernels(
    work: Work, times: np.ndarray, multiprocessors: float, rate: float, bandwidth: float
) -> Kernels:
    """The formula of a device. `times`: (operations,), ms; `rate`: the highest, macs per ms, `bandwidth`:
    bytes per ms, both of the data sheet. Classes with fewer than LEAST operations have no terms of their
    own, but for NEEDED ones, which then are what the data sheet says.
    """
    classes = {}
    known = {
        "rate": (OF_PEAK[0] * rate, OF_PEAK[1]),
        "bandwidth": (OF_BANDWIDTH[0] * bandwidth, OF_BANDWIDTH[1]),
    }
    draw = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        which = np.flatnonzero((work.kind == number) & (work.bytes > 0))
        if len(which) < LEAST and name not in NEEDED:
            continue
        if len(which) > MOST:
            which = np.sort(draw.choice(which, MOST, replace=False))
        part, measured = work.take(which), times[which]
        if name in PRODUCTS:
            predict = partial(product_time, work=part, multiprocessors=multiprocessors)
            classes[name] = _fitted(PRODUCT_TERMS, known, predict, measured)
        else:
            classes[name] = _fitted(
                MOVING_TERMS, known, partial(moving_time, moved=part.bytes), measured
            )
    return Kernels.of(multiprocessors, classes)


def _fitted(
    names: Sequence[str],
    known: dict[str, tuple[float, float]],
    predict: Callable[[Mapping[str, float]], np.ndarray],
    times: np.ndarray,
) -> dict[str, float]:
    from scipy.optimize import least_squares

    centers, widths = np.array([(known | USUAL)[n] for n in names]).T
    start, wanted = np.log(centers), np.log(times)

    def errors(logarithms: np.ndarray) -> np.ndarray:
        terms = dict(zip(names, np.exp(logarithms), strict=True))
        apart = np.log(np.maximum(predict(terms), 1e-12)) - wanted
        return np.concatenate([apart, PRIOR * (logarithms - start) / widths])

    found = least_squares(errors, start, loss="soft_l1", f_scale=FAR, max_nfev=200)
    return dict(zip(names, map(float, np.exp(found.x)), strict=True))


def alone(formula: Kernels, work: Work) -> np.ndarray:
    """(operations,) ms of operations that are timed alone, as the formula says."""
    found, _ = formula.times(work)
    for number, name in enumerate(CLASSES):
        if name in formula.classes and name in PRODUCTS:
            found[work.kind == number] += formula.classes[name]["launch"]
    return found
