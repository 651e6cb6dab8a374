"""A trained network for layers, from its JSON file: asked with numpy alone.

`layer_schema` says what the file holds.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.mlp.devices import DEVICES, Device, device_from, key, known, merged
from lolat.mlp.perceptron import Layer, Perceptron
from lolat.mlp.recipes import RECIPES, Facts, Recipe, find_recipe
from lolat.mlp.table import COLUMNS, LAYERS, LayerTable
from lolat.model.file import to_json, write_bytes
from lolat.units import plain

# ---- What a layer model's JSON file holds, schema "lolat-layer-model", version 1.
#
#     schema, version   which file this is; a reader of version 1 reads every later minor addition
#     layer, recipe     "convolution" | "dense"; the recipe's name
#     devices           the GPUs of the training rows: {name: facts}
#     features          {"names": [k], "mean": [k], "scale": [k]}: the network sees (x - mean) / scale
#     members           the networks, their outputs averaged; each a list of layers f(x W + b) in order:
#                       {"activation": "relu"|"silu"|"linear", "weights": array (in, out),
#                       "biases": array (out,)|null}
#     ranges            what the training rows covered: {column: [lowest, highest] | [words]}
#     training          how it was trained: seed, rows, epochs, versions, date ...
#     errors            on rows left out of training: rmse_ms, mean_relative_error ...; {} where none were
#
# An array is {"shape": [...], "float32": base64 of its little-endian floats, row by row}.

SCHEMA = "lolat-layer-model"
VERSION = 1
_EXPECTED = "expected a layer model (`lolat mlp fit` makes one)"


def document_of(
    *,
    layer: str,
    recipe: str,
    devices: Mapping[str, Device],
    features: Sequence[str],
    mean: np.ndarray,
    scale: np.ndarray,
    members: Sequence[Sequence[Layer]],
    ranges: Mapping[str, Sequence[Any]],
    training: Mapping[str, Any],
    errors: Mapping[str, Any],
) -> dict[str, Any]:
    """The document of a trained model; arrays as in `layer_model.LayerModel`."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "layer": layer,
        "recipe": recipe,
        "devices": {name: device.to_dict() for name, device in devices.items()},
        "features": {
            "names": list(features),
            "mean": [float(v) for v in mean],
            "scale": [float(v) for v in scale],
        },
        "members": [[_layer_out(item) for item in layers] for layers in members],
        "ranges": {name: list(seen) for name, seen in ranges.items()},
        "training": dict(training),
        "errors": dict(errors),
    }


def checked(document: Any, source: str) -> dict[str, Any]:
    """The fields of `layer_model.LayerModel` from a document; ModelFileError names what is wrong."""
    _check_kind(document, source)
    layer = _word(document, "layer", LAYERS, source)
    recipe = _word(document, "recipe", tuple(RECIPES), source)
    devices = {
        str(name): _device(name, facts, source)
        for name, facts in _object(document, "devices", source).items()
    }
    if not devices:
        raise _wrong(source, "devices", "one GPU at least")
    features = _object(document, "features", source)
    names = features.get("names")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise _wrong(source, "features.names", "a list of names")
    mean, scale = (_numbers(features, name, len(names), source) for name in ("mean", "scale"))
    if not (scale > 0).all():
        raise _wrong(source, "features.scale", "numbers above 0")
    network = _network(document.get("members"), source)
    if network.inputs != len(names):
        raise _wrong(source, "members", f"networks of {len(names)} inputs, one per feature")
    ranges = _object(document, "ranges", source)
    for column in ranges:
        _check_range(column, ranges[column], layer, source)
    return {
        "layer": layer,
        "recipe": recipe,
        "devices": devices,
        "features": tuple(names),
        "mean": mean,
        "scale": scale,
        "network": network,
        "ranges": ranges,
        "training": _object(document, "training", source),
        "errors": _object(document, "errors", source),
    }


def _check_kind(document: Any, source: str) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == "lolat-model":
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
    if version is True or version != VERSION:
        raise _wrong(source, "version", str(VERSION))


def _wrong(source: str, field: str, expected: str) -> ModelFileError:
    return ModelFileError(
        f"{source}: {field} is wrong; expected {expected}: copy the file again, or train it again"
    )


def _word(document: Mapping[str, Any], field: str, words: Sequence[str], source: str) -> str:
    value = document.get(field)
    if not isinstance(value, str) or value not in words:
        raise _wrong(source, field, " or ".join(words))
    return value


def _object(document: Mapping[str, Any], field: str, source: str) -> dict[str, Any]:
    value = document.get(field)
    if not isinstance(value, dict):
        raise _wrong(source, field, "an object")
    return value


def _device(name: str, facts: Any, source: str) -> Device:
    if not isinstance(facts, dict):
        raise _wrong(source, f"devices.{name}", "an object of facts")
    try:
        return device_from({"name": name, **facts}, f"{source}: devices.{name}")
    except InputError as error:
        raise ModelFileError(str(error)) from None


def _numbers(features: Mapping[str, Any], name: str, count: int, source: str) -> np.ndarray:
    values = features.get(name)
    good = isinstance(values, list) and len(values) == count
    if not good or not all(_finite(v) for v in values or ()):
        raise _wrong(source, f"features.{name}", f"{count} numbers")
    return np.array(values, np.float64)


def _finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _check_range(column: str, seen: Any, layer: str, source: str) -> None:
    """Words of gpu, padding, activation and optimizer; two numbers, in order, of the sizes."""
    field = f"ranges.{column}"
    if column not in COLUMNS[layer]:
        raise _wrong(source, field, f"only columns of a {layer} layer")
    if not isinstance(seen, list) or not seen:
        raise _wrong(source, field, "[lowest, highest] or a list of words")
    words = column in ("gpu", "padding", "activation", "optimizer")
    if words and not all(isinstance(v, str) for v in seen):
        raise _wrong(source, field, "a list of words")
    if not words and not (len(seen) == 2 and all(map(_finite, seen)) and seen[0] <= seen[1]):
        raise _wrong(source, field, "[lowest, highest]")


def _network(members: Any, source: str) -> Perceptron:
    if not isinstance(members, list) or not members:
        raise _wrong(source, "members", "a list of networks")
    try:
        return Perceptron([[_layer_in(item) for item in layers] for layers in members])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _wrong(source, "members", f"networks of layers ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    return f"lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def _layer_out(layer: Layer) -> dict[str, Any]:
    return {
        "activation": layer.activation,
        "weights": _array_out(layer.weights),
        "biases": None if layer.biases is None else _array_out(layer.biases),
    }


def _layer_in(item: Any) -> Layer:
    biases = item["biases"]
    return Layer(
        _array_in(item["weights"]),
        None if biases is None else _array_in(biases),
        item["activation"],
    )


def _array_out(values: np.ndarray) -> dict[str, Any]:
    content = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return {"shape": list(values.shape), "float32": base64.b64encode(content).decode("ascii")}


def _array_in(item: Any) -> np.ndarray:
    """float32, in the order of this machine; ValueError for other lengths and what is not finite."""
    values = np.frombuffer(base64.b64decode(item["float32"], validate=True), "<f4")
    found = values.reshape([int(size) for size in item["shape"]]).astype(np.float32)
    if not np.isfinite(found).all():
        raise ValueError("weights that are not finite")
    return found


# ---- layer model ----------------------------------------

LARGEST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class LayerModel:
    """What `lolat mlp fit` learned.

    `layer`: "convolution" or "dense"; `devices`: the GPUs of its training rows, with the facts used;
    `features`: their names, with `mean` and `scale` (k,) of the standardisation; `ranges`: what its
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

    @property
    def several_devices(self) -> bool:
        """True where devices' facts may be among the features, so that a new one can be asked about."""
        return len(self.devices) > 1

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
        features = recipe.features(table, facts)
        self._check_features(recipe, features)
        output = self.network((features - self.mean) / self.scale)
        return recipe.decode(output, table, facts)

    def outside(self, table: LayerTable) -> str | None:
        """One line where rows lie outside what the model was trained on, column by column; else None."""
        rows = np.zeros(len(table), bool)
        reasons = []
        for column, seen in self.ranges.items():
            values = table[column]
            if column == "gpu":
                trained = {key(name) for name in seen}
                new = _unseen(values, trained.__contains__, key)
            elif all(isinstance(v, str) for v in seen):
                new = _unseen(values, seen.__contains__)
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
        if self.several_devices:
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
                f"of {only}, or a model of several GPUs (lolat mlp fit --gpus all)"
            )
        return own

    def _check_features(self, recipe: Recipe, features: np.ndarray) -> None:
        if features.shape[1] != len(self.features) or self.features != recipe.feature_names(
            self.layer, self.several_devices
        ):
            raise ModelFileError(
                f"the model was trained with other features than the recipe {self.recipe} has in this "
                "version of LoLat; train it again with `lolat mlp fit`"
            )
        bad = ~np.isfinite(features).all(axis=0)
        if bad.any():
            lacking = ", ".join(n for n, b in zip(self.features, bad, strict=True) if b)
            raise InputError(
                f"the model needs {lacking} of each GPU, and they are not known of all in the table; give "
                "them with --devices FILE"
            )


def ranges(table: LayerTable) -> dict[str, list[Any]]:
    """What a table covers: [lowest, highest] of each size, the words of each other column."""
    found: dict[str, list[Any]] = {}
    for name in COLUMNS[table.layer]:
        values = table[name]
        if values.dtype.kind in "iu":
            found[name] = [int(values.min()), int(values.max())]
        else:
            found[name] = sorted(set(values.tolist()))
    return found


def read_layer_model(path: str | Path) -> LayerModel:
    """The model in a file. ModelFileError, one line that names the path, where it is not a whole one."""
    source = plain(str(path))
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise ModelFileError(f"{source}: no such file; {_EXPECTED}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelFileError(f"{source}: cannot be read ({reason}); {_EXPECTED}") from None
    if len(content) > LARGEST_BYTES:
        raise ModelFileError(
            f"{source}: too large; {_EXPECTED} of at most {LARGEST_BYTES // 2**20} MiB"
        )
    return from_document(_parsed(content, source), source)


def write_layer_model(path: str | Path, model: LayerModel) -> None:
    """Put a model at `path` in one step; reading it gives an equal one.

    Raises ModelFileError where a field is not valid, InputError where the path is not writable.
    """
    source = plain(str(path))
    document = document_of(
        layer=model.layer,
        recipe=model.recipe,
        devices=model.devices,
        features=model.features,
        mean=model.mean,
        scale=model.scale,
        members=model.network.members,
        ranges=model.ranges,
        training=model.training,
        errors=model.errors,
    )
    text = to_json(document, source)
    checked(document, source)
    write_bytes(path, text.encode("ascii"))


def from_document(document: Any, source: str = "document") -> LayerModel:
    """The model of a document; ModelFileError names `source` and the field that is wrong."""
    fields = checked(document, source)
    return LayerModel(**fields)


def _parsed(content: bytes, source: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ModelFileError(f"{source}: not UTF-8 text; {_EXPECTED}") from None
    except (ValueError, RecursionError) as error:
        if not content.strip():
            raise ModelFileError(f"{source}: is empty; {_EXPECTED}") from None
        if content.lstrip().startswith(b"{") and not content.rstrip().endswith(b"}"):
            raise ModelFileError(
                f"{source}: looks truncated, after {len(content)} bytes; {_EXPECTED}: copy it again, or "
                "train it again"
            ) from None
        raise ModelFileError(f"{source}: not JSON ({error}); {_EXPECTED}") from None


def _unseen(
    values: np.ndarray, seen: Callable[[str], bool], name: Callable[[str], str] = str
) -> np.ndarray:
    """(n,) bool: whether a text's name is not among those `seen`; asked once for each that is different."""
    texts = values.tolist()
    answers = {text: not seen(name(text)) for text in set(texts)}
    return np.fromiter((answers[t] for t in texts), bool, len(texts))


def _shown(seen: Sequence[Any]) -> str:
    if all(isinstance(v, str) for v in seen):
        return ", ".join(plain(v) for v in seen)
    return f"{seen[0]}..{seen[1]}"
