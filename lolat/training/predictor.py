"""The interface of predictors of training on a device, and the iteration that they predict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lolat.device.file import DeviceFile
from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.counts import behaviors
from lolat.graph.modes import Mode
from lolat.optimizers import Optimizer
from lolat.training.recipe import Shards

ACCUMULATED = 3  # elements read and written for each parameter as a gradient is added to another


@dataclass(frozen=True)
class Iteration:
    """The times of an iteration on one device, in ms.

    `forward`: the forward pass; `backward`: (operations,) times of the backward pass. If the passes are
    only known together, `forward` is the time of both and `backward` is None. `update`: the update by the
    optimizer. `step`: reading the batch and calling the framework.
    """

    forward: float
    backward: np.ndarray | None
    update: float
    step: float = 0.0

    def accumulated(self, number: int, optimizer: Optimizer, shards: Shards) -> Iteration:
        """An iteration of `number` micro-batches and one update, whose work is divided by `shards`.

        From the second micro-batch on, gradients are added up, which moves ACCUMULATED elements for each
        parameter.
        """
        added = ACCUMULATED * (number - 1) / optimizer.accesses / shards.gradients
        backward = None if self.backward is None else number * self.backward
        return Iteration(
            number * self.forward,
            backward,
            self.update * (1 / shards.states + added),
            number * self.step,
        )

    @property
    def total(self) -> float:
        """The time of the whole iteration."""
        backward = 0.0 if self.backward is None else float(self.backward.sum())
        return self.forward + backward + self.update + self.step

    def parts(self) -> dict[str, float | None]:
        """The parts, which add up to `total`; all None if they are only known together."""
        if self.backward is None:
            return dict.fromkeys(("forward", "backward", "update"))
        passes = self.forward + self.step, float(self.backward.sum())
        return {"forward": passes[0], "backward": passes[1], "update": self.update}


@dataclass(frozen=True)
class TrainedBatch:
    """The prediction of training on a micro-batch.

    `warnings`: remarks on the prediction. `half_width`: a function of the coverage that returns the half
    width of the interval, a logarithm; it raises InputError if too little was measured. `in_domain`: True
    if most of the time is inside the measured range; None if unknown. `host_bound`: True if the host takes
    longer to launch the operations than the GPU to run them. `estimated`: True if the times follow from
    inference, because too little training was measured.
    """

    iteration: Iteration
    warnings: tuple[str, ...]
    half_width: Callable[[float], float]
    in_domain: bool | None = None
    host_bound: bool = False
    estimated: bool = False


class TrainingPredictor(ABC):
    """Predicts training on a device.

    `file`: the device file. `epoch_ms`: constant time of an epoch, or of a pass over the validation
    samples, besides its iterations. `own_runs`: number of the user's runs that set the level of the times.
    """

    file: DeviceFile
    epoch_ms: float = 0.0
    own_runs: int = 0

    @property
    def mode(self) -> Mode | None:
        """The execution mode of the training; None if the file does not say it."""
        return self.file.mode if self.file.has_latencies else None

    @abstractmethod
    def batch(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> TrainedBatch:
        """Predict a micro-batch and its update; InputError for an optimizer that was not measured."""

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """Predict the ms to evaluate a batch: a forward pass in a loop. InputError if this is not known."""
        words = f"no evaluation was measured; leave out {arg('validation_samples')}"
        raise InputError(words, code="no-evaluation", of_device=True)

    def startup_s(self, graph: Graph, optimizer: Optimizer) -> float | None:
        """Predict the additional s of the first iteration (tracing, setup); None if unknown."""
        return None


def unmeasured(graph: Graph, kinds: Sequence[str]) -> list[str]:
    """The kinds of operation in a network that are not in `kinds`, the measured ones."""
    return sorted(behaviors(graph.operations).difference(kinds))
