"""A layer, its gradients and the optimizers' rules in numpy, float64: what backends must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
MOMENTUM = 0.9

CONVOLUTION = {
    "batch_size": 2, "input_size": 5, "kernel_size": 3, "in_channels": 2, "out_channels": 3, "stride": 2,
    "activation": "relu",
}  # fmt: skip
DENSE = {"batch_size": 3, "in_features": 4, "out_features": 2, "activation": "sigmoid"}


def _places(layer: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(output, padded input) positions on one axis of padding "same" for the first kernel element."""
    size, kernel, stride = layer["input_size"], layer["kernel_size"], layer["stride"]
    count = -(-size // stride)
    before = max(0, (count - 1) * stride + kernel - size) // 2
    return [(i, i * stride - before) for i in range(count)]


def _taps(layer: Mapping[str, Any]) -> list[tuple[int, int, int, int, int, int]]:
    """All (i, j, u, v, y, x): output, kernel and input positions that meet."""
    size, kernel = layer["input_size"], layer["kernel_size"]
    return [
        (i, j, u, v, top + u, left + v)
        for i, top in _places(layer)
        for j, left in _places(layer)
        for u in range(kernel)
        for v in range(kernel)
        if 0 <= top + u < size and 0 <= left + v < size
    ]


def forward(layer: Mapping[str, Any], x: Array, weights: Sequence[Array]) -> tuple[Array, Array]:
    """(before, after the activation); x (batch, height, width, channels) or (batch, features)."""
    kernel = weights[0]
    if kernel.ndim == 2:
        z = x @ kernel
    else:
        n = len(_places(layer))
        z = np.zeros((len(x), n, n, kernel.shape[3]))
        for i, j, u, v, y, xx in _taps(layer):
            z[:, i, j] += x[:, y, xx] @ kernel[u, v]
    z = z + weights[1]
    is_relu = layer["activation"] == "relu"
    return z, np.maximum(z, 0) if is_relu else 1 / (1 + np.exp(-z))


def gradients(
    layer: Mapping[str, Any], x: Array, weights: Sequence[Array], flowing: Array
) -> tuple[Array, list[Array]]:
    """(the gradient of x, of the weights), where `flowing` is that of what the layer puts out."""
    z, a = forward(layer, x, weights)
    dz = flowing * ((z > 0) if layer["activation"] == "relu" else a * (1 - a))
    kernel = weights[0]
    dx, dk = np.zeros_like(x), np.zeros_like(kernel)
    if kernel.ndim == 2:
        dx, dk = dz @ kernel.T, x.T @ dz
    else:
        for i, j, u, v, y, xx in _taps(layer):
            dx[:, y, xx] += dz[:, i, j] @ kernel[u, v].T
            dk[u, v] += x[:, y, xx].T @ dz[:, i, j]
    return dx, [dk, dz.reshape(-1, dz.shape[-1]).sum(axis=0)]


class Optimizer:
    """The rules as the frameworks' documentation has them; epsilons and first sums differ."""

    def __init__(self, name: str, framework: str, rate: float) -> None:
        self.rate = rate
        keras = framework == "keras"
        self.name, self.steps = name, 0
        self.slots: dict[tuple[int, str], Any] = {}
        self.epsilon = {
            "adagrad": 1e-7 if keras else 1e-10,
            "adadelta": 1e-7 if keras else 1e-6,
        }.get(name, 1e-7 if keras else 1e-8)
        self.decay = {"rmsprop": 0.9 if keras else 0.99, "adadelta": 0.95 if keras else 0.9}.get(
            name, 0.0
        )
        self.first_sum = 0.1 if keras else 0.0
        self.inside = keras  # where epsilon stands: in RMSprop and Adagrad inside the root

    def step(self, weights: Sequence[Array], grads: Sequence[Array]) -> list[Array]:
        """The weights after one more step."""
        self.steps += 1
        return [w - self._change(i, g) for i, (w, g) in enumerate(zip(weights, grads, strict=True))]

    def _slot(self, index: int, name: str, first: float = 0.0) -> Any:
        return self.slots.get((index, name), first)

    def _root(self, value: Array) -> Array:
        return np.sqrt(value + self.epsilon) if self.inside else np.sqrt(value) + self.epsilon

    def _change(self, i: int, g: Array) -> Array:
        rate, t = self.rate, self.steps
        if self.name == "sgd":
            return rate * g
        if self.name == "momentum":
            v = self.slots[i, "v"] = MOMENTUM * self._slot(i, "v") + rate * g
            return v
        if self.name == "adam":
            m = self.slots[i, "m"] = 0.9 * self._slot(i, "m") + 0.1 * g
            v = self.slots[i, "v"] = 0.999 * self._slot(i, "v") + 0.001 * g**2
            # Keras has the paper's "epsilon hat", which is added before the correction of v.
            whole = np.sqrt(1 - 0.999**t)
            epsilon = self.epsilon / whole if self.inside else self.epsilon
            return rate * (m / (1 - 0.9**t)) / (np.sqrt(v) / whole + epsilon)
        if self.name == "rmsprop":
            v = self.slots[i, "v"] = self.decay * self._slot(i, "v") + (1 - self.decay) * g**2
            return rate * g / self._root(v)
        if self.name == "adagrad":
            v = self.slots[i, "v"] = self._slot(i, "v", self.first_sum) + g**2
            return rate * g / self._root(v)
        v = self.slots[i, "v"] = self.decay * self._slot(i, "v") + (1 - self.decay) * g**2
        d = np.sqrt(self._slot(i, "d") + self.epsilon) / np.sqrt(v + self.epsilon) * g
        self.slots[i, "d"] = self.decay * self._slot(i, "d") + (1 - self.decay) * d**2
        return rate * d
