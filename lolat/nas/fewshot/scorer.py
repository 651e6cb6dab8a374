"""Scores candidates by what was measured of their space on the device, instead of by its formula."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.fitting.intervals import COVERAGE
from lolat.model import Model
from lolat.nas.fewshot.model import NasModel, from_document
from lolat.nas.scorer import SAMPLED, Grid, Scorer
from lolat.units import plural


@dataclass(frozen=True)
class Bounds:
    """How sure a latency is, as a `lolat.Prediction` says it; samples have no domain."""

    interval_ms: tuple[float, float]
    coverage: float
    in_domain: None = None


@dataclass(frozen=True, kw_only=True)
class SampledScorer(Scorer):
    """Latencies as `model` has them, at the batch size that its samples were measured with."""

    model: NasModel

    @property
    def predictor(self) -> str:
        """SAMPLED."""
        return SAMPLED

    @property
    def source(self) -> str:
        """What answers, in words."""
        return f"{plural(len(self.model.archs), 'measured network')} of {self.model.space}"

    def numbers(self) -> Any:
        """A word for all numbers of the space's section."""
        return [SAMPLED, hashlib.sha256(repr(self.model.to_section()).encode()).hexdigest()]

    def latency(self, candidates: Any) -> np.ndarray:
        """See `Scorer`."""
        return self.model.latency_ms(self.grid.checked(candidates))

    def bounds(self, candidates: Any, coverage: float = COVERAGE) -> tuple[Bounds, ...]:
        """Of each of (n, positions) candidates."""
        low, high = self.model.interval_ms(self.grid.checked(candidates), coverage)
        ends = zip(low.tolist(), high.tolist(), strict=True)
        return tuple(Bounds(interval, coverage) for interval in ends)


def sampled_scorer(model: Model, space: str, grid: Grid) -> SampledScorer | None:
    """The scorer of a space by the samples in a model's file; None where it has none of that space."""
    if space not in model.document.get("spaces", {}):
        return None
    fitted = from_document(model.document, model.source, space)
    if len(grid.sizes) != len(fitted.terms.parse_many([fitted.archs[0]])[0]):
        return None  # another space of the same name
    return SampledScorer(grid=grid, batch_size=1, model=fitted)
