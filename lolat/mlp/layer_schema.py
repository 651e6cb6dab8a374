"""What a layer model's JSON file holds, schema "lolat-layer-model", version 1.

    schema, version   which file this is; a reader of version 1 reads every later minor addition
    layer, recipe     "convolution" | "dense"; the recipe's name
    devices           the GPUs of the training rows: {name: facts}
    features          {"names": [k], "mean": [k], "scale": [k]}: the network sees (x - mean) / scale
    members           the networks, their outputs averaged; each a list of layers f(x W + b) in order:
                      {"activation": "relu"|"silu"|"linear", "weights": array (in, out),
                      "biases": array (out,)|null}
    ranges            what the training rows covered: {column: [lowest, highest] | [words]}
    training          how it was trained: seed, rows, epochs, versions, date ...
    errors            on rows left out of training: rmse_ms, mean_relative_error ...; {} where none were

An array is {"shape": [...], "float32": base64 of its little-endian floats, row by row}.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.mlp.devices import Device, device_from
from lolat.mlp.perceptron import Layer, Perceptron
from lolat.mlp.recipe import RECIPES
from lolat.mlp.table import COLUMNS, LAYERS

SCHEMA = "lolat-layer-model"
VERSION = 1
_EXPECTED = "expected a layer model (`lolat mlp fit` makes one)"


def document(
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
