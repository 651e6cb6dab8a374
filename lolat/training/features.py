"""The terms of the formula: what the time of an iteration and of an epoch is made of, counted.

Forward and backward pass work on the same tensors, so one count stands for both. What a device does
slowly in training has a term of its own (docs/training.md says why).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lolat.counts import COLUMNS, count
from lolat.graph import Graph, Operation
from lolat.kinds import NORMALISATIONS
from lolat.training.memory import channels, parameters
from lolat.training.optimizers import Optimizer

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
    if operation.kind in NORMALISATIONS and operation.inputs:
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
