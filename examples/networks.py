"""Ten Keras networks as people write them: `lolat predict local examples.networks:unet`.

None was looked at while LoLat's formula and blocks were chosen.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def unet() -> Any:
    """A U-Net of four levels on 256x256x3."""
    x = inputs = keras.Input((256, 256, 3))
    skips = []
    for filters in (32, 64, 128, 256):
        x = _two_convolutions(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(512, 3, padding="same", activation="relu")(x)
    for filters, skip in zip((256, 128, 64, 32), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = _two_convolutions(layers.Concatenate()([x, skip]), filters)
    return keras.Model(inputs, layers.Conv2D(2, 1)(x))


def _two_convolutions(x: Any, filters: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return x


def _encoder(x: Any, features: int, heads: int, depth: int) -> Any:
    """Transformer blocks: attention and a perceptron, each behind a normalization."""
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(heads, features // heads)(y, y)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * features, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(features)(y)])
    return x


def vit() -> Any:
    """A small vision transformer: 196 patches of 192 features, 12 blocks."""
    inputs = keras.Input((224, 224, 3))
    x = layers.Reshape((196, 192))(layers.Conv2D(192, 16, strides=16)(inputs))
    x = _encoder(x, 192, 3, 12)
    return keras.Model(inputs, layers.Dense(1000)(x[:, 0]))


def transformer() -> Any:
    """A text classifier: 128 tokens of 256 features, 4 blocks."""
    inputs = keras.Input((128,), dtype="int32")
    x = _encoder(layers.Embedding(10000, 256)(inputs), 256, 8, 4)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def transfer() -> Any:
    """MobileNetV2 at 160 pixels with a new head of five classes."""
    base = keras.applications.MobileNetV2(
        weights=None, include_top=False, input_shape=(160, 160, 3)
    )
    inputs = keras.Input((160, 160, 3))
    x = layers.RandomFlip()(layers.Rescaling(1 / 127.5, -1)(inputs))
    x = layers.GlobalAveragePooling2D()(base(x, training=False))
    return keras.Model(inputs, layers.Dense(5)(layers.Dropout(0.2)(x)))


def sound() -> Any:
    """One-dimensional convolutions on a second of sound."""
    return keras.Sequential(
        [
            keras.Input((16000, 1)),
            layers.Conv1D(64, 80, strides=4, activation="relu"),
            layers.MaxPooling1D(4),
            layers.Conv1D(128, 3, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(35),
        ]
    )


def recurrent() -> Any:
    """A text classifier with a bidirectional LSTM and a GRU on 80 tokens."""
    return keras.Sequential(
        [
            keras.Input((80,), dtype="int32"),
            layers.Embedding(20000, 128),
            layers.Bidirectional(layers.LSTM(64, return_sequences=True)),
            layers.GRU(32),
            layers.Dense(1),
        ]
    )


def deep() -> Any:
    """Two hundred equal convolutions in a row."""
    convolutions = [layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(200)]
    return keras.Sequential([keras.Input((32, 32, 16)), *convolutions])


def wide() -> Any:
    """Two large dense layers."""
    return keras.Sequential([keras.Input((25088,)), layers.Dense(4096), layers.Dense(4096)])


def perceptron() -> Any:
    """Three small dense layers."""
    return keras.Sequential(
        [
            keras.Input((100,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def line() -> Any:
    """A single dense unit."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])
