"""A trained network for layers: in its JSON file, asked with numpy alone, and how far off it is."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from lolat.errors import InputError, ModelFileError, arg
from lolat.io.documents import Number, Positive, converted, read_json, to_json
from lolat.io.results import keys, of
from lolat.io.writing import shown_path, write_bytes
from lolat.mlp.devices import DEVICES, Device, device_from, key, known, merged
from lolat.mlp.recipes import RECIPES, Facts, find_recipe
from lolat.mlp.table import COLUMNS, OPTIMIZERS, WORDS, LayerTable, mapped
from lolat.model.file import OF_LAYERS
from lolat.model.file import SCHEMA as OF_DEVICE
from lolat.units import digits, percent, plain

# ---- A multilayer perceptron in numpy: forward only, float32, in slices of rows.
#
# Layers are y = f(x W + b) with W (in, out). An ensemble is several networks of the same input, whose
# outputs are averaged.

SLICE = 512
"""Rows per slice: what lies between two layers of 256 stays in the processor's cache."""


def _silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)) in place; exp of a large number is infinite and the quotient 0, as it should be."""
    bottom = np.negative(x)
    np.exp(bottom, out=bottom)
    bottom += 1
    return np.divide(x, bottom, out=x)


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0, out=x),
    "silu": _silu,
    "linear": lambda x: x,
}
"""Each overwrites its argument (rows, units) and returns it."""


@dataclass(frozen=True)
class Layer:
    """f(x W + b): `weights` (in, out) float32, `biases` (out,) float32 or None, f one of ACTIVATIONS."""

    weights: np.ndarray
    biases: np.ndarray | None
    activation: str

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}"
            )
        if self.weights.ndim != 2:
            raise ValueError(f"weights of shape {self.weights.shape}; expected (in, out)")
        if self.biases is not None and self.biases.shape != self.weights.shape[1:]:
            raise ValueError(
                f"biases of shape {self.biases.shape}; expected {self.weights.shape[1:]}"
            )


@dataclass(frozen=True)
class Perceptron:
    """One network or several of the same input: `members`, each its layers in order, the last one wide."""

    members: Sequence[Sequence[Layer]]

    def __post_init__(self) -> None:
        if not self.members or not all(self.members):
            raise ValueError("no layers; expected one network at least, of one layer at least")
        for layers in self.members:
            width = self.inputs
            for layer in layers:
                if layer.weights.shape[0] != width:
                    raise ValueError(
                        f"weights for {layer.weights.shape[0]} inputs follow {width} outputs"
                    )
                width = layer.weights.shape[1]
            if width != 1:
                raise ValueError(f"{width} outputs; expected one")

    @property
    def inputs(self) -> int:
        """Number of features."""
        return int(self.members[0][0].weights.shape[0])

    def __call__(self, x: np.ndarray, mean: Any = 0.0, scale: Any = 1.0) -> np.ndarray:
        """(n,) float64: the mean output of the members for features (n, inputs), standardized here."""
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"features of shape {x.shape}; expected (rows, {self.inputs})")
        total = np.zeros(len(x))
        for start in range(0, len(x), SLICE):
            standard = (x[start : start + SLICE] - mean) / scale
            part = standard.astype(np.float32)
            with np.errstate(over="ignore"):
                for layers in self.members:
                    total[start : start + SLICE] += _forward(layers, part)
        return total / len(self.members)


def _forward(layers: Sequence[Layer], x: np.ndarray) -> np.ndarray:
    """(n,) output of one network for (n, inputs) float32."""
    for layer in layers:
        x = x @ layer.weights
        if layer.biases is not None:
            x += layer.biases
        x = ACTIVATIONS[layer.activation](x)
    return x[:, 0]


# ---- What a layer model's file holds; a reader of version 1 reads every later minor addition.

SCHEMA = OF_LAYERS
VERSION = 1
LARGEST_BYTES = 256 * 2**20
_EXPECTED = "expected a layer model (`lolat mlp fit` makes one)"


class ArrayDocument(msgspec.Struct):
    """Floats: base64 of them, little-endian, row by row."""

    shape: list[int]
    float32: str

    def array(self) -> np.ndarray:
        """float32, in the order of this machine; ValueError for other lengths and what is not finite."""
        values = np.frombuffer(base64.b64decode(self.float32, validate=True), "<f4")
        array = values.reshape(self.shape).astype(np.float32)
        if not np.isfinite(array).all():
            raise ValueError("weights that are not finite")
        return array


class LayerDocument(msgspec.Struct):
    """f(x W + b): weights (in, out), biases (out,)."""

    activation: Literal["relu", "silu", "linear"]
    weights: ArrayDocument
    biases: ArrayDocument | None


class Features(msgspec.Struct):
    """The network sees (x - mean) / scale."""

    names: Annotated[list[str], msgspec.Meta(min_length=1)]
    mean: list[Number]
    scale: list[Positive]


class ModelDocument(msgspec.Struct):
    """A layer model's file.

    `devices`: the GPUs of the training rows, {name: facts}; `members`: the networks, each a list of layers
    in order; `ranges`: what the training rows covered, {column: [lowest, highest] | [words]}; `training`:
    how it was trained: seed, rows, epochs, versions, date ...; `errors`: on rows left out of training:
    rmse_ms, mean_relative_error ...; {} where none were.
    """

    layer: Literal["convolution", "dense"]
    recipe: str
    devices: Annotated[dict[str, dict[str, Any]], msgspec.Meta(min_length=1)]
    features: Features
    members: list[list[LayerDocument]]
    ranges: dict[str, Annotated[list[Number | str], msgspec.Meta(min_length=1)]]
    training: dict[str, Any]
    errors: dict[str, Any]
    version: Literal[1]


@dataclass(frozen=True)
class LayerModel:
    """What `lolat mlp fit` learned.

    `layer`: "convolution" or "dense"; `devices`: the GPUs of its training rows, with the facts used;
    `features`: their names, with `mean` and `scale` (k,) of the standardization; `ranges`: what its
    training rows covered, (lowest, highest) of a size and the words of the others; `training`: how it was
    trained; `errors`: on rows left out of training, empty where there were none.
    """

    layer: str
    recipe: str
    devices: Mapping[str, Device]
    features: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    network: Perceptron
    ranges: Mapping[str, Sequence[Any]]
    training: Mapping[str, Any]
    errors: Mapping[str, Any]

    def predict(self, table: LayerTable, devices: Mapping[str, Device] | None = None) -> np.ndarray:
        """(n,) times of the rows in ms, at least 0, in their order.

        `devices`: facts of GPUs that neither the model nor the built-in table has (they count before
        those). Raises InputError: rows of another kind of layer, of a GPU without facts, or, for a model
        of one GPU, of another one.
        """
        if table.layer != self.layer:
            raise InputError(
                f"the model is of {self.layer} layers and the table of {table.layer} layers; expected "
                "both of one kind"
            )
        if not len(table):
            return np.zeros(0)
        recipe = find_recipe(self.recipe)
        facts = self._facts(table, devices or {})
        names, features = recipe.features(table, facts)
        if names != self.features:
            raise ModelFileError(
                f"the model was trained with other features than the recipe {self.recipe} has in this "
                "version of LoLat; train it again with `lolat mlp fit`"
            )
        require_known(features, names, "model")
        with np.errstate(over="ignore", invalid="ignore"):
            output = self.network(features, self.mean, self.scale)
            times = recipe.decode(output, table, facts)
        if not np.isfinite(times).all():
            row = int(np.argmin(np.isfinite(times)))
            raise ModelFileError(
                f"the model gives row {row + 1} no finite time, as no trained one does; train it again "
                "with `lolat mlp fit`"
            )
        return times

    def outside(self, table: LayerTable) -> str | None:
        """One line where rows lie outside what the model was trained on, column by column; else None."""
        rows = np.zeros(len(table), bool)
        reasons = []
        for column, seen in self.ranges.items():
            values = table[column]
            if all(isinstance(v, str) for v in seen):
                name = key if column == "gpu" else str
                new = ~np.isin(mapped(values, name, str), list(map(name, seen)))
            else:
                new = (values < seen[0]) | (values > seen[1])
            if new.any():
                rows |= new
                reasons.append(f"{column} {_shown(seen)}")
        if not reasons:
            return None
        return (
            f"{int(rows.sum())} of {len(table)} rows lie outside what the model was trained on "
            f"({'; '.join(reasons)})"
        )

    def _facts(self, table: LayerTable, devices: Mapping[str, Device]) -> dict[str, Device]:
        names = dict.fromkeys(table["gpu"].tolist())
        if len(self.devices) > 1:  # then a new one can be asked about
            everything = merged(DEVICES, self.devices, devices)
            own = {
                n: d for n, d in everything.items() if any(key(n) == key(m) for m in self.devices)
            }
            return Facts(own | known(names, everything), trained=own)
        own = dict(self.devices)
        (only,) = own
        other = [name for name in names if key(name) != key(only)]
        if other:
            raise InputError(
                f"the model is of {only} alone and the table has rows of {plain(other[0])}; expected rows "
                f"of {only}, or a model of several GPUs (`lolat mlp fit` of all GPUs of a table)"
            )
        return own


def require_known(features: np.ndarray, names: Sequence[str], what: str) -> None:
    """InputError where one of the `features` (n, k), which `what` needs, is not known of all rows."""
    lacking = [
        n for n, good in zip(names, np.isfinite(features).all(axis=0), strict=True) if not good
    ]
    if lacking:
        raise InputError(
            f"the {what} needs {', '.join(lacking)} of each GPU, and they are not known of all in the "
            f"table; give them with {arg('facts')}"
        )


def ranges(table: LayerTable) -> dict[str, list[Any]]:
    """What a table covers: [lowest, highest] of each size, the words of each other column."""
    covered: dict[str, list[Any]] = {}
    for name in COLUMNS[table.layer]:
        values = table[name]
        if values.dtype.kind in "iu":
            covered[name] = [int(values.min()), int(values.max())]
        else:
            covered[name] = sorted(set(values.tolist()))
    return covered


def read_layer_model(path: str | Path) -> LayerModel:
    """The model in a file. ModelFileError, one line that names the path, where it is not a whole one."""
    return from_document(read_json(path, _EXPECTED, LARGEST_BYTES), shown_path(path))


def write_layer_model(path: str | Path, model: LayerModel) -> None:
    """Put a model at `path` in one step; reading it gives an equal one.

    Raises ModelFileError where a field is not valid, InputError where the path is not writable.
    """
    document: dict[str, Any] = msgspec.to_builtins(
        {
            "schema": SCHEMA, "version": VERSION, "layer": model.layer, "recipe": model.recipe,
            "devices": {name: device.to_dict() for name, device in model.devices.items()},
            "features": {
                "names": list(model.features), "mean": model.mean.tolist(), "scale": model.scale.tolist(),
            },
            "members": model.network.members,
            "ranges": {name: list(seen) for name, seen in model.ranges.items()},
            "training": model.training, "errors": model.errors,
        },
        enc_hook=_array_document,
    )  # fmt: skip
    text = to_json(document, plain(str(path)))
    from_document(document, plain(str(path)))
    write_bytes(path, text.encode("ascii"))


def _array_document(values: np.ndarray) -> ArrayDocument:
    content = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return ArrayDocument(list(values.shape), base64.b64encode(content).decode("ascii"))


def from_document(document: Any, source: str = "document") -> LayerModel:
    """The model of a document; ModelFileError names `source` and the field that is wrong."""
    _check_kind(document, source)
    contents: ModelDocument = converted(document, ModelDocument, source)
    if contents.recipe not in RECIPES:
        raise _wrong(source, "recipe", " or ".join(RECIPES))
    features, width = contents.features, len(contents.features.names)
    if not len(features.mean) == len(features.scale) == width:
        raise _wrong(source, "features", f"a mean and a scale of each of {width}")
    try:
        devices = {
            name: replace(
                device_from({"name": name, **facts}, f"{source}: devices.{name}"), name=name
            )
            for name, facts in contents.devices.items()
        }
        network = Perceptron([[_layer(layer) for layer in layers] for layers in contents.members])
    except InputError as error:
        raise ModelFileError(error.message) from None
    except ValueError as error:
        raise _wrong(source, "members", f"networks of layers ({error})") from None
    if network.inputs != width:
        raise _wrong(source, "members", f"networks of {width} inputs, one per feature")
    for column, seen in contents.ranges.items():
        words = [isinstance(value, str) for value in seen]
        if column == "gpu" or column in WORDS:
            good = all(words)
        else:
            good = not any(words) and len(seen) == 2 and seen[0] <= seen[1]  # type: ignore[operator]
        if not good or column not in COLUMNS[contents.layer]:
            raise _wrong(
                source, f"ranges.{column}", "[lowest, highest] of a size, or a list of words"
            )
    return LayerModel(
        contents.layer, contents.recipe, devices, tuple(features.names), np.array(features.mean),
        np.array(features.scale), network, document["ranges"], contents.training, contents.errors,
    )  # fmt: skip


def _layer(document: LayerDocument) -> Layer:
    biases = None if document.biases is None else document.biases.array()
    return Layer(document.weights.array(), biases, document.activation)


def _check_kind(document: Any, source: str) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == OF_DEVICE:
        raise ModelFileError(
            f"{source}: is a model of a device, which `lolat predict` takes; {_EXPECTED}"
        )
    if schema != SCHEMA:
        raise ModelFileError(f"{source}: is not a layer model (no schema {SCHEMA}); {_EXPECTED}")
    version = document.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise ModelFileError(
            f"{source}: version {version} of the file is newer than this LoLat knows ({VERSION}); "
            "update LoLat, or train the model again"
        )


def _wrong(source: str, field: str, expected: str) -> ModelFileError:
    return ModelFileError(
        f"{source}: {field} is wrong; expected {expected}: copy the file again, or train it again"
    )


def _shown(seen: Sequence[Any]) -> str:
    if all(isinstance(v, str) for v in seen):
        return ", ".join(plain(v) for v in seen)
    return f"{seen[0]}..{seen[1]}"


# ---- How far predicted times are from measured ones, altogether, by GPU and by optimizer.

SPREAD = "time_ms_std"


@dataclass(frozen=True)
class Errors:
    """Of n rows: root mean square error, ms, and |predicted / measured - 1|, mean and median.

    `spread`: median over the rows of standard deviation / median of their repeated measurements, below
    which no model can come; None where the table does not have it.
    """

    rows: int
    rmse_ms: float
    mean_relative_error: float
    median_relative_error: float
    spread: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Errors of all rows, and of those of each GPU and each optimizer (none: forward only)."""

    KEYS = (*of("all", *keys(Errors)), "gpus", "optimizers")

    all: Errors
    gpus: Mapping[str, Errors]
    optimizers: Mapping[str, Errors]

    def lines(self) -> list[str]:
        """A table for people."""
        optimizers = {"forward only" if n == "none" else n: e for n, e in self.optimizers.items()}
        groups = [{"all": self.all}, self.gpus, optimizers]
        width = max(len(plain(name)) for group in groups for name in group)
        heads = ["rows", "RMSE, ms", "mean error", "median"]
        heads += ["spread"] if self.all.spread is not None else []
        lines = [" " * width + "".join(f"{head:>12}" for head in heads)]
        for number, group in enumerate(groups):
            lines += [""] if number else []
            for name, e in group.items():
                cells = [f"{e.rows:,}", digits(e.rmse_ms), percent(e.mean_relative_error)]
                cells += [
                    percent(e.median_relative_error),
                    "" if e.spread is None else percent(e.spread),
                ]
                told = "".join(f"{cell:>12}" for cell in cells[: len(heads)])
                lines.append(f"{plain(name):{width}}{told}")
        return lines


def errors_of(
    predicted_ms: np.ndarray, measured_ms: np.ndarray, std_ms: np.ndarray | None = None
) -> Errors:
    """The errors of n rows, n at least 1; measured times above 0. NaN in `std_ms` (n,) is left out."""
    relative = np.abs(predicted_ms / measured_ms - 1)
    spread = None
    if std_ms is not None and np.isfinite(std_ms).any():
        spread = float(np.nanmedian(std_ms / measured_ms))
    return Errors(
        rows=len(measured_ms),
        rmse_ms=float(np.sqrt(np.mean((predicted_ms - measured_ms) ** 2))),
        mean_relative_error=float(relative.mean()),
        median_relative_error=float(np.median(relative)),
        spread=spread,
    )


def evaluate(
    model: LayerModel, table: LayerTable, devices: Mapping[str, Device] | None = None
) -> Evaluation:
    """The errors of a model on a table with times; `devices` as in `LayerModel.predict`."""
    predicted = model.predict(table, devices)
    everything = merged(DEVICES, model.devices, devices or {})
    # By the devices' own names, so that `v100` and `V100` are one group.
    gpus = mapped(table["gpu"], lambda name: next(iter(known([name], everything))), str)

    def part(rows: np.ndarray) -> Errors:
        std = table[SPREAD][rows] if SPREAD in table else None
        return errors_of(predicted[rows], table.times_ms[rows], std)

    def parts(names: np.ndarray, order: Iterable[str]) -> dict[str, Errors]:
        there = set(names.tolist())
        return {name: part(names == name) for name in order if name in there}

    optimizers = parts(table["optimizer"], OPTIMIZERS)
    return Evaluation(part(np.ones(len(table), bool)), parts(gpus, everything), optimizers)
