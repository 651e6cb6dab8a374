"""Predictors: one file each, one interface (`Formula`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lolat.fitting.predictors.extended import Extended
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps
from lolat.fitting.predictors.two_regime import TwoRegime

PREDICTORS: dict[str, type[TwoRegime] | type[Extended] | type[Kernels]] = {
    TwoRegime.name: TwoRegime,
    Extended.name: Extended,
    Kernels.name: Kernels,
    TrainingSteps.name: TrainingSteps,
}


def from_dict(name: str, document: Mapping[str, Any]) -> Formula | None:
    """The predictor `name` of a model file; None for one that this version does not know."""
    known = PREDICTORS.get(name)
    return None if known is None else known.from_dict(document)
