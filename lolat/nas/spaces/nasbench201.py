"""NAS-Bench-201 (Dong and Yang, ICLR 2020): one cell of six edges, fifteen times in a fixed network.

On 32x32 images: a stem, five cells of 16 channels, a residual block that halves the resolution, five cells
of 32 channels, another such block, five cells of 64 channels, batch normalization, pooling, classifier. As
in the authors' TinyNetwork, "none" is executed as a multiplication by zero, and "skip_connect" is the
tensor itself. A cell is written

    |nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|nor_conv_1x1~1|none~2|

It has four nodes; node 0 is its input, node 3 its output. The groups between `+` are the edges into nodes
1, 2 and 3; each edge is written as operation~(node that it starts from).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph.layers import Layers
from lolat.nas.cost_prior import Pieces, relative, work
from lolat.nas.count_tables import CellTable, CountTable, Part
from lolat.nas.space import AnyCandidate, Codec, Position, Space
from lolat.units import shortened

CHOICES = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""(from node, to node) of each position, in the order of the text."""
POSITIONS = tuple(f"{begin}->{end}" for begin, end in EDGES)
CHANNELS, CELLS, NUM_CLASSES, SIZE = (16, 32, 64), 5, 10, 32
KERNELS = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}

_TEXT = "|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|"
_PATTERN = re.compile(re.escape(_TEXT).replace(r"\{\}", f"({'|'.join(CHOICES)})"))


def parse(arch: str) -> list[int]:
    """The six operations of a cell as indices of CHOICES; InputError for other text."""
    match = _PATTERN.fullmatch(arch.strip())
    if match is None:
        raise InputError(
            f"{shortened(arch)!r} is not a NAS-Bench-201 cell; expected six edges as in "
            f"{_TEXT.replace('{}', 'op')}, each op one of {', '.join(CHOICES)}"
        )
    return [CHOICES.index(operation) for operation in match.groups()]


def write(row: AnyCandidate) -> str:
    """The text of a cell from its six integers."""
    return _TEXT.format(*(CHOICES[operation] for operation in row))


def space() -> Space:
    """Make the space of all 15,625 networks."""
    parts, side = [Part("stem", (), (1, SIZE, SIZE, 3), _stem)], SIZE
    for stage, channels in enumerate(CHANNELS):
        if stage:
            before = (1, side, side, CHANNELS[stage - 1])
            parts.append(Part(f"reduction{stage}", (), before, _reduction))
            side = -(-side // 2)
        shape = (1, side, side, channels)
        name = f"stage{stage + 1}"
        parts.append(Cells(name, tuple(range(len(EDGES))), shape, partial(_cells, name)))
    parts.append(Part("head", (), shape, _head))
    positions = [Position(name, CHOICES) for name in POSITIONS]
    return Space.of_parts("nasbench201", positions, parts, Codec(parse, write), assumptions)


@dataclass(frozen=True)
class Cells(Part):
    """A part of five equal cells, whose six edges are the positions."""

    def table(
        self, choices: Sequence[Sequence[Any]], first: bool = False, last: bool = False
    ) -> CountTable:
        """The table of the cells, for every combination of operations."""
        edges = tuple(
            Part(self.name, (p,), self.shape, _operation).table([values])
            for p, values in zip(self.positions, choices, strict=True)
        )
        return CellTable(EDGES, edges, Part(self.name, (), self.shape, _addition).table([]), CELLS)


def _cells(name: str, layers: Layers, x: int, *chosen: str) -> int:
    for cell in range(CELLS):
        nodes = {0: x}
        inner = Layers(layers.builder, f"{name}_cell{cell + 1}")
        for (begin, to), operation in zip(EDGES, chosen, strict=True):
            arrived = _operation(inner, nodes[begin], operation)
            nodes[to] = inner.same("add", nodes[to], arrived) if to in nodes else arrived
        x = nodes[max(nodes)]
    return x


def _operation(layers: Layers, x: int, operation: str) -> int:
    """Add the operation of an edge; return its result."""
    if operation == "skip_connect":
        return x
    if operation == "none":
        return layers.same("multiply", x)
    if operation == "avg_pool_3x3":
        return layers.pool(x, 3, 1, "average_pool")
    return _relu_conv_norm(layers, x, layers.shape(x)[-1], KERNELS[operation])


def _relu_conv_norm(layers: Layers, x: int, channels: int, kernel: int, stride: int = 1) -> int:
    return layers.same("batch_norm", layers.conv(layers.same("relu", x), channels, kernel, stride))


def _addition(layers: Layers, x: int) -> int:
    return layers.same("add", x, x)


def _stem(layers: Layers, x: int) -> int:
    return layers.same("batch_norm", layers.conv(x, CHANNELS[0], 3))


def _reduction(layers: Layers, x: int) -> int:
    """Add a residual block of stride 2 that doubles the channels; its shortcut is pooled and projected."""
    channels = 2 * layers.shape(x)[-1]
    y = _relu_conv_norm(layers, x, channels, 3, 2)
    y = _relu_conv_norm(layers, y, channels, 3)
    shortcut = layers.conv(layers.pool(x, 2, 2, "average_pool"), channels, 1)
    return layers.same("add", shortcut, y)


def _head(layers: Layers, x: int) -> int:
    pooled = layers.global_pool(layers.norm_act(x, "relu"))
    return layers.dense(layers.flatten(pooled), NUM_CLASSES)


# ---- The prior of a fit to a few measured networks.
#
# It says what an operation on an edge costs, and which operations run. An operation's counts are those of
# the space's own tables, summed over the fifteen cells; it costs the same on every edge.

_NONE, _SKIP, _CONV1, _CONV3, _POOL = range(len(CHOICES))
_BEGIN, _END = np.array(EDGES).T
_LAST = 3
REST = np.array([7_783_040.0, 0.0, 307_200.0, 72_752.0, 24.0])
"""(COST_TERMS,) counts of stem, residual blocks and head, without the classifier's bias. The traffic counts
accesses to the elements that convolutions write: four each in the stem, eighteen in a residual block, five
in the head."""

# How far the cost of a piece may be from the formula (logarithm). Kernels of pooling and of
# multiplication by zero differ more between runtimes than those of convolutions.
_SPREAD = {_NONE: 0.7, _SKIP: 0.5, _CONV1: 0.5, _CONV3: 0.5, _POOL: 0.7}
OTHER_SPREAD = 0.5
# Most runtimes execute everything; compilers for phones remove what the output does not need: so do 2 of
# the 22 devices in HELP's tables.
_REMOVED = 0.1
# A network whose output is a constant costs next to nothing if the compiler finds that.
_CONSTANT = 0.05

_ALL_RUN = (_NONE, _CONV1, _CONV3, _POOL)  # `none` multiplies by zero, `skip_connect` is free
_NEEDED_RUN = (_SKIP, _CONV1, _CONV3, _POOL)  # each with its addition


def _counts_of_edges(rows: np.ndarray, live: np.ndarray, operations: Sequence[int]) -> np.ndarray:
    """(networks, 1 + operations): 1, then the number of live edges with each operation."""
    columns = [((rows == op) & live).sum(axis=1).astype(np.float64) for op in operations]
    return np.column_stack([np.ones(len(rows)), *columns])


def needed_edges(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((networks, 6) True for edges that the output needs, (networks,) True if it needs the input)."""
    open_ = rows != _NONE
    leads = np.zeros((len(rows), _LAST + 1), dtype=bool)
    leads[:, _LAST] = True
    for edge in np.argsort(-_END, kind="stable"):
        leads[:, _BEGIN[edge]] |= leads[:, _END[edge]] & open_[:, edge]
    return leads[:, _END] & open_, leads[:, 0]


def folded(rows: np.ndarray) -> np.ndarray:
    """(networks, 6) True for convolutions that run although the output does not need them.

    If only a convolution makes a node's value, and `none` reads that node, the compiler folds the
    multiplication by zero into the convolution's weights, and the convolution stays. For the output node it
    keeps only one such convolution, node 2's rather than node 1's. This explains all but 13 of the networks
    that take longer than their needed operations on `pixel3` in HELP's tables.
    """
    none, convolution = rows == _NONE, np.isin(rows, (_CONV1, _CONV3))
    first, second, between, _, first_out, second_out = range(len(EDGES))
    # What goes from node 1 to node 2; a skip_connect of nothing is nothing.
    passed = ~none[:, between] & ((rows[:, between] != _SKIP) | ~none[:, first])
    direct = ~none[:, second]  # from node 0 to node 2
    folded = np.zeros(rows.shape, dtype=bool)
    folded[:, second] = none[:, second_out] & direct & ~passed & convolution[:, second]
    folded[:, between] = none[:, second_out] & ~direct & passed & convolution[:, between]
    empty = ~direct & (none[:, between] | (rows[:, between] == _SKIP))
    alone = convolution[:, first] & none[:, first_out] & (~none[:, second_out] | empty)
    folded[:, first] = alone | (folded[:, between] & ~none[:, first])
    return folded


def _all_run(rows: np.ndarray) -> np.ndarray:
    """(networks, 5): 1, then the number of each operation of _ALL_RUN among all edges."""
    return _counts_of_edges(rows, np.ones_like(rows, dtype=bool), _ALL_RUN)


def _needed_run(rows: np.ndarray) -> np.ndarray:
    """(networks, 5): 1, then the number of each operation of _NEEDED_RUN among needed and folded edges."""
    live, whole = needed_edges(rows)
    counts = _counts_of_edges(rows, live | folded(rows), _NEEDED_RUN)
    return np.where(whole[:, None], counts, _CONSTANT * counts)


def assumptions(space: Space) -> list[Pieces]:
    """Two assumptions: a device runs all operations, or only those that the cell's output needs."""
    cells = [t for t in space.tables if isinstance(t, CellTable)]
    costs = np.sum([t.repeat * work(t.tables[0]) for t in cells], axis=0)
    addition = np.sum([t.repeat * work(t.addition) for t in cells], axis=0)
    average = REST + len(EDGES) * (costs.mean(axis=0) + addition)
    everything = np.vstack([REST + len(EDGES) * addition, costs[list(_ALL_RUN)]])
    only_needed = np.vstack([REST, costs[list(_NEEDED_RUN)] + addition])

    def members(operations: Sequence[int]) -> list[tuple[np.ndarray, float]]:
        spreads = [OTHER_SPREAD, *(_SPREAD[op] for op in operations)]
        return list(zip(np.eye(len(spreads)), spreads, strict=True))

    all_, some = relative(everything, average), relative(only_needed, average)
    return [
        Pieces("all", _all_run, all_, members(_ALL_RUN), math.log(1 - _REMOVED)),
        Pieces("needed", _needed_run, some, members(_NEEDED_RUN), math.log(_REMOVED)),
    ]
