"""NAS-Bench-201 cells (Dong and Yang, ICLR 2020): six edges with one of five operations each.

    |nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|nor_conv_1x1~1|none~2|

A cell has four nodes; node 0 is its input, node 3 its output. Between two `+` stand the edges into one
node, each as operation~(node where the edge begins).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from lolat.errors import InputError

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
