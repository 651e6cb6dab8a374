"""The Keras networks that are run under MirroredStrategy, and each of their layers as a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any


def study(size: int, channels: int, filters: tuple[int, ...], units: tuple[int, ...]) -> Any:
    """A CNN as the study has them: 3x3 convolutions, each with 2x2 pooling behind it, then dense layers."""
    import keras
    from keras import layers

    stack: list[Any] = [keras.Input((size, size, channels))]
    for count in filters:
        stack += [layers.Conv2D(count, 3, activation="relu"), layers.MaxPooling2D()]
    stack.append(layers.Flatten())
    stack += [layers.Dense(count, activation="relu") for count in units[:-1]]
    return keras.Sequential([*stack, layers.Dense(units[-1])])


def convolutions() -> Any:
    """Much to compute, few parameters."""
    import keras
    from keras import layers

    stack = [layers.Conv2D(64, 3, padding="same", activation="relu") for _ in range(3)]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return keras.Sequential([keras.Input((32, 32, 3)), *stack, *head])


def dense() -> Any:
    """Many parameters, little to compute."""
    import keras
    from keras import layers

    stack = [layers.Dense(2048, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((1024,)), *stack, layers.Dense(10)])


def mixed() -> Any:
    """Both."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(4),
            layers.Flatten(),
            layers.Dense(2048, activation="relu"),
            layers.Dense(1024, activation="relu"),
            layers.Dense(10),
        ]
    )


def resnet20() -> Any:
    """He et al. 2015, for CIFAR: 19 convolutions with batch normalisation, three widths."""
    import keras
    from keras import layers

    def convolution(x: Any, filters: int, stride: int = 1, size: int = 3) -> Any:
        x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    first = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolution(first, 16))
    for filters in (16, 32, 64):
        for number in range(3):
            stride = 2 if filters > 16 and number == 0 else 1
            y = layers.ReLU()(convolution(x, filters, stride))
            y = convolution(y, filters)
            x = convolution(x, filters, stride, 1) if stride == 2 else x
            x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(first, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


NETWORKS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "study's MNIST": partial(study, 28, 1, (32, 32), (128, 10)),
        "study's CIFAR": partial(study, 32, 3, (64, 64, 32), (512, 256, 128, 10)),
        "conv": convolutions,
        "mixed": mixed,
        "dense": dense,
        "ResNet-20": resnet20,
    }
)


def layers(build: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Each layer with a kernel as the builder of a network of that layer, as the study timed them."""
    import keras

    def alone(layer: Any) -> Any:
        copy = layer.__class__.from_config(layer.get_config())
        return keras.Sequential([keras.Input(layer.input.shape[1:]), copy])

    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    return [partial(alone, layer) for layer in build().layers if isinstance(layer, kinds)]
