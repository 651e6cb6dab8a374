"""What is compared: one row per predictor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lolat.comparison.free_lines import FreeLines
from lolat.comparison.learners import Learner, fit_forest, fit_process
from lolat.counts import FEATURES as SIX
from lolat.predictors import flops, paleo, two_regime
from lolat.predictors.extended import Extended


class Fitted(Protocol):
    """A predictor that can answer: what a `Formula` does of itself."""

    def one(self, counts: Sequence[float]) -> float:
        """Latency in ms from one number per feature."""

    def many(self, columns: Sequence[Any], out: np.ndarray) -> np.ndarray:
        """Latencies in ms into `out` (float64, 1-D) from one column per feature."""


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
    own = len(formula.coefficients) + 1
    extra = 3 if isinstance(formula, FreeLines) else 2  # slope and offset, or the slope alone
    return own + (extra if formula.breakpoint > 0 else 0)


def _kept(learner: Learner) -> int:
    return learner.numbers


CANDIDATES = (
    Candidate(
        "extended",
        "extended",
        "LoLat's formula: a coefficient >= 0 for each count, and a constant",
        SIX,
        Extended.fit,
        lambda f: len(f.coefficients) + 1 + len(f.alone),
        all_counts=True,
        knows_networks=True,
    ),
    Candidate(
        "two-regime",
        "two-regime",
        "the published formula on ACTS, INP, FLOPs with another line below a breakpoint, continuous "
        "and increasing as LoLat has it",
        two_regime.FEATURES,
        lambda x, t, names: two_regime.TwoRegime.fit(x, t),
        _lines,
    ),
    Candidate(
        "two-regime-free",
        "two-regime, free",
        "the same with two lines that need not meet, or one line where that fits better",
        two_regime.FEATURES,
        lambda x, t, names: FreeLines.fit(x, t),
        _lines,
    ),
    Candidate(
        "flops",
        "FLOPs alone",
        "c*FLOPs + d",
        flops.FEATURES,
        lambda x, t, names: flops.FlopsOnly.fit(x, t),
        lambda f: 2,
    ),
    Candidate(
        "paleo",
        "roofline (PALEO)",
        "FLOPs / peak + bytes / bandwidth, with the highest rates of any point (Qi et al. 2017)",
        paleo.FEATURES,
        lambda x, t, names: paleo.Paleo.fit(x, t),
        lambda f: 2,
    ),
    Candidate(
        "random-forest",
        "random forest",
        "100 trees, scikit-learn's defaults, on the logarithms of counts and times; it cannot answer "
        "more than the longest time it has seen",
        two_regime.FEATURES,
        lambda x, t, names: fit_forest(x, t),
        _kept,
        all_counts=True,
    ),
    Candidate(
        "gaussian-process",
        "Gaussian process",
        "scikit-learn's, on the logarithms of counts and times; kernel: squared exponential with a "
        "length per count, linear, noise",
        two_regime.FEATURES,
        lambda x, t, names: fit_process(x, t),
        _kept,
        all_counts=True,
    ),
)
"""The predictors of `lolat compare`, LoLat's own first."""
