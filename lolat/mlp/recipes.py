"""Recipes of layer models: how a row becomes numbers, how a time becomes the network's target and back.

A recipe is data and functions of numpy arrays, so that a trained model answers without a framework; what
trains it reads its `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from lolat.mlp.devices import Device, Devices, key
from lolat.mlp.table import ACTIVATIONS, OPTIMIZERS, LayerTable, LayerWork, mapped


@dataclass(frozen=True)
class Plan:
    """The network and its training for one kind of layer; what a recipe's `plan` returns.

    `activation`: of the hidden layers, "relu" or "silu"; `output_activation`: "relu" or "linear".
    `loss`: "absolute" difference of the network's output and the encoded time, or "squared-log1p", of the
    logarithms of 1 + each. `optimizer`: "adam" (`l2`/2 times the squares of the
    hidden kernels is added to the loss) or "adamw" (`l2`: its weight decay). `schedule`: "halve" (every
    `halve_every` epochs) or "cosine" (to 0 at the last step). `strangers`: the share of rows that each
    epoch shows as of a GPU that no row for training was of.
    """

    hidden: tuple[int, ...]
    activation: str = "relu"
    output_activation: str = "linear"
    output_bias: bool = True
    dropout: float = 0.0
    l2: float = 0.0
    loss: str = "absolute"
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

    In all functions `devices` are the data sheets by `key` of the GPUs of the rows and of the model: with
    more than one the model is of several devices, whose facts may be among the features; with one it is of
    that device alone.

    columns(table, devices, trained) -> (n,) of each feature by name, before standardization; `trained`: the
    keys of the GPUs that rows for training were of, others are strangers.
    encode(times_ms (n,), table, devices) -> (n,) what the network is to give.
    decode(output (n,), table, devices) -> (n,) ms, at least 0; the inverse of `encode`.
    plan(layer, several_devices) -> the network and its training.
    """

    name: str
    columns: Callable[[LayerTable, Devices, Collection[str]], dict[str, np.ndarray]]
    encode: Callable[[np.ndarray, LayerTable, Devices], np.ndarray]
    decode: Callable[[np.ndarray, LayerTable, Devices], np.ndarray]
    plan: Callable[[str, bool], Plan]

    def features(self, table: LayerTable, devices: Devices, trained: Collection[str]) -> np.ndarray:
        """(n, k) float64 of k features."""
        return np.array([*self.columns(table, devices, trained).values()], float).T


# ---- The model of "Predicting the Computational Cost of Deep Learning Models" (Justus et al. 2018).
#
# Sizes, not amounts of work, are its features, and milliseconds its output; the logarithm is in the loss.
# What the text leaves open is as in the authors' code (github.com/CDECatapult/ml-performance-prediction):
# the penalty is l2/2 times the sum of squares of the hidden layers' kernels, Glorot uniform kernels, the
# last epoch counts. Optimizer and activation are one column per kind but "none", which is all of them 0.

FACTS = ("bandwidth_gbs", "cores", "clock_mhz")
"""Of the device, where there are several; GB/s and MHz."""


def paper_columns(
    table: LayerTable, devices: Devices, trained: Collection[str]
) -> dict[str, np.ndarray]:
    """(n,) of each feature of the paper, by name."""
    if table.layer == "dense":
        columns = {name: table[name] for name in ("batch_size", "in_features", "out_features")}
    else:
        columns = {
            "batch_size": table["batch_size"],
            "input_size_squared": table["input_size"] ** 2,
            "kernel_size_squared": table["kernel_size"] ** 2,
            "in_channels": table["in_channels"],
            "out_channels": table["out_channels"],
            "padding_same": table["padding"] == "same",
            "stride": table["stride"],
            "use_bias": table["use_bias"],
        }
    for kind, values in (("optimizer", OPTIMIZERS), ("activation", ACTIVATIONS)):
        columns |= {f"{kind}_{v}": table[kind] == v for v in values if v != "none"}
    if len(devices) > 1:
        sheets = [devices[key(gpu)] for gpu in table["gpu"].tolist()]
        columns |= {fact: np.array([getattr(d, fact) for d in sheets]) for fact in FACTS}
    return columns


def paper_plan(layer: str, several_devices: bool) -> Plan:
    """The paper's network and training; two more layers of 128 for several devices."""
    return Plan(
        hidden=(32, 64, 128, 128) + ((128, 128) if several_devices else ()),
        output_activation="relu",
        output_bias=False,
        dropout=0.2,
        l2=1e-5,
        loss="squared-log1p",
        epsilon=0.1,
        learning_rate=0.1,
        schedule="halve",
    )


PAPER = Recipe(
    "paper",
    paper_columns,
    # The network's output is in ms, and its last ReLU keeps it from being negative.
    encode=lambda times_ms, table, devices: np.asarray(times_ms, dtype=np.float64),
    decode=lambda output, table, devices: np.asarray(output, dtype=np.float64),
    plan=paper_plan,
)

# ---- LoLat's own, "best": physics says about how long a layer takes, a network says how far off that is.
#
# The target is log(time / `expected_ms`). The features are of the layer alone: its sizes and amounts of
# work as logarithms, how full its tiles are, what kind it is. Of the GPU the network sees the generation,
# and, where rows for training were of that GPU, which one it is. Each epoch shows a share of the rows as
# of a stranger, without that, so that the network also learns what all GPUs have in common: for a GPU that
# no row was of, that is the answer, times what its facts say. Its facts do not go into the network: from
# six points it would learn to tell the six apart, and be wrong about the seventh.
#
# What a layer asks of a GPU, and about how long that takes by the GPU's data sheet.
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
# fifth to a quarter off; the network learns the rest.

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
    around, which keeps neither busy, by their geometric mean.
    """

    def rates(name: str) -> tuple[float, float, bool]:
        device = devices[key(name)]
        return 1e3 / device.peak_macs, 1e3 * _BYTES / device.bandwidth, is_early(device)

    work, trained = LayerWork(table), table["optimizer"] != "none"
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


def best_columns(
    table: LayerTable, devices: Devices, trained: Collection[str]
) -> dict[str, np.ndarray]:
    """(n,) of each feature of LoLat's recipe, by name; those of the GPU only where there are several."""
    work = LayerWork(table)
    amounts = {"macs": work.macs, "input": work.input, "output": work.output, "kernel": work.kernel}
    columns = {f"log_{name}": np.log(values) for name, values in amounts.items()}
    columns["log_updated"] = np.log(updated(table, work) + 1e3)
    if table.layer == "convolution":
        columns |= _logarithms(table, "batch_size", "input_size", "in_channels", "out_channels")
        columns |= _convolution(table, work)
    else:
        # Of the widths only logarithms: a first dense layer behind convolutions is far wider than any
        # measured.
        columns |= _logarithms(table, "batch_size", "in_features", "out_features")
        columns["batch_size"] = table["batch_size"] / 16.0
    for name, sizes in TILES[table.layer].items():
        for size in sizes:
            columns[f"{name}_tile_{size}"] = _overhang(table[name].astype(float), size)
    for kind, values in (("activation", ACTIVATIONS), ("optimizer", OPTIMIZERS)):
        columns |= {f"{kind}_{value}": table[kind] == value for value in values}
    return columns | (_identity(table, devices, trained) if len(devices) > 1 else {})


def _logarithms(table: LayerTable, *names: str) -> dict[str, np.ndarray]:
    return {f"log_{name}": np.log(table[name].astype(float)) for name in names}


def _convolution(table: LayerTable, work: LayerWork) -> dict[str, np.ndarray]:
    pixels = work.batch * work.side**2
    padding = margin(table, work)
    columns = {
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
    columns |= {f"kernel_{size}": work.window == size for size in KERNELS}
    return columns | {f"stride_{size}": work.stride == size for size in STRIDES}


def _overhang(sizes: np.ndarray, tile: int) -> np.ndarray:
    """(n,) log of what whole tiles hold over what is in them; 0 where they are full."""
    overhang: np.ndarray = np.log(np.ceil(sizes / tile) * tile / sizes)
    return overhang


def _identity(
    table: LayerTable, devices: Devices, trained: Collection[str]
) -> dict[str, np.ndarray]:
    """(n,) of each feature of the GPU: `is_early`, and which of the known ones it is, all 0 for another."""
    names = sorted(trained)
    titles = ["early", "known", *(f"known_{which}" for which in (*REFERENCE, *range(SLOTS)))]

    def seen(text: str) -> list[float]:
        device = devices[key(text)]
        columns = dict.fromkeys(titles, 0.0) | {"early": float(is_early(device))}
        if key(text) in names:
            logs = {f: float(np.log(getattr(device, f) / mid)) for f, mid in REFERENCE.items()}
            columns |= {"known": 1.0, **{f"known_{fact}": log for fact, log in logs.items()}}
            columns[f"known_{names.index(key(text)) % SLOTS}"] = 1.0
        return list(columns.values())

    rows = mapped(table["gpu"], seen).reshape(len(table), len(titles))
    return dict(zip(titles, rows.T, strict=True))


def best_plan(layer: str, several_devices: bool) -> Plan:
    """One network; its absolute error of a logarithm is the relative error, and outliers count once."""
    return Plan(
        hidden=(192, 192, 192, 192),
        activation="silu",
        l2=1e-4,
        optimizer="adamw",
        learning_rate=2e-3,
        batch=512,
        epochs=50 if layer == "convolution" else 60,  # 160 learn the training rows' noise
        strangers=0.25 if several_devices else 0.0,
    )


BEST = Recipe(
    "best",
    best_columns,
    # The network's output is the logarithm of measured over expected time.
    encode=lambda times_ms, table, devices: np.log(times_ms / expected_ms(table, devices)),
    decode=lambda output, table, devices: (
        expected_ms(table, devices) * np.exp(np.clip(output, -FARTHEST, FARTHEST))
    ),
    plan=best_plan,
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (BEST, PAPER)}
"""By name."""
