"""Layers as a table, one row per layer and device: read from a file, and what the layers ask for.

The columns are those of the data behind Justus et al. 2018: gpu, batch_size, the layer's sizes, activation,
optimizer (none: forward only), time_ms_median. Others are not looked at. A file is checked when it is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as counter
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.io import tables

LAYERS = ("convolution", "dense")
OPTIMIZERS = ("none", "sgd", "adadelta", "adagrad", "momentum", "adam", "rmsprop")
ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")
TIME = "time_ms_median"

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "convolution": (
        "gpu", "batch_size", "input_size", "kernel_size", "in_channels", "out_channels", "stride",
        "padding", "use_bias", "activation", "optimizer",
    ),
    "dense": ("gpu", "batch_size", "in_features", "out_features", "activation", "optimizer"),
}  # fmt: skip
"""What describes a layer, in the order of the files; each must be there."""

WORDS = {"padding": ("valid", "same"), "activation": ACTIVATIONS, "optimizer": OPTIMIZERS}
_FLAGS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class LayerTable:
    """n rows, each a layer on a GPU, as arrays (n,) by column.

    `layer`: "convolution" or "dense". Sizes are int64 (use_bias 0 or 1), times float64 in ms, gpu and the
    words str arrays.
    """

    layer: str
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["batch_size"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def times_ms(self) -> np.ndarray:
        """(n,) measured times, ms: the median of the repetitions. InputError where there are none."""
        if TIME not in self.columns:
            raise InputError(f"the table has no column {TIME}; expected measured times in it")
        return self.columns[TIME]

    def select(self, rows: np.ndarray) -> LayerTable:
        """The rows of a mask (n,) or of indices (m,), in their order."""
        return LayerTable(self.layer, {name: values[rows] for name, values in self.columns.items()})


def mapped(
    texts: np.ndarray | Sequence[str], of: Callable[[str], Any], dtype: Any = np.float64
) -> np.ndarray:
    """(n, ...) `of` each of n texts, called once for each that is different."""
    places: defaultdict[str, int] = defaultdict(counter().__next__)
    given = texts.tolist() if isinstance(texts, np.ndarray) else texts
    rows = np.fromiter(map(places.__getitem__, given), np.intp, len(texts))
    return np.array([of(text) for text in places], dtype)[rows]


# ---- Out of a file.


def read_table(path: str | Path, layer: str | None = None, times: bool = True) -> LayerTable:
    """The table in a CSV file, gzipped or not; see `parse`."""
    return parse(tables.read_table(path), layer, times)


def parse(text: tables.Table, layer: str | None = None, times: bool = True) -> LayerTable:
    """A table from its text. `layer`: the expected kind; None: by its columns.

    With `times` the measured times must be there, and one row at least; without, they are not looked at.
    Raises InputError that names the file, the column and the line of what is wrong.
    """
    kind = layer or ("dense" if "in_features" in text.names else "convolution")
    needed = (*COLUMNS[kind], *((TIME,) if times else ()))
    if missing := [c for c in needed if c not in text.names]:
        raise InputError(
            f"{text.source} lacks the columns {', '.join(missing)}; expected {','.join(needed)} for a "
            f"{kind} layer"
        )
    if times and not len(text):
        raise InputError(f"{text.source} has no rows; expected one per measured layer")
    columns = {}
    for name, cells in zip(text.names, text.columns, strict=True):
        if name in needed:
            columns[name] = _column(text, name, cells)
    table = LayerTable(kind, columns)
    if kind == "convolution":
        bad = (table["padding"] == "valid") & (table["kernel_size"] > table["input_size"])
        if bad.any():
            row = int(np.argmax(bad))
            size = int(table["input_size"][row])
            expected = f"at most input_size {size}, as padding is valid (the layer has no output)"
            raise text.row(row).wrong("kernel_size", expected)
    return table


def _column(text: tables.Table, name: str, cells: Sequence[str]) -> np.ndarray:
    """(n,) a column with a meaning, as numbers or words; InputError for the first wrong cell."""
    if name == "gpu":
        values, expected = mapped(cells, str.strip, str), "the name of a GPU"
        good = values != ""
    elif name in WORDS:
        values = mapped(cells, lambda cell: cell.strip().lower(), str)
        good, expected = np.isin(values, WORDS[name]), f"one of {', '.join(WORDS[name])}"
    elif name == "use_bias":
        values = mapped(cells, lambda cell: _FLAGS.get(cell.strip().lower(), -1), np.int64)
        good, expected = values >= 0, "0 or 1"
    else:
        values, _ = text.numbers(name)
        if name == TIME:
            good = (values >= tables.SHORTEST_MS) & (values <= tables.LONGEST_MS)
            expected = tables.EXPECTED_MS
        else:
            good = (values >= 1) & (values <= _LARGEST) & (values == np.floor(values))
            values = np.where(good, values, 0).astype(np.int64)
            expected = "a whole number from 1"
    if not good.all():
        raise text.row(int(np.argmin(good))).wrong(name, expected)
    return values


# ---- What all rows ask for at once.


class LayerWork:
    """What n layers ask for at their batch sizes, each (n,) float64.

    `size`, `side`: height = width of what is read and written; `window`: of the kernel; `inside`,
    `outside`: channels; `product`: whether it is a matrix product as it stands (1x1 windows, or one).
    `input`, `output`, `kernel`: elements read, written, and of the kernel without bias; `depth`: products
    of an output element; `macs`: of the forward pass. A dense layer is a convolution of one pixel.
    """

    def __init__(self, table: LayerTable) -> None:
        # Floats, as 64-bit integers would overflow for the largest.
        self.batch = table["batch_size"].astype(float)
        if table.layer == "dense":
            self.size = self.side = self.window = self.stride = np.ones(len(table))
            self.inside, self.outside = (
                table[f"{way}_features"].astype(float) for way in ("in", "out")
            )
            self.product = np.ones(len(table), bool)
        else:
            self.size, self.window, self.stride, self.inside, self.outside = (
                table[c].astype(float)
                for c in ("input_size", "kernel_size", "stride", "in_channels", "out_channels")
            )
            same, whole = table["padding"] == "same", self.window == self.size
            # TensorFlow's rules for "same" and "valid".
            positions = np.where(same, self.size, self.size - self.window + 1)
            self.side = np.ceil(positions / self.stride)
            self.product = ((self.window == 1) & (self.stride == 1)) | (whole & ~same)
        self.input = self.batch * self.size**2 * self.inside
        self.output = self.batch * self.side**2 * self.outside
        self.depth = self.window**2 * self.inside
        self.kernel = self.depth * self.outside
        self.macs = self.output * self.depth
