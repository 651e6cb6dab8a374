"""The terms of a measured device's forward and backward pass, counted operation by operation.

They are the counts of `lolat.graph.counts`, and a few that tell apart what only training does:
statistics of
the batch, the gradients of kernels, and convolutions in groups, whose backward pass runs otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lolat.graph import Graph, Operation
from lolat.graph.counts import COLUMNS, PLAIN, count
from lolat.graph.kinds import FREE, NORMALIZATIONS
from lolat.training.memory import NORM_VECTORS, channels, parameters
from lolat.training.settings import Optimizer

# ---- The terms of the formula: what the time of an iteration and of an epoch is made of,
# counted.
#
# Forward and backward pass work on the same tensors, so one count stands for both. What a device does
# slowly in training has a term of its own (docs/training.md says why).

TERMS = (
    "weighted_ops", "norm_ops", "flat_norm_ops", "other_ops", "steps", "flops", "padded_flops",
    "conv_elements", "traffic", "norm_traffic", "norm_positions", "weights", "update", "epochs",
)  # fmt: skip
"""The formula's terms:

- `weighted_ops`, `norm_ops`, `flat_norm_ops`, `other_ops`: operations started, by kind: with weights;
  normalisations; normalisations of tensors without positions (which TensorFlow does in many small
  operations); all others, dropouts among them;
- `steps`: 1 for each iteration; `epochs`: 1 for each epoch;
- `flops`: multiply-accumulates; `padded_flops`: those of convolutions if channels came in full PANELs;
- `conv_elements`: elements that convolutions read and write; `traffic`: of all else but normalisations,
  whose are `norm_traffic`;
- `norm_positions`: elements of a normalisation's input for each of its channels, which a GPU works on one
  beside the other: few channels leave most of it idle;
- `weights`: read by a forward pass; `update`: elements that the optimiser reads and writes.
"""
PANEL = 32  # channels that fill a warp, or a tile of a matrix unit
OF_DROPOUT = 3  # elements moved for each: it reads, and writes its result and its mask


def iteration_row(graph: Graph, batch_size: int, optimizer: Optimizer) -> np.ndarray:
    """(TERMS,) float64 of one iteration: forward, backward and update of one batch."""
    found: np.ndarray = operation_rows(graph, batch_size).sum(axis=0)
    found[TERMS.index("update")] = float(parameters(graph) * optimizer.accesses)
    found[TERMS.index("steps")] = 1.0
    return found


def operation_rows(graph: Graph, batch_size: int) -> np.ndarray:
    """(operations, TERMS) float64: forward and backward of each operation; `update` and `steps` are 0."""
    found = np.zeros((len(graph.operations), len(TERMS)))
    rows = count(graph).at(batch_size)
    for i, (operation, row) in enumerate(zip(graph.operations, rows, strict=True)):
        counts = dict(zip(COLUMNS, map(float, row), strict=True))
        for term, value in _terms(graph, operation, counts, batch_size).items():
            found[i, TERMS.index(term)] += value
    return found


def epoch_row(
    graph: Graph, batch_size: int, samples: int, optimizer: Optimizer, drop_last: bool
) -> np.ndarray:
    """(TERMS,) of one epoch: its iterations, the last one of what is left, and what comes once."""
    full, rest = divmod(samples, batch_size)
    row = full * iteration_row(graph, batch_size, optimizer)
    if rest and not drop_last:
        row = row + iteration_row(graph, rest, optimizer)
    row[TERMS.index("epochs")] = 1.0
    return row


def density(row: np.ndarray) -> float:
    """Multiply-accumulates for each element that is moved, of an iteration or an epoch."""
    moved = row[TERMS.index("traffic")] + row[TERMS.index("conv_elements")]
    return float(row[TERMS.index("flops")] / max(moved, 1.0))


def iterations(samples: int, batch_size: int, drop_last: bool) -> int:
    """Iterations of an epoch."""
    return samples // batch_size if drop_last else -(-samples // batch_size)


def _terms(
    graph: Graph, operation: Operation, counts: dict[str, float], batch_size: int
) -> dict[str, float]:
    """The terms of one operation, whose counts at `batch_size` are given."""
    if operation.kind == "dropout":  # nothing in a forward pass alone, but an operation in training
        elements = graph.tensors[operation.inputs[0]].elements(batch_size)
        return {"other_ops": 1.0, "traffic": float(OF_DROPOUT * elements)}
    if operation.kind in NORMALIZATIONS and operation.inputs:
        tensor = graph.tensors[operation.inputs[0]]
        return {
            "flat_norm_ops" if len(tensor.shape) == 2 else "norm_ops": counts["ops"],
            "norm_traffic": counts["traffic"],
            "norm_positions": tensor.elements(batch_size) / max(channels(graph, operation), 1),
        }
    found = {
        "weighted_ops" if counts["weights"] else "other_ops": counts["ops"],
        "flops": counts["flops"],
        "conv_elements": counts["acts"] + counts["inp"],
        "traffic": counts["traffic"],
        "weights": counts["weights"],
    }
    if operation.kind == "conv":
        found["padded_flops"] = counts["flops"] * _padding(operation.attributes)
    return found


def _padding(a: Any) -> float:
    """How many times more a convolution multiplies with channels filled up to PANELs."""
    factor = 1.0
    for side in ("in_channels", "out_channels"):
        factor *= -(-a[side] // PANEL) * PANEL / a[side]
    return factor


# ---- passes ----------------------------------------

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
    elif kind in NORMALIZATIONS and operation.inputs:
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
