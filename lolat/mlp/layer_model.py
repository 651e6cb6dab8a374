"""A trained layer model: its JSON file, its predictions, and its errors. It needs only numpy."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.io.documents import Number, Positive, read_json, to_json
from lolat.io.paths import shown_path
from lolat.io.tables import LONGEST_MS, SHORTEST_MS
from lolat.io.writing import write_bytes
from lolat.mlp.recipes import RECIPES, DataSheet, data_sheets, key
from lolat.mlp.table import LAYER_COLUMNS, TIME, LayerTable
from lolat.units import one_line, plain


class DenseLayer(msgspec.Struct, frozen=True):
    """f(x W + b): `weights` (in, out) float32, `biases` (out,) float32 or None, f the activation."""

    weights: np.ndarray
    biases: np.ndarray | None
    activation: Literal["relu", "linear"]


def output_of(layers: Iterable[DenseLayer], x: np.ndarray) -> np.ndarray:
    """(n,) float64: the output of layers in sequence, computed in float32, for `x` of (n, inputs)."""
    x = x.astype(np.float32)
    for layer in layers:
        x = x @ layer.weights
        if layer.biases is not None:
            x += layer.biases
        if layer.activation == "relu":
            x = np.maximum(x, 0)
    return x[:, 0].astype(float)


SCHEMA = "lolat-layer-model"
VERSION = 2
_EXPECTED = "expected a layer model (`lolat mlp fit` makes one)"


class LayerModel(msgspec.Struct, frozen=True):
    """A trained model of `lolat mlp fit`, as it is in its file.

    `devices`: data sheets of the GPUs in its training rows by `key`; `mean`, `scale`: (features,) for
    standardization; `ranges`: column -> [lowest, highest] for a size, the words seen for any other column;
    `training`: seed, rows, epochs, date ...; `errors`: errors on held-out rows, empty without any.
    """

    layer: Literal["convolution", "dense"]
    recipe: Literal["best", "paper"]
    devices: Annotated[dict[str, DataSheet], msgspec.Meta(min_length=1)]
    mean: list[Number]
    scale: list[Positive]
    network: Annotated[list[DenseLayer], msgspec.Meta(min_length=1)]
    ranges: dict[str, Annotated[list[Number | str], msgspec.Meta(min_length=1)]]
    training: dict[str, Any]
    errors: dict[str, Any]

    def predict(self, table: LayerTable) -> np.ndarray:
        """(n,) predicted times of the rows in ms, at least 0.

        InputError if the layers are of another kind, or if a GPU was not in the training rows or has no
        data sheet.
        """
        if table.layer != self.layer:
            kinds = f"the model predicts {self.layer} layers and the table has {table.layer} layers"
            raise InputError(f"{kinds}; expected both of one kind")
        if not len(table):
            return np.zeros(0)
        others = data_sheets({n for n in table["gpu"].tolist() if key(n) not in self.devices})
        if others and len(self.devices) == 1:
            own, other = next(iter(self.devices.values())).name, next(iter(others.values())).name
            raise InputError(
                f"the model knows only {own} and the table has rows of {other}; expected rows of {own}, "
                "or a model of several GPUs",
                code="other-device",
            )
        recipe = RECIPES[self.recipe]
        features = recipe.features(table, self.devices | others) - np.array(self.mean)
        output = output_of(self.network, features / np.array(self.scale))
        limits = np.log((SHORTEST_MS, LONGEST_MS))
        return np.exp(output.clip(*limits)) if recipe.is_log else output

    def outside(self, table: LayerTable) -> str | None:
        """A line on rows outside the ranges of the training rows, by column; None if all are inside."""
        rows, reasons = np.zeros(len(table), bool), []
        for column, seen in self.ranges.items():
            values = _compared(table, column)
            if isinstance(seen[0], str):
                new, words = ~np.isin(values, seen), plain(", ".join(map(str, seen)))
            else:
                new, words = (values < seen[0]) | (values > seen[1]), f"{seen[0]}..{seen[1]}"
            if new.any():
                rows |= new
                reasons.append(f"{column} {words}")
        if not reasons:
            return None
        return (
            f"{int(rows.sum())} of {len(table)} rows lie outside what the model was trained on "
            f"({'; '.join(reasons)})"
        )


def ranges(table: LayerTable) -> dict[str, list[Any]]:
    """The ranges of a table: column -> [lowest, highest] for sizes, all words for other columns."""
    columns = LAYER_COLUMNS[table.layer]
    values = {name: np.unique(_compared(table, name)).tolist() for name in columns}
    return {n: v if isinstance(v[0], str) else [v[0], v[-1]] for n, v in values.items()}


def _compared(table: LayerTable, column: str) -> np.ndarray:
    """Return (n,) values of a column; a GPU is written as its `key`."""
    return np.array([*map(key, table["gpu"].tolist())], str) if column == "gpu" else table[column]


def read_layer_model(path: str | Path) -> LayerModel:
    """Read the model in a file; ModelFileError, with the path, if the file is not a complete model."""
    source, document = shown_path(path), read_json(path, _EXPECTED)
    about = document if isinstance(document, dict) else {}
    if (about.get("schema"), about.get("version")) != (SCHEMA, VERSION):
        raise ModelFileError(f"{source}: is not a layer model of version {VERSION}; {_EXPECTED}")
    try:
        return msgspec.convert(document, LayerModel, dec_hook=_array)
    except ValueError as error:  # msgspec's are such
        raise ModelFileError(f"{source}: {one_line(error)}; {_EXPECTED}") from None


def write_layer_model(path: str | Path, model: LayerModel) -> None:
    """Write a model atomically; InputError if the path is not writable."""
    document = {"schema": SCHEMA, "version": VERSION}
    document |= msgspec.to_builtins(model, enc_hook=_array_document)
    write_bytes(path, to_json(document, plain(str(path))).encode("ascii"))


def _array_document(values: np.ndarray) -> dict[str, Any]:
    """A float32 array as JSON: its shape, and its numbers in base64, little-endian, in row-major order."""
    content = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return {"shape": list(values.shape), "float32": base64.b64encode(content).decode("ascii")}


def _array(kind: type, document: Any) -> np.ndarray:
    """Decode an array of `_array_document`; ValueError for a wrong length or non-finite numbers."""
    content = base64.b64decode(str(document["float32"]), validate=True)
    array = np.frombuffer(content, "<f4").reshape(document["shape"]).astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError("weights that are not finite")
    return array


@dataclass(frozen=True)
class Errors:
    """Errors over n rows: root mean square in ms; mean and median of |predicted / measured - 1|."""

    rows: int
    rmse_ms: float
    mean_relative_error: float
    median_relative_error: float


def evaluate(model: LayerModel, table: LayerTable) -> Errors:
    """The errors of a model on a table with times and at least one row."""
    predicted, measured = model.predict(table), table[TIME]
    relative = np.abs(predicted / measured - 1)
    return Errors(
        rows=len(measured),
        rmse_ms=float(np.sqrt(np.mean((predicted - measured) ** 2))),
        mean_relative_error=float(relative.mean()),
        median_relative_error=float(np.median(relative)),
    )
