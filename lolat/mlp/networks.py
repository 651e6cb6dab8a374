"""From layers to networks, as the paper does it: each layer predicted as if alone, the times added up.

Operations that the models do not know (pooling, normalization, a convolution of another sort) are listed,
and not in the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.mlp.devices import Device
from lolat.mlp.layer_model import LayerModel
from lolat.mlp.table import LAYERS, layer_name, network_rows


@dataclass(frozen=True)
class LayerTime:
    """A layer and its predicted time; `description`: its sizes in words, `share`: of the sum."""

    name: str
    kind: str
    description: str
    predicted_ms: float
    share: float


@dataclass(frozen=True)
class OtherLayer:
    """An operation that is not in the sum, and why."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True)
class NetworkTime:
    """The time of one batch, ms: the sum of the layers. `not_predicted` are not in it."""

    network: str
    gpu: str
    optimizer: str
    batch_size: int
    batch_ms: float
    layers: tuple[LayerTime, ...]
    not_predicted: tuple[OtherLayer, ...]
    warnings: tuple[str, ...]


def network_time(
    graph: Graph,
    models: Mapping[str, LayerModel],
    gpu: str,
    batch_size: int,
    optimizer: str = "none",
    devices: Mapping[str, Device] | None = None,
) -> NetworkTime:
    """Predict a network with a model per kind of layer.

    `models`: by "convolution" and "dense"; `gpu`, `optimizer`: as in a LayerTable ("none": forward only);
    `devices`: data sheets of GPUs that are not built in. InputError as of `LayerModel.predict`.
    """
    rows = network_rows(graph, gpu, batch_size, optimizer)
    warnings = [*graph.warnings, *rows.warnings]
    times: dict[int, tuple[str, float]] = {}
    for layer in LAYERS:
        table = rows.table(layer)
        if not len(table):
            continue
        if layer not in models:
            raise InputError(f"{graph.name} has {layer} layers; give a model of them too")
        positions = [row.operation for row in rows.layers if row.layer == layer]
        predicted = models[layer].predict(table, devices)
        for i, (position, time) in enumerate(zip(positions, predicted, strict=True)):
            times[position] = layer_name(table, i), float(time)
        if outside := models[layer].outside(table):
            warnings.append(f"{layer} layers: {outside}")
    total = math.fsum(time for _, time in times.values())
    layers = [
        LayerTime(
            row.name, row.layer, *times[row.operation], times[row.operation][1] / (total or 1.0)
        )
        for row in rows.layers
    ]
    others = [
        OtherLayer(graph.operations[i].full_name, graph.operations[i].kind, reason)
        for i, reason in rows.others
    ]
    return NetworkTime(
        graph.name, gpu, optimizer, batch_size, total, tuple(layers), tuple(others),
        tuple(dict.fromkeys(warnings)),
    )  # fmt: skip
