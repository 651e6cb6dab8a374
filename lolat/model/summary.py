"""What a model file says of its device, in short: in a line, and as the answer of `lolat show --json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lolat.fitting.intervals import noise_floor
from lolat.fitting.predictors.extended import Extended
from lolat.model import Model
from lolat.model.file import knows
from lolat.model.rates import Families, families_of
from lolat.model.state import State, ago, moment
from lolat.units import percent, plain


@dataclass(frozen=True)
class FittedPredictor:
    """A formula's coefficients, and relative errors on what was left out of its fit."""

    coefficients: Mapping[str, float]
    error: Mapping[str, float]


@dataclass(frozen=True)
class ModelSummary:
    """What a model file says of its device, without its points.

    `knows`: its sections, in words; `default`: None, and `predictors` empty, without latencies of
    inference; `families`: the extended formula as families of work, null without one; `state`: its age and
    its last check, null of a model that was not learned here.
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
    families: Families | None
    state: State | None
    domain: Mapping[str, Any]
    warnings: Sequence[str]


def summary_of(model: Model) -> ModelSummary:
    """The summary of a model."""
    document = model.document
    extended = model.predictors.get(Extended.name)
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
        families=families_of(extended) if isinstance(extended, Extended) else None,
        state=model.state,
        domain=document.get("domain", {}),
        warnings=document.get("warnings", ()),
    )


def errors_of(document: Mapping[str, Any], predictor: str) -> dict[str, float]:
    """Numbers of how far off a predictor is on what was left out of its fit, else on its points."""
    errors = document["predictors"][predictor].get("error", {})
    kinds = ("networks_left_out", "left_out", "fitted")
    figures: Mapping[str, float] = next((errors[k] for k in kinds if errors.get(k)), {})
    return {name: value for name, value in figures.items() if value is not None}


# ---- A model in one line


def headline(model: Model) -> str:
    """A model in one line: its name, device, framework, when it was learned, its noise."""
    where: Mapping[str, Any] = model.document["environment"]
    parts = [f"{plain(model.name)}: {plain(model.device)}", *framework_of(where)]
    if when := moment(where.get("date")):
        parts.append(f"learned {ago(where['date'])}, {when:%Y-%m-%d %H:%M} UTC")
    floor = noise_floor(model.document)
    if floor is not None:
        parts.append(f"noise {percent(floor)}")
    return " · ".join(parts)


SPECIAL = {
    "compile": "compiled",
    "jit": "XLA",
    "channels_last": "channels last",
    "half": "half precision",
}
"""Options of an environment, and their words where they are on."""


def framework_of(where: Mapping[str, Any]) -> Iterator[str]:
    """The framework of a model's environment with its version, and its special options."""
    if "framework" in where:
        yield plain(f"{where['framework']} {where.get('framework_version', '')}".strip())
    yield from (words for key, words in SPECIAL.items() if where.get(key) is True)
    yield from (plain(f"{k}={v}") for k, v in (where.get("flags") or {}).items())


def words_of(model: Model) -> str:
    """The device, and how far off its default formula is: its `repr`."""
    if not model.predictors:
        return f"{headline(model)}\nknows {', '.join(knows(model.document))}"
    errors = errors_of(model.document, model.default)
    words = f"by default {model.default}"
    if {"median", "points"} <= errors.keys():
        words += f": median error {percent(errors['median'])} on {errors['points']:,} points"
    return f"{headline(model)}\n{words}"
