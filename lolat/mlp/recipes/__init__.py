"""What a recipe is: how a row becomes numbers, how a time becomes the network's target and back.

A recipe is data and functions of numpy arrays, so that a trained model answers without a framework; what
trains it reads its `plan`. The recipes stand in modules beside.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lolat.errors import InputError
from lolat.mlp.devices import Device
from lolat.mlp.table import LayerTable
from lolat.units import plain

Devices = Mapping[str, Device]


class Facts(dict[str, Device]):
    """Facts by name of which some are of strangers: GPUs that no row for training was of.

    `trained`: the names of the others.
    """

    def __init__(self, devices: Devices, trained: Iterable[str]) -> None:
        super().__init__(devices)
        self.trained = frozenset(trained)


def trained_on(devices: Devices) -> frozenset[str]:
    """The names of the GPUs that rows for training were of: of plain facts all."""
    return devices.trained if isinstance(devices, Facts) else frozenset(devices)


@dataclass(frozen=True)
class Plan:
    """The network and its training for one kind of layer; what a recipe's `plan` returns.

    `activation`: of the hidden layers, "relu" or "silu"; `output_activation`: "relu" or "linear".
    `loss`: "squared" or "absolute" difference of the network's output and the encoded time, or
    "squared-log1p", of the logarithms of 1 + each. `optimizer`: "adam" (`l2`/2 times the squares of the
    hidden kernels is added to the loss) or "adamw" (`l2`: its weight decay). `schedule`: "halve" (every
    `halve_every` epochs) or "cosine" (to 0 at the last step). `strangers`: the share of rows that each
    epoch shows as of a GPU that the model does not know (`Facts`).
    """

    hidden: tuple[int, ...]
    activation: str = "relu"
    output_activation: str = "linear"
    output_bias: bool = True
    dropout: float = 0.0
    l2: float = 0.0
    loss: str = "squared"
    optimizer: str = "adam"
    epsilon: float = 1e-7
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    halve_every: int = 40
    batch: int = 128
    epochs: int = 300
    strangers: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """How a layer's time is learned and predicted.

    In all functions `devices` are the facts by name of the GPUs that the model knows: with more than one
    the model is of several devices, whose facts may be among the features; with one it is of that device
    alone. (A model of several that is asked about a new GPU gets that one's facts added; `trained_on` says
    which are not new.)

    features(table, devices) -> (n, k) float64, before standardization.
    feature_names(layer, several_devices) -> k names.
    encode(times_ms (n,), table, devices) -> (n,) what the network is to give.
    decode(output (n,), table, devices) -> (n,) ms, at least 0; the inverse of `encode`.
    plan(layer, several_devices) -> the network and its training.
    """

    name: str
    features: Callable[[LayerTable, Devices], np.ndarray]
    feature_names: Callable[[str, bool], tuple[str, ...]]
    encode: Callable[[np.ndarray, LayerTable, Devices], np.ndarray]
    decode: Callable[[np.ndarray, LayerTable, Devices], np.ndarray]
    plan: Callable[[str, bool], Plan]


RECIPES = ("best", "paper")
"""By name; each is a module here."""


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; InputError where there is none."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {plain(name)!r}; expected {' or '.join(RECIPES)}")
    recipe: Recipe = importlib.import_module(f"{__name__}.{name}").RECIPE
    return recipe
