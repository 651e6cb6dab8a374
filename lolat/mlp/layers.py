"""A network's convolutions and dense layers as rows of a LayerTable, which the companion can predict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lolat.graph import Graph, Operation, is_convolution
from lolat.graph.counts import COLUMNS, FEATURES, count
from lolat.mlp.table import ACTIVATIONS, LayerTable
from lolat.mlp.table import COLUMNS as LAYER_COLUMNS

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


@dataclass(frozen=True)
class LayerWork:
    """What n layers ask for at their batch sizes, each (n,) float64.

    `size`, `side`: height = width of what is read and written; `window`: of the kernel; `input`, `output`,
    `kernel`: elements, the last without bias; `depth`: products of an output element; `product`: whether it
    is a matrix product as it stands (1x1 windows, or one window).
    """

    batch: np.ndarray
    size: np.ndarray
    side: np.ndarray
    window: np.ndarray
    stride: np.ndarray
    inside: np.ndarray
    outside: np.ndarray
    product: np.ndarray

    @classmethod
    def of(cls, table: LayerTable) -> LayerWork:
        """Of the rows of a table; a dense layer is a convolution of one pixel."""
        # Floats, as 64-bit integers would overflow for the largest.
        batch, ones = table["batch_size"].astype(float), np.ones(len(table))
        if table.layer == "dense":
            inside, outside = (table[c].astype(float) for c in ("in_features", "out_features"))
            return cls(batch, ones, ones, ones, ones, inside, outside, ones == 1)
        size, window, stride, inside, outside = (
            table[c].astype(float)
            for c in ("input_size", "kernel_size", "stride", "in_channels", "out_channels")
        )
        same = table["padding"] == "same"
        # TensorFlow's rules for "same" and "valid".
        side = np.ceil(np.where(same, size, size - window + 1) / stride)
        product = ((window == 1) & (stride == 1)) | ((window == size) & ~same)
        return cls(batch, size, side, window, stride, inside, outside, product)

    @cached_property
    def input(self) -> np.ndarray:
        """Elements read."""
        return self.batch * self.size**2 * self.inside

    @cached_property
    def output(self) -> np.ndarray:
        """Elements written."""
        return self.batch * self.side**2 * self.outside

    @cached_property
    def depth(self) -> np.ndarray:
        """Products of an output element."""
        return self.window**2 * self.inside

    @cached_property
    def kernel(self) -> np.ndarray:
        """Elements of the kernel."""
        return self.depth * self.outside

    @cached_property
    def macs(self) -> np.ndarray:
        """Multiply-accumulates of the forward pass."""
        return self.output * self.depth


def layer_counts(table: LayerTable) -> np.ndarray:
    """(n, 6) float64: the counts of each row's layer at its batch size, in the order of FEATURES.

    The same as `lolat.graph.counts` finds in the layer as a network (a test compares them).
    """
    work, zero = LayerWork.of(table), np.zeros(len(table))
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
        columns = {c: np.array([v[c] for v in chosen]) for c in LAYER_COLUMNS[layer]}
        return LayerTable(layer, columns)


def network_rows(graph: Graph, gpu: str, batch_size: int, optimizer: str) -> Rows:
    """The convolutions and dense layers of a network as rows; the rest by position, with the reason.

    An activation of the data that follows directly, and alone, is the layer's. Sides that are not equal
    become their geometric mean, which keeps the area but for rounding, with a remark.
    """
    common = {"gpu": gpu, "batch_size": batch_size, "optimizer": optimizer}
    free = count(graph).at(1)[:, COLUMNS.index("ops")] == 0
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
        follower = _activation_after(graph, operation, readers)
        activation = "none" if follower is None else graph.operations[follower].kind
        if follower is not None:
            taken.add(follower)
        of_layer = _dense if operation.kind == "dense" else _convolution
        values = {**common, **of_layer(graph, operation, batch_size, odd)}
        layer = "dense" if operation.kind == "dense" else "convolution"
        layers.append(
            Row(position, operation.full_name, layer, {**values, "activation": activation})
        )
    warnings = tuple(
        f"{what}: {cases[0]}" + (f", and {len(cases) - 1} more" if len(cases) > 1 else "")
        for what, cases in odd.items()
    )
    return Rows(tuple(layers), tuple(others), warnings)


def _uncovered(operation: Operation) -> str | None:
    """Why the models cannot predict an operation; None where they can."""
    if operation.kind == "dense":
        return None
    if not is_convolution(operation.kind):
        return NEITHER
    if operation.kind != "conv":
        return f"a {operation.kind.removesuffix('_conv')} convolution"
    dimensions = len(operation.attributes["kernel"])
    if dimensions != 2:
        return f"a convolution of {dimensions} dimension{'s' * (dimensions > 1)}"
    if any(step > 1 for step in operation.attributes.get("dilation", ())):
        return "a dilated convolution"
    return None


def _activation_after(
    graph: Graph, operation: Operation, readers: Mapping[int, Sequence[int]]
) -> int | None:
    """Position of the activation that alone reads an operation, where the data has such layers."""
    users = readers.get(operation.outputs[0], ())
    if len(users) != 1 or operation.outputs[0] in graph.outputs:
        return None
    kind = graph.operations[users[0]].kind
    return users[0] if kind in ACTIVATIONS and kind != "none" else None


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
