"""The interface of what predicts training on a device: an iteration, and what is known of it."""

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

    `forward`: that of the pass; `backward`: (operations,) of the pass; if both are only known together,
    `forward` is that of both and `backward` is None. `update`: the optimizer's. `step`: taking the batch
    and calling the framework.
    """

    forward: float
    backward: np.ndarray | None
    update: float
    step: float = 0.0

    def accumulated(self, number: int, optimizer: Optimizer, shards: Shards) -> Iteration:
        """The iteration of `number` micro-batches and one update, whose work `shards` divide.

        Adding up a gradient reads and writes as much as an update without states, but for the first one.
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
        """The whole iteration."""
        backward = 0.0 if self.backward is None else float(self.backward.sum())
        return self.forward + backward + self.update + self.step

    def parts(self) -> dict[str, float | None]:
        """The parts, which add up to `total`; None each if they are only known together."""
        if self.backward is None:
            return dict.fromkeys(("forward", "backward", "update"))
        passes = self.forward + self.step, float(self.backward.sum())
        return {"forward": passes[0], "backward": passes[1], "update": self.update}


@dataclass(frozen=True)
class TrainedBatch:
    """Training on a micro-batch, as it is predicted.

    `warnings`: remarks on an answer. `half_width`: a coverage -> half of the interval's width, as a
    logarithm; it raises InputError if too little was measured. `in_domain`: True if most of the time is
    inside the measured range; None if unknown. `host_bound`: True if the host takes longer to launch the
    operations than the GPU to run them. `estimated`: True if it follows from inference, because too little
    training was measured.
    """

    iteration: Iteration
    warnings: tuple[str, ...]
    half_width: Callable[[float], float]
    in_domain: bool | None = None
    host_bound: bool = False
    estimated: bool = False


class TrainingPredictor(ABC):
    """Predicts training on a device.

    `file`: the device's. `epoch_ms`: the time of an epoch, or of a pass over the validation samples, beside
    its iterations. `own_runs`: number of the user's runs that set its level.
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
        """Predict the ms to evaluate a batch, a forward pass in a loop; InputError if unknown."""
        words = f"no evaluation was measured; leave out {arg('validation_samples')}"
        raise InputError(words, code="no-evaluation", of_device=True)

    def startup_s(self, graph: Graph, optimizer: Optimizer) -> float | None:
        """Predict the s before the first iteration; None if unknown."""
        return None


def unmeasured(graph: Graph, kinds: Sequence[str]) -> list[str]:
    """The kinds of operation of a network that are not among the measured ones."""
    return sorted(behaviors(graph.operations).difference(kinds))
