"""Predictors: one file for each, all with the interface `Formula`."""

from __future__ import annotations

from lolat.device.predictors.additive import AdditiveCosts
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.roofline import Roofline, TrainingSteps
from lolat.device.predictors.two_regime import TwoRegime

__all__ = ["PREDICTORS", "AdditiveCosts", "Roofline", "TrainingSteps", "TwoRegime"]

PREDICTORS: dict[str, type[Formula]] = {
    kind.name: kind for kind in (TwoRegime, AdditiveCosts, Roofline, TrainingSteps)
}
