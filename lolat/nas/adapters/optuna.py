"""Latency in an Optuna study: an objective to minimize, and a budget to stay within."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lolat.model import Model
from lolat.nas.adapters import budget, needed
from lolat.nas.fewshot import scorer_for
from lolat.nas.space import Space
from lolat.readers import read

LATENCY = "latency_ms"  # a trial's user attribute, and the constraint that it is over the budget
Score = Callable[[Any, Mapping[str, Any]], float]


class Latency:
    """Predicts the network of a trial on the device of `model`, and holds it against the budget `max_ms`.

    `prune`: end a trial over it at once, so that it is not trained; else it only violates the constraint.
    """

    def __init__(
        self, model: Model, max_ms: float = math.inf, batch_size: int = 1,
        predictor: str | None = None, prune: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.asked = model, (batch_size, predictor)
        self.max_ms, self.prune = budget(max_ms), prune

    def __call__(self, trial: Any, network: Any, input_size: Any = None) -> float:
        """Milliseconds of `network` (anything that `lolat.read` takes); errors as `lolat.read`."""
        found = self.model.predict(read(network, input_size), *self.asked)
        return self.record(trial, found.latency_ms)

    def record(self, trial: Any, latency_ms: float) -> float:
        """Note a latency in a trial and return it; optuna.TrialPruned over the budget."""
        trial.set_user_attr(LATENCY, latency_ms)
        if math.isfinite(self.max_ms) and hasattr(trial, "set_constraint"):  # from Optuna 5 on
            trial.set_constraint(LATENCY, latency_ms - self.max_ms)
        if self.prune and latency_ms > self.max_ms:
            said = f"{latency_ms:.3g} ms, over the budget of {self.max_ms:g} ms"
            raise needed("optuna", "Optuna", "optuna").TrialPruned(said)
        return latency_ms


class SpaceObjective:
    """(score, latency in ms) of a candidate. The study's directions: the score's, then "minimize"."""

    def __init__(
        self, space: Space, model: Model, score: Score, max_ms: float = math.inf,
        batch_size: int = 1, predictor: str | None = None, prune: bool = True,
    ) -> None:  # fmt: skip
        """`score(trial, values)`: by the values of the positions; not called for what is pruned."""
        self.space, self.score = space, score
        self.latency = Latency(model, max_ms, batch_size, predictor, prune)
        self.scorer = scorer_for(space, model, batch_size, predictor)

    def __call__(self, trial: Any) -> tuple[float, float]:
        """(score, latency in ms) of a trial's candidate; over the budget it is pruned."""
        row = self._chosen(trial.suggest_categorical)
        latency_ms = self.latency.record(trial, float(self.scorer.latency(row[None])[0]))
        return self.score(trial, self.space.values(row)), latency_ms

    def row(self, trial: Any) -> np.ndarray:
        """(positions,) integers of the candidate of a finished trial."""
        return self._chosen(lambda name, choices: trial.params[name])

    def _chosen(self, take: Callable[[str, Any], Any]) -> np.ndarray:
        """(positions,) integers of what is taken: choices, or their indices where Optuna stores no such."""
        row = []
        for name, choices in ((p.name, p.choices) for p in self.space.positions):
            plain = all(c is None or isinstance(c, (bool, int, float, str)) for c in choices)
            if not plain or len(set(choices)) < len(
                choices
            ):  # Optuna takes 1 and True for the same
                choices = tuple(range(len(choices)))
            row.append(choices.index(take(name, choices)))
        return np.array(row)
