"""A table of single operations that somebody has timed, a row each: `lolat fit` makes a model of it."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lolat.errors import InputError
from lolat.fitting.points import open_text
from lolat.graph import Graph, GraphBuilder
from lolat.graph.modes import Mode

# ---- A table of whole networks that somebody has timed: to fit a device to, or to judge a
# model by.
#
# Also as timm's benchmark.py writes them (--results-file), and as timm publishes them.

NAMED = ("network", "model")
SIZES = ("sequence_length", "input_size", "pixels", "infer_img_size", "train_img_size")
BATCHES = ("batch_size", "infer_batch_size", "train_batch_size")
TIMES = ("latency_ms", "step_ms", "infer_step_time", "train_step_time")
MILLIONS = ("params_millions", "param_count")  # of parameters, as timm has them
MOST_BATCH = 2**20
LEAST_MS, MOST_MS = 1e-3, 1e7
ENCODERS = frozenset(["bert", "electra", "roberta"])
DISAGREE = 1.5  # times of the same, one after the other, that are further apart than this
EXPECTED = (
    "expected the columns network (or model), batch_size and latency_ms (or step_ms), and where known "
    "sequence_length or input_size (or pixels), dtype, channels_last, compiled, pass"
)


@dataclass(frozen=True)
class TimedNetwork:
    """One row: the network as `lolat.readers.read` takes it, its size, and how it was run; `parameters`:
    how many it has, where the table says so.
    """

    spec: str
    size: int | None
    batch_size: int
    latency_ms: float
    mode: Mode
    parameters: float | None
    where: str
    row: Mapping[str, str]

    @property
    def name(self) -> str:
        """As the table calls it."""
        return next(self.row[c] for c in NAMED if self.row.get(c))


@dataclass
class Table:
    """The rows of a table that are of one device, its columns, and why others are left out."""

    path: str
    columns: list[str]
    rows: list[TimedNetwork]
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count a row that is left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def nothing(self) -> InputError:
        """The error where no row is left."""
        why = "; ".join(f"{n} x {r}" for r, n in self.skipped.items()) or "it has no rows"
        return InputError(f"{self.path}: no row could be used ({why}); {EXPECTED}")


def is_of_networks(columns: list[str]) -> bool:
    """Whether a table with these columns is one of networks."""
    return bool(set(NAMED) & set(columns)) and bool(set(TIMES) & set(columns))


def read_networks(
    path: str | Path, device: str | None = None, skip: bool = False, mode: Mode | None = None
) -> Table:
    """The rows of a table of networks; of `device` alone, where the table has that column.

    A network is a NETWORK as everywhere, a name of timm's where the column is called `model`, or a
    configuration of transformers of that name in the folder `networks` beside the table. How it was run
    is said by the columns dtype, compiled and channels_last, or else by the file's name, or else it is
    `mode`. InputError names the line that is wrong; `skip`: such lines are left out.
    """
    reader = csv.DictReader(open_text(path), strict=True)
    columns = [n.strip().lower() for n in reader.fieldnames or []]
    reader.fieldnames = columns
    if not is_of_networks(columns):
        raise InputError(f"{path} is no table of networks; {EXPECTED}")
    table = Table(str(path), columns, [])
    usual = Mode.of_file(Path(path).name, mode)
    if "train_step_time" in columns and "infer_step_time" not in columns:
        usual = replace(usual, training=True)
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            try:
                reason = _not_answered(row, device)
                if reason is None:
                    table.rows.append(_timed(row, where, path, usual))
            except InputError as error:
                if not skip:
                    raise
                reason = str(error).removeprefix(f"{where}: ")
            if reason is not None:
                table.skip(reason)
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; expected a CSV table"
        ) from error
    return table


def _timed(row: Mapping[str, Any], where: str, path: str | Path, usual: Mode) -> TimedNetwork:
    if None in row or None in row.values():
        raise InputError(
            f"{where}: {'more' if None in row else 'fewer'} fields than the first line has names"
        )
    name = next((c for c in NAMED if row.get(c)), None)
    if name is None:
        raise InputError(f"{where}: names no network; {EXPECTED}")
    time = next(c for c in TIMES if c in row)
    batch = next((c for c in BATCHES if row.get(c)), None)
    size = next((c for c in SIZES if row.get(c)), None)
    ms = _number(row[time], time, where)
    if not LEAST_MS <= ms <= MOST_MS:
        raise InputError(
            f"{where}: {time} is {row[time][:40]}, which no network takes; are these seconds? expected "
            "milliseconds"
        )
    mode = usual.of_row(row, where)
    millions = next((c for c in MILLIONS if row.get(c)), None)
    return TimedNetwork(
        _spec(row[name].strip(), path, name == "model", mode.training),
        None if size is None else _whole(row[size], size, where, MOST_BATCH),
        1 if batch is None else _whole(row[batch], batch, where, MOST_BATCH),
        ms,
        mode,
        None if millions is None else 1e6 * _number(row[millions], millions, where),
        where,
        row,
    )


def contradictions(rows: list[TimedNetwork]) -> Iterator[tuple[TimedNetwork, TimedNetwork]]:
    """Rows of the same network, size, batch and mode whose times are more than DISAGREE apart."""
    seen: dict[Any, TimedNetwork] = {}
    for row in rows:
        first = seen.setdefault((row.spec, row.size, row.batch_size, row.mode), row)
        ratio = first.latency_ms / row.latency_ms
        if max(ratio, 1.0 / ratio) > DISAGREE:
            yield first, row


def family_of(name: str) -> str:
    """The architecture's family by its name: letters before the first digit or underscore."""
    plain = name.rpartition("/")[2].partition(":")[2] or name.rpartition("/")[2]
    plain = re.sub(r"^(tf|legacy|gluon|test|tv|ssl|swsl|dm)_", "", plain.lower())
    return re.split(r"[\d_.?-]", plain)[0] or plain


def _not_answered(row: Mapping[str, Any], device: str | None) -> str | None:
    """Why a model of one device does not answer a row; None where it does."""
    if device is not None and row.get("device") not in (None, device):
        return "of another device"
    return "on several devices" if row.get("parallel") else None


def _spec(name: str, path: str | Path, of_timm: bool, training: bool) -> str:
    config = Path(path).parent / "networks" / f"{name}.json"
    if config.is_file():
        # An encoder is trained with the heads that it is made for; for inference it classifies.
        return f"transformers:{config}" + "?AutoModelForPreTraining" * (
            training and encodes(config)
        )
    return f"timm:{name}" if of_timm and ":" not in name else name


def encodes(config: Path) -> bool:
    """Whether a configuration of transformers is of an encoder, as BERT."""
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # said when it is read
        return False
    return isinstance(found, dict) and found.get("model_type") in ENCODERS


def _whole(text: str, column: str, where: str, most: int) -> int:
    value = _number(text, column, where)
    if value != int(value) or value > most:
        raise InputError(
            f"{where}: {column} is {text[:40]!r}; expected a whole number from 1 to {most}"
        )
    return int(value)


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < math.inf:
        raise InputError(f"{where}: {column} is {text[:40]!r}; expected a number above 0")
    return value


# ---- operations ----------------------------------------

NAMES = ("op", "operation")
LEAST_OPERATION_MS, MOST_OPERATION_MS = (
    1e-4,
    1e6,
)  # of one operation: a time beyond is of another unit
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
EXPECTED_OPERATIONS = (
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
    if not LEAST_OPERATION_MS <= value <= MOST_OPERATION_MS:
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
