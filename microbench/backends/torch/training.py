"""Training with PyTorch, in parts that are timed: passes of a block, an update, a user's loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lolat.graph import Graph

from .. import LEARNING_RATE, NUM_CLASSES, OPTIMIZERS
from . import TorchBackend
from .layers import block_module


def optimizer_of(torch: Any, name: str, parameters: Any) -> Any:
    """An optimizer of PyTorch, with its defaults."""
    kind, options = OPTIMIZERS[name]
    return getattr(torch.optim, kind)(parameters, LEARNING_RATE, **options)


class TrainingBenchmark:
    """The parts of training with PyTorch; each call waits for its end. Shapes exclude the batch."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend, self.torch = backend, backend.torch
        self.passes, self.update = partial(Passes, backend), partial(Update, backend)

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Callable[[], None]:
        """An epoch of `Loop` with next to nothing to compute: the time of the loop itself."""
        nn = self.torch.nn
        x = self.torch.randn((batch_size * steps, shape[-1], *shape[:-1]))
        layers = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape[-1], NUM_CLASSES)
        network = nn.Sequential(*layers).to(self.backend.place)
        return Loop(self.backend, network, "sgd", [x], batch_size)

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        """Time from a new network to the end of the first step of `Loop`, ms."""
        with self.torch.device(self.backend.place):
            module, shapes = block_module(self.torch, graph)
        data = [self.torch.randn((batch_size, *shape[1:])) for shape in shapes]
        self.backend.wait()
        started = time.perf_counter()
        Loop(self.backend, module, optimizer, data, batch_size)()
        return (time.perf_counter() - started) * 1e3


class Passes:
    """The forward pass of a block in training mode, with `backward` also the backward pass.

    The gradients of the outputs are random. Those of the weights and, with `of_inputs`, of the inputs are
    left where a network's own backward pass leaves them.
    """

    def __init__(
        self, backend: TorchBackend, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> None:
        self.torch, self.backend, self.backward = backend.torch, backend, backward
        module, self.inputs = backend.block(graph, batch_size)
        self.module = backend.with_options(module.train())
        watched = [x for x in self.inputs if of_inputs and x.is_floating_point()]
        for x in watched:
            x.requires_grad_(True)
        weights = list(self.module.parameters())
        self.sources = [*weights, *watched]
        self.flowing: list[Any] | None = None  # until the shapes of the outputs are seen

    def __call__(self) -> None:
        """Run once and wait for the end."""
        if not self.backward:
            self.module(*self.inputs)
            self.backend.wait()
            return
        for source in self.sources:
            source.grad = None  # as zero_grad does; else they would be added up
        outputs = [out for out in self.module(*self.inputs) if out.requires_grad]
        if outputs:  # there are none where a block has no weights, and its input is an image
            if self.flowing is None:
                self.flowing = [self.torch.randn_like(out) for out in outputs]
            self.torch.autograd.backward(outputs, self.flowing)
        self.backend.wait()


class Update:
    """An update of variables of these shapes by an optimizer, their gradients given."""

    def __init__(
        self, backend: TorchBackend, optimizer: str, shapes: Sequence[Sequence[int]]
    ) -> None:
        torch, self.backend = backend.torch, backend
        dtype = torch.float16 if backend.options["half"] else torch.float32
        ones = [torch.ones(tuple(s), dtype=dtype, device=backend.place) for s in shapes]
        self.variables = [torch.nn.Parameter(one) for one in ones]
        for variable in self.variables:
            variable.grad = torch.full_like(variable, 1e-3)
        self.optimizer = optimizer_of(torch, optimizer, self.variables)

    def __call__(self) -> None:
        """Run once and wait for the end."""
        self.optimizer.step()
        self.backend.wait()


class Loop:
    """An epoch as PyTorch's users write it; `data`: the inputs of all samples, in the host's memory.

    `network` lies on the device and returns scores of classes, or a tuple that begins with them. All
    samples are of class 0, which every network has.
    """

    def __init__(
        self, backend: TorchBackend, network: Any, optimizer: str, data: Sequence[Any], batch_size: int
    ) -> None:  # fmt: skip
        torch, self.backend = backend.torch, backend
        self.network = backend.with_options(network)
        self.optimizer = optimizer_of(torch, optimizer, self.network.parameters())
        labels = torch.zeros(len(data[0]), dtype=torch.long)
        samples = torch.utils.data.TensorDataset(*data, labels)
        self.loader = torch.utils.data.DataLoader(samples, batch_size, shuffle=True)

    def __call__(self) -> None:
        """Run an epoch; every step waits for its loss."""
        self.network.train()
        for *inputs, labels in self.loader:
            self.optimizer.zero_grad()
            outputs = self.network(*map(self.backend.on_device, inputs))
            scores = outputs[0] if isinstance(outputs, tuple) else outputs
            loss = self.backend.torch.nn.functional.cross_entropy(
                scores.flatten(1), labels.to(self.backend.place)
            )
            loss.backward()
            self.optimizer.step()
            loss.item()
        self.backend.wait()
