"""The terms of a measured device's forward and backward pass, counted operation by operation.

They are the counts of `lolat.counts`, and a few that tell apart what only training does: statistics of
the batch, the gradients of kernels, and convolutions in groups, whose backward pass runs otherwise.
"""

from __future__ import annotations

import numpy as np

from lolat.counts import COLUMNS, PLAIN, count
from lolat.graph import Graph, Operation
from lolat.kinds import FREE, NORMALISATIONS
from lolat.training.memory import NORM_VECTORS

PASS_TERMS = (
    *PLAIN,
    "norm_traffic", "flat_norms", "unrolled", "own_patches", "own_groups", "pointwise", "kernels",
    "wide_depthwise",
)  # fmt: skip
"""Those of PLAIN, and:

- `norm_traffic`: traffic of normalisations, which compute the statistics of the batch;
- `flat_norms`: normalisations of tensors without positions, which TensorFlow makes of many operations;
- `unrolled`: patches x groups of convolutions in groups of several channels: TensorFlow's backward pass
  on a CPU multiplies every channel with all groups;
- `own_patches`, `own_groups`: patches and groups of convolutions with as many groups as channels, which
  it does better (they are not in `patches` and `groups` then);
- `pointwise`, `kernels`: weights of 1x1 and of other convolutions, whose gradients are written and put
  into the order of the weights;
- `wide_depthwise`: multiply-accumulates of depthwise convolutions of kernels larger than 3, for whose
  backward pass libraries have no fast way.

A dropout, free in a forward pass alone, is an operation here that reads, and writes its result and mask.
"""
_DROPOUT = 3  # elements moved for each
_NARROW = 3  # kernels up to this are fast


def pass_rows(graph: Graph, batch_size: int) -> np.ndarray:
    """(operations, PASS_TERMS) float64: what a pass at `batch_size` is made of."""
    rows = np.zeros((len(graph.operations), len(PASS_TERMS)))
    rows[:, : len(PLAIN)] = count(graph).at(batch_size)[:, : len(PLAIN)]
    for row, operation in zip(rows, graph.operations, strict=True):
        _own_terms(graph, operation, row, batch_size)
    return rows


def _own_terms(graph: Graph, operation: Operation, row: np.ndarray, batch_size: int) -> None:
    """Fill the terms beyond PLAIN into an operation's `row`."""
    kind, a = operation.kind, operation.attributes
    if kind == "dropout":
        row[_ops] += 1.0
        row[_serial] += 1.0
        row[_traffic] += _DROPOUT * graph.tensors[operation.inputs[0]].elements(batch_size)
    elif kind in NORMALISATIONS and operation.inputs:
        row[_at("norm_traffic")] = row[_traffic]
        row[_at("flat_norms")] = float(len(graph.tensors[operation.inputs[0]].shape) == 2)
    elif kind == "grouped_conv":
        if a["groups"] < a["in_channels"]:
            row[_at("unrolled")] = row[_at("patches")] * a["groups"]
        else:
            row[_at("own_patches")], row[_at("own_groups")] = (
                row[_at("patches")],
                row[_at("groups")],
            )
            row[_at("patches")] = row[_at("groups")] = 0.0
    if "kernel" in a and "in_channels" in a:
        pointwise = kind == "conv" and all(n == 1 for n in a["kernel"])
        row[_at("pointwise" if pointwise else "kernels")] = row[_at("weights")]
        if kind == "depthwise_conv" and max(a["kernel"]) > _NARROW:
            row[_at("wide_depthwise")] = row[_at("flops")]


_at = PASS_TERMS.index
_ops, _serial, _traffic = _at("ops"), _at("serial"), _at("traffic")


def variables(graph: Graph) -> int:
    """Tensors that an optimiser updates: kernels, biases, tables, the vectors of normalisations."""
    weights = count(graph).at(1)[:, COLUMNS.index("weights")]
    return sum(
        _variables(operation, int(w))
        for operation, w in zip(graph.operations, weights, strict=True)
    )


def _variables(operation: Operation, weights: int) -> int:
    if operation.kind in NORM_VECTORS:
        return NORM_VECTORS[operation.kind]
    if not weights:
        return 0
    a = operation.attributes
    if operation.kind not in RECURRENT:
        return 1 + bool(a.get("bias"))
    # A kernel for the input, one for the state. Keras has all biases in one tensor, and its reader says no
    # number of them; PyTorch has one for each kernel.
    return 2 + bool(a.get("bias")) * int(a.get("bias_vectors", 1))


RECURRENT = frozenset({"lstm", "gru", "simple_rnn"})


def started(graph: Graph) -> int:
    """Operations that a framework traces before the first step; reshapes and their like not counted."""
    return sum(o.kind not in FREE or o.kind == "dropout" for o in graph.operations)
