"""Latency in an Optuna study: an objective to minimize, and a constraint to stay within.

    objective = SpaceObjective(space, model, score, max_ms=15)      # a lolat.nas.Space
    study = optuna.create_study(directions=["maximize", "minimize"])
    study.optimize(objective, n_trials=1000)
    study.best_trials                                               # the front within the budget

For networks that a function builds, `Latency` predicts each inside the user's own objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.model import Model
from lolat.nas.adapters import budget, needed
from lolat.nas.space import Space, scorer_for
from lolat.readers import read

LATENCY = "latency_ms"
"""The trial's user attribute, and the name of the constraint, which is latency minus budget."""


@dataclass(frozen=True)
class Latency:
    """Predicts the network of a trial, on the device of `model`, and holds it against a budget.

    `max_ms`: the budget. `prune`: end a trial over it at once, so that it is not trained; else it is
    only marked as violating the constraint.
    """

    model: Model
    max_ms: float = math.inf
    batch_size: int = 1
    predictor: str | None = None
    prune: bool = True

    def __call__(self, trial: Any, network: Any, input_size: Any = None) -> float:
        """Milliseconds of `network` (anything that `lolat.read` takes), recorded in the trial.

        Raises optuna.TrialPruned over the budget where `prune` says so, and as `lolat.read`.
        """
        graph = read(network, input_size)
        latency_ms = self.model.predict(graph, self.batch_size, self.predictor).latency_ms
        return record(trial, latency_ms, self.max_ms, self.prune)


class SpaceObjective:
    """The objective of a study over a space: (score, latency in ms) of a candidate.

    The study's directions are two: the score's, then "minimize".
    """

    def __init__(
        self,
        space: Space,
        model: Model,
        score: Callable[[Any, Mapping[str, Any]], float],
        max_ms: float = math.inf,
        batch_size: int = 1,
        predictor: str | None = None,
        prune: bool = True,
    ) -> None:
        """`score(trial, values)`: of a candidate, by the values of its positions; not called where it is
        over the budget and `prune` is true. InputError as `Space.scorer`.
        """
        self.space, self.score, self.max_ms, self.prune = space, score, budget(max_ms), prune
        self._scorer = scorer_for(space, model, batch_size, predictor)

    def __call__(self, trial: Any) -> tuple[float, float]:
        """Choose a candidate, predict it, and score it."""
        row = choose(trial, self.space)
        latency = record(trial, float(self._scorer.latency(row[None])[0]), self.max_ms, self.prune)
        return self.score(trial, self.space.values(row)), latency

    def row(self, trial: Any) -> np.ndarray:
        """(positions,) integers of the candidate of a trial, one that is finished say."""
        return self.space.row(_external(self.space, trial.params))


def choose(trial: Any, space: Space) -> np.ndarray:
    """(positions,) integers of the candidate that the study's sampler suggests.

    A position is a categorical parameter of its name; values that Optuna cannot store (a tuple, say) are
    suggested by their index.
    """
    for position in space.positions:
        if len(position.choices) > 1:
            trial.suggest_categorical(position.name, _stored(position.choices))
    return space.row(_external(space, trial.params))


def record(trial: Any, latency_ms: float, max_ms: float = math.inf, prune: bool = True) -> float:
    """Note a latency in a trial, as user attribute and as constraint; returns it.

    Raises optuna.TrialPruned where it is over `max_ms` and `prune` is true. InputError for no budget.
    """
    trial.set_user_attr(LATENCY, latency_ms)
    if not math.isinf(budget(max_ms)):
        trial.set_user_attr(f"max_{LATENCY}", max_ms)
        if hasattr(trial, "set_constraint"):  # Optuna 5
            trial.set_constraint(LATENCY, latency_ms - max_ms)
        if prune and latency_ms > max_ms:
            optuna = needed("optuna", "Optuna", "optuna")
            raise optuna.TrialPruned(f"{latency_ms:.3g} ms, over the budget of {max_ms:g} ms")
    return latency_ms


def constraints(trial: Any) -> tuple[float, ...]:
    """What samplers of Optuna before 5 take as `constraints_func`: latency minus budget."""
    attributes = trial.user_attrs
    if f"max_{LATENCY}" not in attributes:
        return (0.0,)
    return (attributes[LATENCY] - attributes[f"max_{LATENCY}"],)


def _stored(choices: tuple[Any, ...]) -> list[Any]:
    """Choices as Optuna's categorical parameters can be."""
    plain = all(c is None or isinstance(c, (bool, int, float, str)) for c in choices)
    # 1 and True are the same parameter to Optuna.
    return list(choices) if plain and len(set(choices)) == len(choices) else [*range(len(choices))]


def _external(space: Space, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a trial's parameters."""
    values = dict(parameters)
    for position in space.positions:
        if position.name in values and _stored(position.choices) != list(position.choices):
            values[position.name] = position.choices[values[position.name]]
    return values
