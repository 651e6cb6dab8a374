"""A model of training whose times are known: what tests of devices and of cost share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.training.iteration import Optimizer
from lolat.training.model import Training, TrainingPrediction


@dataclass
class KnownTraining(Training):
    """`times`: ms of an iteration's parts; `sample_ms`: instead, of each sample; `each`: of each operation,
    shared alike if not given; `factor`: both ends of the interval; `gradients`: bytes instead of the
    network's.
    """

    name: str = "desk"
    document: dict[str, Any] = field(default_factory=dict)
    residuals: Sequence[float] = ()
    drop_last: bool = False
    epoch_ms: float = 0.0
    starts: bool = False
    optimizers: tuple[str, ...] = ()
    times: Mapping[str, float] = field(default_factory=lambda: {"iteration": 100.0})
    sample_ms: float | None = None
    each: Sequence[float] | None = None
    factor: float | None = 1.25
    gradients: int | None = None
    said: tuple[str, ...] = ()

    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        if self.sample_ms is not None:
            return {"iteration": self.sample_ms * batch_size}
        return dict(self.times)

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        each = np.ones(len(graph.operations)) if self.each is None else np.array(self.each)
        return each, 0.0, 0.0

    def warnings(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> tuple[str, ...]:
        return self.said

    def half_width(self, graph: Graph, batch_size: int, coverage: float) -> float:
        if self.factor is None:
            raise InputError("too few points")
        return math.log(self.factor)

    def predict(self, *arguments: Any, **more: Any) -> TrainingPrediction:
        found = super().predict(*arguments, **more)
        return found if self.gradients is None else replace(found, weights_bytes=self.gradients)
