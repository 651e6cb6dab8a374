"""Regular networks made from a few numbers, as functional Keras models: `generate:vgg?layers=2,2`.

The families are those of the Benchmarked Insights study (nilax97/DL-Sys-Perf-Project), with its order of
layers.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from lolat.readers.keras import import_keras, without_weights

Values = dict[str, tuple[Any, ...]]
PREFIX = "generate:"
_HEAD: Values = {"hidden": (100,), "input": (128,), "output": (2,)}
_BRANCHES = {"f1": 64, "f2_in": 128, "f2_out": 192, "f3_in": 32, "f3_out": 32, "f4_out": 32}
FAMILIES: dict[str, Values] = {
    "vgg": {"layers": (2,), "filters": (16,), **_HEAD},
    "resnet": {"layers": (3, 3, 3, 3), "small": (False,), **_HEAD},
    "inception": {"layers": (1, 1, 1), **{key: (n,) for key, n in _BRANCHES.items()}, **_HEAD},
    "fc": {"layers": (1000,), "input": (128,), "output": (2,), "input_dropout": (0.2,), "dropout": (0.5,)},
}  # fmt: skip
"""Family -> key -> its usual values."""


def build(network: str, weights: bool = False) -> Any:
    """The Keras model of `generate:FAMILY?key=value&...`; `weights`: random ones, so that it can run."""
    name, _, options = network.removeprefix(PREFIX).partition("?")
    values = Values()
    for part in filter(None, options.split("&")):
        key, _, text = part.partition("=")
        values[key] = tuple(json.loads("[]" if text == "none" else f"[{text}]"))
    if name == "vgg":  # filters double from stage to stage, as in the study
        layers = values.setdefault("layers", (2,) * len(values.get("filters", (16,))))
        values.setdefault("filters", tuple(16 << i for i in range(len(layers))))
    values = FAMILIES[name] | values
    keras, shape = import_keras(), values["input"]
    body = {"vgg": _vgg, "resnet": _resnet, "inception": _inception, "fc": _fc}[name]
    shape = shape if name == "fc" or len(shape) > 2 else (*(shape * 2)[:2], 3)
    with contextlib.nullcontext() if weights else without_weights():
        image = keras.Input(shape, name="input")
        x = body(keras.layers, image, values)
        for i, width in enumerate(values.get("hidden", ()), start=1):
            x = keras.layers.Dense(width, activation="relu", name=f"hidden{i}")(x)
        x = keras.layers.Dense(*values["output"], activation="softmax", name="output")(x)
        return keras.Model(image, x, name=name)


def _of_stage(values: Values, key: str, stage: int) -> Any:
    """The value of a stage: one for all, or one for each."""
    return values[key][stage if len(values[key]) > 1 else 0]


def _conv(layers: Any, x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
    """A convolution with ReLU, then normalization: in this order in all families."""
    options = {"padding": "same", "activation": "relu", **options}
    x = layers.Conv2D(filters, kernel, name=f"{name}_conv", **options)(x)
    return layers.BatchNormalization(name=f"{name}_norm")(x)


def _fc(layers: Any, x: Any, values: Values) -> Any:
    for share in values["input_dropout"]:
        x = layers.Dropout(share, name="input_dropout")(x)
    for i, width in enumerate(values["layers"], start=1):
        x = layers.Dense(width, activation="relu", name=f"hidden{i}_dense")(x)
        for share in values["dropout"]:
            x = layers.Dropout(share, name=f"hidden{i}_dropout")(x)
        x = layers.BatchNormalization(name=f"hidden{i}_norm")(x)
    return x


def _vgg(layers: Any, x: Any, values: Values) -> Any:
    for i, count in enumerate(values["layers"]):
        for j in range(1, count + 1):
            x = _conv(layers, x, _of_stage(values, "filters", i), 3, f"stage{i + 1}_layer{j}")
        x = layers.MaxPooling2D(2, name=f"stage{i + 1}_pool")(x)
    return layers.Flatten(name="flatten")(x)


def _resnet(layers: Any, x: Any, values: Values) -> Any:
    """A stage has one small block more than it is values; the shortcut of its first is a convolution."""
    x, (small,) = _conv(layers, x, 64, 7, "stem", strides=2), values["small"]
    x = layers.MaxPooling2D(3, strides=2, name="stem_pool")(x)
    for i, count in enumerate(values["layers"], start=1):
        for j in range(1, count + 1 + small):
            name, stride, wide = f"stage{i}_block{j}", 2 if i > 1 and j == 1 else 1, 32 << i
            y = _conv(layers, x, wide, 3 if small else 1, f"{name}_1", strides=stride)
            y = _conv(layers, y, wide, 3, f"{name}_2")
            y = y if small else _conv(layers, y, 4 * wide, 1, f"{name}_3", activation=None)
            if j == 1:
                plain = {"strides": stride, "activation": None}
                x = _conv(layers, x, y.shape[-1], 1, f"{name}_shortcut", **plain)
            x = layers.ReLU(name=f"{name}_out")(layers.Add(name=f"{name}_add")([x, y]))
    return layers.GlobalAveragePooling2D(name="average")(x)


def _inception(layers: Any, x: Any, values: Values) -> Any:
    pool, half = layers.MaxPooling2D, {"strides": 2, "padding": "same"}
    x = _conv(layers, x, 64, 7, "stem_1", strides=2, padding="valid")
    x = _conv(layers, pool(3, name="stem_1_pool", **half)(x), 128, 1, "stem_2")
    x = pool(3, name="stem_3_pool", **half)(_conv(layers, x, 192, 3, "stem_3"))
    for i, count in enumerate(values["layers"]):
        f = {key: _of_stage(values, key, i) for key in _BRANCHES}
        for name in [f"stage{i + 1}_block{j + 1}" for j in range(count)]:
            one = _conv(layers, x, f["f1"], 1, f"{name}_1x1")
            three = _conv(layers, x, f["f2_in"], 1, f"{name}_3x3_in")
            three = _conv(layers, three, f["f2_out"], 3, f"{name}_3x3_out")
            five = _conv(layers, x, f["f3_in"], 1, f"{name}_5x5_in")
            five = _conv(layers, five, f["f3_out"], 5, f"{name}_5x5_out")
            four = pool(3, strides=1, padding="same", name=f"{name}_pool")(x)
            four = _conv(layers, four, f["f4_out"], 1, f"{name}_pool_1x1")
            x = layers.Concatenate(name=f"{name}_concat")([one, three, five, four])
        x = pool(3, name=f"stage{i + 1}_pool", **half)(x)
    return layers.Flatten(name="flatten")(x)
