"""One layer in training mode with PyTorch, uncompiled: forward, or with backward and update too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lolat.graph import Graph
from microbench.backends.shapes import first
from microbench.backends.torch import TorchBackend
from microbench.backends.torch.tape import block_module, materialise

# ---- Training with PyTorch, in parts that can be timed: a block's passes, an update, a user's
# own loop.

LEARNING_RATE = 1e-4  # so small that the numbers stay as they are, however often it is timed
MOMENTUM = 0.9

OPTIMIZERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "sgd": lambda torch, p: torch.optim.SGD(p, LEARNING_RATE),
    "momentum": lambda torch, p: torch.optim.SGD(p, LEARNING_RATE, momentum=MOMENTUM),
    "adadelta": lambda torch, p: torch.optim.Adadelta(p, LEARNING_RATE),
    "adagrad": lambda torch, p: torch.optim.Adagrad(p, LEARNING_RATE),
    "adam": lambda torch, p: torch.optim.Adam(p, LEARNING_RATE),
    "rmsprop": lambda torch, p: torch.optim.RMSprop(p, LEARNING_RATE),
}
"""As a user gets them: whether they go through the variables one by one or together, PyTorch decides."""
CLASSES = 10


class Training:
    """What `microbench.backends.training` asks of PyTorch."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend, self.torch, self.device = backend, backend.torch, backend.device

    def passes(
        self, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> Callable[[], None]:
        """The forward pass of a block in training mode, or that and the backward pass, and the wait."""
        return self._guarded(lambda: Passes(self.backend, graph, batch_size, backward, of_inputs))

    def update(self, optimizer: str, shapes: Sequence[Sequence[int]]) -> Callable[[], None]:
        """An update of variables of these shapes by `optimizer`, their gradients given, and the wait."""
        return self._guarded(lambda: Update(self.backend, optimizer, shapes))

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Callable[[], None]:
        """An epoch of the loop below with next to nothing to compute: what the loop itself takes."""
        nn = self.torch.nn
        x = self.torch.randn((batch_size * steps, *first((1, *shape))[1:]))

        def make() -> Callable[[], None]:
            network = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape[-1], CLASSES)
            )
            return Loop(self.backend, network.to(self.device.place), "sgd", [x], batch_size)

        return self._guarded(make)

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        """From a network made anew to the end of the first step of the loop below, ms."""
        torch = self.torch

        def make() -> float:
            module, shapes = block_module(torch, graph)
            module = materialise(torch, module, self.device.place)
            data = []
            for i, shape in zip(graph.inputs, shapes, strict=True):
                dtype = getattr(torch, graph.tensors[i].dtype)
                made = torch.randn if dtype.is_floating_point else torch.ones
                data.append(made((batch_size, *shape[1:]), dtype=dtype))
            self.device.wait()
            started = time.perf_counter()
            Loop(self.backend, module, optimizer, data, batch_size)()
            return (time.perf_counter() - started) * 1e3

        found: float = self.backend.within_memory(make)()
        return found

    def _guarded(self, make: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        """What `make` makes; either is a MeasuringError where the device's memory does not suffice."""
        call: Callable[[], None] = self.backend.within_memory(make)()
        return self.backend.within_memory(call)


class Passes:
    """A block in training mode, its input, and what comes back from the layers behind it, made up.

    A call computes the outputs, and keeps for the backward pass what that needs, whether or not it
    follows; with `backward` it leaves the gradients of the weights and, with `of_inputs`, of what the block
    reads where a network's own backward pass leaves them.
    """

    def __init__(
        self, backend: TorchBackend, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> None:
        self.torch, self.device, self.backward = backend.torch, backend.device, backward
        module, shapes = block_module(self.torch, graph)
        module = materialise(self.torch, module, self.device.place).train()
        self.module = backend.as_asked(module)
        self.inputs = [
            backend.value(graph.tensors[i], shape, batch_size)
            for i, shape in zip(graph.inputs, shapes, strict=True)
        ]
        watched = [x for x in self.inputs if of_inputs and x.is_floating_point()]
        for x in watched:
            x.requires_grad_(True)
        self.sources = [*self.module.parameters(), *watched]
        self.flowing: list[Any] | None = None  # until the shapes of the outputs are seen

    def __call__(self) -> None:
        """Run once and wait for the result."""
        if not self.backward:
            self.module(*self.inputs)
            self.device.wait()
            return
        for source in self.sources:
            source.grad = None  # as zero_grad does; else they would be added up
        outputs = [out for out in self.module(*self.inputs) if out.requires_grad]
        if outputs:  # there are none where a block has no weights, and its input is an image
            if self.flowing is None:
                self.flowing = [self.torch.randn_like(out) for out in outputs]
            self.torch.autograd.backward(outputs, self.flowing)
        self.device.wait()


class Update:
    """Variables of given shapes with their gradients, and an optimiser; a call updates them and waits."""

    def __init__(
        self, backend: TorchBackend, optimizer: str, shapes: Sequence[Sequence[int]]
    ) -> None:
        torch, self.device = backend.torch, backend.device
        dtype = torch.float16 if backend.options["half"] else torch.float32
        self.variables = []
        for shape in shapes:
            ones = torch.ones(tuple(shape), dtype=dtype, device=self.device.place)
            self.variables.append(torch.nn.Parameter(ones))
            self.variables[-1].grad = torch.full_like(ones, 1e-3)
        self.optimizer = OPTIMIZERS[optimizer](torch, self.variables)

    def __call__(self) -> None:
        """Run once and wait for the result."""
        self.optimizer.step()
        self.device.wait()


class Loop:
    """An epoch as PyTorch's users write it; `data`: the inputs of all samples, in the host's memory.

    `network` lies on the device and gives scores of classes, or a tuple of which these are the first. All
    samples are of class 0, which every network has.
    """

    def __init__(
        self,
        backend: TorchBackend,
        network: Any,
        optimizer: str,
        data: Sequence[Any],
        batch_size: int,
    ) -> None:
        torch, self.device, self.options = backend.torch, backend.device, backend.options
        self.torch = torch
        self.network = backend.as_asked(network)
        self.optimizer = OPTIMIZERS[optimizer](torch, self.network.parameters())
        labels = torch.zeros(len(data[0]), dtype=torch.long)
        samples = torch.utils.data.TensorDataset(*data, labels)
        self.loader = torch.utils.data.DataLoader(samples, batch_size, shuffle=True)

    def __call__(self) -> None:
        """Run once; every step waits for its loss."""
        self.network.train()
        for *inputs, labels in self.loader:
            self.optimizer.zero_grad()
            outputs = self.network(*map(self._there, inputs))
            scores = outputs[0] if isinstance(outputs, tuple) else outputs
            loss = self.torch.nn.functional.cross_entropy(
                scores.flatten(1), labels.to(self.device.place)
            )
            loss.backward()
            self.optimizer.step()
            loss.item()
        self.device.wait()

    def _there(self, x: Any) -> Any:
        """A batch on the device, as the options have it."""
        if self.options["half"] and x.is_floating_point():
            x = x.half()
        x = x.to(self.device.place)
        if self.options["channels_last"] and x.dim() == 4:
            x = x.to(memory_format=self.torch.channels_last)
        return x


# ---- torch layer steps ----------------------------------------


class LayerStep:
    """A PyTorch layer, its input and, where it is trained, target and optimiser.

    `layer`: see `microbench.backends.layer_step`; images are channels first. The loss is the mean squared
    difference from a target of ones, as in the measurements of Justus et al. 2018; the gradient is that of
    the weights and of the input, as for a layer in the middle of a network; the optimiser updates the
    weights.
    """

    def __init__(self, backend: TorchBackend, layer: Mapping[str, Any]) -> None:
        self.torch, self.device = backend.torch, backend.device
        place = self.device.place
        self.layer = _module(self.torch, layer).to(place)
        self.x = self.torch.randn(_input_shape(layer), device=place)
        self.optimizer: Any = None
        if layer["optimizer"] != "none":
            self.optimizer = OPTIMIZERS[layer["optimizer"]](self.torch, self.layer.parameters())
            with self.torch.inference_mode():
                shape = self.layer(self.x).shape
            self.target = self.torch.ones(shape, device=place)
            self.x.requires_grad_(True)

    def forward(self) -> Any:
        """The layer's output."""
        with self.torch.inference_mode():
            return self.layer(self.x)

    def train(self) -> Any:
        """Loss; the weights are updated, the gradient of the input is in `x.grad`."""
        self.x.grad = None
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.mse_loss(self.layer(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss

    def __call__(self) -> None:
        """Run once and wait for the result."""
        if self.optimizer is None:
            self.forward()
        else:
            self.train()
        self.device.wait()


def prepare(backend: TorchBackend, layer: Mapping[str, Any]) -> Callable[[], None]:
    """The step of a layer as one call; see `microbench.backends.layer_step`."""
    step: LayerStep = backend.within_memory(lambda: LayerStep(backend, layer))()
    return backend.within_memory(step)


def _module(torch: Any, layer: Mapping[str, Any]) -> Any:
    """The layer with what belongs in front of it (padding) and behind it (the activation)."""
    nn = torch.nn
    if layer["layer"] == "dense":
        parts = [nn.Linear(layer["in_features"], layer["out_features"])]
    else:
        before, after = _padding(layer)
        parts = [] if before == after else [nn.ZeroPad2d((before, after, before, after))]
        parts.append(
            nn.Conv2d(
                layer["in_channels"],
                layer["out_channels"],
                layer["kernel_size"],
                layer["stride"],
                padding=before if before == after else 0,
                bias=bool(layer["use_bias"]),
            )
        )
    activation = layer["activation"]
    if activation != "none":
        parts.append({"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}[activation]())
    return nn.Sequential(*parts)


def _padding(layer: Mapping[str, Any]) -> tuple[int, int]:
    """(before, after) on either axis: "same" as TensorFlow has it, the odd element behind."""
    if layer["padding"] == "valid":
        return 0, 0
    size, kernel, stride = layer["input_size"], layer["kernel_size"], layer["stride"]
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return total // 2, total - total // 2


def _input_shape(layer: Mapping[str, Any]) -> tuple[int, ...]:
    if layer["layer"] == "dense":
        return layer["batch_size"], layer["in_features"]
    return layer["batch_size"], layer["in_channels"], layer["input_size"], layer["input_size"]
