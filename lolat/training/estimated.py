"""Training on a device of which a formula by operation is known: each step of an iteration by its terms.

What a backward pass asks of a device, its operations say (`lolat.graph.work`); nothing of it need have been
measured there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.domain import NEGLIGIBLE_SHARE, OUTSIDE_WIDENING
from lolat.fitting.intervals import COVERAGE, check_coverage, interval_width, noise_floor
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps, moving_time
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.work import ELEMENTS, Work, work_of
from lolat.model.prediction import of_its_source, other_framework
from lolat.training.memory import FLOAT_BYTES, memory_bytes, parameters
from lolat.training.model import TrainingPrediction
from lolat.training.settings import Optimizer, check_sizes, optimizer_named
from lolat.training.terms import iterations

LEAST_STEPS = 20  # training steps left out of the fit that say how far off others are
UNMEASURED = 1.5  # times as wide (log) as that of latencies is the interval where there are fewer


class EstimatedTraining:
    """Time of an iteration, an epoch and a training by the formula of a device that is made from tables.

    An iteration has no start and no loop of its own. An update moves what the optimiser reads and writes,
    in one step; every optimiser is answered.
    """

    drop_last = False

    def __init__(self, document: dict[str, Any]) -> None:
        """`document`: a valid model file's, with the predictor "kernels"."""
        self.document = document
        self.name = str(document["device"])
        self.entry = document["predictors"][Kernels.name]
        self.formula = Kernels.from_dict(self.entry)
        steps = document["predictors"].get(TrainingSteps.name)
        self.trained = self.formula if steps is None else TrainingSteps.from_dict(steps)

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """Forward and backward of each operation, (operations,) ms; the update, ms; the rest, ms: nothing.

        They add up to an iteration; the loss is with the last operation.
        """
        steps = self._steps(graph, batch_size)
        each = np.bincount(steps.work.operation, steps.times, len(graph.operations))
        return each, self._update_ms(graph, optimizer), 0.0

    def predict(
        self,
        graph: Graph,
        batch_size: int,
        samples: int | None = None,
        epochs: int = 1,
        optimizer: str = "sgd",
        coverage: float = COVERAGE,
        validation: int | None = None,
    ) -> TrainingPrediction:
        """How long an iteration, an epoch of `samples` and `epochs` of them take; see `TrainingModel`.

        `validation`: samples that are evaluated after each epoch, in forward passes of inference.
        """
        used = optimizer_named(optimizer)
        check_sizes(batch_size, samples, epochs, validation)
        check_coverage(coverage)
        steps = self._steps(graph, batch_size)
        update = self._update_ms(graph, used)
        iteration_ms = steps.total + update
        warnings, half = self._doubts(graph, steps, coverage)
        epoch_s = total_s = interval = number = evaluation_s = None
        if samples is not None:
            full, rest = divmod(samples, batch_size)
            epoch_ms = full * iteration_ms
            if rest:
                epoch_ms += self._steps(graph, rest).total + update
            if validation:
                evaluation_s = self._evaluation_ms(graph, batch_size, validation) / 1e3
            epoch_s = epoch_ms / 1e3 + (evaluation_s or 0.0)
            total_s = epochs * epoch_s
            number = iterations(samples, batch_size, False)
            if half is not None:
                interval = (total_s * math.exp(-half), total_s * math.exp(half))
        return TrainingPrediction(
            graph.name, batch_size, used.name, samples, epochs, number, iteration_ms,
            {"forward": steps.forward, "backward": steps.backward, "update": update, "exchange": 0.0},
            epoch_s, total_s, interval, coverage,
            memory_bytes(graph, batch_size, used), parameters(graph) * FLOAT_BYTES, warnings,
            evaluation_s=evaluation_s,
        )  # fmt: skip

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

    def _evaluation_ms(self, graph: Graph, batch_size: int, validation: int) -> float:
        """A pass over the validation samples."""
        full, rest = divmod(validation, batch_size)
        last = self._steps(graph, rest, training=False).total if rest else 0.0
        return last + (full * self._steps(graph, batch_size, training=False).total if full else 0.0)

    def _doubts(
        self, graph: Graph, steps: _Steps, coverage: float
    ) -> tuple[tuple[str, ...], float | None]:
        """What is to be said of a prediction; half its interval's width, a logarithm, None if unknown."""
        unlike = self.trained.unlike(steps.work, steps.times, NEGLIGIBLE_SHARE) or ()
        entry, widening, doubts = self._errors()
        half = None
        try:
            width = interval_width(entry, coverage, noise_floor(self.document) or 0.0)
            half = (
                width.half(len(graph.operations)) * widening * (OUTSIDE_WIDENING if unlike else 1.0)
            )
        except InputError:
            known = len(entry.get("residuals", ()))
            doubts += (f"no interval: {known} points cannot give {100 * coverage:g} % coverage",)
        warnings = (
            *count(graph).warnings,
            *unlike,
            *doubts,
            *other_framework(self.document["environment"], graph.framework),
            *of_its_source(self.document),
        )
        return warnings, half

    def _errors(self) -> tuple[Mapping[str, Any], float, tuple[str, ...]]:
        """The entry with the errors of what was left out of the fit; how many times as wide an interval
        they make; why.
        """
        trained = self.entry.get("training_residuals", ())
        if len(trained) >= LEAST_STEPS:
            return {"residuals": trained}, 1.0, ()
        measured = (
            "no training step was" if not trained else f"only {len(trained)} training steps were"
        )
        why = f"{measured} measured on this device: the backward pass is estimated from the forward one"
        return self.entry, UNMEASURED, (why,)


@dataclass(frozen=True)
class _Steps:
    """What is asked of the device, and how long each step takes: `times`, (steps,), ms."""

    work: Work
    times: np.ndarray

    @cached_property
    def total(self) -> float:
        return float(self.times.sum())

    @cached_property
    def forward(self) -> float:
        return float(self.times[~self.work.backward].sum())

    @cached_property
    def backward(self) -> float:
        return float(self.times[self.work.backward].sum())
