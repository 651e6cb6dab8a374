"""keras.applications: published counts, Keras' own and TensorFlow's profiler's, and the time it takes."""

from __future__ import annotations

import functools
import gc
import re
import weakref
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import NetworkError
from lolat.graph.counts import Count, count
from lolat.readers import open_network
from lolat.readers.keras import import_keras, read_model
from tests.readers.keras_networks import layers, total

keras = import_keras()
# The same code as another one, with more layers or channels: it cannot fail alone.
LARGER = {
    "ConvNeXtSmall", "ConvNeXtLarge", "ConvNeXtXLarge", "DenseNet169", "DenseNet201", "ResNet101",
    "ResNet152", "ResNet101V2", "ResNet152V2", "EfficientNetV2M", "EfficientNetV2L", "VGG19",
    "ConvNeXtBase", "NASNetLarge",
    *(f"EfficientNetB{n}" for n in range(1, 8)), *(f"EfficientNetV2B{n}" for n in range(1, 4)),
}  # fmt: skip
NAMES = sorted(n for n in dir(keras.applications) if n[0].isupper() and n not in LARGER)

# GMACs at the network's own size as published. ResNet, VGG, Inception, Xception, DenseNet, NASNet:
# https://keras.io/api/applications and their papers, with the stride where Keras has it.
PUBLISHED = {"ResNet50": 3.86, "VGG16": 15.5, "MobileNet": 0.569, "MobileNetV2": 0.30,
             "MobileNetV3Large": 0.219, "MobileNetV3Small": 0.056, "InceptionV3": 5.72, "Xception": 8.4,
             "DenseNet121": 2.87, "NASNetMobile": 0.564, "EfficientNetB0": 0.39, "ConvNeXtTiny": 4.5,
             "EfficientNetV2S": 8.4}  # fmt: skip


@functools.cache
def read(name: str) -> tuple[Count, tuple[str, ...], int]:
    """(counts, warnings, weights as Keras counts them) of a network at its own size."""
    network = open_network(f"keras:{name}")
    counts = count(network.graph())
    return counts.total(), counts.warnings, weights_of(network.model)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_read_without_a_warning(name: str) -> None:
    counts, warnings, weights = read(name)
    assert warnings == ()
    if name in PUBLISHED:
        assert counts.flops / 1e9 == pytest.approx(PUBLISHED[name], rel=0.03)
    assert counts.weights == weights


def weights_of(model: Any) -> int:
    """Kernels and biases as Keras counts them, layer by layer."""
    convolutional = ("Conv", "Dense")
    found = 0
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            found += weights_of(layer)
        elif any(word in type(layer).__name__ for word in convolutional):
            found += layer.count_params()
    return found


def test_vgg16_by_hand() -> None:
    """All of it: 3x3 convolutions with a relu each, five pools, three dense layers."""
    side, inside = 224, 3
    acts = inp = macs = weights = traffic = ops = 0
    for channels, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            acts += side**2 * channels
            inp += side**2 * inside
            macs += side**2 * channels * 9 * inside
            weights += 9 * inside * channels + channels
            traffic += 2 * side**2 * channels
            ops += 2
            inside = channels
        traffic += side**2 * channels + (side // 2) ** 2 * channels
        ops += 1
        side //= 2
    for a, b in ((7 * 7 * 512, 4096), (4096, 4096), (4096, 1000)):
        macs += a * b
        weights += a * b + b
        traffic += a + b + 2 * b
        ops += 2
    assert read("VGG16")[0][:6] == (acts, inp, macs, traffic, weights, ops)
    assert weights == 138_357_544


def test_the_document_says_what_is_counted() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/counts.md").read_text()
    said = re.search(
        r"ResNet50 3.86 G \((.*?)\), MobileNetV2\s+0.30 G \((.*?)\), VGG-16 15.5 G \((.*?)\)", text
    )
    assert said is not None
    counts = [read(n)[0].flops / 1e9 for n in ("ResNet50", "MobileNetV2", "VGG16")]
    assert [f"{n:.3f}" for n in counts] == list(said.groups())


# ---- TensorFlow's profiler -----------------------------------------------------------------------


def profiled(model: Any) -> int:
    """Floating point operations of convolutions and products, by the profiler's own tables."""
    import tensorflow as tf
    from tensorflow.python.framework import ops

    spec = tf.TensorSpec((1, *model.inputs[0].shape[1:]), model.inputs[0].dtype)
    graph = tf.function(lambda x: model(x, training=False)).get_concrete_function(spec).graph
    names = ("Conv2D", "DepthwiseConv2dNative", "MatMul")
    nodes = [o.node_def for o in graph.get_operations() if o.type in names]
    return sum(int(ops.get_stats_for_node_def(graph, node, "flops").value) for node in nodes)


def test_macs_are_half_of_what_tensorflows_profiler_counts() -> None:
    """No convolution is in groups: Keras compiles those with XLA, where the profiler does not look."""
    image = keras.Input((19, 23, 4))
    x = layers.Conv2D(6, 3, strides=2, padding="same")(image)
    x = layers.Conv2D(8, (1, 3), dilation_rate=2)(x)
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same")(x)
    x = layers.SeparableConv2D(5, 3)(x)
    model = keras.Model(image, layers.Dense(3)(layers.Dense(7)(layers.Flatten()(x))))
    assert total(read_model(model)).flops * 2 == profiled(model)
    network = open_network("keras:MobileNetV2", (64,), weights=True)
    assert total(network.graph()).flops * 2 == profiled(network.model)


# ---- speed ---------------------------------------------------------------------------------------


def test_no_weights_are_left_for_keras_to_fill() -> None:
    """Else the next network that anybody builds first fills those of all that were ever read."""
    network = open_network("keras:VGG16")
    variable = network.model.layers[1].kernel
    network.graph()
    keras.layers.Lambda(lambda x: x * 2)(keras.Input((3,)))  # leaves a scope of its own
    assert variable._value is None
    gone = weakref.ref(variable)
    del network, variable
    gc.collect()
    assert gone() is None


def test_channels_first_are_asked_back_in_keras_order() -> None:
    """The size that the message names is one that Keras builds."""
    with pytest.raises(NetworkError) as error:
        open_network("keras:MobileNetV2", [3, 96, 96])
    assert str(error.value).endswith("Keras has the channels last: input_size=(96, 96, 3)")
    assert open_network("keras:MobileNetV2", [96, 96, 3]).graph().input_sizes == [(96, 96, 3)]
    with pytest.raises(NetworkError) as error:
        open_network("keras:MobileNetV2", 16)
    assert "channels last" not in str(error.value)
