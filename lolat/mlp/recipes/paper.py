"""The model of "Predicting the Computational Cost of Deep Learning Models" (Justus et al. 2018).

Sizes, not amounts of work, are its features, and milliseconds its output; the logarithm is in the loss.
What the text leaves open is as in the authors' code (github.com/CDECatapult/ml-performance-prediction): the
penalty is l2/2 times the sum of squares of the hidden layers' kernels, Glorot uniform kernels, the last
epoch counts. Optimizer and activation are one column per kind but "none", which is all of them 0.
"""

from __future__ import annotations

import numpy as np

from lolat.mlp.devices import facts
from lolat.mlp.recipes import Devices, Plan, Recipe
from lolat.mlp.table import LayerTable

OPTIMIZERS = ("sgd", "adadelta", "adagrad", "momentum", "adam", "rmsprop")
ACTIVATIONS = ("relu", "tanh", "sigmoid")
FACTS = ("bandwidth_gbs", "cores", "clock_mhz")
SIZES = {
    "convolution": (
        "batch_size", "input_size_squared", "kernel_size_squared", "in_channels", "out_channels",
        "padding_same", "stride", "use_bias",
    ),
    "dense": ("batch_size", "in_features", "out_features"),
}  # fmt: skip


def feature_names(layer: str, several_devices: bool) -> tuple[str, ...]:
    """The columns of `features`, in order; the facts of the device only where there are several."""
    words = [f"optimizer_{name}" for name in OPTIMIZERS]
    words += [f"activation_{name}" for name in ACTIVATIONS]
    return (*SIZES[layer], *words, *(FACTS if several_devices else ()))


def features(table: LayerTable, devices: Devices) -> np.ndarray:
    """(n, k) float64, the columns of `feature_names`; bandwidth in GB/s, clock in MHz."""
    columns = []
    for name in feature_names(table.layer, len(devices) > 1):
        if name.endswith("_squared"):
            column = table[name.removesuffix("_squared")] ** 2
        elif name == "padding_same":
            column = table["padding"] == "same"
        elif name.startswith(("optimizer_", "activation_")):
            kind, _, value = name.partition("_")
            column = table[kind] == value
        elif name in FACTS:
            column = facts(table["gpu"], devices, name)
        else:
            column = table[name]
        columns.append(np.asarray(column, dtype=np.float64))
    return np.stack(columns, axis=1)


def encode(times_ms: np.ndarray, table: LayerTable, devices: Devices) -> np.ndarray:
    """(n,) the times themselves: the network's output is in ms."""
    return np.asarray(times_ms, dtype=np.float64)


def decode(output: np.ndarray, table: LayerTable, devices: Devices) -> np.ndarray:
    """(n,) ms: the output itself, which the last ReLU keeps from being negative."""
    return np.asarray(output, dtype=np.float64)


def plan(layer: str, several_devices: bool) -> Plan:
    """The paper's network and training; two more layers of 128 for several devices."""
    return Plan(
        hidden=(32, 64, 128, 128) + ((128, 128) if several_devices else ()),
        activation="relu",
        output_activation="relu",
        output_bias=False,
        dropout=0.2,
        l2=1e-5,
        loss="squared-log1p",
        optimizer="adam",
        epsilon=0.1,
        learning_rate=0.1,
        schedule="halve",
        halve_every=40,
        batch=128,
        epochs=300,
    )


RECIPE = Recipe("paper", features, feature_names, encode, decode, plan)
