"""The time of a network, as the paper does it: the sum of its layers, each predicted as if alone.

Operations that the models do not know (pooling, normalization, a convolution of another sort) are listed,
and are not in the sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.graph.analysis import as_trained
from lolat.graph.counts import COLUMNS, count, quantized_remark
from lolat.graph.modes import other_dtype
from lolat.mlp.layer_model import LayerModel
from lolat.mlp.table import ACTIVATIONS, LAYER_COLUMNS, LayerTable


@dataclass(frozen=True)
class LayerTime:
    """A layer and its predicted time; `share`: of the sum."""

    name: str
    kind: str
    predicted_ms: float
    share: float


@dataclass(frozen=True)
class NetworkTime:
    """Time of one batch, in ms: the sum of its layers.

    `not_predicted`: numbers of the operations that the sum lacks, by kind.
    """

    network: str
    gpu: str
    optimizer: str
    batch_size: int
    batch_ms: float
    layers: tuple[LayerTime, ...]
    not_predicted: dict[str, int]
    warnings: tuple[str, ...]


def network_time(
    graph: Graph,
    models: Mapping[str, LayerModel],
    gpu: str,
    batch_size: int,
    optimizer: str = "none",
) -> NetworkTime:
    """Predict a network with a model per kind of layer.

    `models`: by "convolution" and "dense"; `gpu`, `optimizer`: as in a LayerTable ("none": forward only).
    InputError as of `LayerModel.predict`, and for a missing model.
    """
    graph = graph if optimizer == "none" else as_trained(graph)
    rows, others = network_rows(graph, gpu, batch_size, optimizer)
    quantized = count(graph).quantized
    warnings = [
        *other_dtype(graph),
        *[quantized_remark(quantized)] * bool(quantized),
        *graph.warnings,
    ]
    times: list[tuple[int, str, float]] = []
    for layer, of_layer in rows.items():
        if layer not in models:
            raise InputError(f"{graph.name} has {layer} layers; give a model of them too")
        columns = {c: np.array([row[c] for row in of_layer.values()]) for c in LAYER_COLUMNS[layer]}
        table = LayerTable(layer, columns)
        predicted = models[layer].predict(table).tolist()
        times += [(i, layer, ms) for i, ms in zip(of_layer, predicted, strict=True)]
        if outside := models[layer].outside(table):
            warnings.append(f"{layer} layers: {outside}")
    total, operations = math.fsum(ms for *_, ms in times), graph.operations
    layers = (
        LayerTime(operations[i].full_name, layer, ms, ms / (total or 1.0))
        for i, layer, ms in sorted(times)
    )
    return NetworkTime(
        graph.name, gpu, optimizer, batch_size, total, tuple(layers), others, tuple(warnings)
    )


def network_rows(
    graph: Graph, gpu: str, batch_size: int, optimizer: str
) -> tuple[dict[str, dict[int, dict[str, Any]]], dict[str, int]]:
    """(rows of a LayerTable, by kind of layer and position; numbers of other operations, by kind).

    An activation that is the only reader of a layer's output is part of the layer. A dense layer at several
    positions is one of a larger batch.
    """
    free = count(graph).at(1)[:, COLUMNS.index("ops")] == 0
    readers = graph.consumers()
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    others: Counter[str] = Counter()
    in_a_layer: set[int] = set()
    for position, operation in enumerate(graph.operations):
        if position in in_a_layer or free[position]:
            continue
        sizes = _sizes(graph, operation)
        if sizes is None:
            others[operation.kind] += 1
            continue
        positions = sizes.pop("positions", 1)
        written, activation = operation.outputs[0], "none"
        users = readers.get(written, ())
        if len(users) == 1 and written not in graph.outputs:
            kind = graph.operations[users[0]].kind
            if kind in ACTIVATIONS:
                activation = kind
                in_a_layer.add(users[0])
        common = {"gpu": gpu, "batch_size": batch_size * positions, "optimizer": optimizer}
        layer = "dense" if operation.kind == "dense" else "convolution"
        rows.setdefault(layer, {})[position] = common | {"activation": activation} | sizes
    return rows, dict(others)


def _sizes(graph: Graph, operation: Operation) -> dict[str, Any] | None:
    """The columns of a dense layer or a convolution; None for an operation that the models do not know.

    Also `positions` of a dense layer. The sides of an input that is not square become their geometric mean,
    which keeps the area, rounded. The padding follows from the size of the output.
    """
    a = operation.attributes
    if operation.kind == "dense":
        inside, outside = int(a["in_features"]), int(a["out_features"])
        positions = max(graph.tensors[operation.outputs[0]].elements() // outside, 1)
        return {"positions": positions, "in_features": inside, "out_features": outside}
    (kernel, *kernels), (stride, *strides) = a.get("kernel", (0,)), a.get("strides", (1, 1))
    is_plain = operation.kind == "conv" and (kernels, strides) == ([kernel], [stride])
    if not is_plain or any(step > 1 for step in a.get("dilation", ())):
        return None
    inside, outside = int(a["in_channels"]), int(a["out_channels"])
    size = _side(graph.tensors[operation.inputs[0]].shape, inside)
    side = _side(graph.tensors[operation.outputs[0]].shape, outside)
    same, valid = -(-size // stride), -(-(size - kernel + 1) // stride)
    padding = str(a.get("padding", "valid"))
    if side != (same if padding == "same" else valid):
        padding = "same" if side == same else "valid"
    if padding == "valid" and side != valid:  # padded by hand: the size that the convolution reads
        size = (side - 1) * stride + kernel
    return {
        "input_size": size, "kernel_size": kernel, "stride": stride, "padding": padding,
        "in_channels": inside, "out_channels": outside, "use_bias": int(bool(a["bias"])),
    }  # fmt: skip


def _side(shape: Sequence[int], channels: int) -> int:
    """Height = width of a tensor (1, H, W, C) or (1, C, H, W), or their geometric mean."""
    is_first = shape[1] == channels and shape[-1] != channels
    sides = shape[2:] if is_first else shape[1:-1]
    return max(1, round(math.sqrt(math.prod(sides))))
