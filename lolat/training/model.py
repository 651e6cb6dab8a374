"""A device's training time: fitted from a table of epochs, asked for networks that are not in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any, Protocol

import numpy as np

from lolat.errors import InputError
from lolat.fitting.intervals import COVERAGE, check_coverage, conformal_quantile
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.training.memory import FLOAT_BYTES, memory_bytes, parameters
from lolat.training.settings import Optimizer, check_sizes, optimizer_named
from lolat.training.terms import (
    TERMS,
    density,
    epoch_row,
    iteration_row,
    iterations,
    operation_rows,
)
from lolat.units import milliseconds

SCHEMA = "lolat-training-model"
FORMAT_VERSION = 1
KINDS = {
    "weighted_ops": "operations with weights",
    "norm_ops": "normalisations",
    "flat_norm_ops": "normalisations of tensors without positions",
    "conv_elements": "convolutions",
}
"""Kinds of operation by their terms, in words."""
DENSER, LONGER = 1.5, 3.0  # than all rows: beyond that a prediction is warned of
PARTS = ("forward", "backward", "update", "exchange")


@dataclass(frozen=True)
class TrainingPrediction:
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

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        interval = None if self.interval_s is None else list(self.interval_s)
        return {**asdict(self), "interval_s": interval, "warnings": list(self.warnings)}


@dataclass(frozen=True)
class TrainingModel:
    """Time of an epoch: a formula of the network's counts, the parameters and constants.

    `coefficients`: ms per unit of each of TERMS, (terms,), from 0; `residuals`: log(measured / predicted)
    of each row as predicted without it; `drop_last`: whether an epoch leaves out a last batch that is not
    full; `optimizers`: those of the rows; `densest`, `longest_ms`: the most multiply-accumulates for an
    element moved, and the longest iteration, of the rows; `absent`: terms that no row has;
    `document`: the file.
    """

    name: str
    coefficients: np.ndarray
    residuals: tuple[float, ...]
    drop_last: bool
    optimizers: tuple[str, ...]
    densest: float = math.inf
    longest_ms: float = math.inf
    absent: tuple[str, ...] = ()
    document: dict[str, Any] = field(default_factory=dict, repr=False)

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

        `validation`: samples that are evaluated after each epoch, of which a table of epochs tells nothing.
        InputError for numbers that are not whole and above 0, a batch larger than the data set, and an
        optimiser that is not known.
        """
        used = optimizer_named(optimizer)
        check_sizes(batch_size, samples, epochs, validation)
        check_coverage(coverage)
        iteration = iteration_row(graph, batch_size, used)
        iteration_ms = float(iteration @ self.coefficients)
        epoch_s = total_s = interval = steps = None
        warnings = list(graph.warnings)
        if self.optimizers and used.name not in self.optimizers:
            warnings.append(
                f"no row that the model was fitted on used {used.name}, only "
                f"{', '.join(self.optimizers)}: its update is scaled by what it reads and writes"
            )
        if validation:
            warnings.append(
                "the model was fitted on epochs without an evaluation: the validation samples are left out"
            )
        lacking = [KINDS[t] for t in self.absent if t in KINDS and iteration[TERMS.index(t)] > 0.0]
        if lacking:
            warnings.append(
                f"no row that the model was fitted on has {', '.join(lacking)}: what they cost is not "
                "known, so the network takes longer than said"
            )
        if density(iteration) > DENSER * self.densest:
            warnings.append(
                f"the network multiplies {density(iteration):.0f} times for each element that it moves, "
                f"the rows at most {self.densest:.0f} times: what multiplying costs is not well known"
            )
        if iteration_ms > LONGER * self.longest_ms:
            warnings.append(
                f"an iteration of {milliseconds(iteration_ms)} is far longer than those of the rows, "
                f"at most {milliseconds(self.longest_ms)}"
            )
        if samples is not None:
            row = epoch_row(graph, batch_size, samples, used, self.drop_last)
            epoch_s = float(row @ self.coefficients) / 1e3
            total_s = epochs * epoch_s
            steps = iterations(samples, batch_size, self.drop_last)
            try:
                factor = math.exp(min(conformal_quantile(self.residuals, coverage), 100.0))
                interval = (total_s / factor, total_s * factor)
            except InputError:
                warnings.append(
                    f"no interval: {len(self.residuals)} rows cannot give {100 * coverage:g} % coverage"
                )
        return TrainingPrediction(
            graph.name, batch_size, used.name, samples, epochs, steps, iteration_ms,
            {"forward": None, "backward": None, "update": None, "exchange": 0.0},
            epoch_s, total_s, interval, coverage,
            memory_bytes(graph, batch_size, used), parameters(graph) * FLOAT_BYTES, tuple(warnings),
        )  # fmt: skip

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """Forward and backward of each operation, (operations,) ms; the update, ms; the rest, ms.

        They add up to an iteration.
        """
        whole = iteration_row(graph, batch_size, optimizer) * self.coefficients
        update = float(whole[TERMS.index("update")])
        rest = float(whole[TERMS.index("steps")])
        return operation_rows(graph, batch_size) @ self.coefficients, update, rest


def new_model(
    name: str,
    coefficients: np.ndarray,
    residuals: np.ndarray,
    drop_last: bool,
    optimizers: tuple[str, ...],
    points: Sequence[dict[str, Any]],
    densest: float,
    longest_ms: float,
    absent: tuple[str, ...],
) -> TrainingModel:
    """A model with its file's contents: what it holds, and the rows that it was fitted on."""
    document = {
        "schema": SCHEMA,
        "version": FORMAT_VERSION,
        "name": name,
        "environment": {"device": name, "source": "a table of epochs"},
        "coefficients_ms": dict(zip(TERMS, coefficients.tolist(), strict=True)),
        "residuals": residuals.tolist(),
        "drop_last": drop_last,
        "optimizers": list(optimizers),
        "domain": {"densest": densest, "longest_ms": longest_ms, "absent": list(absent)},
        "points": list(points),
    }
    kept = tuple(residuals.tolist())
    return TrainingModel(
        name, coefficients, kept, drop_last, optimizers, densest, longest_ms, absent, document
    )


class Training(Protocol):
    """What training models answer: `TrainingModel`, `lolat.training.measured.MeasuredTraining` and
    `lolat.training.estimated.EstimatedTraining`.
    """

    @property
    def name(self) -> str:
        """Of the device."""

    @property
    def document(self) -> dict[str, Any]:
        """Its file."""

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""

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
        """How long training takes; see `TrainingModel.predict`."""

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """Forward and backward of each operation, (operations,) ms; the update, ms; the rest, ms."""


def load_training(path: str | PathLike[str]) -> Training:
    """A model: a path, `local` (the one learned last here) or a name (`lolat models`).

    ModelFileError for a file that is something else, or that knows nothing of training.
    """
    from lolat.training.file import read

    return read(path)


# ---- Where an iteration's time goes: its blocks, the update and what comes once for each
# iteration.

UPDATE, CALL = "update", "call"


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


# ---- The input pipeline beside training: where it is slower than the device, the device waits.

INPUT = "input"
"""The part of an iteration that the device waits for its batch."""


def with_input(found: TrainingPrediction, sample_ms: float, devices: int = 1) -> TrainingPrediction:
    """`found` with a pipeline that makes a sample in `sample_ms`, for all `devices` together.

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
        return found
    more_ms = sample_ms * found.batch_size * devices - found.iteration_ms
    wait_ms = max(0.0, more_ms)
    waited = replace(
        found,
        iteration_ms=found.iteration_ms + wait_ms,
        parts_ms={**found.parts_ms, INPUT: wait_ms},
    )
    if found.samples is None or found.epoch_s is None or found.total_s is None:
        return waited
    batches = found.samples / (found.batch_size * devices)
    # What the epochs would take if the device had nothing to do but wait for batches.
    bound_s = found.total_s + found.epochs * batches * more_ms / 1e3
    ends = found.interval_s
    return replace(
        waited,
        epoch_s=found.epoch_s + batches * wait_ms / 1e3,
        total_s=max(found.total_s, bound_s),
        interval_s=None if ends is None else (max(ends[0], bound_s), max(ends[1], bound_s)),
    )
