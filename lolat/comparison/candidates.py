"""What is compared: one row per predictor; the formulas and learners that LoLat's own are compared with.

The formulas: FLOPs alone, a roofline as PALEO has it, two free lines. The learners are scikit-learn's, a
random forest and a Gaussian process on the same counts as the extended formula. Both see logarithms of
counts and of times: latencies span three decades, and a relative error is what is judged. They are meant
to be as good as somebody who knows scikit-learn would make them.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lolat.errors import InputError, MissingPackageError
from lolat.fitting.least_squares import fit_relative
from lolat.fitting.predictors.extended import Extended
from lolat.fitting.predictors.formula import CHUNK, Formula
from lolat.fitting.predictors.two_regime import FEATURES as THREE
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.graph.counts import FEATURES as SIX

# ---- Formulas

FLOPS_FEATURES = ("flops",)
MOVED = ("acts", "inp", "traffic", "weights")
"""Elements that are read or written."""
PALEO_FEATURES = ("flops", *MOVED)
ELEMENT_BYTES = 4  # float32
FEWEST_BELOW = 3  # points that the lower of two lines is fitted to, at least


@dataclass(frozen=True)
class FlopsOnly(Formula):
    """`t = c*FLOPs + d`, both >= 0: what a designer predicts who counts only multiply-accumulates.

    With the constant, for without it a small block would be off by the whole cost of a call, and the
    comparison would say nothing about FLOPs.
    """

    name: ClassVar[str] = "flops"

    @classmethod
    def fit(cls, features: np.ndarray, times: np.ndarray) -> FlopsOnly:
        """Fit on (points, 1) multiply-accumulates and (points,) times in ms; see `fit_relative`."""
        slope, constant = fit_relative(np.column_stack([features, np.ones(len(times))]), times)
        return cls(FLOPS_FEATURES, (float(slope),), float(constant))


@dataclass(frozen=True)
class Paleo(Formula):
    """`t = FLOPs / peak + bytes / bandwidth`; the rates are per millisecond.

    Qi, Sparks, Talwalkar: PALEO, a performance model for deep neural networks, ICLR 2017. A layer takes
    the time to read its inputs, to compute and to write its outputs, one after the other, and a network
    the sum of its layers. Sums of quotients by the same two rates are quotients of the sums, so that the
    totals of a network or block are enough. (The maximum of compute and memory, layer by layer, would
    need the layers.) PALEO takes the rates from data sheets, so it divides them by a platform's percent
    of peak. Here they are the highest that was seen on the device, which has that in it, and nothing else
    is fitted.
    """

    name: ClassVar[str] = "paleo"
    peak: float = 0.0
    bandwidth: float = 0.0

    @classmethod
    def fit(cls, features: np.ndarray, times: np.ndarray) -> Paleo:
        """Peaks of (points, 5) counts, in the order of PALEO_FEATURES, and (points,) times in ms.

        The highest multiply-accumulates and bytes per ms of any point. InputError where no point
        computes or none moves anything.
        """
        bytes_moved = ELEMENT_BYTES * features[:, 1:].sum(axis=1)
        peak = float((features[:, 0] / times).max())
        bandwidth = float((bytes_moved / times).max())
        if peak <= 0.0 or bandwidth <= 0.0:
            what = "multiply-accumulates" if peak <= 0.0 else "elements read or written"
            raise InputError(
                f"a roofline needs points that compute and move data; all have 0 {what}"
            )
        slopes = (1.0 / peak, *[ELEMENT_BYTES / bandwidth] * len(MOVED))
        return cls(PALEO_FEATURES, slopes, 0.0, peak, bandwidth)


@dataclass(frozen=True)
class FreeLines(Formula):
    """`t = a*ACTS + b*INP + c*FLOPs + d`, and `slope*t + offset` below a breakpoint (0: there is none).

    The published two-regime formula without what LoLat asks of it: its two lines need not meet. LoLat's
    own is continuous and increasing, so that a ranking cannot turn round. Without that a fit to the same
    points may be closer, so the comparison shows both.
    """

    name: ClassVar[str] = "two-regime-free"
    breakpoint: float = 0.0
    slope: float = 1.0
    offset: float = 0.0

    def bend(self, times: np.ndarray) -> np.ndarray:
        """Apply the lower line, in place."""
        below = times < self.breakpoint
        times[below] = self.slope * times[below] + self.offset
        return times

    def bend_one(self, time: float) -> float:
        """`bend` for one number."""
        return time if time >= self.breakpoint else self.slope * time + self.offset

    @classmethod
    def fit(cls, features: np.ndarray, times: np.ndarray) -> FreeLines:
        """Fit on (points, 3) counts and (points,) times in ms.

        The upper line (coefficients >= 0) on the points from a breakpoint on, the lower one on the
        others, least squares on the relative error. Of no breakpoint and the eleven times from the
        quantile 0.1 to 0.6 that one is taken whose capped relative errors have the smallest sum.
        """
        quantiles = np.quantile(times, np.linspace(0.1, 0.6, 11), method="nearest")
        fits = (cls._at(features, times, float(c)) for c in (0.0, *quantiles))
        # Of equals the first.
        return min(filter(None, fits), key=lambda f: round(f._loss(features, times), 9))

    @classmethod
    def _at(cls, features: np.ndarray, times: np.ndarray, breakpoint: float) -> FreeLines | None:
        """The fit with this breakpoint; None where too few points lie on either side of it."""
        above = times >= breakpoint
        design = np.column_stack([features, np.ones(len(times))])
        if breakpoint and (above.sum() < design.shape[1] + 1 or (~above).sum() < FEWEST_BELOW):
            return None
        solution = fit_relative(design[above], times[above])
        slope, offset = 1.0, 0.0
        if breakpoint:
            base = (design @ solution)[~above]
            relative = np.column_stack([base, np.ones(len(base))]) / times[~above, None]
            slope, offset = np.linalg.lstsq(relative, np.ones(len(base)), rcond=None)[0]
        *linear, constant = map(float, solution)
        return cls(THREE, tuple(linear), constant, breakpoint, float(slope), float(offset))

    def _loss(self, features: np.ndarray, times: np.ndarray) -> float:
        answers = self.bend(features @ np.asarray(self.coefficients) + self.constant)
        return float(np.minimum(np.abs(answers / times - 1.0), 1.0).sum())


# ---- Learners

SEED = 0
FARTHEST = 30.0  # |log ms| of any answer: outside its points a process may run off to infinity


def check_sklearn() -> None:
    """MissingPackageError where scikit-learn is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingPackageError(
            "comparing needs scikit-learn (random forest, Gaussian process); install it with: "
            "pip install scikit-learn"
        )


@dataclass(frozen=True)
class Learner:
    """A fitted model of scikit-learn; `numbers`: how many numbers it keeps to answer."""

    model: Any
    center: np.ndarray
    scale: np.ndarray
    numbers: int

    def one(self, counts: Sequence[float]) -> float:
        """Latency in ms from one number per feature."""
        return float(self._of(np.array([counts], float))[0])

    def many(self, columns: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray:
        """Latencies in ms into `out` (float64, 1-D) from one column per feature, chunk by chunk."""
        for start in range(0, len(out), CHUNK):
            part = np.column_stack([c[start : start + CHUNK] for c in columns])
            out[start : start + CHUNK] = self._of(part)
        return out

    def _of(self, counts: np.ndarray) -> np.ndarray:
        logarithms = self.model.predict((np.log1p(counts) - self.center) / self.scale)
        return np.exp(np.clip(logarithms, -FARTHEST, FARTHEST))


def fit_forest(features: np.ndarray, times: np.ndarray) -> Learner:
    """A random forest (Breiman 2001) on (points, counts) and (points,) ms.

    As scikit-learn makes it by default. (Choosing how many counts a split sees by an inner
    cross-validation was no better on left-out blocks: the points are too few.)
    """
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(random_state=SEED).fit(np.log1p(features), np.log(times))
    nodes = sum(tree.tree_.node_count for tree in model.estimators_)
    width = features.shape[1]
    return Learner(model, np.zeros(width), np.ones(width), nodes)


def fit_process(features: np.ndarray, times: np.ndarray) -> Learner:
    """A Gaussian process (Rasmussen and Williams 2006) on (points, counts) and (points,) ms.

    Kernel: squared exponential with a length per count, plus linear, plus noise; found by the marginal
    likelihood from two starts. The linear one is there because the other alone falls back to the mean
    away from its points, where whole networks are.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

    counts = np.log1p(features)
    center, scale = counts.mean(axis=0), counts.std(axis=0)
    scale[scale == 0] = 1.0
    lengths = RBF(np.full(counts.shape[1], 3.0), (0.1, 1e3))
    kernel = (
        ConstantKernel(1.0, (1e-3, 1e3)) * lengths
        + ConstantKernel(1.0, (1e-4, 1e3)) * DotProduct(1.0, (1e-3, 1e3))
        + WhiteKernel(0.01, (1e-5, 1.0))
    )
    model = GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=1, random_state=SEED
    )
    with warnings.catch_warnings():
        # A length at its bound is a count that tells nothing, which is no fault.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit((counts - center) / scale, np.log(times))
    numbers = model.X_train_.size + model.alpha_.size + model.kernel_.theta.size + 2 * len(scale)
    return Learner(model, center, scale, int(numbers))


# ---- The table

Fitted = Formula | Learner
"""A predictor that can answer."""


@dataclass(frozen=True)
class Candidate:
    """A predictor to compare.

    `needs`: the counts that it cannot do without; `all_counts`: whether it takes all others that the
    points have too; `fit` gets (points, features) counts, (points,) ms, the names of the counts, and
    where it `knows_networks` (points,), which are whole networks; `numbers` says how many numbers a
    fitted one keeps.
    """

    name: str
    label: str
    about: str
    needs: tuple[str, ...]
    fit: Callable[..., Any]
    numbers: Callable[[Any], int]
    all_counts: bool = False
    knows_networks: bool = False

    def features(self, known: Sequence[str]) -> tuple[str, ...]:
        """The counts that it is fitted on where points have those of `known`."""
        return tuple(known) if self.all_counts else self.needs


def _lines(formula: Any) -> int:
    """Coefficients, constant, and where there is a breakpoint, that and the lower line."""
    lower_line = 3 if isinstance(formula, FreeLines) else 2  # slope and offset, or the slope alone
    return len(formula.coefficients) + 1 + (lower_line if formula.breakpoint > 0 else 0)


CANDIDATES = (
    Candidate(
        "extended", "extended", "LoLat's formula: a coefficient >= 0 for each count, and a constant",
        SIX, Extended.fit, lambda f: len(f.coefficients) + 1 + len(f.alone),
        all_counts=True, knows_networks=True,
    ),
    Candidate(
        "two-regime", "two-regime",
        "the published formula on ACTS, INP, FLOPs with another line below a breakpoint, continuous "
        "and increasing as LoLat has it",
        THREE, lambda x, t, names: TwoRegime.fit(x, t), _lines,
    ),
    Candidate(
        "two-regime-free", "two-regime, free",
        "the same with two lines that need not meet, or one line where that fits better",
        THREE, lambda x, t, names: FreeLines.fit(x, t), _lines,
    ),
    Candidate(
        "flops", "FLOPs alone", "c*FLOPs + d", FLOPS_FEATURES,
        lambda x, t, names: FlopsOnly.fit(x, t), lambda f: 2,
    ),
    Candidate(
        "paleo", "roofline (PALEO)",
        "FLOPs / peak + bytes / bandwidth, with the highest rates of any point (Qi et al. 2017)",
        PALEO_FEATURES, lambda x, t, names: Paleo.fit(x, t), lambda f: 2,
    ),
    Candidate(
        "random-forest", "random forest",
        "100 trees, scikit-learn's defaults, on the logarithms of counts and times; it cannot answer "
        "more than the longest time it has seen",
        THREE, lambda x, t, names: fit_forest(x, t), lambda f: f.numbers, all_counts=True,
    ),
    Candidate(
        "gaussian-process", "Gaussian process",
        "scikit-learn's, on the logarithms of counts and times; kernel: squared exponential with a "
        "length per count, linear, noise",
        THREE, lambda x, t, names: fit_process(x, t), lambda f: f.numbers, all_counts=True,
    ),
)  # fmt: skip
"""The predictors of `lolat compare`, LoLat's own first."""
