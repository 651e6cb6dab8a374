"""The companion's layers in LoLat's terms: a row of a table as a graph, the counts of all rows at once."""

from __future__ import annotations

import numpy as np

from lolat.counts import FEATURES
from lolat.graph import Graph, GraphBuilder
from lolat.mlp.table import LayerTable


def layer_graph(table: LayerTable, row: int) -> Graph:
    """The layer of one row as a network, its activation an operation of its own (none: no operation).

    A dense layer has a bias, as in the measurements behind the data.
    """
    builder = GraphBuilder(layer_name(table, row))
    if table.layer == "convolution":
        size, inside, outside = (
            int(table[c][row]) for c in ("input_size", "in_channels", "out_channels")
        )
        kernel, stride = int(table["kernel_size"][row]), int(table["stride"][row])
        side = int(output_sizes(table.select(np.array([row])))[0])
        shape: tuple[int, ...] = (1, side, side, outside)
        x = builder.add(
            "conv", [builder.input((1, size, size, inside))], shape, "layer",
            in_channels=inside, out_channels=outside, groups=1, kernel=(kernel, kernel),
            strides=(stride, stride), padding=str(table["padding"][row]),
            bias=bool(table["use_bias"][row]),
        )  # fmt: skip
    else:
        inside, outside = int(table["in_features"][row]), int(table["out_features"][row])
        shape = (1, outside)
        x = builder.add(
            "dense", [builder.input((1, inside))], shape, "layer",
            in_features=inside, out_features=outside, bias=True,
        )  # fmt: skip
    activation = str(table["activation"][row])
    return builder.build([x if activation == "none" else builder.add(activation, [x], shape)])


def layer_name(table: LayerTable, row: int) -> str:
    """One row in words: "conv 3x3/2 64x56x56 to 128, relu", "dense 512 to 1000"."""
    activation = str(table["activation"][row])
    if table.layer == "convolution":
        kernel, stride, size = (int(table[c][row]) for c in ("kernel_size", "stride", "input_size"))
        step = f"/{stride}" if stride > 1 else ""
        valid = "" if table["padding"][row] == "same" else " valid"
        text = (
            f"conv {kernel}x{kernel}{step}{valid} {int(table['in_channels'][row])}x{size}x{size} to "
            f"{int(table['out_channels'][row])}"
        )
    else:
        text = f"dense {int(table['in_features'][row])} to {int(table['out_features'][row])}"
    return text if activation == "none" else f"{text}, {activation}"


def output_sizes(table: LayerTable) -> np.ndarray:
    """(n,) height = width of what convolutions write: TensorFlow's rules for "same" and "valid"."""
    size, kernel, stride = table["input_size"], table["kernel_size"], table["stride"]
    reach = np.where(table["padding"] == "same", size, size - kernel + 1)
    found: np.ndarray = -(-reach // stride)
    return found


def layer_counts(table: LayerTable) -> np.ndarray:
    """(n, 6) float64: the counts of each row's layer at its batch size, in the order of FEATURES.

    The same as `lolat.counts` finds in `layer_graph`, for all rows at once.
    """
    batch = table["batch_size"].astype(float)  # 64-bit integers would overflow for the largest
    activated = table["activation"] != "none"
    counts = dict.fromkeys(FEATURES, np.zeros(len(table)))
    if table.layer == "convolution":
        inside, outside = table["in_channels"].astype(float), table["out_channels"].astype(float)
        per_output = table["kernel_size"].astype(float) ** 2 * inside
        written = batch * output_sizes(table).astype(float) ** 2 * outside
        counts["acts"] = written
        counts["inp"] = batch * table["input_size"].astype(float) ** 2 * inside
        counts["flops"] = written * per_output
        counts["traffic"] = 2 * written * activated
        counts["weights"] = outside * (per_output + table["use_bias"])
    else:
        inside, outside = table["in_features"].astype(float), table["out_features"].astype(float)
        counts["flops"] = batch * inside * outside
        counts["traffic"] = batch * (inside + outside * (1 + 2 * activated))
        counts["weights"] = outside * (inside + 1)
    counts["ops"] = 1.0 + activated
    return np.column_stack([counts[c] for c in FEATURES])
