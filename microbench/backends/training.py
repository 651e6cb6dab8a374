"""What a backend does to be timed while it trains: one module for each framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lolat.errors import InputError
from lolat.graph import Graph
from microbench.backends import Backend, split

TRAINING = {
    "tensorflow": "microbench.backends.tensorflow.training:Training",
    "torch": "microbench.backends.torch.training:Training",
}
"""Backends that can train."""


class Training(Protocol):
    """Parts of training; each call waits for what it started. Shapes have no batch unless said."""

    def passes(
        self, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> Callable[[], object]:
        """A call of a block's forward pass in training mode, with `backward` of both passes.

        The gradients are those of the weights and, with `of_inputs`, of what the block reads.
        """

    def update(self, optimizer: str, shapes: Sequence[Sequence[int]]) -> Callable[[], object]:
        """A call of an update of variables of these shapes, their gradients given."""

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Callable[[], object]:
        """A call of an epoch with next to nothing to compute: what the framework's loop itself takes.

        `shape`: of a sample, channels last.
        """

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        """From a network made anew to the end of its first step, ms."""


def check(backend: str) -> None:
    """InputError where `backend` (its name and options) trains nothing."""
    name, _ = split(backend)
    if name not in TRAINING:
        raise InputError(
            f"the {name} backend trains nothing; expected {' or '.join(TRAINING)} for --mode training"
        )


def of(backend: Backend) -> Training:
    """The training of a backend; InputError where it trains nothing."""
    check(backend.name)
    module, _, attribute = TRAINING[backend.name].partition(":")
    found: Training = getattr(importlib.import_module(module), attribute)(backend)
    return found


def prepare(training: Training, job: Mapping[str, Any]) -> Callable[[], object]:
    """The call of a job: {"passes" | "update" | "epoch": arguments of the method of that name}."""
    if "passes" in job:
        given = dict(job["passes"])
        return training.passes(Graph.from_dict(given.pop("graph")), **given)
    if "update" in job:
        return training.update(**job["update"])
    return training.epoch(**job["epoch"])
