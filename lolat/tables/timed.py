"""Reads tables of times: a row is a whole network or a single operation on a device.

`lolat fit` fits a device profile to them, `lolat evaluate` compares a profile's predictions with them.
Tables of networks may have the columns of timm's benchmark.py (--results-file) or of timm's published
results.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from lolat.errors import InputError, LolatError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import parameters, trained_whole
from lolat.graph.counts import COLUMNS, count
from lolat.graph.modes import MODE_COLUMNS, Mode
from lolat.graph.work import STEP_COLUMNS, Workload, at, lower
from lolat.io.documents import read_json
from lolat.io.progress import Warn
from lolat.io.tables import (
    ABOVE_ZERO,
    EXPECTED_MS,
    LONGEST_MS,
    SHORTEST_MS,
    Row,
    read_table,
    say_unread,
)
from lolat.parameters import OPTIMIZERS
from lolat.readers.children import OnProgress, arrays_of
from lolat.readers.torch.named import ENCODER_TYPES, REPARAMETERIZED, TAKEN_APART
from lolat.tables.left_out import LeftOut
from lolat.units import shortened

# ---- Networks

NETWORK_COLUMNS = ("network", "model")
SIZES = (
    "sequence_length", "seq_len", "input_size", "pixels", "resolution", "image_size", "img_size",
    "imgsz", "infer_img_size", "train_img_size",
)  # fmt: skip
BATCHES = ("batch_size", "batch", "infer_batch_size", "train_batch_size")
TIMES = ("latency_ms", "step_ms", "time_ms", "ms", "infer_step_time", "train_step_time")
IN_MS = {"latency_s": 1e3, "time_s": 1e3, "latency_us": 1e-3, "time_us": 1e-3}
"""Column of times in another unit -> the unit in ms."""
RATES = (
    "samples_per_s", "samples_per_sec", "images_per_s", "images_per_sec", "infer_samples_per_sec",
)  # fmt: skip
"""Columns of samples a second, for tables without times."""
OF_TIMM = "momentum"
"""The optimizer of timm's benchmark.py: create_optimizer_v2's "sgd" has a momentum of 0.9."""
SEVERAL = ("parallel", "gpus", "num_gpus", "n_gpus", "num_devices", "replicas", "world_size")
"""Columns of the number of devices that a network ran on, or of how they shared it."""
MILLIONS = ("params_millions", "param_count")  # columns of millions of parameters, in timm's tables
MOST_BATCH = 2**20
EXPECTED_NETWORKS = (
    "expected the columns network (or model), batch_size and latency_ms (or latency_s, latency_us, "
    "samples_per_s), and where known sequence_length or input_size (or pixels), precision, channels_last, "
    "launch, pass"
)
READ_COLUMNS = (
    *NETWORK_COLUMNS, *SIZES, *BATCHES, *TIMES, *IN_MS, *RATES, *MILLIONS, *MODE_COLUMNS, *SEVERAL,
    "device", "optimizer",
)  # fmt: skip
NEAR = 0.8  # least similarity of a misspelled column's name to a known one
CELLS = "cells"  # the cause of rows with a cell that cannot be read
OPERATIONS, NETWORKS, BLOCKS = "operations", "networks", "blocks"
KERNELS, SERVED = "operations of language models", "served models"
Network = tuple[str, int | None, Mode]
"""(NETWORK, its size, as `lolat.readers.read` takes them, its execution mode)."""


def content_of(columns: Collection[str]) -> str:
    """The content of a table with these columns: OPERATIONS, NETWORKS, BLOCKS, KERNELS or SERVED."""
    if {"tpot_ms", "itl_mean_ms"} & {*columns}:
        return SERVED
    if "op" in columns:
        return KERNELS if "dtype" in columns else OPERATIONS
    if "acts" in columns:
        return BLOCKS
    # The reader of the most likely content says which columns are missing.
    if {*columns} & {*NETWORK_COLUMNS, *TIMES, *IN_MS, *RATES} - {"latency_ms"}:
        return NETWORKS
    return OPERATIONS if {"m", "n", "k"}.issubset(columns) else BLOCKS


@dataclass(frozen=True)
class TimedNetwork:
    """A row: a network, its execution mode and time; `parameters`: None if the table does not say."""

    name: str
    network: Network
    batch_size: int
    latency_ms: float
    parameters: float | None
    row: Row

    @property
    def same(self) -> Hashable:
        """A key that is equal for rows of the same work."""
        return self.network, self.batch_size

    @property
    def mode(self) -> Mode:
        """The execution mode."""
        return self.network[2]

    @property
    def optimizer(self) -> str:
        """The optimizer whose update is part of the training step; "none", or "" if the table is silent."""
        return self.row.get("optimizer") or (OF_TIMM if "train_step_time" in self.row else "")


@dataclass
class Table:
    """The rows of one device in a table of networks, and the rows left out.

    `assumed`: the execution mode that the rows are taken to have, None if the table or the caller states
    it.
    """

    path: str
    columns: tuple[str, ...]
    rows: list[TimedNetwork] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    assumed: Mode | None = None

    def say_assumed(self, warn: Warn) -> None:
        """Warn of columns that are not read, and of an assumed execution mode or batch size."""
        say_unread((row.row for row in self.rows[:1]), warn)
        for column in {*self.columns} - {*READ_COLUMNS}:
            for near in difflib.get_close_matches(column, READ_COLUMNS, 1, NEAR):
                if near not in self.columns:
                    warn(f"{self.path}: did you mean {near} by the column {column}?")
        if self.rows and self.assumed is not None and not {*MODE_COLUMNS} & {*self.columns}:
            warn(
                f"{self.path} has neither precision nor launch: its times are taken to be of "
                f"{self.assumed.dtype}, {self.assumed.launch}"
            )
        lacking = sum(not any(map(row.row.get, BATCHES)) for row in self.rows)
        if lacking == len(self.rows) > 0:
            warn(f"{self.path} has no batch_size: all its times are taken to be of a batch of 1")
        elif lacking:
            warn(
                f"{self.path} has no batch_size in {lacking} of {len(self.rows)} rows: these are taken to "
                "be of a batch of 1"
            )

    def say_left_out(self, warn: Warn) -> None:
        """Warn of the rows left out."""
        for line in self.left_out.told(f" rows of {self.path}"):
            warn(line)

    def nothing(self) -> InputError:
        """The error of a table without a usable row."""
        why = str(self.left_out) or "it has no rows"
        return InputError(f"{self.path}: no row could be used ({why}); {EXPECTED_NETWORKS}")


def read_networks(
    path: str | Path, devices: Collection[str] = (), mode: Mode | None = None
) -> Table:
    """Read a table of networks; with a column `device`, the rows of `devices` alone.

    A network is a NETWORK (column `network`), a name of timm (column `model`), or `networks/NAME.json`
    beside the table, a configuration of transformers. Its execution mode comes from MODE_COLUMNS, else from
    the file's name, else it is `mode`. Wrong rows are left out.
    """
    rows = read_table(path, expected=EXPECTED_NETWORKS)
    table = Table(str(path), rows.names)
    for columns, what in ((NETWORK_COLUMNS, "networks"), ((*TIMES, *IN_MS, *RATES), "times")):
        if not {*columns} & {*rows.names}:
            has = shortened(", ".join(rows.names))
            raise InputError(f"{path} has no column of {what} (it has {has}); {EXPECTED_NETWORKS}")
    usual = Mode.of_file(Path(path).name, mode)
    table.assumed = usual if mode is None and usual == Mode() else None
    if "train_step_time" in rows.names and "infer_step_time" not in rows.names:
        usual = replace(usual, training=True)
    for row in rows:
        if row.get("device") not in (None, *devices) and devices:
            table.left_out.add("of another device")
        elif on_several(row):
            table.left_out.add("on several devices")
        else:
            try:
                table.rows.append(_timed_network(row, Path(path), usual))
            except InputError as error:
                why = error.data.get("why", str(error))
                table.left_out.add(why, CELLS, place=f"line {row.line}")
    return table


def on_several(row: Row) -> bool:
    """True for a row that ran on more than one device."""
    return any(row.get(column, "") not in ("", "1", "no") for column in SEVERAL)


def _timed_network(row: Row, path: Path, usual: Mode) -> TimedNetwork:
    columns = [
        next((name for name in names if row.get(name)), "")
        for names in (NETWORK_COLUMNS, BATCHES, SIZES, (*TIMES, *IN_MS, *RATES), MILLIONS)
    ]
    name, batch, size, time, millions = columns
    if not (name and time):
        raise row.refused("no time" if name else "no network")
    samples = row.whole(batch, 1, MOST_BATCH, default=1)
    updates = ("none", *OPTIMIZERS)
    if row.get("optimizer") and row["optimizer"] not in updates:
        raise row.wrong("optimizer", f"one of {', '.join(updates)}")
    mode = usual.of_row(row, row.where)
    spec = _spec(row[name], path, name == "model", mode.training)
    return TimedNetwork(
        row[name],
        (spec, row.whole(size, 1, MOST_BATCH) if size else None, mode),
        samples,
        _ms(row, time, samples),
        1e6 * row.number(millions, ABOVE_ZERO) if millions else None,
        row,
    )


def _ms(row: Row, column: str, samples: int) -> float:
    """The time of a row, from its column of times or of samples a second."""
    if column in TIMES:
        return row.milliseconds(column)
    value = row.number(column, ABOVE_ZERO, expected="a number above 0")
    ms = 1e3 * samples / value if column in RATES else IN_MS[column] * value
    if not SHORTEST_MS <= ms <= LONGEST_MS:
        raise row.refused(f"{column} is {row[column]!r}, {ms:g} ms; expected {EXPECTED_MS}")
    return ms


def version_of(path: str) -> str | None:
    """The version of PyTorch in the name of a table of timm: pt291 is 2.9.1."""
    found = re.search(r"-pt(1)(\d\d)[-.]|-pt(\d)(\d)(\d)[-.]", Path(path).name)
    return None if found is None else ".".join(filter(None, found.groups()))


def _spec(name: str, path: Path, of_timm: bool, training: bool) -> str:
    config = path.parent / "networks" / f"{name}.json"
    if not config.is_file():
        return f"timm:{name}" if of_timm and ":" not in name else name
    # An encoder is trained with the heads of its pretraining; in inference it classifies.
    document = read_json(config, "expected a configuration of transformers")
    is_encoder = document.get("model_type") in ENCODER_TYPES
    return f"transformers:{config}?{'AutoModelForPreTraining,' * (training and is_encoder)}{TAKEN_APART}"


# ---- Operations

MOST_OF_A_SIZE = 2**40
PRODUCT, BLOCK = ("batch", "m", "n", "k"), ("rows", "width")
GROUPS = "groups"  # of a convolution, 1 where the table has no such column
CONVOLUTION = ("batch", "in_channels", "out_channels", "kernel", "input_size", "stride", "padding")
BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power"}
UNARY = {
    **{name + "u": kind for name, kind in BINARY.items()},
    "gelu": "gelu", "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "silu": "silu",
    "softmax": "softmax", "ln": "layer_norm",
}  # fmt: skip
OPERATION_COLUMNS: dict[str, tuple[str, ...]] = {
    "linear": PRODUCT,
    "bmm": PRODUCT,
    "conv": CONVOLUTION,
    **dict.fromkeys((*BINARY, *UNARY), BLOCK),
}
"""Operation -> its columns of sizes, whole numbers."""
MULTIPLYING = ("linear", "bmm", "conv")
EXPECTED_OPERATIONS = (
    "expected the columns op (linear, bmm, conv, softmax, ln, add, mul, gelu ...), latency_ms, and "
    "batch,m,n,k for linear and bmm; batch,in_channels,out_channels,kernel,input_size,stride,padding for "
    "conv; rows,width for the others"
)


@dataclass(frozen=True)
class TimedOperation:
    """A row: an operation, a Graph of it alone, its batch size and time."""

    name: str
    graph: Graph
    batch_size: int
    latency_ms: float
    row: Row

    @property
    def dtype(self) -> str:
        """The data type that it was timed in, float32 if the table is silent."""
        return Mode().of_row(self.row, self.row.where).dtype

    @property
    def same(self) -> Hashable:
        """A key that is equal for rows of the same work."""
        return (
            self.name,
            self.dtype,
            self.row.get(GROUPS),
            *(self.row.whole(c, 0) for c in OPERATION_COLUMNS[self.name]),
        )


def read_operations(
    path: str | Path, devices: Collection[str] = (), argument: str = "name"
) -> list[TimedOperation]:
    """Read a table of operations; `devices`, `argument`: see `Table.of_devices`. InputError for a wrong
    line.
    """
    table = read_table(path, ("op", "latency_ms"), EXPECTED_OPERATIONS, "timed operation")
    return [_timed_operation(row) for row in table.of_devices(devices, argument)]


def _timed_operation(row: Row) -> TimedOperation:
    name = row["op"].lower()
    if name not in OPERATION_COLUMNS:
        raise row.wrong("op", f"one of {', '.join(OPERATION_COLUMNS)}")
    sizes = {c: row.whole(c, int(c != "padding"), MOST_OF_A_SIZE) for c in OPERATION_COLUMNS[name]}
    if name == "conv":
        sizes[GROUPS] = row.whole(GROUPS, 1, MOST_OF_A_SIZE, default=1)
        if sizes["in_channels"] % sizes[GROUPS] or sizes["out_channels"] % sizes[GROUPS]:
            raise row.wrong(GROUPS, "a divisor of in_channels and out_channels")
    return TimedOperation(name, *_graph(name, sizes), row.milliseconds(), row)


def _graph(name: str, a: Mapping[str, int]) -> tuple[Graph, int]:
    """The Graph of one operation alone, and its batch size."""
    builder = GraphBuilder(name, "torch")
    if name == "linear":
        x = builder.input((1, a["m"], a["n"]))
        out = builder.add(
            "dense", [x], (1, a["m"], a["k"]), in_features=a["n"], out_features=a["k"], bias=True
        )
    elif name == "bmm":
        pair = [builder.input((1, a["m"], a["n"])), builder.input((1, a["n"], a["k"]))]
        out = builder.add("matmul", pair, (1, a["m"], a["k"]), contracted=a["n"])
    elif name == "conv":
        side = (a["input_size"] + 2 * a["padding"] - a["kernel"]) // a["stride"] + 1
        x = builder.input((1, a["in_channels"], a["input_size"], a["input_size"]))
        out = builder.add(
            "conv", [x], (1, a["out_channels"], side, side), kernel=(a["kernel"],) * 2,
            strides=(a["stride"],) * 2, dilation=(1, 1), bias=False, in_channels=a["in_channels"],
            out_channels=a["out_channels"], groups=a[GROUPS],
        )  # fmt: skip
    else:
        shape = (1, a["width"])
        inputs = [builder.input(shape) for _ in range(2 if name in BINARY else 1)]
        out = builder.add(BINARY.get(name) or UNARY[name], inputs, shape)
    return builder.build([out]), a["batch"] if name in MULTIPLYING else a["rows"]


# ---- Counts of a table's networks, for any batch size, cached on disk

VERSION = 7
"""Version of the cache: raise it when `lolat.graph.work` or the counts change."""
REPARAMETERIZED_FORM = f"?{REPARAMETERIZED}"
TOO_MANY = 0.004
"""Relative excess of parameters over a table's, from which the network was timed in another form."""


@dataclass(frozen=True)
class Counted:
    """A network in the timed form: its steps (`lolat.graph.work.lower`), counts and number of parameters.

    `counts`: (2, COLUMNS), those of a pass and those of each sample.
    """

    network: Network
    steps: np.ndarray
    counts: np.ndarray
    parameters: float

    def work(self, batch_size: int) -> Workload:
        """The steps at a batch size."""
        return at(self.steps, batch_size)

    def total(self, batch_size: int) -> dict[str, int]:
        """The counts at a batch size."""
        values = self.counts[0] + batch_size * self.counts[1]
        return dict(zip(COLUMNS, (int(v) for v in values), strict=True))


def counts_of(
    rows: Sequence[TimedNetwork], on_progress: OnProgress | None = None
) -> list[Counted | LolatError]:
    """The counts of each row's network, or the error of reading it.

    A network that is not cached on disk is read in a process of its own. Some networks of timm are timed
    with merged branches, such as RepVGG's: if the table has fewer parameters than the network, the form
    with the nearer number is taken.
    """
    counts = _read([row.network for row in rows], on_progress)
    merged: dict[Network, Network] = {}
    for row in rows:
        spec, size, mode = row.network
        if spec.startswith("timm:") and TOO_MANY < _excess(counts[row.network], row) < math.inf:
            merged[row.network] = (spec + REPARAMETERIZED_FORM, size, mode)
    counts |= _read(merged.values(), None)
    forms = [(row.network, merged.get(row.network, row.network)) for row in rows]
    return [
        min((counts[form] for form in both), key=lambda known: abs(_excess(known, row)))
        for row, both in zip(rows, forms, strict=True)
    ]


def _excess(counts: Counted | LolatError, row: TimedNetwork) -> float:
    """The relative excess of a network's parameters over its row's; infinite for an error."""
    if isinstance(counts, LolatError):
        return math.inf
    return 0.0 if row.parameters is None else counts.parameters / row.parameters - 1.0


def _read(
    networks: Collection[Network], on_progress: OnProgress | None
) -> dict[Network, Counted | LolatError]:
    """The counts of networks, each read once."""
    counted: dict[Network, Counted | LolatError] = {}
    for mode in sorted({mode for *_, mode in networks}, key=str):
        specs = dict.fromkeys((spec, size) for spec, size, own in networks if own == mode)
        flags = (mode.fused, mode.channels_last, mode.training)
        name = f"device{VERSION}-{mode.dtype}-{''.join(str(int(flag)) for flag in flags)}"
        for network, array in arrays_of(specs, name, partial(_packed, mode), on_progress):
            own = (*network, mode)
            counted[own] = array if isinstance(array, LolatError) else _unpacked(own, array)
    return counted


def _packed(mode: Mode, graph: Graph) -> np.ndarray:
    counts = count(trained_whole(graph) if mode.training else graph)
    totals = [counts.fixed.sum(axis=0), counts.scaled.sum(axis=0)]
    return np.concatenate([[float(parameters(graph))], *totals, lower(graph, mode).ravel()])


def _unpacked(network: Network, array: np.ndarray) -> Counted:
    end = 1 + 2 * len(COLUMNS)
    counts = array[1:end].reshape(2, len(COLUMNS))
    return Counted(network, array[end:].reshape(-1, len(STEP_COLUMNS)), counts, float(array[0]))
