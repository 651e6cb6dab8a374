"""Training with PyTorch in parts that are timed: passes of a block, an update, a user's loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lolat.graph import Graph

from .. import LEARNING_RATE, NUM_CLASSES, OPTIMIZERS
from . import TorchBackend
from .layers import block_module


def optimizer_of(torch: Any, name: str, parameters: Any) -> Any:
    """An optimizer of PyTorch, by its name in OPTIMIZERS."""
    kind, options = OPTIMIZERS[name]
    return getattr(torch.optim, kind)(parameters, LEARNING_RATE, **options)


class TrainingBenchmark:
    """The parts of training with PyTorch; each call waits for its end. Shapes exclude the batch."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend, self.torch = backend, backend.torch

    def passes(
        self, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> Callable[[], None]:
        """A call of a block's forward pass in training mode and, if `backward`, of its backward pass.

        The gradients of the outputs are random. The gradients of the weights and, if `of_inputs`, of the
        inputs are stored where a network's own backward pass stores them.
        """
        module, inputs = self.backend.block(graph, batch_size)
        module = self.backend.with_options(module.train())
        watched = [x for x in inputs if of_inputs and x.is_floating_point()]
        for x in watched:
            x.requires_grad_(True)
        sources = [*module.parameters(), *watched]
        flowing: list[Any] = []  # empty until the shapes of the outputs are known

        def call() -> None:
            if not backward:
                module(*inputs)
                self.backend.wait()
                return
            for source in sources:
                source.grad = None  # as zero_grad does; otherwise gradients would add up
            outputs = [out for out in module(*inputs) if out.requires_grad]
            if outputs:  # a block without weights that reads an image has no gradients
                if not flowing:
                    flowing.extend(map(self.torch.randn_like, outputs))
                self.torch.autograd.backward(outputs, flowing)
            self.backend.wait()

        return call

    def update(self, optimizer: str, shapes: Sequence[Sequence[int]]) -> Callable[[], None]:
        """A call in which an optimizer updates variables of these shapes, with gradients given."""
        torch, place = self.torch, self.backend.place
        dtype = torch.float16 if self.backend.options["half"] else torch.float32
        ones = [torch.ones(tuple(s), dtype=dtype, device=place) for s in shapes]
        variables = [torch.nn.Parameter(one) for one in ones]
        for variable in variables:
            variable.grad = torch.full_like(variable, 1e-3)
        made = optimizer_of(torch, optimizer, variables)

        def call() -> None:
            made.step()
            self.backend.wait()

        return call

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Callable[[], None]:
        """A call of an epoch of `_loop` with almost nothing to compute, which times the loop itself."""
        nn = self.torch.nn
        x = self.torch.randn((batch_size * steps, shape[-1], *shape[:-1]))
        layers = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape[-1], NUM_CLASSES)
        network = nn.Sequential(*layers).to(self.backend.place)
        return self._loop(network, "sgd", [x], batch_size)

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        """Time in ms from a new network to the end of the first step of `_loop`."""
        with self.torch.device(self.backend.place):
            module, shapes = block_module(self.torch, graph)
        data = [self.torch.randn((batch_size, *shape[1:])) for shape in shapes]
        self.backend.wait()
        started = time.perf_counter()
        self._loop(module, optimizer, data, batch_size)()
        return (time.perf_counter() - started) * 1e3

    def _loop(
        self, network: Any, optimizer: str, data: Sequence[Any], batch_size: int
    ) -> Callable[[], None]:
        """A call of an epoch written as PyTorch's users write it; every step waits for its loss.

        `data`: the inputs of all samples, in host memory. All samples have class 0, which every network
        has. `network` is on the device and returns scores of classes, or a tuple that begins with them.
        """
        torch, backend = self.torch, self.backend
        network = backend.with_options(network)
        made = optimizer_of(torch, optimizer, network.parameters())
        labels = torch.zeros(len(data[0]), dtype=torch.long)
        samples = torch.utils.data.TensorDataset(*data, labels)
        loader = torch.utils.data.DataLoader(samples, batch_size, shuffle=True)

        def call() -> None:
            network.train()
            for *inputs, labels in loader:
                made.zero_grad()
                outputs = network(*map(backend.on_device, inputs))
                scores = outputs[0] if isinstance(outputs, tuple) else outputs
                loss = torch.nn.functional.cross_entropy(
                    scores.flatten(1), labels.to(backend.place)
                )
                loss.backward()
                made.step()
                loss.item()
            backend.wait()

        return call
