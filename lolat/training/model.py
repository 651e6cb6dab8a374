"""How long training takes: what every model of it answers, and what an epoch is put together from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.intervals import (
    COVERAGE,
    check_coverage,
)
from lolat.graph import Graph
from lolat.graph.analysis import FLOAT_BYTES, parameters
from lolat.graph.blocks import cut
from lolat.io.results import Result
from lolat.training.iteration import (
    Optimizer,
    check_sizes,
    iterations,
    memory_bytes,
    optimizer_named,
)
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

    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """ms of an iteration's parts by the names of PARTS, or as a whole by another; they add up to it."""
        operations, update, rest = self.operation_times(graph, batch_size, optimizer)
        return {"iteration": float(operations.sum()) + update + rest}

    @abstractmethod
    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """Forward and backward of each operation, (operations,) ms; the update, ms; the rest, ms.

        They add up to an iteration. InputError for an optimizer that was not measured.
        """

    @abstractmethod
    def warnings(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> tuple[str, ...]:
        """What is to be said of an answer."""

    @abstractmethod
    def half_width(self, graph: Graph, batch_size: int, coverage: float) -> float:
        """Half of an interval's width, a logarithm; InputError where too few points tell it."""

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
        prediction = TrainingPrediction(
            graph.name, batch_size, used.name, samples, epochs, None, sum(parts.values()),
            {p: parts.get(p) for p in PARTS} | {"exchange": 0.0}, None, None, None, coverage,
            memory_bytes(graph, batch_size, used), parameters(graph) * FLOAT_BYTES,
            self.warnings(graph, batch_size, used),
        )  # fmt: skip
        if samples is None:
            return prediction
        return self._with_epochs(prediction, graph, used, samples, validation)

    def _with_epochs(
        self,
        prediction: TrainingPrediction,
        graph: Graph,
        optimizer: Optimizer,
        samples: int,
        validation: int | None,
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
        interval_s = None
        try:
            half = self.half_width(graph, batch_size, prediction.coverage)
            interval_s = (total_s * math.exp(-half), total_s * math.exp(half))
        except InputError:
            warnings.append(
                f"no interval: {len(self.residuals)} points cannot give {100 * prediction.coverage:g} % "
                "coverage"
            )
        return replace(
            prediction,
            iterations=iterations(samples, batch_size, self.drop_last),
            epoch_s=epoch_s,
            total_s=total_s,
            interval_s=interval_s,
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
    changes: dict[str, Any] = {
        "iteration_ms": prediction.iteration_ms + wait_ms,
        "parts_ms": {**prediction.parts_ms, INPUT: wait_ms},
    }
    if not (prediction.samples is None or prediction.epoch_s is None or prediction.total_s is None):
        batches = prediction.samples / (prediction.batch_size * devices)
        # What the epochs would take if the device had nothing to do but wait for batches.
        bound_s = prediction.total_s + prediction.epochs * batches * more_ms / 1e3
        changes["epoch_s"] = prediction.epoch_s + batches * wait_ms / 1e3
        changes["total_s"] = max(prediction.total_s, bound_s)
        if prediction.interval_s is not None:
            changes["interval_s"] = tuple(max(end, bound_s) for end in prediction.interval_s)
    return replace(prediction, **changes)
