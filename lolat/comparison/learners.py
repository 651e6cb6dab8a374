"""A random forest and a Gaussian process (scikit-learn) on the same counts as the extended formula.

Both see logarithms of counts and of times: latencies span three decades, and a relative error is what
is judged. They are meant to be as good as somebody who knows scikit-learn would make them.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import MissingPackageError
from lolat.predictors.formula import CHUNK

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
    centre: np.ndarray
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
        logarithms = self.model.predict((np.log1p(counts) - self.centre) / self.scale)
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
    centre, scale = counts.mean(axis=0), counts.std(axis=0)
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
        model.fit((counts - centre) / scale, np.log(times))
    numbers = model.X_train_.size + model.alpha_.size + model.kernel_.theta.size + 2 * len(scale)
    return Learner(model, centre, scale, int(numbers))
