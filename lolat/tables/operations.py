"""Reading tables of operations, in which a row is a single operation timed on a device."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lolat.graph import Graph, GraphBuilder
from lolat.graph.modes import Mode
from lolat.io.tables import Row, read_table
from lolat.tables.devices import rows_of_devices
from lolat.tables.modes import mode_of_row

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
"""Operation -> its columns with sizes, which are whole numbers."""
PRODUCT_NAMES = ("linear", "bmm", "conv")
EXPECTED_OPERATIONS = (
    "expected the columns op (linear, bmm, conv, softmax, ln, add, mul, gelu ...), latency_ms, and "
    "batch,m,n,k for linear and bmm; batch,in_channels,out_channels,kernel,input_size,stride,padding for "
    "conv; rows,width for the others"
)


@dataclass(frozen=True)
class TimedOperation:
    """A row of a table: an operation as a Graph, its batch size and its time."""

    name: str
    graph: Graph
    batch_size: int
    latency_ms: float
    row: Row

    @property
    def mode(self) -> Mode:
        """The mode in which it was timed: its data type (float32 by default) and layout, eager."""
        return mode_of_row(self.row)

    @property
    def same(self) -> Hashable:
        """A key that is equal for rows with the same work."""
        sizes = (self.row.whole(column, 0) for column in OPERATION_COLUMNS[self.name])
        return (self.name, self.mode, self.row.get("groups"), *sizes)


def read_operations(
    path: str | Path, devices: Collection[str] = (), argument: str = "name"
) -> list[TimedOperation]:
    """Read a table of operations; InputError for a wrong line.

    `devices`, `argument`: see `rows_of_devices`.
    """
    table = read_table(path, ("op", "latency_ms"), EXPECTED_OPERATIONS, "timed operation")
    return [_timed_operation(row) for row in rows_of_devices(table, devices, argument)]


def _timed_operation(row: Row) -> TimedOperation:
    name = row.choice("op", OPERATION_COLUMNS)
    sizes = {c: row.whole(c, int(c != "padding"), MOST_OF_A_SIZE) for c in OPERATION_COLUMNS[name]}
    if name == "conv":
        sizes["groups"] = row.whole("groups", 1, MOST_OF_A_SIZE, default=1)
        if any(sizes[name] % sizes["groups"] for name in ("in_channels", "out_channels")):
            raise row.wrong("groups", "a divisor of in_channels and out_channels")
    return TimedOperation(name, *_graph(name, sizes), row.milliseconds(), row)


def _graph(name: str, a: Mapping[str, int]) -> tuple[Graph, int]:
    """(Graph of the operation alone, its batch size)."""
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
        is_depthwise = 1 < a["groups"] == a["in_channels"]
        out = builder.add(
            "depthwise_conv" if is_depthwise else "conv", [x], (1, a["out_channels"], side, side),
            kernel=(a["kernel"],) * 2, strides=(a["stride"],) * 2, dilation=(1, 1), bias=False,
            in_channels=a["in_channels"], out_channels=a["out_channels"], groups=a["groups"],
        )  # fmt: skip
    else:
        shape = (1, a["width"])
        inputs = [builder.input(shape) for _ in range(2 if name in BINARY else 1)]
        out = builder.add(BINARY.get(name) or UNARY[name], inputs, shape)
    return builder.build([out]), a["batch"] if name in PRODUCT_NAMES else a["rows"]
