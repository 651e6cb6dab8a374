"""Tables of layers, one row per layer and GPU: reading them, and the work of each row.

The columns are those of the published data of Justus et al. 2018: gpu, batch_size, the layer's sizes,
activation, optimizer ("none": forward pass only), time_ms_median. Other columns are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lolat.io import tables
from lolat.io.progress import Warn
from lolat.tables.copies import unique

LAYER_OPTIMIZERS = ("none", "sgd", "adadelta", "adagrad", "momentum", "adam", "rmsprop")
ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")
TIME = "time_ms_median"

LAYER_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "convolution": (
        "gpu", "batch_size", "input_size", "kernel_size", "in_channels", "out_channels", "stride",
        "padding", "use_bias", "activation", "optimizer",
    ),
    "dense": ("gpu", "batch_size", "in_features", "out_features", "activation", "optimizer"),
}  # fmt: skip
"""Kind of layer -> required columns, in the order of the published files."""

WORDS = {"padding": ("valid", "same"), "activation": ACTIVATIONS, "optimizer": LAYER_OPTIMIZERS}
_FLAGS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
_LARGEST = 2**31 - 1
_TYPES = {"gpu": str, TIME: np.float64, **dict.fromkeys(WORDS, str)}
"""Column -> the type of its values; other columns are whole numbers."""


@dataclass(frozen=True)
class LayerTable:
    """n rows, each a layer on a GPU, as arrays (n,) by column.

    `layer`: "convolution" or "dense". Columns of sizes are int64 (use_bias is 0 or 1), times are float64 in
    ms, gpu and other words are str.
    """

    layer: str
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["batch_size"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def select(self, rows: np.ndarray) -> LayerTable:
        """The rows that a mask (n,) or indices (m,) select."""
        return LayerTable(self.layer, {name: values[rows] for name, values in self.columns.items()})

    def unique(self, warn: Warn) -> LayerTable:
        """The rows without duplicates, in their order; `warn` gets a remark on duplicates."""
        rows = zip(*(values.tolist() for values in self.columns.values()), strict=True)
        return self.select(np.array(unique([(row, at) for at, row in enumerate(rows)], warn)))


def layers_of(text: tables.Table, layer: str | None = None, times: bool = True) -> LayerTable:
    """Parse the layers in a CSV table. `layer`: the expected kind; None: the columns decide.

    If `times` is true, measured times and at least one row are required; else times are ignored. InputError
    names the file, the column and the line of a wrong cell.
    """
    kind = layer or ("dense" if "in_features" in text.names else "convolution")
    needed = (*LAYER_COLUMNS[kind], *((TIME,) if times else ()))
    text = replace(text, expected=f"expected {','.join(needed)} for a {kind} layer")
    text.require(needed, "measured layer" if times else None)
    text.mark_read(*needed)
    rows = [*text]
    cells = {name: [_cell(row, name) for row in rows] for name in needed}
    arrays: dict[str, np.ndarray] = {
        name: np.array(cells[name], _TYPES.get(name, np.int64)) for name in needed
    }
    table = LayerTable(kind, arrays)
    if kind == "convolution":
        bad = (table["padding"] == "valid") & (table["kernel_size"] > table["input_size"])
        if bad.any():
            row = int(np.argmax(bad))
            size = int(table["input_size"][row])
            expected = f"at most input_size {size}, as padding is valid (the layer has no output)"
            raise text.row(row).wrong("kernel_size", expected)
    return table


def _cell(row: tables.Row, name: str) -> float | str:
    """The value in a cell; InputError if it is wrong."""
    if name == "gpu":
        if row[name]:
            return row[name]
        raise row.wrong(name, "the name of a GPU")
    if name in WORDS:
        return row.choice(name, WORDS[name])
    if name == "use_bias":
        return _FLAGS[row.choice(name, _FLAGS)]
    if name == TIME:
        return row.milliseconds(name)
    return row.whole(name, 1, _LARGEST)


def layer_work(table: LayerTable) -> dict[str, np.ndarray]:
    """Name -> (n,) float64: the sizes and the work of n layers at their batch sizes.

    `size`, `side`: height = width of the input and of the output; `window`: side of the kernel; `inside`,
    `outside`: input and output channels; `pixels`: output pixels of the whole batch; `input`, `output`,
    `kernel`: elements, without bias; `macs`: multiply-accumulates of the forward pass. A dense layer is a
    convolution on one pixel.
    """
    # Floats, as 64-bit integers would overflow for the largest.
    given = {n: v.astype(float) for n, v in table.columns.items() if v.dtype.kind in "iu"}
    is_dense = table.layer == "dense"
    inside, outside = (
        given[f"{d}_features" if is_dense else f"{d}_channels"] for d in ("in", "out")
    )
    one = np.ones(len(table))
    size, window, stride = (given.get(n, one) for n in ("input_size", "kernel_size", "stride"))
    # TensorFlow's rules for "same" and "valid".
    lost = 0.0 if is_dense else np.where(table["padding"] == "same", 0.0, window - 1)
    side = np.ceil((size - lost) / stride)
    batch, kernel = given["batch_size"], window**2 * inside * outside
    pixels = batch * side**2
    return {
        "batch": batch, "size": size, "side": side, "window": window, "stride": stride,
        "inside": inside, "outside": outside, "input": batch * size**2 * inside, "pixels": pixels,
        "output": pixels * outside, "kernel": kernel, "macs": pixels * kernel,
    }  # fmt: skip
