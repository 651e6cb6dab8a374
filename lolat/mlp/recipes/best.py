"""LoLat's own recipe: physics says about how long a layer takes, a network says how far off that is.

The target is log(time / `physics.expected_ms`). The features are of the layer alone: its sizes and amounts
of work as logarithms, how full its tiles are, what kind it is. Of the GPU the network sees the generation,
and, where rows for training were of that GPU, which one it is. Each epoch shows a share of the rows as of
a stranger, without that, so that the network also learns what all GPUs have in common: for a GPU that no
row was of, that is the answer, times what its facts say. Its facts do not go into the network: from six
points it would learn to tell the six apart, and be wrong about the seventh.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lolat.mlp.devices import find, key
from lolat.mlp.recipe import Devices, Plan, Recipe, trained_on
from lolat.mlp.recipes.physics import Amounts, amounts, early, expected_ms
from lolat.mlp.table import ACTIVATIONS, COLUMNS, OPTIMIZERS, LayerTable

KERNELS = range(1, 8)
STRIDES = range(1, 5)
TILES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "convolution": {"in_channels": (4, 32, 64, 128), "out_channels": (4, 32, 64, 128)},
    "dense": {"in_features": (4, 32, 128), "out_features": (4, 32, 128), "batch_size": (8, 16, 32)},
}
"""Sizes that GPU kernels cut a matrix into; what does not fill the last tile is work for nothing."""
SLOTS = 8
"""Columns that say which of the known GPUs it is; more GPUs share them, and differ by their facts."""
REFERENCE = {"bandwidth": 300e9, "peak_macs": 3e12, "clock_mhz": 1200.0}
"""A GPU in the middle: the facts of a known one are seen as logarithms of their ratios to these."""
FARTHEST = 5.0
"""The output is cut to this: a network that is asked far outside answers at most 150 times the physics."""


def columns(table: LayerTable) -> dict[str, np.ndarray]:
    """(n,) of each feature of the layers alone, by name."""
    what = amounts(table)
    found = {
        f"log_{name}": np.log(getattr(what, name)) for name in ("macs", "input", "output", "kernel")
    }
    found["log_updated"] = np.log(what.updated + 1e3)
    found |= _convolution(table, what) if table.layer == "convolution" else _dense(table)
    for name, sizes in TILES[table.layer].items():
        for size in sizes:
            found[f"{name}_tile_{size}"] = _overhang(table[name].astype(float), size)
    for kind, values in (("activation", ACTIVATIONS), ("optimizer", OPTIMIZERS)):
        for value in values:
            found[f"{kind}_{value}"] = table[kind] == value
    return found


def _convolution(table: LayerTable, what: Amounts) -> dict[str, np.ndarray]:
    batch, window, stride = (
        table[n].astype(float) for n in ("batch_size", "kernel_size", "stride")
    )
    pixels = batch * what.size**2
    found = {
        f"log_{name}": np.log(table[name].astype(float))
        for name in ("batch_size", "input_size", "in_channels", "out_channels")
    }
    found |= {
        "log_size": np.log(what.size),
        "log_pixels": np.log(pixels),  # rows of the matrix that the layer is as a product
        "log_window": np.log(window**2 * table["in_channels"]),  # its columns
        "input_size": table["input_size"] / 100.0,
        "batch_size": batch / 16.0,
        "same": table["padding"] == "same",
        "odd_margin": what.margin % 2,
        "margin": what.margin,
        "product": what.product,
        "bias": table["use_bias"],
        "winograd": (window == 3) & (stride == 1),
        "overlap": window > stride,
        "pixels_tile_32": _overhang(pixels, 32),
        "pixels_tile_128": _overhang(pixels, 128),
    }
    found |= {f"kernel_{size}": window == size for size in KERNELS}
    return found | {f"stride_{size}": stride == size for size in STRIDES}


def _dense(table: LayerTable) -> dict[str, np.ndarray]:
    # Of the widths only logarithms: a first dense layer behind convolutions is far wider than any measured.
    names = ("batch_size", "in_features", "out_features")
    found = {f"log_{name}": np.log(table[name].astype(float)) for name in names}
    return found | {"batch_size": table["batch_size"] / 16.0}


def _overhang(sizes: np.ndarray, tile: int) -> np.ndarray:
    """(n,) log of what whole tiles hold over what is in them; 0 where they are full."""
    found: np.ndarray = np.log(np.ceil(sizes / tile) * tile / sizes)
    return found


def identity(table: LayerTable, devices: Devices) -> dict[str, np.ndarray]:
    """(n,) of each feature that says which of the known GPUs a row is of; all 0 for another GPU."""
    names = sorted(key(name) for name in trained_on(devices))
    values: dict[str, list[float]] = {}
    width = 1 + len(REFERENCE) + SLOTS
    texts = table["gpu"].tolist()
    for text in dict.fromkeys(texts):
        device = find(text, devices)
        seen = [0.0] * width
        if device is not None and key(device.name) in names:
            seen[0] = 1.0
            for i, (fact, middle) in enumerate(REFERENCE.items(), 1):
                seen[i] = float(np.log(getattr(device, fact) / middle))
            seen[1 + len(REFERENCE) + names.index(key(device.name)) % SLOTS] = 1.0
        values[text] = seen
    rows = np.array([values[text] for text in texts]).reshape(len(texts), width)
    return dict(zip(_identity_names(), rows.T, strict=True))


def _identity_names() -> list[str]:
    return [
        "known",
        *(f"known_{fact}" for fact in REFERENCE),
        *(f"known_{i}" for i in range(SLOTS)),
    ]


def feature_names(layer: str, several_devices: bool) -> tuple[str, ...]:
    """The columns of `features`, in order; those of the GPU only where there are several."""
    words = {"activation": "none", "optimizer": "none", "padding": "same"}
    values = {name: np.array([words.get(name, 1)]) for name in COLUMNS[layer]}
    names = columns(LayerTable(layer, values))
    return (*names, *(("early", *_identity_names()) if several_devices else ()))


def features(table: LayerTable, devices: Devices) -> np.ndarray:
    """(n, k) float64, the columns of `feature_names`. InputError for a GPU without facts."""
    found = columns(table)
    if len(devices) > 1:
        found["early"] = early(table, devices)
        found |= identity(table, devices)
    return np.stack([np.asarray(column, np.float64) for column in found.values()], axis=1)


def encode(times_ms: np.ndarray, table: LayerTable, devices: Devices) -> np.ndarray:
    """(n,) log of measured over expected time."""
    found: np.ndarray = np.log(times_ms / expected_ms(table, devices))
    return found


def decode(output: np.ndarray, table: LayerTable, devices: Devices) -> np.ndarray:
    """(n,) ms: the expected time, times what the network says of it."""
    return expected_ms(table, devices) * np.exp(np.clip(output, -FARTHEST, FARTHEST))


def plan(layer: str, several_devices: bool) -> Plan:
    """One network; its absolute error of a logarithm is the relative error, and outliers count once."""
    return Plan(
        hidden=(192, 192, 192, 192),
        activation="silu",
        l2=1e-4,
        loss="absolute",
        optimizer="adamw",
        learning_rate=2e-3,
        schedule="cosine",
        batch=512,
        epochs=50 if layer == "convolution" else 60,  # 160 learn the training rows' noise
        strangers=0.25 if several_devices else 0.0,
    )


RECIPE = Recipe(
    name="best",
    features=features,
    feature_names=feature_names,
    encode=encode,
    decode=decode,
    plan=plan,
)
