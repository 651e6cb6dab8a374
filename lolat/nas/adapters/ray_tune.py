"""Latency in Ray Tune: a metric of every result, and trials over a budget not trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lolat.model import Model
from lolat.nas.adapters import budget, needed
from lolat.nas.fewshot import scorer_for
from lolat.nas.space import Space
from lolat.readers import read

LATENCY, OVER = "latency_ms", "over_budget"


class TrialLatency:
    """Predicts the network of a trial's configuration; can be sent to other processes.

    `network`: a function of the configuration that returns what `lolat.read` takes, or a Space, whose
    positions are then read from the configuration by name.
    """

    def __init__(
        self, model: Model, network: Callable[[Mapping[str, Any]], Any] | Space,
        max_ms: float = math.inf, batch_size: int = 1, predictor: str | None = None,
        input_size: Any = None,
    ) -> None:  # fmt: skip
        self.model, self.network, self.input_size = model, network, input_size
        self.max_ms, self.asked = budget(max_ms), (batch_size, predictor)
        if isinstance(network, Space):
            self.scorer = scorer_for(network, model, batch_size, predictor)

    def metrics(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """`latency_ms` and `over_budget`, to be reported with the trial's own metrics."""
        if isinstance(self.network, Space):
            latency_ms = float(self.scorer.latency(self.network.row(config)[None])[0])
        else:
            graph = read(self.network(config), self.input_size)
            latency_ms = self.model.predict(graph, *self.asked).latency_ms
        return {LATENCY: latency_ms, OVER: latency_ms > self.max_ms}

    def trainable(
        self, train: Callable[[dict[str, Any]], Any], over_budget: Mapping[str, Any] | None = None
    ) -> Callable[[dict[str, Any]], Any]:
        """`train`, called only within the budget; else the one result is the metrics and `over_budget`."""

        def within(config: dict[str, Any]) -> Any:
            metrics = self.metrics(config)
            if not metrics[OVER]:
                return train(config)
            return needed("ray.tune", "Ray Tune", "ray").report({**(over_budget or {}), **metrics})

        return within

    def callback(self) -> Any:
        """A `ray.tune.Callback` that adds the metrics to every result, each trial predicted once."""
        metrics, known = self.metrics, dict[str, dict[str, Any]]()

        class LatencyCallback(needed("ray.tune", "Ray Tune", "ray").Callback):  # type: ignore[misc]
            def on_trial_result(
                self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
            ) -> None:
                if trial.trial_id not in known:
                    known[trial.trial_id] = metrics(trial.config)
                result.update(known[trial.trial_id])

        return LatencyCallback()


def parameters(space: Space) -> dict[str, Any]:
    """The `param_space` of a tuner over a space: a choice for each position, by its name."""
    tune = needed("ray.tune", "Ray Tune", "ray")
    return {p.name: tune.choice(list(p.choices)) for p in space.positions}
