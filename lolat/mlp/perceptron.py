"""A multilayer perceptron in numpy: forward only, float32, in slices of rows.

Layers are y = f(x W + b) with W (in, out). An ensemble is several networks of the same input, whose outputs
are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SLICE = 512
"""Rows per slice: what lies between two layers of 256 stays in the processor's cache."""


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0, out=x)


def _silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)) in place; exp of a large number is infinite and the quotient 0, as it should be."""
    with np.errstate(over="ignore"):
        bottom = np.exp(-x)
    bottom += 1
    return np.divide(x, bottom, out=x)


def _linear(x: np.ndarray) -> np.ndarray:
    return x


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": _relu,
    "silu": _silu,
    "linear": _linear,
}
"""Each overwrites its argument (rows, units) and returns it."""


@dataclass(frozen=True)
class Layer:
    """f(x W + b): `weights` (in, out) float32, `biases` (out,) float32 or None, f one of ACTIVATIONS."""

    weights: np.ndarray
    biases: np.ndarray | None
    activation: str

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}"
            )
        if self.weights.ndim != 2:
            raise ValueError(f"weights of shape {self.weights.shape}; expected (in, out)")
        if self.biases is not None and self.biases.shape != self.weights.shape[1:]:
            raise ValueError(
                f"biases of shape {self.biases.shape}; expected {self.weights.shape[1:]}"
            )


@dataclass(frozen=True)
class Perceptron:
    """One network or several of the same input: `members`, each its layers in order, the last one wide."""

    members: Sequence[Sequence[Layer]]

    def __post_init__(self) -> None:
        if not self.members or not all(self.members):
            raise ValueError("no layers; expected one network at least, of one layer at least")
        for layers in self.members:
            width = self.inputs
            for layer in layers:
                if layer.weights.shape[0] != width:
                    raise ValueError(
                        f"weights for {layer.weights.shape[0]} inputs follow {width} outputs"
                    )
                width = layer.weights.shape[1]
            if width != 1:
                raise ValueError(f"{width} outputs; expected one")

    @property
    def inputs(self) -> int:
        """Number of features."""
        return int(self.members[0][0].weights.shape[0])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n,) float64: the mean output of the members for standardised features (n, inputs)."""
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"features of shape {x.shape}; expected (rows, {self.inputs})")
        total = np.zeros(len(x))
        for start in range(0, len(x), SLICE):
            part = np.ascontiguousarray(x[start : start + SLICE], dtype=np.float32)
            for layers in self.members:
                total[start : start + SLICE] += _forward(layers, part)
        return total / len(self.members)


def _forward(layers: Sequence[Layer], x: np.ndarray) -> np.ndarray:
    """(n,) output of one network for (n, inputs) float32."""
    for layer in layers:
        x = x @ layer.weights
        if layer.biases is not None:
            x += layer.biases
        x = ACTIVATIONS[layer.activation](x)
    return x[:, 0]
