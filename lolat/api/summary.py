"""What a model file says of its device, in short: the answer of `lolat show --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lolat.api import Model
from lolat.fitting.intervals import noise_floor
from lolat.fitting.predictors.extended import Extended
from lolat.model.file import knows
from lolat.model.rates import Families, Rates, families_of, rates_of
from lolat.model.state import State


@dataclass(frozen=True)
class FittedPredictor:
    """A formula's coefficients, and relative errors on what was left out of its fit."""

    coefficients: Mapping[str, float]
    error: Mapping[str, float]


@dataclass(frozen=True)
class ModelSummary:
    """What a model file says of its device, without its points.

    `knows`: its sections, in words; `default`: None, and `predictors` empty, without latencies of
    inference; `rates`: where the time of its networks goes, null where its points do not tell; `families`:
    the extended formula as families of work, null without one; `state`: its age and its last check, null of
    a model that was not learned here; `training`: whether it was measured; `epochs`: how many were fitted
    to; `spaces`: measured networks of each.
    """

    name: str
    device: str
    file: str
    knows: Sequence[str]
    default: str | None
    points: int
    noise_floor: float | None
    environment: Mapping[str, Any]
    predictors: Mapping[str, FittedPredictor]
    rates: Rates | None
    families: Families | None
    state: State | None
    domain: Mapping[str, Any]
    training: bool
    epochs: int
    spaces: Mapping[str, int]
    warnings: Sequence[str]


def summary_of(model: Model) -> ModelSummary:
    """The summary of a model."""
    document = model.document
    spaces, extended = document.get("spaces", {}), model.predictors.get(Extended.name)
    fitted = {
        name: FittedPredictor(
            document["predictors"][name]["coefficients"], errors_of(document, name)
        )
        for name in model.predictors
    }
    return ModelSummary(
        name=model.name,
        device=model.device,
        file=model.source,
        knows=knows(document),
        default=model.default or None,
        points=len(document.get("points", ())),
        noise_floor=noise_floor(document),
        environment=document["environment"],
        predictors=fitted,
        rates=rates_of(model),
        families=families_of(extended) if isinstance(extended, Extended) else None,
        state=model.state,
        domain=document.get("domain", {}),
        training="training" in document,
        epochs=len(document.get("epochs", {}).get("points", ())),
        spaces={name: len(space.get("samples", ())) for name, space in spaces.items()},
        warnings=document.get("warnings", ()),
    )


def errors_of(document: Mapping[str, Any], predictor: str) -> dict[str, float]:
    """Numbers of how far off a predictor is on what was left out of its fit, else on its points."""
    found = document["predictors"][predictor].get("error")
    if not isinstance(found, Mapping):
        return {}
    for kind in ("networks_left_out", "left_out", "fitted"):
        if isinstance(found.get(kind), Mapping):
            return {k: v for k, v in found[kind].items() if isinstance(v, (int, float))}
    return {}
