"""Training with PyTorch, in parts that are timed: passes of a block, an update, a user's loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lolat.graph import Graph
from microbench.backends import CLASSES, LEARNING_RATE, OPTIMIZERS
from microbench.backends.torch import TorchBackend
from microbench.backends.torch.layers import block_module


def optimizer_of(torch: Any, name: str, parameters: Any) -> Any:
    """An optimizer; PyTorch decides whether it updates the variables one by one or together."""
    kind, options = OPTIMIZERS[name]
    return getattr(torch.optim, kind)(parameters, LEARNING_RATE, **options)


class Training:
    """Parts of training with PyTorch; each call waits for its end. Shapes have no batch unless said."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend, self.torch = backend, backend.torch

    def passes(
        self, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> Callable[[], None]:
        """The forward pass of a block in training mode, or that and the backward pass: the gradients of the
        weights and, with `of_inputs`, of the inputs. What comes back from the layers behind is made up.
        """
        return Passes(self.backend, graph, batch_size, backward, of_inputs)

    def update(self, optimizer: str, shapes: Sequence[Sequence[int]]) -> Callable[[], None]:
        """An update of variables of these shapes by `optimizer`, their gradients given."""
        return Update(self.backend, optimizer, shapes)

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Callable[[], None]:
        """An epoch of the loop below with next to nothing to compute: what the loop itself takes."""
        nn = self.torch.nn
        x = self.torch.randn((batch_size * steps, shape[-1], *shape[:-1]))
        network = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape[-1], CLASSES)
        )
        return Loop(self.backend, network.to(self.backend.place), "sgd", [x], batch_size)

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        """From a network made anew to the end of the first step of the loop below, ms."""
        with self.torch.device(self.backend.place):
            module, shapes = block_module(self.torch, graph)
        data = [self.torch.randn((batch_size, *shape[1:])) for shape in shapes]
        self.backend.wait()
        started = time.perf_counter()
        Loop(self.backend, module, optimizer, data, batch_size)()
        return (time.perf_counter() - started) * 1e3


class Passes:
    """A block in training mode, its input, and what comes back from the layers behind it, made up.

    A call computes the outputs, and keeps for the backward pass what that needs, whether or not it
    follows; with `backward` it leaves the gradients of the weights and, with `of_inputs`, of what the block
    reads where a network's own backward pass leaves them.
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
        """Run once and wait for the result."""
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
    """Variables of given shapes with their gradients, and an optimizer; a call updates them and waits."""

    def __init__(
        self, backend: TorchBackend, optimizer: str, shapes: Sequence[Sequence[int]]
    ) -> None:
        torch, self.backend = backend.torch, backend
        dtype = torch.float16 if backend.options["half"] else torch.float32
        self.variables = []
        for shape in shapes:
            ones = torch.ones(tuple(shape), dtype=dtype, device=self.backend.place)
            self.variables.append(torch.nn.Parameter(ones))
            self.variables[-1].grad = torch.full_like(ones, 1e-3)
        self.optimizer = optimizer_of(torch, optimizer, self.variables)

    def __call__(self) -> None:
        """Run once and wait for the result."""
        self.optimizer.step()
        self.backend.wait()


class Loop:
    """An epoch as PyTorch's users write it; `data`: the inputs of all samples, in the host's memory.

    `network` lies on the device and gives scores of classes, or a tuple of which these are the first. All
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
        """Run once; every step waits for its loss."""
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
