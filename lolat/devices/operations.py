"""A table of single operations that somebody has timed, a row each: `lolat fit` makes a model of it."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.points import open_text

NAMES = ("op", "operation")
LEAST_MS, MOST_MS = 1e-4, 1e6  # of one operation: a time beyond is of another unit
PRODUCT, BLOCK = ("batch", "m", "n", "k"), ("rows", "width")
CONVOLUTION = ("batch", "in_channels", "out_channels", "kernel", "input_size", "stride", "padding")
BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power"}
UNARY = {
    **{name + "u": kind for name, kind in BINARY.items()},
    "gelu": "gelu", "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "silu": "silu",
    "softmax": "softmax", "ln": "layer_norm",
}  # fmt: skip
COLUMNS: dict[str, tuple[str, ...]] = {
    "linear": PRODUCT,
    "bmm": PRODUCT,
    "conv": CONVOLUTION,
    **dict.fromkeys((*BINARY, *UNARY), BLOCK),
}
"""Operation -> the columns that it needs, whole numbers."""
MULTIPLYING = ("linear", "bmm", "conv")
ALL_COLUMNS = ("op", *PRODUCT, *CONVOLUTION[1:], *BLOCK)
EXPECTED = (
    "expected the columns op (linear, bmm, conv, softmax, ln, add, mul, gelu ...), latency_ms, and "
    "batch,m,n,k for linear and bmm; batch,in_channels,out_channels,kernel,input_size,stride,padding for "
    "conv; rows,width for the others"
)


def is_of_operations(columns: list[str]) -> bool:
    """Whether a table with these columns is one of operations."""
    return bool(set(NAMES) & set(columns))


@dataclass(frozen=True)
class TimedOperation:
    """One row: the operation's name, a Graph of it alone at a batch size, and its time; as it stands."""

    name: str
    graph: Graph
    batch_size: int
    latency_ms: float
    row: Mapping[str, str]


def columns_of(path: str | Path) -> list[str]:
    """The names in a table's first line, in small letters."""
    first = next(csv.reader(open_text(path)), [])
    return [name.strip().lower() for name in first]


def read_operations(path: str | Path) -> list[TimedOperation]:
    """The rows of a table of operations. InputError names the line that is wrong, and what is expected."""
    reader = csv.DictReader(open_text(path), strict=True)
    columns = [n.strip().lower() for n in reader.fieldnames or []]
    reader.fieldnames = columns
    name = next((n for n in NAMES if n in columns), None)
    if name is None or "latency_ms" not in columns:
        raise InputError(f"{path} is no table of operations; {EXPECTED}")
    try:
        found = list(_rows(reader, name, path))
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; expected a CSV table"
        ) from error
    if not found:
        raise InputError(f"{path} has no rows; expected one for each operation that was timed")
    return found


def _rows(reader: Any, name: str, path: str | Path) -> Iterator[TimedOperation]:
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if None in row or None in row.values():
            raise InputError(
                f"{where}: {'more' if None in row else 'fewer'} fields than the first line has names "
                f"({len(reader.fieldnames)})"
            )
        yield operation_of(row, where, _time(row["latency_ms"], where), name)


def operation_of(
    row: Mapping[str, str], where: str, latency_ms: float, name: str = NAMES[0]
) -> TimedOperation:
    """The operation that a row says, `name` in the column of that name; InputError that begins `where`."""
    what = row[name].strip().lower()
    if what not in COLUMNS:
        raise InputError(f"{where}: no operation {what[:40]!r}; known: {', '.join(COLUMNS)}")
    missing = [c for c in COLUMNS[what] if c not in row]
    if missing:
        raise InputError(f"{where}: {what} needs the column {missing[0]}; {EXPECTED}")
    sizes = {c: _size(row[c], c, where) for c in COLUMNS[what]}
    graph, batch_size = _graph(what, sizes)
    return TimedOperation(what, graph, batch_size, latency_ms, row)


def _size(text: str, column: str, where: str) -> int:
    try:
        value = float(text)
        least = 0 if column == "padding" else 1
        if value == int(value) and least <= value <= 2**40:
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise InputError(f"{where}: {column} is {text[:40]!r}; expected a whole number, 1 or more")


def _time(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0.0:
        raise InputError(f"{where}: latency_ms is {text[:40]!r}; expected milliseconds above 0")
    if not LEAST_MS <= value <= MOST_MS:
        raise InputError(
            f"{where}: latency_ms is {text[:40]}, which no single operation takes; are these seconds, or "
            "nanoseconds? expected milliseconds"
        )
    return value


def _graph(what: str, a: Mapping[str, int]) -> tuple[Graph, int]:
    """The Graph of one operation alone, and its batch size."""
    builder = GraphBuilder(what, "torch")
    if what == "linear":
        x = builder.input((1, a["m"], a["n"]))
        out = builder.add(
            "dense", [x], (1, a["m"], a["k"]), in_features=a["n"], out_features=a["k"], bias=True
        )
        return builder.build([out]), a["batch"]
    if what == "bmm":
        pair = [builder.input((1, a["m"], a["n"])), builder.input((1, a["n"], a["k"]))]
        out = builder.add("matmul", pair, (1, a["m"], a["k"]), contracted=a["n"])
        return builder.build([out]), a["batch"]
    if what == "conv":
        side = (a["input_size"] + 2 * a["padding"] - a["kernel"]) // a["stride"] + 1
        x = builder.input((1, a["in_channels"], a["input_size"], a["input_size"]))
        out = builder.add(
            "conv", [x], (1, a["out_channels"], side, side), kernel=(a["kernel"],) * 2,
            strides=(a["stride"],) * 2, dilation=(1, 1), bias=False, in_channels=a["in_channels"],
            out_channels=a["out_channels"], groups=1,
        )  # fmt: skip
        return builder.build([out]), a["batch"]
    shape = (1, a["width"])
    inputs = [builder.input(shape) for _ in range(2 if what in BINARY else 1)]
    out = builder.add(BINARY.get(what) or UNARY[what], inputs, shape)
    return builder.build([out]), a["rows"]
