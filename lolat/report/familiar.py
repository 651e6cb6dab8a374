"""A network's parameters, MACs and activations as torchinfo, Keras and fvcore print them.

They are near to our counts, but not the same: parameters have the vectors of the normalisations and whole
tables of embeddings, activations the outputs of dense layers and matrix products too (fvcore's
ActivationCountAnalysis). MACs are ours; a layer that is used twice counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from lolat.counts import COLUMNS, count
from lolat.graph import Graph, Operation
from lolat.kinds import NORMALISATIONS
from lolat.units import quantity

ACTS, FLOPS, WEIGHTS = (COLUMNS.index(c) for c in ("acts", "flops", "weights"))
_ONE_VECTOR = frozenset(["rms_norm"])
_NO_VECTOR = frozenset(["unit_norm"])


@dataclass(frozen=True)
class Figures:
    """Of one sample: learned parameters, multiply-accumulates, elements of activations."""

    parameters: int
    macs: int
    activations: int

    def __str__(self) -> str:
        """The summary line, three digits each."""
        return (
            f"{quantity(self.parameters)} parameters · {quantity(self.macs)} mult-adds · "
            f"{quantity(self.activations)} activations (one sample, as torchinfo and fvcore count)"
        )


def familiar(graph: Graph) -> Figures:
    """The figures of a network.

    A normalisation is taken to learn a scale and a shift of its channels (a scale for rms_norm); of one
    whose channels are not known from what feeds it, nothing is added.
    """
    counts = count(graph).at(1)
    channels = _channels(graph)
    parameters, activations = int(counts[:, WEIGHTS].sum()), int(counts[:, ACTS].sum())
    for row, operation in enumerate(graph.operations):
        a = operation.attributes
        if operation.kind in NORMALISATIONS - _NO_VECTOR:
            vectors = 1 if operation.kind in _ONE_VECTOR else 2
            parameters += vectors * channels.get(operation.outputs[0], 0)
        elif operation.kind == "embedding" and {"rows", "out_features"} <= a.keys():
            parameters += a["rows"] * a["out_features"] - int(counts[row, WEIGHTS])
        elif operation.kind in ("dense", "matmul"):
            activations += sum(graph.tensors[t].elements() for t in operation.outputs)
    return Figures(parameters, int(counts[:, FLOPS].sum()), activations)


def _channels(graph: Graph) -> dict[int, int]:
    """tensor -> its channels, where they are known from what wrote it."""
    shapes = graph.tensors
    found: dict[int, int] = {}
    for i in graph.inputs:  # an image: the axis that is not its height or width
        if len(shapes[i].shape) == 4:
            found[i] = min(shapes[i].shape[1:])
    for operation in graph.operations:
        size = _written(operation, found)
        for t in operation.outputs:
            if size is not None and size in shapes[t].shape:
                found[t] = size
    return found


def _written(operation: Operation, found: dict[int, int]) -> int | None:
    a = operation.attributes
    own = a.get("out_channels", a.get("out_features", a.get("units")))
    if own is not None:
        return int(own)
    read = [found[t] for t in operation.inputs if t in found]
    if operation.kind == "concatenate":
        return sum(read) if len(read) == len(operation.inputs) else None
    return max(read, default=None)
