"""NAS-Bench-201 (CIFAR, 32x32): what an operation on an edge costs by the formula, and who is executed.

Three stages of five cells with 16, 32 and 64 channels at 32, 16 and 8 pixels, a residual block of stride
2 between two stages (Dong and Yang, ICLR 2020, figure 1). An operation costs the same on every edge.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from lolat.nas.fewshot.terms import Pieces, groups, relative
from lolat.nas.spaces.nasbench201 import CHOICES, EDGES

_CELLS = 5
_STAGES = ((32, 16), (16, 32), (8, 64))  # pixels, channels
_NONE, _SKIP, _CONV1, _CONV3, _POOL = range(len(CHOICES))
_BEGIN, _END = np.array(EDGES).T
_LAST = 3

# How far the cost of a piece may be from the formula (logarithm). Kernels of pooling and of
# multiplication by zero differ more between runtimes than those of convolutions.
_SPREAD = {"rest": 0.5, "none": 0.7, "skip": 0.5, "conv1": 0.5, "conv3": 0.5, "pool": 0.7}
# Most runtimes do as they are told; compilers for phones remove what the output does not need.
_REMOVED = 0.2
# A network of which the compiler finds that its output is a constant costs next to nothing.
_CONSTANT = 0.05


def _operation(kernel: int) -> np.ndarray:
    """Counts of ReLU, convolution, batch normalisation in all cells, one edge."""
    macs = traffic = weights = 0.0
    for pixels, channels in _STAGES:
        elements = pixels * pixels * channels
        macs += elements * channels * kernel**2
        traffic += 6.0 * elements
        weights += channels**2 * kernel**2
    return _CELLS * np.array([macs, 0.0, traffic, weights, 3.0 * len(_STAGES)])


def _passes(reads_and_writes: float) -> np.ndarray:
    """Counts of an operation that only moves the tensor of an edge, in all cells."""
    elements = sum(pixels * pixels * channels for pixels, channels in _STAGES)
    ops = float(len(_STAGES)) if reads_and_writes else 0.0
    return _CELLS * np.array([0.0, 0.0, reads_and_writes * elements, 0.0, ops])


def _around() -> np.ndarray:
    """Counts of stem, two residual blocks and head."""
    counts = np.array([27.0 * 16 * 32**2, 0.0, 4.0 * 16 * 32**2, 27.0 * 16, 2.0])
    for (_, channels), (pixels, wider) in pairwise(_STAGES):
        weights = 9.0 * channels * wider + 9.0 * wider**2 + channels * wider
        elements = pixels * pixels * wider
        counts += [pixels**2 * weights, 0.0, 18.0 * elements, weights, 9.0]
    counts += [640.0, 0.0, 5.0 * 64 * 8**2, 640.0, 4.0]
    return counts


_ADDITION = _passes(3.0)
_COSTS = np.stack([_passes(2.0), _passes(0.0), _operation(1), _operation(3), _passes(2.0)])


def _often(rows: np.ndarray, live: np.ndarray, operations: list[int]) -> np.ndarray:
    """(networks, 1 + operations): 1, and how often each of them is on a live edge."""
    columns = [np.ones(len(rows))]
    columns += [((rows == op) & live).sum(axis=1).astype(np.float64) for op in operations]
    return np.column_stack(columns)


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
    """Counts where every operation is executed; `none` multiplies by zero, `skip_connect` is free."""
    return _often(rows, np.ones_like(rows, dtype=bool), [_NONE, _CONV1, _CONV3, _POOL])


def _needed_run(rows: np.ndarray) -> np.ndarray:
    """Counts where only what the output needs or is folded is executed, each edge with its addition."""
    live, whole = needed(rows)
    counts = _often(rows, live | folded(rows), [_SKIP, _CONV1, _CONV3, _POOL])
    return np.where(whole[:, None], counts, _CONSTANT * counts)


def _factors(names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """A factor for each piece, by its name in _SPREAD."""
    return groups([(np.arange(len(names)) == i, _SPREAD[n]) for i, n in enumerate(names)])


def candidates(generator: np.random.Generator) -> np.ndarray:
    """All cells whose output depends on their input, (networks, 6): there are few enough."""
    rows = np.indices((len(CHOICES),) * len(EDGES)).reshape(len(EDGES), -1).T.astype(np.int8)
    return rows[needed(rows)[1] & _reached(rows)]


def _reached(rows: np.ndarray) -> np.ndarray:
    """(networks,) whether anything of the input arrives at the cell's output."""
    reached = np.zeros((len(rows), _LAST + 1), dtype=bool)
    reached[:, 0] = True
    for edge in np.argsort(_END, kind="stable"):
        reached[:, _END[edge]] |= reached[:, _BEGIN[edge]] & (rows[:, edge] != _NONE)
    return reached[:, _LAST]


def assumptions() -> list[Pieces]:
    """What a device may do with operations that do not change the cell's output."""
    fixed = _around()
    average = fixed + len(EDGES) * (_COSTS.mean(axis=0) + _ADDITION)
    everything = np.stack([fixed + len(EDGES) * _ADDITION, *_COSTS[[_NONE, _CONV1, _CONV3, _POOL]]])
    only_needed = np.stack([fixed, *(_COSTS[[_SKIP, _CONV1, _CONV3, _POOL]] + _ADDITION)])
    return [
        Pieces(
            "all",
            "every operation is executed",
            _all_run,
            relative(everything, average),
            *_factors(["rest", "none", "conv1", "conv3", "pool"]),
            log_prior=math.log(1 - _REMOVED),
        ),
        Pieces(
            "needed",
            "operations that the output does not need are removed",
            _needed_run,
            relative(only_needed, average),
            *_factors(["rest", "skip", "conv1", "conv3", "pool"]),
            log_prior=math.log(_REMOVED),
        ),
    ]
