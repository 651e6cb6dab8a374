"""NAS-Bench-201 (CIFAR, 32x32): what an operation on an edge costs, and which are executed.

An operation's counts are those of the space's own tables, summed over its fifteen cells; it costs the same
on every edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lolat.nas.fewshot.pieces import Pieces, groups, relative, work
from lolat.nas.spaces.nasbench201 import CHOICES, EDGES, space
from lolat.nas.tables import CellTable

_NONE, _SKIP, _CONV1, _CONV3, _POOL = range(len(CHOICES))
_BEGIN, _END = np.array(EDGES).T
_LAST = 3
REST = np.array([7_783_040.0, 0.0, 307_200.0, 72_752.0, 24.0])
"""Stem, residual blocks and head: counts by term without the bias. Of traffic those of the tensors after
each convolution: four accesses an element of the stem, eighteen of a residual block, five in the head."""

# How far the cost of a piece may be from the formula (logarithm). Kernels of pooling and of
# multiplication by zero differ more between runtimes than those of convolutions.
_SPREAD = {_NONE: 0.7, _SKIP: 0.5, _CONV1: 0.5, _CONV3: 0.5, _POOL: 0.7}
OTHER_SPREAD = 0.5
# Most runtimes do as they are told; compilers for phones remove what the output does not need.
_REMOVED = 0.2
# A network of which the compiler finds that its output is a constant costs next to nothing.
_CONSTANT = 0.05

_ALL_RUN = (_NONE, _CONV1, _CONV3, _POOL)  # `none` multiplies by zero, `skip_connect` is free
_NEEDED_RUN = (_SKIP, _CONV1, _CONV3, _POOL)  # each with its addition


def _often(rows: np.ndarray, live: np.ndarray, operations: Sequence[int]) -> np.ndarray:
    """(networks, 1 + operations): 1, and how often each of them is on a live edge."""
    columns = [((rows == op) & live).sum(axis=1).astype(np.float64) for op in operations]
    return np.column_stack([np.ones(len(rows)), *columns])


def needed(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((networks, 6), (networks,)) which edges the cell's output needs; whether it needs the input.

    An edge is needed where it is not `none` and leads to the output; what it begins from may be zero.
    """
    open_ = rows != _NONE
    leads = np.zeros((len(rows), _LAST + 1), dtype=bool)
    leads[:, _LAST] = True
    for edge in np.argsort(-_END, kind="stable"):
        leads[:, _BEGIN[edge]] |= leads[:, _END[edge]] & open_[:, edge]
    return leads[:, _END] & open_, leads[:, 0]


def folded(rows: np.ndarray) -> np.ndarray:
    """(networks, 6) convolutions that are executed although the output does not need them.

    Where a convolution alone makes a node's value and `none` takes it on, the multiplication by zero
    is folded into the convolution's weights: nothing is left to remove. A compiler keeps one such
    zero for the output, that of node 2 before that of node 1. (Seen on `pixel3` of HELP's tables: it
    explains all but 13 of the networks that take longer there than what they need.)
    """
    none, convolution = rows == _NONE, np.isin(rows, (_CONV1, _CONV3))
    first, second, between, _, first_out, second_out = range(len(EDGES))
    # What goes from node 1 to node 2; a skip_connect of nothing is nothing.
    passed = ~none[:, between] & ((rows[:, between] != _SKIP) | ~none[:, first])
    own = ~none[:, second]
    kept = np.zeros(rows.shape, dtype=bool)
    kept[:, second] = none[:, second_out] & own & ~passed & convolution[:, second]
    kept[:, between] = none[:, second_out] & ~own & passed & convolution[:, between]
    empty = ~own & (none[:, between] | (rows[:, between] == _SKIP))
    alone = convolution[:, first] & none[:, first_out] & (~none[:, second_out] | empty)
    kept[:, first] = alone | (kept[:, between] & ~none[:, first])
    return kept


def _all_run(rows: np.ndarray) -> np.ndarray:
    """How often each of _ALL_RUN is executed where every operation is."""
    return _often(rows, np.ones_like(rows, dtype=bool), _ALL_RUN)


def _needed_run(rows: np.ndarray) -> np.ndarray:
    """How often each of _NEEDED_RUN is executed where only what the output needs or is folded is."""
    live, whole = needed(rows)
    counts = _often(rows, live | folded(rows), _NEEDED_RUN)
    return np.where(whole[:, None], counts, _CONSTANT * counts)


def candidates(generator: np.random.Generator) -> np.ndarray:
    """All cells whose output depends on their input, (networks, 6): there are few enough."""
    rows = np.indices((len(CHOICES),) * len(EDGES)).reshape(len(EDGES), -1).T.astype(np.int8)
    reached = np.zeros((len(rows), _LAST + 1), dtype=bool)  # nodes at which something of it arrives
    reached[:, 0] = True
    for edge in np.argsort(_END, kind="stable"):
        reached[:, _END[edge]] |= reached[:, _BEGIN[edge]] & (rows[:, edge] != _NONE)
    return rows[needed(rows)[1] & reached[:, _LAST]]


def assumptions() -> list[Pieces]:
    """What a device may do with operations that do not change the cell's output."""
    cells = [t for t in space().tables if isinstance(t, CellTable)]
    costs = np.sum([t.repeat * work(t.tables[0]) for t in cells], axis=0)
    addition = np.sum([t.repeat * work(t.addition) for t in cells], axis=0)
    average = REST + len(EDGES) * (costs.mean(axis=0) + addition)
    everything = np.vstack([REST + len(EDGES) * addition, costs[list(_ALL_RUN)]])
    only_needed = np.vstack([REST, costs[list(_NEEDED_RUN)] + addition])

    def factors(operations: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        spreads = [OTHER_SPREAD, *(_SPREAD[op] for op in operations)]
        return groups(list(zip(np.eye(len(spreads)), spreads, strict=True)))

    return [
        Pieces(
            "all", "every operation is executed", _all_run, relative(everything, average),
            *factors(_ALL_RUN), math.log(1 - _REMOVED),
        ),
        Pieces(
            "needed", "operations that the output does not need are removed", _needed_run,
            relative(only_needed, average), *factors(_NEEDED_RUN), math.log(_REMOVED),
        ),
    ]  # fmt: skip
