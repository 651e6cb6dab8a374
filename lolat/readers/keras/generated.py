"""Builds generated networks as functional Keras models, layer by layer as the study built its own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from lolat.readers.generated import Config, Fc, Inception, ResNet, Vgg
from lolat.readers.keras import import_keras
from lolat.readers.keras.calls import without_weights


def build(config: Config, weights: bool = False) -> Any:
    """The network of a configuration; `weights` asks for random weights, so that it can run."""
    keras = import_keras()
    with contextlib.nullcontext() if weights else without_weights():
        image = keras.Input(config.input, name="input")
        if isinstance(config, Fc):
            x = _fc(image, config)
        elif isinstance(config, Vgg):
            x = _dense(_vgg(image, config), config.hidden)
        elif isinstance(config, ResNet):
            x = _dense(_resnet(image, config), config.hidden)
        else:
            x = _dense(_inception(image, config), config.hidden)
        x = keras.layers.Dense(config.output, activation="softmax", name="output")(x)
        return keras.Model(image, x, name=config.family)


def _dense(x: Any, widths: Sequence[int]) -> Any:
    """The hidden layers after the convolutions."""
    from keras import layers

    for i, width in enumerate(widths, start=1):
        x = layers.Dense(width, activation="relu", name=f"hidden{i}")(x)
    return x


def _fc(x: Any, config: Fc) -> Any:
    """Dense, dropout and normalization, repeated; dropout of the input first."""
    from keras import layers

    if config.input_dropout is not None:
        x = layers.Dropout(config.input_dropout, name="input_dropout")(x)
    for i, width in enumerate(config.layers, start=1):
        x = layers.Dense(width, activation="relu", name=f"hidden{i}_dense")(x)
        if config.dropout is not None:
            x = layers.Dropout(config.dropout, name=f"hidden{i}_dropout")(x)
        x = layers.BatchNormalization(name=f"hidden{i}_norm")(x)
    return x


def _convolution(x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
    """A convolution with ReLU, then normalization: in this order in all families."""
    from keras import layers

    options = {"padding": "same", "activation": "relu", **options}
    x = layers.Conv2D(filters, kernel, name=f"{name}_conv", **options)(x)
    return layers.BatchNormalization(name=f"{name}_norm")(x)


def _vgg(x: Any, config: Vgg) -> Any:
    """Stages of convolutions, flattened."""
    from keras import layers

    for i, (count, filters) in enumerate(zip(config.layers, config.filters, strict=True), start=1):
        for j in range(1, count + 1):
            x = _convolution(x, filters, 3, f"stage{i}_layer{j}")
        x = layers.MaxPooling2D(2, name=f"stage{i}_pool")(x)
    return layers.Flatten(name="flatten")(x)


def _resnet(x: Any, config: ResNet) -> Any:
    """The stem and four stages, averaged; the first block of a stage has a convolution as its shortcut."""
    from keras import layers

    x = _convolution(x, 64, 7, "stem", strides=2)
    x = layers.MaxPooling2D(3, strides=2, name="stem_pool")(x)
    for i, count in enumerate(config.layers, start=1):
        for j in range(1, count + 1 + config.small):
            shortcut = (1 if i == 1 else 2) if j == 1 else None
            x = _residual(x, 32 << i, shortcut, config.small, f"stage{i}_block{j}")
    return layers.GlobalAveragePooling2D(name="average")(x)


def _residual(x: Any, filters: int, shortcut: int | None, small: bool, name: str) -> Any:
    """A residual block; `shortcut`: the stride of its first convolution and its shortcut's, None for x."""
    from keras import layers

    stride, wide = shortcut or 1, filters if small else 4 * filters
    if small:
        inner = _convolution(x, filters, 3, f"{name}_1", strides=stride)
        inner = _convolution(inner, filters, 3, f"{name}_2")
    else:
        inner = _convolution(x, filters, 1, f"{name}_1", strides=stride)
        inner = _convolution(inner, filters, 3, f"{name}_2")
        inner = _convolution(inner, wide, 1, f"{name}_3", activation=None)
    if shortcut is not None:
        x = _convolution(x, wide, 1, f"{name}_shortcut", activation=None, strides=stride)
    x = layers.Add(name=f"{name}_add")([x, inner])
    return layers.ReLU(name=f"{name}_out")(x)


def _inception(x: Any, config: Inception) -> Any:
    """The stem and stages of blocks with four branches, flattened."""
    from keras import layers

    x = _convolution(x, 64, 7, "stem_1", strides=2, padding="valid")
    x = layers.MaxPooling2D(3, strides=2, padding="same", name="stem_1_pool")(x)
    x = _convolution(x, 128, 1, "stem_2")
    x = _convolution(x, 192, 3, "stem_3")
    x = layers.MaxPooling2D(3, strides=2, padding="same", name="stem_3_pool")(x)
    for i, count in enumerate(config.layers):
        for j in range(count):
            name = f"stage{i + 1}_block{j + 1}"
            one = _convolution(x, config.f1[i][j], 1, f"{name}_1x1")
            three = _convolution(x, config.f2_in[i][j], 1, f"{name}_3x3_in")
            three = _convolution(three, config.f2_out[i][j], 3, f"{name}_3x3_out")
            five = _convolution(x, config.f3_in[i][j], 1, f"{name}_5x5_in")
            five = _convolution(five, config.f3_out[i][j], 5, f"{name}_5x5_out")
            pooled = layers.MaxPooling2D(3, strides=1, padding="same", name=f"{name}_pool")(x)
            pooled = _convolution(pooled, config.f4_out[i][j], 1, f"{name}_pool_1x1")
            x = layers.Concatenate(name=f"{name}_concat")([one, three, five, pooled])
        x = layers.MaxPooling2D(3, strides=2, padding="same", name=f"stage{i + 1}_pool")(x)
    return layers.Flatten(name="flatten")(x)
