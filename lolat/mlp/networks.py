"""From layers to networks, as the paper does it: each layer predicted as if alone, the times added up.

What the models do not know (pooling, normalization, a convolution of another sort) is listed and left out
of the sum; LoLat's formula says what it may take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, FEATURES, count
from lolat.mlp.devices import DEVICES, Device, find, merged
from lolat.mlp.layer_model import LayerModel
from lolat.mlp.table import LAYERS, layer_name, network_rows
from lolat.model import Model

ELEMENT_BYTES = 4  # float32
_SIX = [COLUMNS.index(c) for c in FEATURES]


@dataclass(frozen=True)
class LayerTime:
    """A layer and its predicted time; `what`: the row in words, `share`: of the sum."""

    name: str
    kind: str
    what: str
    predicted_ms: float
    share: float


@dataclass(frozen=True)
class OtherLayer:
    """An operation that is not in the sum, why, and what LoLat's formula says of it (None: nothing)."""

    name: str
    kind: str
    reason: str
    formula_ms: float | None


@dataclass(frozen=True)
class NetworkTime:
    """The time of one batch, ms: the sum of the layers. `others` are not in it.

    An epoch is `batches` batches, the last one counted as a full one (as Keras counts them); both are
    None where the number of samples is not known. `formula_model`: what says something of the others.
    """

    KEYS = (
        "network", "gpu", "optimizer", "batch_size", "batch_ms", "samples", "batches", "epoch_s",
        "layers", "unpredicted=others", "unpredicted_formula_ms=others_ms", "warnings", "formula_model",
    )  # fmt: skip

    network: str
    gpu: str
    optimizer: str
    batch_size: int
    samples: int | None
    layers: tuple[LayerTime, ...]
    others: tuple[OtherLayer, ...]
    warnings: tuple[str, ...]
    formula_model: str | None = None

    @property
    def batch_ms(self) -> float:
        """The sum of the layers."""
        return math.fsum(layer.predicted_ms for layer in self.layers)

    @property
    def batches(self) -> int | None:
        """Of an epoch: samples over batch size, rounded up."""
        return None if self.samples is None else -(-self.samples // self.batch_size)

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch."""
        return None if self.batches is None else self.batches * self.batch_ms / 1e3

    @property
    def others_ms(self) -> float | None:
        """What the formula says of all that is not in the sum; None where it says nothing of one."""
        times = [other.formula_ms for other in self.others]
        known = [t for t in times if t is not None]
        return math.fsum(known) if len(known) == len(times) else None


def network_time(
    graph: Graph,
    models: Mapping[str, LayerModel],
    gpu: str,
    batch_size: int,
    optimizer: str = "none",
    samples: int | None = None,
    devices: Mapping[str, Device] | None = None,
    formula: Model | None = None,
) -> NetworkTime:
    """Predict a network with a model per kind of layer.

    `models`: by "convolution" and "dense"; `gpu`, `optimizer`: as in a LayerTable ("none": forward only);
    `devices`: facts of GPUs that are not built in; `formula`: LoLat's model of the GPU, forward only, for
    what is not in the sum. Raises InputError as `LayerModel.predict` does.
    """
    rows = network_rows(graph, gpu, batch_size, optimizer)
    warnings = [*graph.warnings, *rows.warnings]
    times: dict[int, tuple[str, float]] = {}
    for layer in LAYERS:
        table = rows.table(layer)
        if not len(table):
            continue
        positions = [row.operation for row in rows.layers if row.layer == layer]
        predicted = models[layer].predict(table, devices)
        for i, (position, time) in enumerate(zip(positions, predicted, strict=True)):
            times[position] = layer_name(table, i), float(time)
        if outside := models[layer].outside(table):
            warnings.append(f"{layer} layers: {outside}")
    total = math.fsum(time for _, time in times.values()) or 1.0
    layers = [
        LayerTime(row.name, row.layer, *times[row.operation], times[row.operation][1] / total)
        for row in rows.layers
    ]
    estimates: Sequence[float | None] = [None] * len(rows.others)
    if optimizer == "none" and formula is not None:
        device = find(gpu, merged(DEVICES, devices or {}))
        positions = [position for position, _ in rows.others]
        estimates = formula_ms(graph, positions, batch_size, formula, device).tolist()
    others = [
        OtherLayer(graph.operations[i].full_name, graph.operations[i].kind, reason, estimate)
        for (i, reason), estimate in zip(rows.others, estimates, strict=True)
    ]
    return NetworkTime(
        graph.name, gpu, optimizer, batch_size, samples, tuple(layers), tuple(others),
        tuple(dict.fromkeys(warnings)), None if formula is None else formula.name,
    )  # fmt: skip


def formula_ms(
    graph: Graph, positions: Sequence[int], batch_size: int, model: Model, device: Device | None
) -> np.ndarray:
    """(n,) ms of the operations at `positions` by LoLat's model, without its constant, forward only.

    At least what reading and writing takes at the memory bandwidth of `device`: where the layers that
    a model is fitted on do not tell what traffic costs, its coefficient is 0.
    """
    counts = count(graph).at(batch_size)[list(positions)]
    predictor = model.predictor()
    terms, _ = predictor.shares(counts[:, [COLUMNS.index(f) for f in predictor.features]])
    times: np.ndarray = terms.sum(axis=1)
    if device is None:
        return times
    acts, inp, _, traffic, weights, _ = counts[:, _SIX].T
    moved = ELEMENT_BYTES * (acts + inp + traffic + weights)
    return np.maximum(times, 1e3 * moved / device.bandwidth)
