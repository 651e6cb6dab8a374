"""The training of a device: the question, the interface of its models, and the prediction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lolat.device.intervals import check_coverage
from lolat.device.question import as_whole
from lolat.device.running import mode_of
from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.analysis import parameters
from lolat.graph.modes import Mode
from lolat.hardware.links import Link
from lolat.hardware.prices import Rented
from lolat.io.results import Remark
from lolat.parameters import COVERAGE, Optimizer, optimizer_named
from lolat.training.exchange import exchange_ms, gradients
from lolat.training.iteration import state_bytes

# ---- The question.


@dataclass(frozen=True)
class TrainingRun:
    """A training that is asked about; InputError for numbers that cannot be.

    `batch_size`: samples of an iteration on each device; `samples`: in the data set, None: iterations
    alone; `validation`: samples evaluated after each epoch; `coverage`: of the interval.
    """

    batch_size: int
    samples: int | None = None
    epochs: int = 1
    optimizer: str = "sgd"
    coverage: float = COVERAGE
    validation: int | None = None

    def __post_init__(self) -> None:
        as_whole(self.batch_size)
        as_whole(self.epochs, "epochs")
        if self.samples is not None:
            as_whole(self.samples, "samples")
        elif self.validation is not None:
            raise InputError(
                f"{arg('validation_samples')} without {arg('samples')}: expected both, or none"
            )
        self.check_batch(1)
        check_coverage(self.coverage)
        optimizer_named(self.optimizer)
        object.__setattr__(self, "optimizer", self.optimizer.strip().lower())

    def share(self, devices: int) -> int | None:
        """Samples of the data set for each of so many devices, at least one; None without a data set."""
        return None if self.samples is None else max(self.samples // devices, 1)

    def most_devices(self, devices: Sequence[int]) -> tuple[int, ...]:
        """The numbers of `devices` whose batches the data set fills, or else the largest that it fills."""
        if self.samples is None:
            return tuple(devices)
        most = max(self.samples // self.batch_size, 1)
        return tuple(k for k in devices if k <= most) or (most,)

    def check_batch(self, devices: int) -> None:
        """InputError unless `devices` is a whole number from 1 and their batches fit the data set."""
        as_whole(devices, "replicas")
        if self.samples is not None and self.batch_size * devices > self.samples:
            wrong = arg("replicas" if devices > 1 else "batch_size")
            raise InputError(
                f"{wrong}: {devices} x a batch of {self.batch_size} is more than {self.samples} samples",
                code="batch-over-data",
            )


@dataclass(frozen=True)
class Limits:
    """The longest time and the most money that a training may take; None: any."""

    max_hours: float | None = None
    max_dollars: float | None = None

    @property
    def of_money(self) -> Limits:
        """The limit of money alone, which applies to the fastest."""
        return replace(self, max_hours=None)

    def keeps(self, total_s: float, price: float | None) -> bool:
        """True if seconds and US$ are within the limits; without a price no limit of money is kept."""
        in_time = self.max_hours is None or total_s <= 3600 * self.max_hours
        return in_time and (
            self.max_dollars is None or (price is not None and price <= self.max_dollars)
        )


# ---- A device's training.


@dataclass(frozen=True)
class Iteration:
    """An iteration on one device, ms.

    `forward`, `backward`: (operations,) of each operation; a model that knows both passes only together has
    (parts,) of them in `forward`, and None in `backward`. `update`: of the optimizer. `step`: once an
    iteration, taking the batch and calling the framework.
    """

    forward: np.ndarray
    backward: np.ndarray | None
    update: float
    step: float = 0.0

    @property
    def total(self) -> float:
        """The whole iteration."""
        backward = 0.0 if self.backward is None else float(self.backward.sum())
        return float(self.forward.sum()) + backward + self.update + self.step

    def parts(self) -> dict[str, float | None]:
        """The parts, which add up to `total`; None each if the model cannot tell them apart."""
        if self.backward is None:
            return {"forward": None, "backward": None, "update": None}
        forward = float(self.forward.sum()) + self.step
        return {"forward": forward, "backward": float(self.backward.sum()), "update": self.update}


class Training(ABC):
    """A device's training.

    `name`: of the device; `document`: the model's file; `epoch_ms`: what an epoch takes beside its
    iterations, and so does a pass over the validation samples; `estimated`: from inference, as no training
    was measured, or too little.
    """

    name: str
    document: Mapping[str, Any]
    epoch_ms: float = 0.0
    estimated: bool = False

    @property
    def mode(self) -> Mode | None:
        """The execution mode of the training; None if the file does not say it."""
        return mode_of(self.document) if "predictors" in self.document else None

    @abstractmethod
    def iteration(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> Iteration:
        """An iteration; InputError for an optimizer that was not measured."""

    @abstractmethod
    def warnings(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> tuple[str, ...]:
        """Remarks on an answer."""

    @abstractmethod
    def half_width(self, graph: Graph, batch_size: int, coverage: float) -> float:
        """Half of the interval's width, as a logarithm; InputError if there are too few points."""

    def in_domain(self, graph: Graph, batch_size: int) -> bool | None:
        """True if most of the time is spent within the measured range; None if not known."""
        return None

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """Time to evaluate a batch, a forward pass in a loop, in ms; InputError if not known."""
        raise InputError(f"the model knows no evaluation; leave out {arg('validation_samples')}")

    def startup_s(self, graph: Graph, optimizer: Optimizer) -> float | None:
        """Time before the first iteration, in s; None if not known."""
        return None


# ---- The answer.


@dataclass(frozen=True)
class TrainingPrediction:
    """A training on `devices` devices, linked by `link` (None: a given one) of `link_gbps` Gbit/s.

    `parts_ms`: of an iteration: forward, backward, update (None each where the model cannot tell), exchange
    (what is waited for); they add up to `iteration_ms`. `hidden_ms`: the exchange during the backward pass,
    part of no sum. `samples_per_s`: of all devices together, in full iterations. `epoch_s`: an epoch after
    the first, `evaluation_s` in it for the validation samples; `startup_s`: what the first epoch takes
    more; `total_s`: all epochs and that, `interval_s` of it. `dollars`: of `total_s`, by what is `rented`.
    None: not asked for, or the model cannot tell.
    """

    devices: int
    link: str | None
    link_gbps: float | None
    iteration_ms: float
    parts_ms: dict[str, float | None]
    hidden_ms: float
    samples_per_s: float
    iterations: int | None = None
    epoch_s: float | None = None
    evaluation_s: float | None = None
    startup_s: float | None = None
    total_s: float | None = None
    interval_s: tuple[float, float] | None = None
    rented: Rented | None = None
    dollars: float | None = None
    dollars_interval: tuple[float, float] | None = None
    warnings: tuple[str, ...] = ()


def predict(
    model: Training, graph: Graph, run: TrainingRun, devices: int = 1, link: Link | None = None
) -> TrainingPrediction:
    """A training on `devices` devices, which `link` joins (needed for several).

    Each device has its share of the samples, rounded up. Gradients travel while the backward pass goes on,
    where the model tells how long that is. InputError for zero devices, batches that together are larger
    than the data set, and an optimizer that was not measured.
    """
    run.check_batch(devices)
    optimizer = optimizer_named(run.optimizer)
    alone = model.iteration(graph, run.batch_size, optimizer)
    waited_ms = hidden_ms = 0.0
    ends_ms = (0.0, 0.0)
    if devices > 1:
        assert link is not None
        sizes, backward_ms = [parameters(graph) * state_bytes(graph, model.mode)], None
        if alone.backward is not None:
            sizes, backward_ms = gradients(graph, alone.backward, model.mode)
        (waited_ms, hidden_ms), (short, _), (long, _) = (
            exchange_ms(sizes, backward_ms, devices, each) for each in (link, *link.ends)
        )
        ends_ms = short, long
    parts_ms, total_ms = alone.parts() | {"exchange": waited_ms}, alone.total + waited_ms
    prediction = TrainingPrediction(
        devices, None if link is None else link.name, None if link is None else link.gbps,
        total_ms, parts_ms, hidden_ms, 1e3 * devices * run.batch_size / max(total_ms, 1e-9),
        warnings=model.warnings(graph, run.batch_size, optimizer),
    )  # fmt: skip
    if run.samples is None:
        return prediction
    return _with_epochs(prediction, model, graph, run, alone.total, ends_ms)


def _with_epochs(
    prediction: TrainingPrediction,
    model: Training,
    graph: Graph,
    run: TrainingRun,
    alone_ms: float,
    ends_ms: tuple[float, float],
) -> TrainingPrediction:
    """Add the times of epochs; the last iteration of each has the rest of a device's samples.

    `alone_ms`: an iteration without its exchange; `ends_ms`: the wait for the exchange on the fastest and
    on the slowest possible link. The lower ends of computing and of exchanging are added, and so are
    the upper ones: a sum of squares would be narrower, as a ratio, than either part alone.
    """
    assert run.samples is not None
    optimizer, warnings = optimizer_named(run.optimizer), list(prediction.warnings)

    def trained_ms(size: int) -> float:
        full = size == run.batch_size
        return alone_ms if full else model.iteration(graph, size, optimizer).total

    def all_ms(samples: int, batch_ms: Callable[[int], float]) -> float:
        """A pass over a device's share of the samples."""
        full, rest = divmod(-(-samples // prediction.devices), run.batch_size)
        batches = ((full, run.batch_size), (1, rest))
        return model.epoch_ms + sum(n * batch_ms(size) for n, size in batches if n and size)

    epoch_s = all_ms(run.samples, trained_ms) / 1e3
    evaluation_s = None
    if run.validation is not None:
        evaluation_s = all_ms(run.validation, lambda n: model.evaluated_ms(graph, n)) / 1e3
        epoch_s += evaluation_s
    startup_s = model.startup_s(graph, optimizer)
    iterations = -(-run.samples // (prediction.devices * run.batch_size))
    exchange_s = iterations * (prediction.parts_ms["exchange"] or 0.0) / 1e3
    alone_s, exchanges_s = (startup_s or 0.0) + run.epochs * epoch_s, run.epochs * exchange_s
    low_s, high_s = (run.epochs * iterations * ms / 1e3 for ms in ends_ms)
    interval_s = None
    try:
        factor = math.exp(model.half_width(graph, run.batch_size, run.coverage))
        interval_s = (alone_s / factor + low_s, alone_s * factor + high_s)
    except InputError:
        warnings.append(
            Remark(
                "no interval",
                f"too few points were left out of the fit for {100 * run.coverage:g} % coverage",
            )
        )
    return replace(
        prediction,
        iterations=iterations,
        epoch_s=epoch_s + exchange_s,
        evaluation_s=evaluation_s,
        startup_s=startup_s,
        total_s=alone_s + exchanges_s,
        interval_s=interval_s,
        warnings=tuple(warnings),
    )
