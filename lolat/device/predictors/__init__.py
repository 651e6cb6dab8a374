"""Predictors: one file each, one interface (`Formula`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lolat.device.predictors.extended import Extended
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.kernels import Kernels, TrainingSteps
from lolat.device.predictors.two_regime import TwoRegime

__all__ = ["PREDICTORS", "Extended", "Kernels", "TrainingSteps", "TwoRegime", "from_dict"]

PREDICTORS: dict[str, type[Formula]] = {
    kind.name: kind for kind in (TwoRegime, Extended, Kernels, TrainingSteps)
}


def from_dict(name: str, document: Mapping[str, Any]) -> Formula | None:
    """The predictor `name` of a model file; None for one that this version does not know."""
    kind = PREDICTORS.get(name)
    return None if kind is None else msgspec.convert(document, kind)
