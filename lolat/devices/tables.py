"""Devices that others measured: tables of whole networks, or single operations, a row each.

To fit a device to (`lolat fit`), or to judge a model by. Of networks also as timm's benchmark.py writes
them (--results-file), and as timm publishes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from lolat.errors import InputError, LolatError, arg
from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import parameters
from lolat.graph.counts import COLUMNS as COUNTS
from lolat.graph.counts import count
from lolat.graph.modes import Mode
from lolat.graph.work import COLUMNS, Work, at, works
from lolat.io.progress import Warn
from lolat.io.tables import ABOVE_ZERO, Row, read_table
from lolat.readers.cache import Cache
from lolat.readers.many import Said, arrays_of
from lolat.readers.torch.named import ENCODER_TYPES, REPARAMETERIZED

# ---- Networks.

NETWORK_COLUMNS = ("network", "model")
SIZES = ("sequence_length", "input_size", "pixels", "infer_img_size", "train_img_size")
BATCHES = ("batch_size", "infer_batch_size", "train_batch_size")
TIMES = ("latency_ms", "step_ms", "infer_step_time", "train_step_time")
MILLIONS = ("params_millions", "param_count")  # of parameters, as timm has them
MOST_BATCH = 2**20
NETWORK_MS = (1e-3, 1e7)  # a time beyond is of another unit
EXPECTED_NETWORKS = (
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
    row: Row

    @property
    def name(self) -> str:
        """As the table calls it."""
        return next(self.row[c] for c in NETWORK_COLUMNS if self.row.get(c))

    @property
    def where(self) -> str:
        """The file and line of it."""
        return self.row.where


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

    def leave_out(self, row: TimedNetwork, error: LolatError, skip: bool) -> None:
        """Count a row that cannot be used, for `error`; InputError with its line unless `skip`."""
        if not skip:
            raise InputError(
                f"{row.where}: {error.message}; {arg('skip')} leaves such rows out"
            ) from error
        self.skip(f"{row.name}: {error}")

    def say_skipped(self, warn: Warn) -> None:
        """Say why rows were left out."""
        for reason, number in self.skipped.items():
            warn(f"{number} rows of {self.path} left out: {reason}")

    def nothing(self) -> InputError:
        """The error where no row is left."""
        why = "; ".join(f"{n} x {r}" for r, n in self.skipped.items()) or "it has no rows"
        return InputError(f"{self.path}: no row could be used ({why}); {EXPECTED_NETWORKS}")


def columns_of(path: str | Path) -> list[str]:
    """The names in a table's first line, in small letters."""
    return list(read_table(path).names)


def is_of_networks(columns: list[str]) -> bool:
    """Whether a table with these columns is one of networks."""
    return bool(set(NETWORK_COLUMNS) & set(columns)) and bool(set(TIMES) & set(columns))


def read_networks(
    path: str | Path, device: str | Collection[str] | None = None, skip: bool = False,
    mode: Mode | None = None,
) -> Table:  # fmt: skip
    """The rows of a table of networks; of `device` (or several) alone, where the table has that column.

    A network is a NETWORK as everywhere, a name of timm's where the column is called `model`, or a
    configuration of transformers of that name in the folder `networks` beside the table. How it was run
    is said by the columns dtype, compiled and channels_last, or else by the file's name, or else it is
    `mode`. InputError names the line that is wrong; `skip`: such lines are left out.
    """
    rows = read_table(path, expected=EXPECTED_NETWORKS)
    table = Table(str(path), list(rows.names), [])
    if not is_of_networks(table.columns):
        raise InputError(f"{path} is no table of networks; {EXPECTED_NETWORKS}")
    usual = Mode.of_file(Path(path).name, mode)
    if "train_step_time" in table.columns and "infer_step_time" not in table.columns:
        usual = replace(usual, training=True)
    wanted = None if device is None else {device} if isinstance(device, str) else set(device)
    for row in rows:
        if wanted is not None and row.get("device") not in (None, *wanted):
            table.skip("of another device")
        elif row.get("parallel"):
            table.skip("on several devices")
        else:
            try:
                table.rows.append(_timed_network(row, Path(path), usual))
            except InputError as error:
                if not skip:
                    raise
                table.skip(error.data["why"])
    return table


def _timed_network(row: Row, path: Path, usual: Mode) -> TimedNetwork:
    def first(columns: tuple[str, ...]) -> str | None:
        return next((c for c in columns if row.get(c)), None)

    name, batch, size = map(first, (NETWORK_COLUMNS, BATCHES, SIZES))
    if name is None:
        raise row.refused(f"names no network; {EXPECTED_NETWORKS}")
    mode = usual.of_row(row, row.where)
    millions = first(MILLIONS)
    return TimedNetwork(
        _spec(row[name], path, name == "model", mode.training),
        None if size is None else row.whole(size, 1, MOST_BATCH),
        1 if batch is None else row.whole(batch, 1, MOST_BATCH),
        _time(row, next(c for c in TIMES if c in row), NETWORK_MS, "network"),
        mode,
        None if millions is None else 1e6 * row.number(millions, ABOVE_ZERO, expected="above 0"),
        row,
    )


def _time(row: Row, column: str, limits: tuple[float, float], what: str) -> float:
    """Milliseconds, within what one network or operation takes."""
    ms = row.number(column, ABOVE_ZERO, expected="milliseconds above 0")
    if not limits[0] <= ms <= limits[1]:
        raise row.wrong(
            column, f"milliseconds that a single {what} takes; are these seconds, or nanoseconds?"
        )
    return ms


def family_of(name: str) -> str:
    """The architecture's family by its name: letters before the first digit or underscore."""
    plain = name.rpartition("/")[2].partition(":")[2] or name.rpartition("/")[2]
    plain = re.sub(r"^(tf|legacy|gluon|test|tv|ssl|swsl|dm)_", "", plain.lower())
    return re.split(r"[\d_.?-]", plain)[0] or plain


def _spec(name: str, path: Path, of_timm: bool, training: bool) -> str:
    config = path.parent / "networks" / f"{name}.json"
    if config.is_file():
        # An encoder is trained with the heads that it is made for; for inference it classifies.
        head = "?AutoModelForPreTraining" if training and _encodes(config) else ""
        return f"transformers:{config}{head}"
    return f"timm:{name}" if of_timm and ":" not in name else name


def _encodes(config: Path) -> bool:
    """Whether a configuration of transformers is of an encoder, as BERT."""
    try:
        document = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # said when it is read
        return False
    return isinstance(document, dict) and document.get("model_type") in ENCODER_TYPES


# ---- Operations.

NAMES = ("op", "operation")
OPERATION_MS = (1e-4, 1e6)
MOST_OF_A_SIZE = 2**40
PRODUCT, BLOCK = ("batch", "m", "n", "k"), ("rows", "width")
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
"""Operation -> the columns that it needs, whole numbers."""
MULTIPLYING = ("linear", "bmm", "conv")
EXPECTED_OPERATIONS = (
    "expected the columns op (linear, bmm, conv, softmax, ln, add, mul, gelu ...), latency_ms, and "
    "batch,m,n,k for linear and bmm; batch,in_channels,out_channels,kernel,input_size,stride,padding for "
    "conv; rows,width for the others"
)


@dataclass(frozen=True)
class TimedOperation:
    """One row: the operation's name, a Graph of it alone at a batch size, and its time; as it stands."""

    name: str
    graph: Graph
    batch_size: int
    latency_ms: float
    row: Mapping[str, str]


def is_of_operations(columns: list[str]) -> bool:
    """Whether a table with these columns is one of operations."""
    return bool(set(NAMES) & set(columns))


def read_operations(path: str | Path) -> list[TimedOperation]:
    """The rows of a table of operations. InputError names the line that is wrong, and what is expected."""
    table = read_table(path, expected=EXPECTED_OPERATIONS)
    column = next((n for n in NAMES if n in table.names), None)
    if column is None or "latency_ms" not in table.names:
        raise InputError(f"{path} is no table of operations; {EXPECTED_OPERATIONS}")
    operations = [_timed_operation(row, column) for row in table]
    if not operations:
        raise InputError(f"{path} has no rows; expected one for each operation that was timed")
    return operations


def _timed_operation(row: Row, column: str) -> TimedOperation:
    name = row[column].lower()
    if name not in OPERATION_COLUMNS:
        raise row.wrong(column, f"one of {', '.join(OPERATION_COLUMNS)}")
    missing = [c for c in OPERATION_COLUMNS[name] if c not in row]
    if missing:
        raise InputError(
            f"{row.where}: {name} needs the column {missing[0]}; {EXPECTED_OPERATIONS}"
        )
    sizes = {c: row.whole(c, int(c != "padding"), MOST_OF_A_SIZE) for c in OPERATION_COLUMNS[name]}
    latency_ms = _time(row, "latency_ms", OPERATION_MS, "operation")
    return TimedOperation(name, *_graph(name, sizes), latency_ms, row)


def _graph(name: str, a: Mapping[str, int]) -> tuple[Graph, int]:
    """The Graph of one operation alone, and its batch size."""
    builder = GraphBuilder(name, "torch")
    if name == "linear":
        x = builder.input((1, a["m"], a["n"]))
        out = builder.add(
            "dense", [x], (1, a["m"], a["k"]), in_features=a["n"], out_features=a["k"], bias=True
        )
        return builder.build([out]), a["batch"]
    if name == "bmm":
        pair = [builder.input((1, a["m"], a["n"])), builder.input((1, a["n"], a["k"]))]
        out = builder.add("matmul", pair, (1, a["m"], a["k"]), contracted=a["n"])
        return builder.build([out]), a["batch"]
    if name == "conv":
        side = (a["input_size"] + 2 * a["padding"] - a["kernel"]) // a["stride"] + 1
        x = builder.input((1, a["in_channels"], a["input_size"], a["input_size"]))
        out = builder.add(
            "conv", [x], (1, a["out_channels"], side, side), kernel=(a["kernel"],) * 2,
            strides=(a["stride"],) * 2, dilation=(1, 1), bias=False, in_channels=a["in_channels"],
            out_channels=a["out_channels"], groups=1,
        )  # fmt: skip
        return builder.build([out]), a["batch"]
    shape = (1, a["width"])
    inputs = [builder.input(shape) for _ in range(2 if name in BINARY else 1)]
    out = builder.add(BINARY.get(name) or UNARY[name], inputs, shape)
    return builder.build([out]), a["rows"]


# ---- Networks of a table, counted once and kept on disk: what a model needs of each for any
# batch size.

VERSION = 7
"""Raise it when `lolat.graph.work` or the counts change: what was kept before is then made again."""
REPARAMETERIZED_FORM = f"?{REPARAMETERIZED}"
TOO_MANY_PARAMETERS = 1.004
"""Times the parameters that a table says: the network was timed in another form."""


@dataclass(frozen=True)
class Counted:
    """Of a network: the table of its steps (`lolat.graph.work.works`); its counts, (2, COUNTS): whatever
    the batch, and of each sample; how many parameters it has.
    """

    steps: np.ndarray
    counts: np.ndarray
    parameters: float

    def work(self, batch_size: int) -> Work:
        """Its steps at a batch size."""
        return at(self.steps, batch_size)

    def total(self, batch_size: int) -> dict[str, int]:
        """Its counts at a batch size."""
        values = self.counts[0] + batch_size * self.counts[1]
        return dict(zip(COUNTS, (int(v) for v in values), strict=True))

    @classmethod
    def of(cls, graph: Graph, mode: Mode) -> Counted:
        """From a graph."""
        counts = count(graph)
        totals = np.array([counts.fixed.sum(axis=0), counts.scaled.sum(axis=0)])
        return cls(works(graph, mode), totals.astype(float), float(parameters(graph)))


def counts_of(rows: Sequence[TimedNetwork], said: Said | None = None) -> list[Counted | LolatError]:
    """The counts of each row's network, or why there are none.

    Read in processes of their own where they are not kept on disk. Some networks of timm are timed with
    their branches made one, as RepVGG's: where a table's parameters are fewer than the network has, that
    form is the one, if it is nearer.
    """
    plain = _read([(row.spec, row.size, row.mode) for row in rows], said)
    chosen = [plain[row.spec, row.size, row.mode] for row in rows]
    others = {
        i: (row.spec + REPARAMETERIZED_FORM, row.size, row.mode)
        for i, (row, own) in enumerate(zip(rows, chosen, strict=True))
        if isinstance(own, Counted)
        and row.parameters is not None
        and row.spec.startswith("timm:")
        and own.parameters > TOO_MANY_PARAMETERS * row.parameters
    }
    reparameterized = _read(list(others.values()), None)
    for i, network in others.items():
        other, own, parameters = reparameterized[network], chosen[i], rows[i].parameters or 0.0
        if (
            isinstance(other, Counted)
            and isinstance(own, Counted)
            and abs(other.parameters - parameters) < abs(own.parameters - parameters)
        ):
            chosen[i] = other
    return chosen


Network = tuple[str, int | None, Mode]  # as `lolat.readers.read` takes it, and how it is run


def _read(networks: Sequence[Network], said: Said | None) -> dict[Network, Counted | LolatError]:
    """The counts of networks, each once."""
    counted: dict[Network, Counted | LolatError] = {}
    for mode in sorted({mode for *_, mode in networks}, key=str):
        specs = dict.fromkeys((spec, size) for spec, size, own in networks if own == mode)
        flags = (mode.fused, mode.channels_last, mode.training)
        name = f"device{VERSION}-{mode.dtype}-{''.join(str(int(flag)) for flag in flags)}"
        for network, array in arrays_of(specs, name, partial(_packed, mode), Cache(), said=said):
            counts = array if isinstance(array, LolatError) else _unpacked(array)
            counted[(*network, mode)] = counts
    return counted


def _packed(mode: Mode, graph: Graph) -> np.ndarray:
    of = Counted.of(graph, mode)
    return np.concatenate([[of.parameters], of.counts.ravel(), of.steps.ravel()])


def _unpacked(array: np.ndarray) -> Counted:
    end = 1 + 2 * len(COUNTS)
    counts = array[1:end].reshape(2, len(COUNTS))
    return Counted(array[end:].reshape(-1, len(COLUMNS)), counts, float(array[0]))
