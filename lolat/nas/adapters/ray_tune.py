"""Latency in Ray Tune: a metric of every result, and trials over a budget not trained, or stopped.

    latency = TrialLatency(model, build, max_ms=15)             # build(config) returns the network
    tune.Tuner(
        latency.trainable(train, over_budget={"score": 0.0}),   # what is over the budget is not trained
        run_config=tune.RunConfig(callbacks=[latency.callback()]),
    )

The callback adds the metrics `latency_ms` and `over_budget` to every result that a trial reports.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lolat.model import Model
from lolat.nas.adapters import budget, needed
from lolat.nas.space import Space, scorer_for
from lolat.readers import read

LATENCY, OVER = "latency_ms", "over_budget"


@dataclass(frozen=True)
class TrialLatency:
    """Predicts the network of a trial's configuration; can be sent to other processes.

    `network`: a function of the configuration that returns what `lolat.read` takes, or a Space, whose
    positions are then read from the configuration by name.
    """

    model: Model
    network: Callable[[Mapping[str, Any]], Any] | Space
    max_ms: float = math.inf
    batch_size: int = 1
    predictor: str | None = None
    input_size: Any = None

    def __post_init__(self) -> None:
        """InputError for a budget that is none."""
        budget(self.max_ms)

    def ms(self, config: Mapping[str, Any]) -> float:
        """Milliseconds of the network of a configuration. Errors as `lolat.read` and `Space.row`."""
        if isinstance(self.network, Space):
            return float(self._scorer.latency(self.network.row(config)[None])[0])
        graph = read(self.network(config), self.input_size)
        return self.model.predict(graph, self.batch_size, self.predictor).latency_ms

    @functools.cached_property
    def _scorer(self) -> Any:
        assert isinstance(self.network, Space)
        return scorer_for(self.network, self.model, self.batch_size, self.predictor)

    def metrics(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """`latency_ms` and `over_budget`, to be reported with the trial's own metrics.

        Reported by the trial itself, search algorithms and schedulers see them too.
        """
        latency_ms = self.ms(config)
        return {LATENCY: latency_ms, OVER: latency_ms > self.max_ms}

    def trainable(
        self, train: Callable[[dict[str, Any]], Any], over_budget: Mapping[str, Any] | None = None
    ) -> Callable[[dict[str, Any]], Any]:
        """`train`, called only where the network is within the budget.

        Else the trial ends with one result: the metrics and what `over_budget` has, which must be the
        metric that the search optimizes where there is one.
        """

        def within(config: dict[str, Any]) -> Any:
            metrics = self.metrics(config)
            if metrics[OVER]:
                tune = needed("ray.tune", "Ray Tune", "ray")
                tune.report({**(over_budget or {}), **metrics})
                return None
            return train(config)

        return within

    def stop(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """For `RunConfig(stop=...)`: whether a trial is over the budget, asked after its first result."""
        known = result.get(LATENCY)
        return (self.ms(result["config"]) if known is None else known) > self.max_ms

    def callback(self) -> Any:
        """A `ray.tune.Callback` that adds the metrics to every result."""
        tune = needed("ray.tune", "Ray Tune", "ray")
        latency = self

        class LatencyCallback(tune.Callback):  # type: ignore[name-defined]
            """Adds `latency_ms` and `over_budget` to every result of every trial."""

            def __init__(self) -> None:
                self.known: dict[str, dict[str, Any]] = {}

            def on_trial_result(
                self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
            ) -> None:
                """Predict the trial's network once, and add what was found."""
                if trial.trial_id not in self.known:
                    self.known[trial.trial_id] = latency.metrics(trial.config)
                result.update(self.known[trial.trial_id])

        return LatencyCallback()


def parameters(space: Space) -> dict[str, Any]:
    """The `param_space` of a tuner over a space: a choice for each position, by its name."""
    tune = needed("ray.tune", "Ray Tune", "ray")
    return {p.name: tune.choice(list(p.choices)) for p in space.positions}
