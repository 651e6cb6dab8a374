"""Measured layers as a table: one row per layer and device, checked when it is read.

The columns are those of the data behind Justus et al. 2018: gpu, batch_size, the layer's sizes, activation,
optimizer (none: forward only), time_ms_median. Other columns are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.io import tables
from lolat.units import as_number, shortened

LAYERS = ("convolution", "dense")
OPTIMIZERS = ("none", "sgd", "adadelta", "adagrad", "momentum", "adam", "rmsprop")
ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")
PADDINGS = ("valid", "same")
TIME = "time_ms_median"
SPREADS = ("time_ms_min", "time_ms_max", "time_ms_std")

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "convolution": (
        "gpu", "batch_size", "input_size", "kernel_size", "in_channels", "out_channels", "stride",
        "padding", "use_bias", "activation", "optimizer",
    ),
    "dense": ("gpu", "batch_size", "in_features", "out_features", "activation", "optimizer"),
}  # fmt: skip
"""What describes a layer, in the order of the files; each must be there."""

WORDS = {"padding": PADDINGS, "activation": ACTIVATIONS, "optimizer": OPTIMIZERS}
_LARGEST = 2**31 - 1
_FLAGS = {"0": 0, "1": 1, "false": 0, "true": 1}


@dataclass(frozen=True)
class LayerTable:
    """n rows, each a layer on a GPU, as arrays (n,) by column.

    `layer`: "convolution" or "dense". Sizes are int64 (use_bias 0 or 1), times float64 in ms, gpu and the
    words str arrays, columns that are not known object arrays of text.
    """

    layer: str
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["batch_size"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

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
    places: defaultdict[str, int] = defaultdict(count().__next__)
    given = texts.tolist() if isinstance(texts, np.ndarray) else texts
    rows = np.fromiter(map(places.__getitem__, given), np.intp, len(texts))
    return np.array([of(text) for text in places], dtype)[rows]


def read_table(path: str | Path, layer: str | None = None, times: bool = True) -> LayerTable:
    """The table in a CSV file, gzipped or not. `layer`: the kind expected; None: by its columns.

    With `times` the measured times must be there, and one row at least; without, they are not looked at.
    Raises InputError that names the file, the column and the line of what is wrong.
    """
    return parse(read_text(path), layer, times)


def read_text(path: str | Path) -> tables.Table:
    """The cells of a table of layers in a CSV file, as they stand there."""
    return tables.read_table(path, expected="expected a CSV table of layers, gzipped or not")


def parse(text: tables.Table, layer: str | None = None, times: bool = True) -> LayerTable:
    """A table from its text; see `read_table`."""
    kind = _kind(text, layer)
    needed = (*COLUMNS[kind], TIME) if times else COLUMNS[kind]
    missing = [c for c in needed if c not in text.names]
    if missing:
        raise InputError(
            f"{text.source} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; expected "
            f"{','.join(needed)} for a {kind} layer"
        )
    if times and not len(text):
        raise InputError(f"{text.source} has no rows; expected one per measured layer")
    columns = {}
    for name, values in zip(text.names, text.columns, strict=True):
        if name in COLUMNS[kind]:
            columns[name] = _described(text, name, values)
        elif name == TIME or name in SPREADS:
            if times:
                columns[name] = _times(text, name)
        else:
            columns[name] = np.array(values, dtype=object)
    table = LayerTable(kind, columns)
    if kind == "convolution":
        bad = (table["padding"] == "valid") & (table["kernel_size"] > table["input_size"])
        if bad.any():
            row = int(np.argmax(bad))
            size = int(table["input_size"][row])
            expected = f"at most input_size {size}, as padding is valid (the layer has no output)"
            raise text.row(row).wrong("kernel_size", expected)
    return table


def _kind(text: tables.Table, expected: str | None) -> str:
    """The kind of layer that the columns describe, by those that only one kind has."""
    shared = set.intersection(*(set(columns) for columns in COLUMNS.values()))
    only = {kind: [c for c in COLUMNS[kind] if c not in shared] for kind in LAYERS}
    here = {kind: [c for c in only[kind] if c in text.names] for kind in LAYERS}
    likely = max(LAYERS, key=lambda kind: len(here[kind]) / len(only[kind]))
    if not here[likely] and expected is None:
        raise InputError(
            f"{text.source} describes no layers: its columns are {shortened(', '.join(text.names))}; "
            "expected " + " or ".join(f"{','.join(COLUMNS[kind])} ({kind})" for kind in LAYERS)
        )
    if expected is not None and not here[expected] and here[likely]:
        raise InputError(
            f"{text.source} is a table of {likely} layers (it has {', '.join(here[likely])}); expected "
            f"one of {expected} layers, with the columns {','.join(COLUMNS[expected])}"
        )
    return likely if expected is None else expected


def _described(text: tables.Table, name: str, values: Sequence[str]) -> np.ndarray:
    """(n,) a column of COLUMNS; each different text is looked at once."""
    convert: Callable[[str], Any]
    dtype: Any
    if name == "gpu":
        convert, expected, dtype = (lambda t: t or None), "the name of a GPU", str
    elif name == "use_bias":
        convert, expected, dtype = (lambda t: _FLAGS.get(_whole(t.lower()))), "0 or 1", np.int64
    elif name in WORDS:
        words = {word: word for word in WORDS[name]}
        convert, expected, dtype = (
            (lambda t: words.get(t.lower())),
            f"one of {', '.join(words)}",
            str,
        )
    else:
        convert, expected, dtype = _size, "a whole number from 1", np.int64
    different = {value: convert(value.strip()) for value in dict.fromkeys(values)}
    bad = next((value for value, converted in different.items() if converted is None), None)
    if bad is not None:
        raise text.row(list(values).index(bad)).wrong(name, expected)
    return mapped(values, different.__getitem__, dtype)


def _whole(text: str) -> str:
    """`3.0` as `3`, which is how a column of sizes looks after a program that knows only real numbers."""
    head, point, tail = text.partition(".")
    return head if point and tail.strip("0") == "" and head else text


def _size(text: str) -> int | None:
    value = as_number(text)
    return int(value) if 1 <= value <= _LARGEST and value == int(value) else None


def _times(text: tables.Table, name: str) -> np.ndarray:
    """(n,) times in ms: above 0 for the measured one; its spread may be 0, or empty (NaN)."""
    times, empty = text.numbers(name)
    good = (times >= (tables.SHORTEST_MS if name == TIME else 0)) & (times <= tables.LONGEST_MS)
    expected = tables.EXPECTED_MS
    if name != TIME:
        good, expected = good | empty, "a time in milliseconds, or nothing"
    if not good.all():
        raise text.row(int(np.argmin(good))).wrong(name, expected)
    return times
