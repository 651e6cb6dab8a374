"""What a network's operations ask of a device that runs them one after the other: products and bytes.

A product is `number` times (rows x depth) by (depth x columns): a dense layer, a batched product of
attention, a convolution as the product that it is (im2col). Everything else moves bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from lolat.counts import COLUMNS, count
from lolat.graph import Graph, Operation, is_convolution
from lolat.kernel_terms import (
    BATCHED,
    CLASSES,
    CONVOLUTION,
    DENSE,
    ELEMENTS,
    GROUPED,
    NORM,
    SOFTMAX,
)  # fmt: skip

ELEMENT_BYTES = 4  # float32
MOVED = [COLUMNS.index(c) for c in ("acts", "inp", "traffic", "weights")]
_NORMS = frozenset(["layer_norm", "group_norm", "instance_norm", "rms_norm", "batch_norm"])
_SOFTMAX = frozenset(["softmax", "log_softmax"])


@dataclass(frozen=True)
class Work:
    """Of operations, each (operations,): `kind`, an index into CLASSES; the product's `number`, `rows`,
    `columns`, `depth`, 0 where there is none; `bytes` read and written; `direct`: a 3x3 convolution of
    stride 1, for which there are faster ways (Winograd). What costs nothing has 0 bytes.
    """

    kind: np.ndarray
    number: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    depth: np.ndarray
    bytes: np.ndarray
    direct: np.ndarray

    @property
    def macs(self) -> np.ndarray:
        """(operations,) multiply-accumulates of the products."""
        return self.number * self.rows * self.columns * self.depth

    def take(self, which: np.ndarray) -> Work:
        """Some of the operations."""
        return Work(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    @classmethod
    def none(cls) -> Work:
        """No operations."""
        empty = np.zeros(0)
        return cls(np.zeros(0, int), empty, empty, empty, empty, empty, np.zeros(0, bool))

    @classmethod
    def joined(cls, parts: Sequence[Work]) -> Work:
        """The operations of several, one after the other."""
        names = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def work_of(graph: Graph, batch_size: int = 1) -> Work:
    """The work of a graph's operations at `batch_size`."""
    size = len(graph.operations)
    kind, direct = np.zeros(size, int), np.zeros(size, bool)
    product = np.zeros((size, 4))
    for i, operation in enumerate(graph.operations):
        name, product[i], direct[i] = _product(graph, operation, batch_size)
        kind[i] = CLASSES.index(name)
    moved = ELEMENT_BYTES * count(graph).at(batch_size)[:, MOVED].sum(axis=1).astype(float)
    number, rows, columns, depth = product.T
    return Work(kind, number, rows, columns, depth, moved, direct)


def _product(
    graph: Graph, operation: Operation, batch_size: int
) -> tuple[str, tuple[float, float, float, float], bool]:
    """(class, (number, rows, columns, depth), whether direct) of an operation."""
    kind, a = operation.kind, operation.attributes
    out = graph.tensors[operation.outputs[0]]
    written = out.elements(batch_size)
    if kind == "dense":
        return DENSE, (1, written / a["out_features"], a["out_features"], a["in_features"]), False
    if kind == "matmul":
        rows, columns = out.shape[-2:] if len(out.shape) > 1 else (1, out.shape[-1])
        return BATCHED, (written / max(rows * columns, 1), rows, columns, a["contracted"]), False
    if is_convolution(kind):
        groups = a["groups"]
        window = prod(a["kernel"]) * a["in_channels"] // groups
        columns = a["out_channels"] / groups
        found = (groups, written / a["out_channels"], columns, window)
        if kind == "transposed_conv":
            read = graph.tensors[operation.inputs[0]].elements(batch_size)
            columns = prod(a["kernel"]) * a["out_channels"] / groups
            found = (groups, read / a["in_channels"], columns, a["in_channels"] / groups)
        if groups > 1:
            return GROUPED, found, False
        direct = tuple(a["kernel"]) == (3, 3) and set(a.get("strides", (1,))) == {1}
        return CONVOLUTION, found, direct
    name = SOFTMAX if kind in _SOFTMAX else NORM if kind in _NORMS else ELEMENTS
    return name, (0, 0, 0, 0), False
