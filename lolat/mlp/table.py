"""Layers as a table, one row per layer and device: read from a file or out of a network, named, counted.

The columns are those of the data behind Justus et al. 2018: gpu, batch_size, the layer's sizes, activation,
optimizer (none: forward only), time_ms_median. Other columns are kept. A file is checked when it is read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as counter
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.graph.counts import COLUMNS as COUNTS
from lolat.graph.counts import FEATURES, count
from lolat.graph.kinds import CONVOLUTIONS
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
    places: defaultdict[str, int] = defaultdict(counter().__next__)
    given = texts.tolist() if isinstance(texts, np.ndarray) else texts
    rows = np.fromiter(map(places.__getitem__, given), np.intp, len(texts))
    return np.array([of(text) for text in places], dtype)[rows]


# ---- Out of a file.


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
    convert: Callable[[str], Any] = _size
    dtype: Any = np.int64
    expected = "a whole number from 1"
    if name == "gpu":
        convert, expected, dtype = (lambda t: t or None), "the name of a GPU", str
    elif name == "use_bias":
        convert, expected = (lambda t: _FLAGS.get(_whole(t.lower()))), "0 or 1"
    elif name in WORDS:
        words = {word: word for word in WORDS[name]}
        convert, expected = (lambda t: words.get(t.lower())), f"one of {', '.join(words)}"
        dtype = str
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


# ---- A row of a table in words; the counts of all rows at once.


def layer_name(table: LayerTable, row: int) -> str:
    """One row in words: "conv 3x3/2 64x56x56 to 128, relu", "dense 512 to 1000"."""
    activation = str(table["activation"][row])
    if table.layer == "convolution":
        kernel, stride, size = (int(table[c][row]) for c in ("kernel_size", "stride", "input_size"))
        step = f"/{stride}" if stride > 1 else ""
        valid = "" if table["padding"][row] == "same" else " valid"
        text = (
            f"conv {kernel}x{kernel}{step}{valid} {int(table['in_channels'][row])}x{size}x{size} to "
            f"{int(table['out_channels'][row])}"
        )
    else:
        text = f"dense {int(table['in_features'][row])} to {int(table['out_features'][row])}"
    return text if activation == "none" else f"{text}, {activation}"


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


def layer_counts(table: LayerTable) -> np.ndarray:
    """(n, 6) float64: the counts of each row's layer at its batch size, in the order of FEATURES.

    The same as `lolat.graph.counts` finds in the layer as a network (a test compares them).
    """
    work, zero = LayerWork(table), np.zeros(len(table))
    activated = table["activation"] != "none"
    convolution = table.layer == "convolution"
    counts = {
        "acts": work.output if convolution else zero,
        "inp": work.input if convolution else zero,
        "flops": work.macs,
        "traffic": 2 * work.output * activated
        + (zero if convolution else work.input + work.output),
        "weights": work.kernel + work.outside * (table["use_bias"] if convolution else 1),
        "ops": 1.0 + activated,
    }
    return np.column_stack([counts[c] for c in FEATURES])


# ---- A network's layers as rows.

NEITHER = "neither a convolution nor a dense layer"
NOT_SQUARE = "not square, predicted with the geometric mean of the sides"
SEVERAL_POSITIONS = "dense layers at several positions, predicted as those of a larger batch"


@dataclass(frozen=True)
class Row:
    """An operation of a network as a row of a LayerTable; `operation`: its position in the graph."""

    operation: int
    name: str
    layer: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """A network as rows: what the models can predict, the other operations with the reason, remarks."""

    layers: tuple[Row, ...]
    others: tuple[tuple[int, str], ...]
    warnings: tuple[str, ...]

    def table(self, layer: str) -> LayerTable:
        """The rows of a kind of layer, in network order."""
        chosen = [row.values for row in self.layers if row.layer == layer]
        columns = {c: np.array([v[c] for v in chosen]) for c in COLUMNS[layer]}
        return LayerTable(layer, columns)


def network_rows(graph: Graph, gpu: str, batch_size: int, optimizer: str) -> Rows:
    """The convolutions and dense layers of a network as rows; the rest by position, with the reason.

    An activation of the data that follows directly, and alone, is the layer's. Sides that are not equal
    become their geometric mean, which keeps the area but for rounding, with a remark.
    """
    common = {"gpu": gpu, "batch_size": batch_size, "optimizer": optimizer}
    free = count(graph).at(1)[:, COUNTS.index("ops")] == 0
    readers = graph.consumers()
    layers: list[Row] = []
    others: list[tuple[int, str]] = []
    odd: dict[str, list[str]] = {}
    taken: set[int] = set()
    for position, operation in enumerate(graph.operations):
        if position in taken or free[position]:
            continue
        reason = _uncovered(operation)
        if reason is not None:
            others.append((position, reason))
            continue
        values = {**common, "activation": "none"}
        layer, of_layer = "convolution", _convolution
        if operation.kind == "dense":
            layer, of_layer = "dense", _dense
        values |= of_layer(graph, operation, batch_size, odd)
        written = operation.outputs[0]
        users = readers.get(written, ())
        if len(users) == 1 and written not in graph.outputs:
            kind = graph.operations[users[0]].kind
            if kind in ACTIVATIONS and kind != "none":
                values["activation"] = kind
                taken.add(users[0])
        layers.append(Row(position, operation.full_name, layer, values))
    warnings = tuple(
        f"{what}: {cases[0]}" + (f", and {len(cases) - 1} more" if len(cases) > 1 else "")
        for what, cases in odd.items()
    )
    return Rows(tuple(layers), tuple(others), warnings)


def _uncovered(operation: Operation) -> str | None:
    """Why the models cannot predict an operation; None where they can."""
    if operation.kind == "dense":
        return None
    if operation.kind not in CONVOLUTIONS:
        return NEITHER
    if operation.kind != "conv":
        return f"a {operation.kind.removesuffix('_conv')} convolution"
    dimensions = len(operation.attributes["kernel"])
    if dimensions != 2:
        return f"a convolution of {dimensions} dimension{'s' * (dimensions > 1)}"
    if any(step > 1 for step in operation.attributes.get("dilation", ())):
        return "a dilated convolution"
    return None


def _dense(
    graph: Graph, operation: Operation, batch_size: int, odd: dict[str, list[str]]
) -> dict[str, Any]:
    """What describes a dense layer; applied at several positions it is one of a larger batch."""
    inside, outside = (int(operation.attributes[f"{side}_features"]) for side in ("in", "out"))
    positions = max(graph.tensors[operation.outputs[0]].elements() // outside, 1)
    if positions > 1:
        odd.setdefault(SEVERAL_POSITIONS, []).append(f"{operation.full_name} at {positions}")
    sizes = {"in_features": inside, "out_features": outside}
    return {"batch_size": batch_size * positions, **sizes}


def _convolution(
    graph: Graph, operation: Operation, batch_size: int, odd: dict[str, list[str]]
) -> dict[str, Any]:
    """What describes a convolution; padding is what gives the size of its output."""
    a = operation.attributes
    inside, outside = int(a["in_channels"]), int(a["out_channels"])
    before = _sides(graph.tensors[operation.inputs[0]].shape, inside)
    after = _sides(graph.tensors[operation.outputs[0]].shape, outside)
    strides = tuple(a.get("strides", (1, 1)))
    (size, kernel, stride, written), unequal = _squared(before, tuple(a["kernel"]), strides, after)
    if unequal:
        shown = " of ".join("x".join(map(str, sides)) for sides in (a["kernel"], before))
        odd.setdefault(NOT_SQUARE, []).append(
            f"{operation.full_name}, {shown} taken as {kernel}x{kernel} of {size}x{size}"
        )
    fits = {
        "same": written == -(-size // stride),
        "valid": written == -(-(size - kernel + 1) // stride),
    }
    padding = str(a.get("padding", "valid"))
    if not fits.get(padding, False):
        padding = "same" if fits["same"] else "valid"
    if not fits[padding]:  # padded by hand: what the convolution then reads
        size = (written - 1) * stride + kernel
    return {
        "input_size": size,
        "kernel_size": kernel,
        "in_channels": inside,
        "out_channels": outside,
        "stride": stride,
        "padding": padding,
        "use_bias": int(bool(a["bias"])),
    }


def _sides(shape: Sequence[int], channels: int) -> tuple[int, ...]:
    """Height and width of a tensor (1, H, W, C) or (1, C, H, W)."""
    first = shape[1] == channels and shape[-1] != channels
    return tuple(shape[2:] if first else shape[1:-1])


def _squared(*pairs: Sequence[int]) -> tuple[list[int], bool]:
    """Each pair of sides as one, their geometric mean; whether any two were not equal."""
    means = [max(1, round(math.sqrt(math.prod(sides)))) for sides in pairs]
    return means, any(len(set(sides)) > 1 for sides in pairs)
