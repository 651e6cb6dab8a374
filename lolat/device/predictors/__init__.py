"""Predictors: one file each, one interface (`Formula`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lolat.device.predictors.additive import AdditiveCosts
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.roofline import Roofline, TrainingSteps
from lolat.device.predictors.two_regime import TwoRegime

__all__ = ["PREDICTORS", "AdditiveCosts", "Roofline", "TrainingSteps", "TwoRegime", "from_dict"]

PREDICTORS: dict[str, type[Formula]] = {
    kind.name: kind for kind in (TwoRegime, AdditiveCosts, Roofline, TrainingSteps)
}


def from_dict(name: str, document: Mapping[str, Any]) -> Formula | None:
    """The predictor `name` of a model file; None for one that this version does not know."""
    kind = PREDICTORS.get(name)
    return None if kind is None else msgspec.convert(document, kind)
