"""LoLat's own recipe: physics says about how long a layer takes, a network says how far off that is.

The target is log(time / `expected_ms`). The features are of the layer alone: its sizes and amounts
of work as logarithms, how full its tiles are, what kind it is. Of the GPU the network sees the generation,
and, where rows for training were of that GPU, which one it is. Each epoch shows a share of the rows as of
a stranger, without that, so that the network also learns what all GPUs have in common: for a GPU that no
row was of, that is the answer, times what its facts say. Its facts do not go into the network: from six
points it would learn to tell the six apart, and be wrong about the seventh.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lolat.mlp.devices import Device, key, known
from lolat.mlp.layers import LayerWork
from lolat.mlp.recipes import Devices, Plan, Recipe, trained_on
from lolat.mlp.table import ACTIVATIONS, COLUMNS, OPTIMIZERS, LayerTable, mapped

# ---- What a layer asks of a GPU, and about how long that takes by the GPU's data sheet.
#
# The terms are what TensorFlow 1 did in the measurements behind Justus et al. 2018 (benchmark_conv.py in
# github.com/CDECatapult/ml-performance-prediction; conv_ops.cc in TensorFlow):
#
# - tensors lie as batch, height, width, channels, and cuDNN wants the channels first: input, output and
#   kernel are turned around, unless the layer is a matrix multiplication as it stands;
# - where "same" needs an odd number of pixels, one more on one side, the input is copied with its padding;
# - with an optimizer the layer runs forward, and back to both its kernel and its input; the input and the
#   target of the loss are variables as the kernel is, and the optimizer updates all three.
#
# How much each term counts was fitted to the relative error (non-negative least squares, made robust) on
# rows of the authors' six GPUs, the four from 2014 on together and the two before. By itself the sum is a
# fifth to a quarter off; the network of the recipe "best" learns the rest.

PASSES: Mapping[str, int] = {
    "none": 0, "sgd": 3, "momentum": 5, "adagrad": 5, "adam": 7, "rmsprop": 7, "adadelta": 7,
}  # fmt: skip
"""Reads and writes of each element that an optimizer updates: value, gradient, its one or two slots."""

# How much each term counts: (forward, more with an optimizer), of GPUs from 2014 on and of earlier ones.
_CONVOLUTION = {
    "start_ms": ((0.24, 0.16), (0.28, 0.24)),
    "macs": ((1.34, 3.25), (3.47, 7.11)),
    "input": ((5.1, 10.2), (7.4, 16.4)),
    "output": ((5.4, 23.1), (9.6, 29.4)),
    "kernel": ((20.8, 53.6), (20.9, 78.4)),
    "padded": ((6.0, 14.9), (11.1, 27.8)),
    "bias": ((3.35, 0.0), (5.5, 0.0)),
    "activation": ((3.35, 3.1), (5.5, 2.4)),
    "updated": ((0.0, 2.6), (0.0, 3.5)),
}
_DENSE = {
    "start_ms": ((0.17, 0.23), (0.24, 0.28)),
    "macs": ((3.1, 2.9), (0.6, 1.7)),
    "kernel": ((0.8, 0.0), (3.8, 0.0)),
    "input": ((0.0, 0.0), (55.0, 0.0)),
    "updated": ((0.0, 2.0), (0.0, 3.8)),
}
_BALANCE = 8.0
"""MACs that a GPU typically does in the time of moving a byte; for such a one `turn` is `stream`."""
_BYTES = 4  # of a float32


def updated(table: LayerTable, work: LayerWork) -> np.ndarray:
    """(n,) elements that the optimizer reads and writes: of the input, the output and the kernel."""
    return mapped(table["optimizer"], PASSES.__getitem__) * (work.input + work.output + work.kernel)


def margin(table: LayerTable, work: LayerWork) -> np.ndarray:
    """(n,) pixels of padding of convolutions, both sides together."""
    more = np.maximum(0.0, (work.side - 1) * work.stride + work.window - work.size)
    return np.where(table["padding"] == "same", more, 0.0)


def is_early(device: Device) -> bool:
    """Whether a GPU is older than Maxwell (2014): many slow cores, which reach far less of their peak.

    They ran below 1 GHz, which says it where the year is not known.
    """
    return device.clock_mhz < 1000 and (device.year is None or device.year <= 2014)


def expected_ms(table: LayerTable, devices: Devices) -> np.ndarray:
    """(n,) ms: the time of each row by the facts of its GPU alone, above 0.

    Calculation counts by the peak, reading and writing in order by the bandwidth, and turning tensors
    around, which keeps neither busy, by their geometric mean. InputError for a GPU without facts.
    """

    def rates(name: str) -> tuple[float, float, bool]:
        (device,) = known([name], devices).values()
        return 1e3 / device.peak_macs, 1e3 * _BYTES / device.bandwidth, is_early(device)

    work, trained = LayerWork.of(table), table["optimizer"] != "none"
    # Milliseconds per MAC and per element.
    compute, stream, generation = mapped(table["gpu"], rates).reshape(-1, 3).T
    turn = np.sqrt(stream * compute * _BALANCE * _BYTES)  # ms per element
    times = {
        "start_ms": np.ones(len(table)),
        "macs": work.macs * compute,
        "updated": updated(table, work) * stream,
        "input": work.input * turn,
    }
    if table.layer == "convolution":
        counts = _CONVOLUTION
        times |= {
            "output": work.output * turn,
            "kernel": work.kernel * turn,
            "padded": work.input * turn * (margin(table, work) % 2),
            "bias": work.output * stream * table["use_bias"],
            "activation": work.output * stream * (table["activation"] != "none"),
        }
    else:
        counts = _DENSE
        times["kernel"] = work.kernel * stream
    # Which of the four factors is each row's.
    case = (2 * generation + trained).astype(np.intp)
    total = np.zeros(len(table))
    for name, generations in counts.items():
        factors = [ahead + more for ahead, back in generations for more in (0.0, back)]
        total += times[name] * np.take(factors, case)
    return total


# ---- The features and the network.

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
    work = LayerWork.of(table)
    amounts = {"macs": work.macs, "input": work.input, "output": work.output, "kernel": work.kernel}
    features = {f"log_{name}": np.log(values) for name, values in amounts.items()}
    features["log_updated"] = np.log(updated(table, work) + 1e3)
    features |= _convolution(table, work) if table.layer == "convolution" else _dense(table)
    for name, sizes in TILES[table.layer].items():
        for size in sizes:
            features[f"{name}_tile_{size}"] = _overhang(table[name].astype(float), size)
    for kind, values in (("activation", ACTIVATIONS), ("optimizer", OPTIMIZERS)):
        for value in values:
            features[f"{kind}_{value}"] = table[kind] == value
    return features


def _convolution(table: LayerTable, work: LayerWork) -> dict[str, np.ndarray]:
    pixels = work.batch * work.side**2
    padding = margin(table, work)
    features = {
        f"log_{name}": np.log(table[name].astype(float))
        for name in ("batch_size", "input_size", "in_channels", "out_channels")
    }
    features |= {
        "log_size": np.log(work.side),
        "log_pixels": np.log(pixels),  # rows of the matrix that the layer is as a product
        "log_window": np.log(work.depth),  # its columns
        "input_size": table["input_size"] / 100.0,
        "batch_size": work.batch / 16.0,
        "same": table["padding"] == "same",
        "odd_margin": padding % 2,
        "margin": padding,
        "product": work.product,
        "bias": table["use_bias"],
        "winograd": (work.window == 3) & (work.stride == 1),
        "overlap": work.window > work.stride,
        "pixels_tile_32": _overhang(pixels, 32),
        "pixels_tile_128": _overhang(pixels, 128),
    }
    features |= {f"kernel_{size}": work.window == size for size in KERNELS}
    return features | {f"stride_{size}": work.stride == size for size in STRIDES}


def _dense(table: LayerTable) -> dict[str, np.ndarray]:
    # Of the widths only logarithms: a first dense layer behind convolutions is far wider than any measured.
    names = ("batch_size", "in_features", "out_features")
    features = {f"log_{name}": np.log(table[name].astype(float)) for name in names}
    return features | {"batch_size": table["batch_size"] / 16.0}


def _overhang(sizes: np.ndarray, tile: int) -> np.ndarray:
    """(n,) log of what whole tiles hold over what is in them; 0 where they are full."""
    overhang: np.ndarray = np.log(np.ceil(sizes / tile) * tile / sizes)
    return overhang


def identity(table: LayerTable, devices: Devices) -> dict[str, np.ndarray]:
    """(n,) of each feature of the GPU: `is_early`, and which of the known ones it is, all 0 for another.

    InputError for a GPU without facts.
    """
    names = sorted(key(name) for name in trained_on(devices))
    titles = _identity_names()

    def seen(text: str) -> list[float]:
        (device,) = known([text], devices).values()
        columns = dict.fromkeys(titles, 0.0) | {"early": float(is_early(device))}
        if key(device.name) in names:
            logs = {f: float(np.log(getattr(device, f) / mid)) for f, mid in REFERENCE.items()}
            columns |= {"known": 1.0, **{f"known_{fact}": log for fact, log in logs.items()}}
            columns[f"known_{names.index(key(device.name)) % SLOTS}"] = 1.0
        return list(columns.values())

    rows = mapped(table["gpu"], seen).reshape(len(table), len(titles))
    return dict(zip(titles, rows.T, strict=True))


def _identity_names() -> list[str]:
    return [
        "early",
        "known",
        *(f"known_{fact}" for fact in REFERENCE),
        *(f"known_{i}" for i in range(SLOTS)),
    ]


def feature_names(layer: str, several_devices: bool) -> tuple[str, ...]:
    """The columns of `features`, in order; those of the GPU only where there are several."""
    words = {"activation": "none", "optimizer": "none", "padding": "same"}
    values = {name: np.array([words.get(name, 1)]) for name in COLUMNS[layer]}
    names = columns(LayerTable(layer, values))
    return (*names, *(_identity_names() if several_devices else ()))


def features(table: LayerTable, devices: Devices) -> np.ndarray:
    """(n, k) float64, the columns of `feature_names`. InputError for a GPU without facts."""
    named = columns(table)
    if len(devices) > 1:
        named |= identity(table, devices)
    rows = np.empty((len(named), len(table)))
    for row, column in zip(rows, named.values(), strict=True):
        row[:] = column
    return rows.T


def encode(times_ms: np.ndarray, table: LayerTable, devices: Devices) -> np.ndarray:
    """(n,) log of measured over expected time."""
    target: np.ndarray = np.log(times_ms / expected_ms(table, devices))
    return target


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


RECIPE = Recipe("best", features, feature_names, encode, decode, plan)
