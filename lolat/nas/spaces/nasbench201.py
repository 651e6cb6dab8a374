"""NAS-Bench-201 (Dong and Yang, ICLR 2020): one cell of six edges, fifteen times in a fixed network.

Stem, five cells of 16 channels, a residual block that halves the resolution, five cells of 32, another,
five cells of 64, batch normalisation, pooling, classifier; on 32x32 images. As the authors' TinyNetwork
runs it: "none" multiplies by zero and is executed, "skip_connect" is the tensor itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph.layers import Layers
from lolat.nas.space import Position, Space
from lolat.nas.tables import CellTable, ChainPart, Part, Table

# ---- NAS-Bench-201 cells (Dong and Yang, ICLR 2020): six edges with one of five operations
# each.
#
#     |nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|nor_conv_1x1~1|none~2|
#
# A cell has four nodes; node 0 is its input, node 3 its output. Between two `+` stand the edges into one
# node, each as operation~(node where the edge begins).

NAME = "nasbench201"
CHOICES = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""(from node, to node) of each position, in the order in which the text has them."""
POSITIONS = tuple(f"{begin}->{end}" for begin, end in EDGES)

_INTO = [[begin for begin, to in EDGES if to == node] for node in (1, 2, 3)]
_SHAPE = "|op~0|+|op~0|op~1|+|op~0|op~1|op~2|"


def _node_text(begins: Sequence[int], operations: Sequence[int]) -> str:
    """The edges into one node as text."""
    edges = zip(operations, begins, strict=True)
    return "|" + "".join(f"{CHOICES[op]}~{begin}|" for op, begin in edges)


# All that can stand between two "+": 5, 25 and 125 texts, each with its operations as bytes.
_TABLES = [
    {
        _node_text(begins, operations): bytes(operations)
        for operations in product(range(len(CHOICES)), repeat=len(begins))
    }
    for begins in _INTO
]


def parse(arch: str) -> np.ndarray:
    """The six operations of one cell, (6,) int8, as indices of CHOICES. InputError says what is wrong."""
    nodes = arch.strip().split("+")
    if len(nodes) == len(_TABLES):
        found = [table.get(node) for table, node in zip(_TABLES, nodes, strict=True)]
        if None not in found:
            return np.frombuffer(b"".join(filter(None, found)), dtype=np.int8)
    raise InputError(_fault(arch))


def parse_many(
    archs: Sequence[str], place: Callable[[int], str] = lambda index: f"network {index + 1}"
) -> np.ndarray:
    """The operations of many cells, (networks, 6) int8.

    Three table look-ups a network. InputError names the first text that is wrong, as `place(index)`.
    """
    # A ";" between two networks keeps one that is too long from lending its end to the next.
    tokens = "+;+".join(archs).split("+")
    if len(tokens) == 4 * len(archs) - 1:
        try:
            columns = [
                b"".join(map(table.__getitem__, tokens[node::4]))
                for node, table in enumerate(_TABLES)
            ]
        except KeyError:
            pass
        else:
            parts = [
                np.frombuffer(column, dtype=np.int8).reshape(len(archs), -1) for column in columns
            ]
            return np.concatenate(parts, axis=1)
    rows = np.empty((len(archs), len(EDGES)), dtype=np.int8)
    for index, arch in enumerate(archs):
        try:
            rows[index] = parse(arch)
        except InputError as error:
            raise InputError(f"{place(index)}: {error}") from None
    return rows


def write(row: Sequence[int] | np.ndarray) -> str:
    """The text of one cell from its six integers."""
    operations = [int(op) for op in row]
    ends = [0, 1, 3, 6]
    return "+".join(
        _node_text(begins, operations[ends[node] : ends[node + 1]])
        for node, begins in enumerate(_INTO)
    )


def _fault(arch: str) -> str:
    """What is wrong with a text that is no cell."""
    shown = arch if len(arch) <= 120 else arch[:117] + "..."
    for edge in arch.strip().replace("+", "|").split("|"):
        operation = edge.partition("~")[0]
        if edge and operation not in CHOICES:
            return (
                f"unknown operation {operation[:40]!r} in {shown!r}; expected one of "
                f"{', '.join(CHOICES)} on each of the six edges of {_SHAPE}"
            )
    return f"{shown!r} is not a NAS-Bench-201 cell; expected six edges as in {_SHAPE}"


# ---- nasbench201 ----------------------------------------

CHANNELS, CELLS, CLASSES, SIZE = (16, 32, 64), 5, 10, 32
KERNELS = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}


def space(classes: int = CLASSES, size: int = SIZE) -> Space:
    """The 15,625 networks; `classes`: 10, or 100 and 120 with other data; `size`: of the image."""
    positions = [Position(name, CHOICES) for name in POSITIONS]
    parts: list[ChainPart] = [Part("stem", (), partial(_image, size), _stem)]
    for stage, channels in enumerate(CHANNELS):
        side = -(-size // 2**stage)
        if stage:
            shape = (1, 2 * side if size % 2**stage == 0 else -(-size // 2 ** (stage - 1)))
            before = (*shape, shape[1], CHANNELS[stage - 1])
            parts.append(Part(f"reduction{stage}", (), partial(_fixed, before), _reduction))
        parts.append(Cells(f"stage{stage + 1}", (1, side, side, channels)))
    last = (1, side, side, CHANNELS[-1])
    parts.append(Part("head", (), partial(_fixed, last), partial(_head, classes)))
    return Space.of_parts(NAME, positions, parts, sys.modules[__name__])


@dataclass(frozen=True)
class Cells:
    """Five equal cells, whose six edges are the positions."""

    name: str
    of: tuple[int, ...]  # the shape of every tensor in them
    positions: tuple[int, ...] = tuple(range(len(EDGES)))

    def shape(self, *chosen: str) -> tuple[int, ...]:
        """Of the input, whatever is chosen."""
        return self.of

    def write(self, layers: Layers, x: int, *chosen: str) -> int:
        """Write the cells with these operations."""
        for cell in range(CELLS):
            x = self._cell(Layers(layers.builder, f"{self.name}_cell{cell + 1}"), x, chosen)
        return x

    def _cell(self, layers: Layers, x: int, chosen: Sequence[str]) -> int:
        nodes = {0: x}
        for (begin, to), operation in zip(EDGES, chosen, strict=True):
            arrived = _operation(layers, nodes[begin], operation)
            nodes[to] = layers.same("add", nodes[to], arrived) if to in nodes else arrived
        return nodes[max(nodes)]

    def table(self, choices: Sequence[Sequence[Any]]) -> Table:
        """The counts of the cells, for every combination of operations."""
        shape = partial(_fixed, self.of)
        edges = [
            Part(self.name, (p,), shape, _operation).table([values])
            for p, values in zip(self.positions, choices, strict=True)
        ]
        addition = Part(self.name, (), shape, _addition).table([])
        return CellTable(EDGES, tuple(edges), addition, CELLS)


def _operation(layers: Layers, x: int, operation: str) -> int:
    """One edge of a cell."""
    if operation == "skip_connect":
        return x
    if operation == "none":
        return layers.same("multiply", x)
    if operation == "avg_pool_3x3":
        return layers.pool(x, 3, 1, "average_pool")
    return _relu_conv_norm(layers, x, layers.shape(x)[-1], KERNELS[operation])


def _relu_conv_norm(layers: Layers, x: int, channels: int, kernel: int, stride: int = 1) -> int:
    return layers.norm(layers.conv(layers.same("relu", x), channels, kernel, stride))


def _addition(layers: Layers, x: int) -> int:
    return layers.same("add", x, x)


def _image(size: int) -> tuple[int, ...]:
    return (1, size, size, 3)


def _fixed(shape: tuple[int, ...], *chosen: Any) -> tuple[int, ...]:
    return shape


def _stem(layers: Layers, x: int) -> int:
    return layers.norm(layers.conv(x, CHANNELS[0], 3))


def _reduction(layers: Layers, x: int) -> int:
    """A residual block of stride 2 that doubles the channels; its shortcut is pooled and projected."""
    channels = 2 * layers.shape(x)[-1]
    y = _relu_conv_norm(layers, x, channels, 3, 2)
    y = _relu_conv_norm(layers, y, channels, 3)
    shortcut = layers.conv(layers.pool(x, 2, 2, "average_pool"), channels, 1)
    return layers.same("add", shortcut, y)


def _head(classes: int, layers: Layers, x: int) -> int:
    return layers.classifier(layers.global_pool(layers.norm_act(x, "relu")), classes)
