"""What is compared: one row per predictor; and the learners of scikit-learn among them.

A random forest and a Gaussian process on the same counts as the extended formula. Both see logarithms of
counts and of times: latencies span three decades, and a relative error is what is judged. They are meant
to be as good as somebody who knows scikit-learn would make them.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import MissingPackageError
from lolat.fitting.predictors.baselines import (
    FLOPS_FEATURES,
    PALEO_FEATURES,
    FlopsOnly,
    FreeLines,
    Paleo,
)
from lolat.fitting.predictors.extended import Extended
from lolat.fitting.predictors.formula import CHUNK, Formula
from lolat.fitting.predictors.two_regime import FEATURES as THREE
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.graph.counts import FEATURES as SIX

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
