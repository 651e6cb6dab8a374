"""Scores candidates by what was measured of their space on the device, instead of by its formula."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.fitting.intervals import COVERAGE
from lolat.model import Model
from lolat.model.file import lacks
from lolat.model.prediction import Prediction
from lolat.nas.fewshot.model import NasModel, from_document
from lolat.nas.scorer import SAMPLED, Scorer
from lolat.nas.space import Space
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

    def bounds(self, candidates: Any, coverage: float) -> tuple[Bounds, ...]:
        """Of each of (n, positions) candidates."""
        low, high = self.model.interval_ms(self.grid.checked(candidates), coverage)
        ends = zip(low.tolist(), high.tolist(), strict=True)
        return tuple(Bounds(interval, coverage) for interval in ends)


def scorer_for(
    space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
) -> Scorer:
    """What scores candidates on the device of `model`.

    Where the model has samples of the space they answer, unless a predictor or a batch size is asked for;
    else the formula of inference. Errors as of `Space.scorer`; ModelFileError where it knows neither.
    """
    sampled = space.name in model.document.get("spaces", {})
    if sampled and predictor is None and batch_size == 1:
        fitted = from_document(model.document, model.source, space.name)
        if len(space.positions) == len(fitted.terms.parse_many([fitted.archs[0]])[0]):
            return SampledScorer(grid=space.grid, batch_size=1, model=fitted)
    if not sampled and not model.predictors:
        raise lacks(model.document, model.source, space.name)
    return space.scorer(model, batch_size, predictor)


def bounds_of(
    scorer: Scorer, space: Space, model: Model, candidates: Any, coverage: float | None = None
) -> tuple[Prediction | Bounds, ...]:
    """How sure the latencies of (n, positions) candidates are, as `lolat.Prediction` says it."""
    if isinstance(scorer, SampledScorer):
        return scorer.bounds(candidates, COVERAGE if coverage is None else coverage)
    asked = scorer.batch_size, scorer.predictor, coverage
    return tuple(model.predict(space.network(row), *asked) for row in candidates)
