"""Recipes of layer models: the features of a row and its GPU, the network, and its training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lolat.errors import InputError
from lolat.hardware.card_names import device_key, find_gpu
from lolat.mlp.table import ACTIVATIONS, LAYER_OPTIMIZERS, LayerTable, layer_work
from lolat.units import plain


@dataclass(frozen=True)
class DataSheet:
    """The data sheet of a GPU: memory bandwidth in GB/s, number of cores, clock in MHz; 0: unknown."""

    name: str
    bandwidth_gbs: float = 0.0
    cores: float = 0.0
    clock_mhz: float = 0.0


Devices = Mapping[str, DataSheet]
"""`key` of a GPU's name -> its data sheet."""


def key(name: str) -> str:
    """`device_key` without "gtx", so that "1080 Ti" and "GTX 1080 Ti" are the same GPU."""
    return device_key(name).removeprefix("gtx")


def data_sheets(names: Iterable[str]) -> dict[str, DataSheet]:
    """The data sheet of each GPU; the clock is the peak FLOP/s / (2 * cores)."""
    found = {key(name): DataSheet(plain(name)) for name in names}
    for own_key, device in found.items():
        gpu = find_gpu(device.name)
        if gpu is not None and gpu.bandwidth_gb_s and gpu.cores and gpu.vector_tflops:
            clock_mhz = gpu.vector_tflops * 1e6 / (2 * gpu.cores)
            found[own_key] = DataSheet(device.name, gpu.bandwidth_gb_s, gpu.cores, clock_mhz)
    return found


@dataclass(frozen=True)
class Recipe:
    """The features of a row, a network of ReLU layers, and its training with Adam.

    `columns`: a function of the table and the data sheets that returns feature name -> (n,) values before
    standardization. `hidden`: widths of the hidden layers; `more_hidden`: widths of further layers in a
    model of several GPUs. `is_log`: the output is the logarithm of the time, and the loss its absolute
    error; else the output is the time in ms, from a ReLU without bias, and the loss is the squared error of
    log(1 + ms). `halve_every`: number of epochs after which the learning rate halves; 0: cosine decay to 0.
    `dropout`: rate after the last hidden layer. `l2`: weight of the penalty l2/2 * (sum of squares of the
    hidden kernels).
    """

    name: str
    columns: Callable[[LayerTable, Devices], dict[str, np.ndarray]]
    hidden: tuple[int, ...]
    is_log: bool
    learning_rate: float
    batch: int
    epochs: int
    more_hidden: tuple[int, ...] = ()
    halve_every: int = 0
    epsilon: float = 1e-7
    dropout: float = 0.0
    l2: float = 0.0

    def features(self, table: LayerTable, devices: Devices) -> np.ndarray:
        """(n, k) float64: k features of n rows, before standardization."""
        return np.array([*self.columns(table, devices).values()], float).T


def _one_hot_words(table: LayerTable) -> dict[str, np.ndarray]:
    """One-hot columns (n,) for each optimizer and activation; "none" has no column."""
    kinds = {"optimizer": LAYER_OPTIMIZERS, "activation": ACTIVATIONS}
    return {f"{k}_{v}": table[k] == v for k, vs in kinds.items() for v in vs if v != "none"}


def _sheet_columns(table: LayerTable, devices: Devices) -> dict[str, np.ndarray]:
    """Columns (n,) with facts of the row's GPU, if there are several; InputError without a data sheet."""
    facts = ("bandwidth_gbs", "cores", "clock_mhz") if len(devices) > 1 else ()
    sheets = [devices[key(gpu)] for gpu in table["gpu"].tolist()]
    if facts and (unknown := next((sheet for sheet in sheets if not sheet.cores), None)):
        raise InputError(
            f"the data sheet of {unknown.name!r} is not known; expected GPUs of lolat.hardware.gpus.csv",
            code="unknown-gpu",
        )
    return {name: np.array([getattr(sheet, name) for sheet in sheets]) for name in facts}


# ---- The model of "Predicting the Computational Cost of Deep Learning Models" (Justus et al. 2018).
#
# Features: sizes of a layer, not amounts of work. Output: ms. The loss compares logarithms.
# What the text leaves open is as in the authors' code (github.com/CDECatapult/ml-performance-prediction):
# the penalty is l2/2 times the squares of the hidden kernels, their initialization is Glorot's.


def paper_columns(table: LayerTable, devices: Devices) -> dict[str, np.ndarray]:
    """The features of the paper: name -> (n,) values."""
    if table.layer == "dense":
        columns = {name: table[name] for name in ("batch_size", "in_features", "out_features")}
    else:
        columns = {
            "batch_size": table["batch_size"], "input_size_squared": table["input_size"] ** 2,
            "kernel_size_squared": table["kernel_size"] ** 2, "in_channels": table["in_channels"],
            "out_channels": table["out_channels"], "padding_same": table["padding"] == "same",
            "stride": table["stride"], "use_bias": table["use_bias"],
        }  # fmt: skip
    return columns | _one_hot_words(table) | _sheet_columns(table, devices)


PAPER = Recipe(
    "paper", paper_columns, hidden=(32, 64, 128, 128), more_hidden=(128, 128), is_log=False, batch=128,
    epochs=300, learning_rate=0.1, halve_every=40, epsilon=0.1, dropout=0.2, l2=1e-5,
)  # fmt: skip

# ---- LoLat's own: logarithms of sizes, work and data sheet; the error of a logarithm is the relative one.

TILES = (4, 32, 64, 128)
"""Tile sizes: channels or pixels that a GPU kernel computes at once; the last tile may be partly filled."""


def best_columns(table: LayerTable, devices: Devices) -> dict[str, np.ndarray]:
    """The features of LoLat's own recipe: name -> (n,) values."""
    work = layer_work(table)
    columns = {f"log_{name}": np.log(values) for name, values in work.items()}
    for name in ("inside", "outside", "pixels"):
        filled = {n: work[name] / (np.ceil(work[name] / n) * n) for n in TILES}
        columns |= {f"{name}_tile_{n}": np.log(share) for n, share in filled.items()}
    if table.layer == "convolution":
        # Pixels of padding; TensorFlow copies the input if one side needs one more than the other.
        padding = (work["side"] - 1) * work["stride"] + work["window"] - work["size"]
        padding = np.maximum(padding, 0.0) * (table["padding"] == "same")
        columns |= {"padding": padding, "odd": padding % 2, "use_bias": table["use_bias"]}
    columns |= {name: np.log(values) for name, values in _sheet_columns(table, devices).items()}
    return columns | _one_hot_words(table)


# 160 epochs learn the noise of the training rows.
BEST_RECIPE = Recipe(
    "best", best_columns, hidden=(192, 192, 192, 192), is_log=True, batch=512, epochs=60,
    learning_rate=2e-3,
)  # fmt: skip

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (BEST_RECIPE, PAPER)}
