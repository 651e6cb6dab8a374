"""Small tables of layers whose times follow from their work, and a layer model made by hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lolat.io.tables import parse_table
from lolat.mlp.layer_model import DenseLayer, LayerModel, ranges
from lolat.mlp.recipes import PAPER, data_sheets
from lolat.mlp.table import ACTIVATIONS, LAYER_OPTIMIZERS, LayerTable, layers_of

CONVOLUTION = {
    "gpu": "V100", "run": "0", "batch_size": "8", "input_size": "56", "kernel_size": "3",
    "in_channels": "64", "out_channels": "32", "stride": "1", "padding": "same", "use_bias": "1",
    "activation": "relu", "optimizer": "none", "time_ms_median": "1.5",
}  # fmt: skip
DENSE = {
    "gpu": "V100", "run": "0", "batch_size": "8", "in_features": "100", "out_features": "10",
    "activation": "relu", "optimizer": "none", "time_ms_median": "0.5",
}  # fmt: skip
ROWS = {"convolution": CONVOLUTION, "dense": DENSE}


def rows_of(layer: str, *changes: Mapping[str, str]) -> list[dict[str, str]]:
    """A row per change of the plain one."""
    return [{**ROWS[layer], **change} for change in changes]


def csv_text(rows: Sequence[Mapping[str, str]]) -> str:
    """The rows as CSV, the columns in the order of the first one."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """A CSV file of the rows."""
    path.write_text(csv_text(rows))
    return path


def random_rows(
    layer: str, count: int, seed: int = 0, gpus: Sequence[str] = ("V100",)
) -> list[dict[str, str]]:
    """Layers at random; the time is 0.1 ms and what the work takes at a tenth of the GPU's peak."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        gpu = str(rng.choice(gpus))
        row = {**ROWS[layer], "gpu": gpu}
        row["batch_size"] = str(rng.integers(1, 33))
        row["activation"], row["optimizer"] = rng.choice(ACTIVATIONS), rng.choice(LAYER_OPTIMIZERS)
        passes = 1 if row["optimizer"] == "none" else 3
        if layer == "dense":
            sizes = rng.integers(1, 4096, 2)
            row["in_features"], row["out_features"] = map(str, sizes)
            macs = float(row["batch_size"]) * float(sizes.prod())
        else:
            size, channels = rng.integers(7, 65), rng.integers(1, 257, 2)
            row["input_size"], row["kernel_size"] = str(size), str(rng.integers(1, 8))
            row["in_channels"], row["out_channels"] = map(str, channels)
            macs = float(row["batch_size"]) * size**2 * float(channels.prod())
            macs *= float(row["kernel_size"]) ** 2
        (sheet,) = data_sheets([gpu]).values()
        time = 0.1 + passes * 1e-3 * macs / (0.1 * sheet.cores * sheet.clock_mhz)
        row["time_ms_median"] = f"{time:.6g}"
        found.append(row)
    return found


def table(rows: Sequence[Mapping[str, str]]) -> LayerTable:
    """The rows as a table."""
    return layers_of(parse_table(csv_text(rows), "rows.csv"))


def table_of(layer: str, *changes: Mapping[str, str]) -> LayerTable:
    """A row per change of the plain one."""
    return table(rows_of(layer, *changes))


def hand_model(
    layer: str = "dense",
    gpus: Sequence[str] = ("V100",),
    feature: str = "batch_size",
    slope: float = 0.25,
    covers: LayerTable | None = None,
) -> LayerModel:
    """A model of the paper's features that answers `slope` times one feature, in ms.

    `covers`: the table whose ranges it claims; by default plain rows of `gpus`.
    """
    rows, devices = table_of(layer, *({"gpu": gpu} for gpu in gpus)), data_sheets(gpus)
    names = tuple(PAPER.columns(rows, devices))
    weights = np.zeros((len(names), 1), np.float32)
    weights[names.index(feature)] = slope
    return LayerModel(
        layer=layer,  # type: ignore[arg-type]
        recipe="paper",
        devices=devices,
        mean=[0.0] * len(names),
        scale=[1.0] * len(names),
        network=[DenseLayer(weights, None, "relu")],
        ranges=ranges(covers or rows),
        training={"seed": 0},
        errors={},
    )
