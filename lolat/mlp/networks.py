"""From layers to networks, as the paper does it: each layer predicted as if alone, the times added up.

Operations that the models do not know (pooling, normalization, a convolution of another sort) are listed,
and not in the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.graph.analysis import trained_whole
from lolat.graph.counts import COLUMNS as COUNTS
from lolat.graph.counts import count
from lolat.graph.kinds import CONVOLUTIONS
from lolat.mlp.devices import Devices
from lolat.mlp.layer_model import LayerModel
from lolat.mlp.table import ACTIVATIONS, COLUMNS, LAYERS, LayerTable


@dataclass(frozen=True)
class LayerTime:
    """A layer and its predicted time; `share`: of the sum."""

    name: str
    kind: str
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
    devices: Devices | None = None,
) -> NetworkTime:
    """Predict a network with a model per kind of layer.

    `models`: by "convolution" and "dense"; `gpu`, `optimizer`: as in a LayerTable ("none": forward only);
    `devices`: data sheets of GPUs that are not built in. InputError as of `LayerModel.predict`.
    """
    graph = graph if optimizer == "none" else trained_whole(graph)
    rows = network_rows(graph, gpu, batch_size, optimizer)
    warnings = [*graph.warnings, *rows.warnings]
    times: dict[int, tuple[str, float]] = {}
    for layer in LAYERS:
        table = rows.table(layer)
        if not len(table):
            continue
        if layer not in models:
            raise InputError(f"{graph.name} has {layer} layers; give a model of them too")
        ms = models[layer].predict(table, devices).tolist()
        times |= dict(zip(rows.layers[layer], ((layer, time) for time in ms), strict=True))
        if outside := models[layer].outside(table):
            warnings.append(f"{layer} layers: {outside}")
    total = math.fsum(time for _, time in times.values())
    layers = [
        LayerTime(graph.operations[i].full_name, layer, time, time / (total or 1.0))
        for i, (layer, time) in sorted(times.items())
    ]
    others = [
        OtherLayer(graph.operations[i].full_name, graph.operations[i].kind, reason)
        for i, reason in rows.others
    ]
    return NetworkTime(
        graph.name, gpu, optimizer, batch_size, total, tuple(layers), tuple(others),
        tuple(dict.fromkeys(warnings)),
    )  # fmt: skip


# ---- A network's layers as rows.

NEITHER = "neither a convolution nor a dense layer"


@dataclass(frozen=True)
class Rows:
    """A network as rows: what the models can predict, the other operations with the reason, remarks.

    `layers`: of each kind of layer the positions in the graph, with the columns of a LayerTable.
    """

    layers: dict[str, dict[int, dict[str, Any]]]
    others: tuple[tuple[int, str], ...]
    warnings: tuple[str, ...]

    def table(self, layer: str) -> LayerTable:
        """The rows of a kind of layer, in network order."""
        rows = self.layers[layer].values()
        return LayerTable(layer, {c: np.array([r[c] for r in rows]) for c in COLUMNS[layer]})


def network_rows(graph: Graph, gpu: str, batch_size: int, optimizer: str) -> Rows:
    """The convolutions and dense layers of a network as rows; the rest by position, with the reason.

    An activation of the data that follows directly, and alone, is the layer's. Sides that are not equal
    become their geometric mean, which keeps the area but for rounding, with a remark.
    """
    common = {"gpu": gpu, "batch_size": batch_size, "optimizer": optimizer}
    free = count(graph).at(1)[:, COUNTS.index("ops")] == 0
    readers = graph.consumers()
    layers: dict[str, dict[int, dict[str, Any]]] = {layer: {} for layer in LAYERS}
    others: list[tuple[int, str]] = []
    warnings: list[str] = []
    taken: set[int] = set()
    for position, operation in enumerate(graph.operations):
        if position in taken or free[position]:
            continue
        reason = _uncovered(operation)
        if reason is not None:
            others.append((position, reason))
            continue
        values = {**common, "activation": "none"}
        layer, of_layer = "convolution", _convolution
        if operation.kind == "dense":
            layer, of_layer = "dense", _dense
        values |= of_layer(graph, operation, batch_size, warnings)
        written = operation.outputs[0]
        users = readers.get(written, ())
        if len(users) == 1 and written not in graph.outputs:
            kind = graph.operations[users[0]].kind
            if kind in ACTIVATIONS and kind != "none":
                values["activation"] = kind
                taken.add(users[0])
        layers[layer][position] = values
    return Rows(layers, tuple(others), tuple(dict.fromkeys(warnings)))


def _uncovered(operation: Operation) -> str | None:
    """Why the models cannot predict an operation; None where they can."""
    if operation.kind == "dense":
        return None
    if operation.kind not in CONVOLUTIONS:
        return NEITHER
    if operation.kind != "conv":
        return f"a {operation.kind.removesuffix('_conv')} convolution"
    dimensions = len(operation.attributes["kernel"])
    if dimensions != 2:
        return f"a convolution of {dimensions} dimension{'s' * (dimensions > 1)}"
    if any(step > 1 for step in operation.attributes.get("dilation", ())):
        return "a dilated convolution"
    return None


def _dense(
    graph: Graph, operation: Operation, batch_size: int, warnings: list[str]
) -> dict[str, Any]:
    """What describes a dense layer; applied at several positions it is one of a larger batch."""
    inside, outside = (int(operation.attributes[f"{side}_features"]) for side in ("in", "out"))
    positions = max(graph.tensors[operation.outputs[0]].elements() // outside, 1)
    if positions > 1:
        warnings.append(
            "dense layers at several positions are predicted as those of a larger batch"
        )
    sizes = {"in_features": inside, "out_features": outside}
    return {"batch_size": batch_size * positions, **sizes}


def _convolution(
    graph: Graph, operation: Operation, batch_size: int, warnings: list[str]
) -> dict[str, Any]:
    """What describes a convolution; padding is what gives the size of its output."""
    a = operation.attributes
    inside, outside = int(a["in_channels"]), int(a["out_channels"])
    before = _sides(graph.tensors[operation.inputs[0]].shape, inside)
    after = _sides(graph.tensors[operation.outputs[0]].shape, outside)
    all_sides = (before, a["kernel"], a.get("strides", (1, 1)), after)
    if any(len(set(sides)) > 1 for sides in all_sides):
        warnings.append(
            "layers that are not square are predicted with the geometric mean of their sides"
        )
    size, kernel, stride, written = (
        max(1, round(math.sqrt(math.prod(sides)))) for sides in all_sides
    )
    fits = {
        "same": written == -(-size // stride),
        "valid": written == -(-(size - kernel + 1) // stride),
    }
    padding = str(a.get("padding", "valid"))
    if not fits.get(padding, False):
        padding = "same" if fits["same"] else "valid"
    if not fits[padding]:  # padded by hand: what the convolution then reads
        size = (written - 1) * stride + kernel
    return {
        "input_size": size,
        "kernel_size": kernel,
        "in_channels": inside,
        "out_channels": outside,
        "stride": stride,
        "padding": padding,
        "use_bias": int(bool(a["bias"])),
    }


def _sides(shape: Sequence[int], channels: int) -> tuple[int, ...]:
    """Height and width of a tensor (1, H, W, C) or (1, C, H, W)."""
    first = shape[1] == channels and shape[-1] != channels
    return tuple(shape[2:] if first else shape[1:-1])
