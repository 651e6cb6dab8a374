"""One layer in training mode with PyTorch, uncompiled: forward, or with backward and update too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from microbench.backends.torch import TorchBackend
from microbench.backends.torch_training import OPTIMIZERS


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
