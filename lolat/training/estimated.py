"""Training on a device of which a formula by operation is known: each step of an iteration by its terms.

What a backward pass asks of a device, its operations say (`lolat.graph.work`); nothing of it need have been
measured there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.domain import NEGLIGIBLE_SHARE, OUTSIDE_WIDENING
from lolat.fitting.intervals import interval_width, noise_floor
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps, moving_time
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.work import ELEMENTS, Work, work_of
from lolat.model.prediction import of_its_source, other_framework
from lolat.training.memory import FLOAT_BYTES, parameters
from lolat.training.model import Doubts, Training
from lolat.training.settings import Optimizer

LEAST_STEPS = 20  # training steps left out of the fit that say how far off others are
UNMEASURED = 1.5  # times as wide (log) as that of latencies is the interval where there are fewer


@dataclass(frozen=True)
class _Steps:
    """What is asked of the device, and how long each step takes: `times`, (steps,), ms."""

    work: Work
    times: np.ndarray


class EstimatedTraining(Training):
    """By the formula of a device that is made from tables.

    An iteration has no start and no loop of its own. An update moves what the optimizer reads and writes,
    in one step; every optimizer is answered.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        """`document`: a valid model file's, with the predictor "kernels"."""
        self.document = document
        self.name = str(document["device"])
        self.entry = document["predictors"][Kernels.name]
        self.formula = Kernels.from_dict(self.entry)
        steps = document["predictors"].get(TrainingSteps.name)
        self.trained = self.formula if steps is None else TrainingSteps.from_dict(steps)
        # How far off what was left out of the fit is, and how many times as wide an interval that makes.
        training_residuals: Any = self.entry.get("training_residuals", ())
        self.measured_steps = len(training_residuals)
        enough = self.measured_steps >= LEAST_STEPS
        self.errors: Mapping[str, Any] = {"residuals": training_residuals} if enough else self.entry
        self.residuals = self.errors.get("residuals", ())

    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """ms of the three parts; the loss is in the forward and backward one."""
        steps = self._steps(graph, batch_size)
        back = steps.work.backward
        return {
            "forward": float(steps.times[~back].sum()),
            "backward": float(steps.times[back].sum()),
            "update": self._update_ms(graph, optimizer),
        }

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """See `Training`; the loss is with the last operation, and there is no rest."""
        steps = self._steps(graph, batch_size)
        each = np.bincount(steps.work.operation, steps.times, len(graph.operations))
        return each, self._update_ms(graph, optimizer), 0.0

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """A forward pass of inference."""
        return float(self._steps(graph, batch_size, training=False).times.sum())

    def doubts(
        self, graph: Graph, batch_size: int, optimizer: Optimizer, coverage: float
    ) -> Doubts:
        """How sure an answer is: less where no training step was measured, or work is unlike what was."""
        steps = self._steps(graph, batch_size)
        unlike = self.trained.unlike(steps.work, steps.times, NEGLIGIBLE_SHARE) or ()
        estimated: tuple[str, ...] = ()
        if self.measured_steps < LEAST_STEPS:
            number = self.measured_steps
            measured = f"only {number} training steps were" if number else "no training step was"
            estimated = (
                f"{measured} measured on this device: the backward pass is estimated from the forward one",
            )
        try:
            width = interval_width(self.errors, coverage, noise_floor(self.document) or 0.0)
            half: float | None = width.half(len(graph.operations)) * (
                (UNMEASURED if estimated else 1.0) * (OUTSIDE_WIDENING if unlike else 1.0)
            )
        except InputError:
            half = None
        warnings = (
            *count(graph).warnings,
            *unlike,
            *estimated,
            *other_framework(self.document["environment"], graph.framework),
            *of_its_source(self.document),
        )
        return Doubts(warnings, half)

    def _steps(self, graph: Graph, batch_size: int, training: bool = True) -> _Steps:
        """Of both passes of a batch, or of one of inference."""
        formula = self.trained if training else self.formula
        work = work_of(graph, batch_size, replace(formula.mode, training=training))
        return _Steps(work, formula.times(work)[0])

    def _update_ms(self, graph: Graph, optimizer: Optimizer) -> float:
        moved = parameters(graph) * FLOAT_BYTES * optimizer.accesses
        if not moved:
            return 0.0
        return float(moving_time(self.trained.terms(ELEMENTS), np.array([float(moved)]))[0])
