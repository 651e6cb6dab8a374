"""A trained network for layers: in its JSON file, asked with numpy alone, and how far off it is."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.io.documents import Number, Positive, read_json, to_json
from lolat.io.writing import shown_path, write_bytes
from lolat.mlp.devices import DEVICES, Device, Devices, key, known
from lolat.mlp.recipes import RECIPES
from lolat.mlp.table import COLUMNS, OPTIMIZERS, LayerTable, mapped
from lolat.units import one_line, plain

# ---- A multilayer perceptron in numpy: forward only, float32.


def _silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)); exp of a large number is infinite and the quotient 0, as it should be."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": _silu,
    "linear": lambda x: x,
}


class Layer(msgspec.Struct, frozen=True):
    """f(x W + b): `weights` (in, out) float32, `biases` (out,) float32 or None, f one of ACTIVATIONS."""

    weights: np.ndarray
    biases: np.ndarray | None
    activation: Literal["relu", "silu", "linear"]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(rows, out) float32 for x (rows, in) float32."""
        output = x @ self.weights
        if self.biases is not None:
            output += self.biases
        return ACTIVATIONS[self.activation](output)


def output_of(layers: Iterable[Layer], x: np.ndarray) -> np.ndarray:
    """(n,) float64: the output of layers, one after the other; x (n, inputs)."""
    x = x.astype(np.float32)
    for layer in layers:
        x = layer(x)
    return x[:, 0].astype(float)


# ---- A layer model, which is its own file.

SCHEMA = "lolat-layer-model"
VERSION = 1
LARGEST_BYTES = 256 * 2**20
_EXPECTED = "expected a layer model (`lolat mlp fit` makes one)"


class LayerModel(msgspec.Struct, frozen=True):
    """A trained model of `lolat mlp fit`.

    `devices`: the GPUs of its training rows by `key`, with the facts used; `mean`, `scale`: (features,) of
    the standardization; `ranges`: what its training rows covered, [lowest, highest] of a size and the words
    of the others; `training`: how it was trained: seed, rows, epochs, date ...; `errors`: on rows left out
    of training, empty where there were none.
    """

    layer: Literal["convolution", "dense"]
    recipe: Literal["best", "paper"]
    devices: Annotated[dict[str, Device], msgspec.Meta(min_length=1)]
    mean: list[Number]
    scale: list[Positive]
    network: Annotated[list[Layer], msgspec.Meta(min_length=1)]
    ranges: dict[str, Annotated[list[Number | str], msgspec.Meta(min_length=1)]]
    training: dict[str, Any]
    errors: dict[str, Any]

    def predict(self, table: LayerTable, devices: Devices | None = None) -> np.ndarray:
        """(n,) times of the rows in ms, at least 0, in their order.

        `devices`: data sheets of GPUs that neither the model nor gpus.csv has (they count before those).
        InputError: rows of another kind of layer, of a GPU without a data sheet, or, for a model of one
        GPU, of another one.
        """
        if table.layer != self.layer:
            raise InputError(
                f"the model is of {self.layer} layers and the table of {table.layer} layers; expected "
                "both of one kind"
            )
        if not len(table):
            return np.zeros(0)
        recipe, names = RECIPES[self.recipe], dict.fromkeys(table["gpu"].tolist())
        facts = dict(self.devices)
        if len(self.devices) > 1:  # then a new one can be asked about
            facts |= known(names, self._known(devices))
        elif other := [name for name in names if key(name) not in self.devices]:
            (only,) = self.devices.values()
            raise InputError(
                f"the model is of {only.name} alone and the table has rows of {plain(other[0])}; expected "
                f"rows of {only.name}, or a model of several GPUs (`lolat mlp fit` of all GPUs of a table)",
                code="other-device",
            )
        features = recipe.features(table, facts, self.devices)
        output = output_of(self.network, (features - np.array(self.mean)) / np.array(self.scale))
        return recipe.decode(output, table, facts)

    def outside(self, table: LayerTable) -> str | None:
        """One line if rows lie outside the training rows, column by column; else None."""
        rows = np.zeros(len(table), bool)
        reasons = []
        for column, seen in self.ranges.items():
            values = table[column]
            if all(isinstance(v, str) for v in seen):
                name: Callable[[str], str] = key if column == "gpu" else str
                new = ~np.isin(mapped(values, name, str), [name(str(v)) for v in seen])
                words = ", ".join(plain(str(v)) for v in seen)
            else:
                new = (values < seen[0]) | (values > seen[-1])
                words = f"{seen[0]}..{seen[-1]}"
            if new.any():
                rows |= new
                reasons.append(f"{column} {words}")
        if not reasons:
            return None
        return (
            f"{int(rows.sum())} of {len(table)} rows lie outside what the model was trained on "
            f"({'; '.join(reasons)})"
        )

    def _known(self, devices: Devices | None) -> Devices:
        """All GPUs with a data sheet."""
        return {**DEVICES, **self.devices, **(devices or {})}


def ranges(table: LayerTable) -> dict[str, list[Any]]:
    """The ranges of a table: [lowest, highest] of each size, the words of each other column."""
    covered: dict[str, list[Any]] = {}
    for name in COLUMNS[table.layer]:
        values = table[name]
        sizes = values.dtype.kind in "iu"
        covered[name] = (
            [int(values.min()), int(values.max())] if sizes else sorted(set(values.tolist()))
        )
    return covered


def read_layer_model(path: str | Path) -> LayerModel:
    """The model in a file. ModelFileError, one line that names the path, if it is not a whole one."""
    source, document = shown_path(path), read_json(path, _EXPECTED)
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA or document.get("version") != VERSION:
        raise ModelFileError(f"{source}: is not a layer model of version {VERSION}; {_EXPECTED}")
    try:
        return msgspec.convert(document, LayerModel, dec_hook=_array)
    except (msgspec.ValidationError, ValueError) as error:
        raise ModelFileError(f"{source}: {one_line(error)}; {_EXPECTED}") from None


def write_layer_model(path: str | Path, model: LayerModel) -> None:
    """Put a model at `path` in one step. ModelFileError for a field that JSON cannot hold, InputError where
    the path is not writable."""
    document = {"schema": SCHEMA, "version": VERSION}
    document |= msgspec.to_builtins(model, enc_hook=_array_document)
    write_bytes(path, to_json(document, plain(str(path))).encode("ascii"))


def _array_document(values: np.ndarray) -> dict[str, Any]:
    """float32 as JSON: the shape, and base64 of the numbers, little-endian, row by row."""
    content = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return {"shape": list(values.shape), "float32": base64.b64encode(content).decode("ascii")}


def _array(kind: type, document: Any) -> np.ndarray:
    """The array of `_array_document`; ValueError for other lengths and numbers that are not finite."""
    content = base64.b64decode(str(document["float32"]), validate=True)
    array = np.frombuffer(content, "<f4").reshape(document["shape"]).astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError("weights that are not finite")
    return array


# ---- How far predicted times are from measured ones, altogether, by GPU and by optimizer.


@dataclass(frozen=True)
class Errors:
    """Of n rows: root mean square error, ms, and |predicted / measured - 1|, mean and median."""

    rows: int
    rmse_ms: float
    mean_relative_error: float
    median_relative_error: float


@dataclass(frozen=True)
class Evaluation:
    """Errors of all rows, and of those of each GPU and each optimizer (none: forward only)."""

    all: Errors
    gpus: dict[str, Errors]
    optimizers: dict[str, Errors]


def errors_of(predicted_ms: np.ndarray, measured_ms: np.ndarray) -> Errors:
    """The errors of n rows, n at least 1; measured times above 0."""
    relative = np.abs(predicted_ms / measured_ms - 1)
    return Errors(
        rows=len(measured_ms),
        rmse_ms=float(np.sqrt(np.mean((predicted_ms - measured_ms) ** 2))),
        mean_relative_error=float(relative.mean()),
        median_relative_error=float(np.median(relative)),
    )


def evaluate(model: LayerModel, table: LayerTable, devices: Devices | None = None) -> Evaluation:
    """The errors of a model on a table with times; `devices` as in `LayerModel.predict`."""
    predicted, measured = model.predict(table, devices), table.times_ms
    sheets = model._known(devices)
    # By the devices' own names, so that `v100` and `V100` are one group.
    gpus = mapped(table["gpu"], lambda name: sheets[key(name)].name, str)

    def parts(names: np.ndarray, order: Iterable[str]) -> dict[str, Errors]:
        masks = {name: names == name for name in order}
        return {n: errors_of(predicted[m], measured[m]) for n, m in masks.items() if m.any()}

    return Evaluation(
        errors_of(predicted, measured),
        parts(gpus, [device.name for device in sheets.values()]),
        parts(table["optimizer"], OPTIMIZERS),
    )
