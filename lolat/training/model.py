"""How long training takes: what every model of it answers, and what an epoch is put together from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.domain import NEGLIGIBLE_SHARE, widened
from lolat.fitting.intervals import (
    COVERAGE,
    check_coverage,
    effective_ops,
    interval_width,
    noise_floor,
)
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps, moving_time
from lolat.graph import Graph
from lolat.graph.analysis import FLOAT_BYTES, parameters
from lolat.graph.blocks import cut
from lolat.graph.counts import behaviors, count
from lolat.graph.work import ELEMENTS, Work, work_of
from lolat.io.results import Result
from lolat.model import Model
from lolat.model.prediction import of_its_source, other_framework
from lolat.training.learning import read_section
from lolat.training.memory import Optimizer, check_sizes, memory_bytes, optimizer_named
from lolat.training.terms import PASS_TERMS, iterations, pass_rows, started, variables
from lolat.units import duration, milliseconds, plain

PARTS = ("forward", "backward", "update", "exchange")
UPDATE, CALL, INPUT = "update", "call", "input"
"""Rows of `iteration_blocks` beside the blocks, and the part of an iteration that waits for its batch."""


@dataclass(frozen=True, repr=False)
class TrainingPrediction(Result):
    """How long training takes. Times of what was not asked for (no `samples`) are None.

    `parts_ms` has the keys PARTS; a part that the model cannot tell apart is None, else they add up to
    `iteration_ms`. `epoch_s`: one epoch after the first, `evaluation_s` in it: going through the validation
    samples (None where there are none, or the model cannot tell). `startup_s`: what the first epoch takes
    more (None where the model cannot tell). `total_s`: the epochs and that. `interval_s` is of `total_s`,
    at `coverage`; None where the model has too few rows. `weights_bytes`: what the gradients of an
    iteration take, which several devices exchange.
    """

    network: str
    batch_size: int
    optimizer: str
    samples: int | None
    epochs: int
    iterations: int | None
    iteration_ms: float
    parts_ms: dict[str, float | None]
    epoch_s: float | None
    total_s: float | None
    interval_s: tuple[float, float] | None
    coverage: float
    memory_bytes: int
    weights_bytes: int
    warnings: tuple[str, ...] = ()
    startup_s: float | None = None
    evaluation_s: float | None = None

    def words(self) -> str:
        """An iteration's time, and that of all epochs where there are samples."""
        told = (
            f"{plain(self.network)} · batch {self.batch_size} · {self.optimizer}: "
            f"{milliseconds(self.iteration_ms)} an iteration"
        )
        if self.total_s is None:
            return told
        told += f"; {duration(self.total_s)} for {self.epochs} epoch{'s' * (self.epochs > 1)}"
        if self.interval_s is None:
            return told
        low, high = map(duration, self.interval_s)
        return f"{told}, {100 * self.coverage:g} % sure of {low} .. {high}"

    def rows(self) -> list[dict[str, Any]]:
        """One row: what was asked, an iteration and its parts in ms, an epoch and the whole in s."""
        answer = self.to_dict()
        parts = {f"{name}_ms": ms for name, ms in answer.pop("parts_ms").items()}
        return [{k: v for k, v in answer.items() if not isinstance(v, list)} | parts]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        interval = None if self.interval_s is None else list(self.interval_s)
        return {**asdict(self), "interval_s": interval, "warnings": list(self.warnings)}


@dataclass(frozen=True)
class Doubts:
    """What is to be said of a prediction; `half`: of its interval's width, a logarithm, None if unknown."""

    warnings: tuple[str, ...]
    half: float | None


class Training(ABC):
    """A device's training time.

    `name`: of the device; `document`: the model's file; `residuals`: log(measured / predicted) of what was
    left out of the fit; `drop_last`: whether an epoch leaves out a last batch that is not full; `epoch_ms`:
    what an epoch takes beside its iterations, a pass over the validation samples too; `starts`: whether it
    knows of starts at all; `optimizers`: those that epochs were timed with, empty where it is of none.
    """

    name: str
    document: dict[str, Any]
    residuals: Sequence[float]
    drop_last: bool = False
    epoch_ms: float = 0.0
    starts: bool = False
    optimizers: tuple[str, ...] = ()

    @abstractmethod
    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """ms of an iteration's parts by the names of PARTS, or as a whole by another; they add up to it."""

    @abstractmethod
    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """Forward and backward of each operation, (operations,) ms; the update, ms; the rest, ms.

        They add up to an iteration. InputError for an optimizer that was not measured.
        """

    @abstractmethod
    def doubts(
        self, graph: Graph, batch_size: int, optimizer: Optimizer, coverage: float
    ) -> Doubts:
        """How sure an answer is."""

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float | None:
        """Evaluating a batch: its forward pass in a loop; None where the model cannot tell."""
        return None

    def startup_s(self, graph: Graph, optimizer: Optimizer) -> float | None:
        """What comes before the first iteration; None where the model cannot tell."""
        return None

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
        """How long an iteration, an epoch of `samples` and `epochs` of them take.

        `validation`: samples that are evaluated after each epoch. InputError for numbers that are not whole
        and above 0, a batch larger than the data set, and an optimizer that is not known.
        """
        used = optimizer_named(optimizer)
        check_sizes(batch_size, samples, epochs, validation)
        check_coverage(coverage)
        parts = self.parts(graph, batch_size, used)
        doubts = self.doubts(graph, batch_size, used, coverage)
        prediction = TrainingPrediction(
            graph.name, batch_size, used.name, samples, epochs, None, sum(parts.values()),
            {p: parts.get(p) for p in PARTS} | {"exchange": 0.0}, None, None, None, coverage,
            memory_bytes(graph, batch_size, used), parameters(graph) * FLOAT_BYTES, doubts.warnings,
        )  # fmt: skip
        if samples is not None:
            prediction = self._with_epochs(
                prediction, graph, used, samples, validation, doubts.half
            )
        return prediction

    def _with_epochs(
        self,
        prediction: TrainingPrediction,
        graph: Graph,
        optimizer: Optimizer,
        samples: int,
        validation: int | None,
        half: float | None,
    ) -> TrainingPrediction:
        batch_size, warnings = prediction.batch_size, list(prediction.warnings)
        full, rest = divmod(samples, batch_size)
        epoch_ms = full * prediction.iteration_ms + self.epoch_ms
        if rest and not self.drop_last:
            epoch_ms += sum(self.parts(graph, rest, optimizer).values())
        evaluation_s = self._evaluation_s(graph, batch_size, validation) if validation else None
        if validation and evaluation_s is None:
            warnings.append(
                "the model was fitted on epochs without an evaluation: the validation samples are left out"
            )
        epoch_s = epoch_ms / 1e3 + (evaluation_s or 0.0)
        startup_s = self.startup_s(graph, optimizer)
        total_s = (startup_s or 0.0) + prediction.epochs * epoch_s
        if startup_s is None and self.starts:
            unknown = f"the start of a training with {optimizer.name} was not measured"
            warnings.append(f"{unknown}: the total is without it")
        if half is None:
            warnings.append(
                f"no interval: {len(self.residuals)} points cannot give {100 * prediction.coverage:g} % "
                "coverage"
            )
        return replace(
            prediction,
            iterations=iterations(samples, batch_size, self.drop_last),
            epoch_s=epoch_s,
            total_s=total_s,
            interval_s=None
            if half is None
            else (total_s * math.exp(-half), total_s * math.exp(half)),
            warnings=tuple(warnings),
            startup_s=startup_s,
            evaluation_s=evaluation_s,
        )

    def _evaluation_s(self, graph: Graph, batch_size: int, validation: int) -> float | None:
        """A pass over the validation samples."""
        full, rest = divmod(validation, batch_size)
        total_ms = self.epoch_ms
        for batches, size in ((full, batch_size), (int(rest > 0), rest)):
            if batches:
                batch_ms = self.evaluated_ms(graph, size)
                if batch_ms is None:
                    return None
                total_ms += batches * batch_ms
        return total_ms / 1e3


# ---- Where an iteration's time goes: its blocks, the update and what comes once for each iteration.


@dataclass(frozen=True)
class BlockTime:
    """A part of an iteration: ms, and its share of the whole from 0 to 1."""

    name: str
    iteration_ms: float
    share: float


def iteration_blocks(
    model: Training, graph: Graph, batch_size: int, optimizer: str
) -> tuple[BlockTime, ...]:
    """The blocks of `graph` in its order, then UPDATE and CALL; they add up to an iteration."""
    each, update, rest = model.operation_times(graph, batch_size, optimizer_named(optimizer))
    times = [(b.label, float(each[list(b.operations)].sum())) for b in cut(graph)]
    times += [(UPDATE, update), (CALL, rest)]
    whole = sum(t for _, t in times)
    return tuple(BlockTime(name, t, t / whole if whole else 0.0) for name, t in times)


def with_input(
    prediction: TrainingPrediction, sample_ms: float, devices: int = 1
) -> TrainingPrediction:
    """`prediction` with an input pipeline that makes a sample in `sample_ms`, for all `devices` together.

    Batches are made while the one before is trained on, as `tf.data`'s prefetch and PyTorch's workers do:
    an iteration takes the longer of both; with 0 there is nothing to wait for, and nothing is changed. The
    epoch's last batch waits as its share of a whole one; the pipeline's own time is taken as certain, so
    that an interval ends no earlier than it allows.
    InputError for a time that is negative or not finite.
    """
    if not (math.isfinite(sample_ms) and sample_ms >= 0.0):
        raise InputError(
            f"an input pipeline of {sample_ms:g} ms a sample cannot be; expected 0 or more, such as 2.5"
        )
    if sample_ms == 0.0:
        return prediction
    more_ms = sample_ms * prediction.batch_size * devices - prediction.iteration_ms
    wait_ms = max(0.0, more_ms)
    waited = replace(
        prediction,
        iteration_ms=prediction.iteration_ms + wait_ms,
        parts_ms={**prediction.parts_ms, INPUT: wait_ms},
    )
    if prediction.samples is None or prediction.epoch_s is None or prediction.total_s is None:
        return waited
    batches = prediction.samples / (prediction.batch_size * devices)
    # What the epochs would take if the device had nothing to do but wait for batches.
    bound_s = prediction.total_s + prediction.epochs * batches * more_ms / 1e3
    ends = prediction.interval_s
    return replace(
        waited,
        epoch_s=prediction.epoch_s + batches * wait_ms / 1e3,
        total_s=max(prediction.total_s, bound_s),
        interval_s=None if ends is None else (max(ends[0], bound_s), max(ends[1], bound_s)),
    )


# ---- Training on a device that was measured with `--mode training`: passes, update, loop and
# start apart.

WIDENING = 2.0  # of the interval, for operations that no measured block had, as of latencies


class MeasuredTraining(Training):
    """Each part of an iteration by its own coefficients.

    `forward`, `backward`: (PASS_TERMS,) ms for each unit; the call of a block measured alone is left out,
    as the loop has one call for all. An interval comes from blocks left out of the fit.
    """

    starts = True

    def __init__(self, document: dict[str, Any], source: str) -> None:
        """`document`: a valid model file's; ModelFileError where its `training` is damaged."""
        self.section = section = read_section(document["training"], source)
        self.document, self.source = document, source
        self.name = str(document["device"])
        self.residuals = section.residuals
        self.epoch_ms = section.loop_ms.epoch
        self.forward, self.backward = map(_row, (section.forward_ms, section.backward_ms))
        self.latency = Model(document, source)

    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """ms of the three parts; taking the batch and calling the framework are in the forward one."""
        total = pass_rows(graph, batch_size).sum(axis=0)
        return {
            "forward": float(total @ self.forward) + self._step_ms(graph, batch_size),
            "backward": float(total @ self.backward),
            "update": self._update_ms(graph, optimizer),
        }

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """See `Training`."""
        both = pass_rows(graph, batch_size) @ (self.forward + self.backward)
        return both, self._update_ms(graph, optimizer), self._step_ms(graph, batch_size)

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """Forward, as latencies are predicted, in the same loop."""
        predicted = self.latency.predict(graph, batch_size)
        return predicted.latency_ms - predicted.call_ms + self._step_ms(graph, batch_size)

    def startup_s(self, graph: Graph, optimizer: Optimizer) -> float | None:
        """Tracing and ordering the operations, making the optimizer's variables; None: not measured."""
        start = self.section.start_ms
        if start is None or optimizer.name not in start.variable:
            return None
        of_network = start.constant + start.operation * started(graph)
        return (of_network + start.variable[optimizer.name] * variables(graph)) / 1e3

    def doubts(
        self, graph: Graph, batch_size: int, optimizer: Optimizer, coverage: float
    ) -> Doubts:
        """How sure an answer is: less for operations that no measured block had."""
        warnings = [
            *graph.warnings,
            *other_framework(self.document["environment"], graph.framework),
        ]
        strange = sorted(behaviors(graph.operations).difference(self.section.kinds))
        if strange:
            several = "s" * (len(strange) > 1)
            warnings.append(
                f"no block measured in training has the operation{several} {', '.join(strange)}"
            )
        try:
            floor = self.section.noise.floor
            width = interval_width(self.document["training"], coverage, floor)
        except InputError:
            return Doubts(tuple(warnings), None)
        rows = pass_rows(graph, batch_size)
        times = rows @ (self.forward + self.backward)
        blocks = [list(b.operations) for b in cut(graph)]
        parts = np.array([times[b].sum() for b in blocks])
        ops = np.array([rows[b, PASS_TERMS.index("ops")].sum() for b in blocks])
        half = width.half(effective_ops(parts, ops)) * (WIDENING if strange else 1.0)
        return Doubts(tuple(warnings), half)

    def _step_ms(self, graph: Graph, batch_size: int) -> float:
        """What the loop takes for a step: a constant, and moving the batch."""
        elements = sum(graph.tensors[i].elements(batch_size) for i in graph.inputs)
        return self.section.loop_ms.step + self.section.loop_ms.element * elements

    def _update_ms(self, graph: Graph, optimizer: Optimizer) -> float:
        own = self.section.update_ms.get(optimizer.name)
        if own is None:
            raise InputError(
                f"{self.source} has no times of {optimizer.name}; it was measured with "
                f"{', '.join(self.section.update_ms)}"
            )
        return own.variable * variables(graph) + own.parameter * parameters(graph)


def _row(coefficients: Mapping[str, float]) -> np.ndarray:
    """(PASS_TERMS,), 0 where not named, `call` left out."""
    return np.array([coefficients.get(t, 0.0) for t in PASS_TERMS])


# ---- Training on a device of which a formula by operation is known: each step of an iteration
# by its terms.
#
# What a backward pass asks of a device, its operations say (`lolat.graph.work`); nothing of it need
# have been measured there.

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
        unlike = self.trained.unlike(steps.work, steps.times) or {}
        estimated: tuple[str, ...] = ()
        if self.measured_steps < LEAST_STEPS:
            number = self.measured_steps
            measured = f"only {number} training steps were" if number else "no training step was"
            estimated = (
                f"{measured} measured on this device: the backward pass is estimated from the forward one",
            )
        try:
            width = interval_width(self.errors, coverage, noise_floor(self.document) or 0.0)
            usual = width.half(len(graph.operations)) * (UNMEASURED if estimated else 1.0)
            half: float | None = widened(usual, sum(unlike.values()))
        except InputError:
            half = None
        warnings = (
            *count(graph).warnings,
            *self.trained.unlike_remarks(unlike, NEGLIGIBLE_SHARE),
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
