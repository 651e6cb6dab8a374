"""Keras' convolutions, dense layers and what belongs to them, against counts done by hand."""

from __future__ import annotations

from math import prod as size
from typing import Any

import pytest

from tests.readers.keras_networks import counted, graph_of, kinds, layers, six, total

# Each: the layer, the input shape, the output shape, MACs per output element, weights.
PLAIN = [
    (lambda: layers.Conv1D(4, 3), (11, 2), (9, 4), 3 * 2, 3 * 2 * 4 + 4),
    (lambda: layers.Conv1D(4, 3, padding="causal"), (11, 2), (11, 4), 3 * 2, 3 * 2 * 4 + 4),
    (lambda: layers.Conv2D(4, (3, 5)), (7, 9, 2), (5, 5, 4), 15 * 2, 15 * 2 * 4 + 4),
    (lambda: layers.Conv2D(4, 3, use_bias=False), (7, 9, 2), (5, 7, 4), 9 * 2, 9 * 2 * 4),
    (lambda: layers.Conv2D(4, 3, strides=2), (7, 9, 2), (3, 4, 4), 9 * 2, 9 * 2 * 4 + 4),
    (lambda: layers.Conv2D(4, 3, strides=2, padding="same"), (7, 9, 2), (4, 5, 4), 18, 76),
    (lambda: layers.Conv2D(4, 3, dilation_rate=2), (7, 9, 2), (3, 5, 4), 9 * 2, 9 * 2 * 4 + 4),
    (lambda: layers.Conv2D(6, 3, groups=2), (7, 9, 4), (5, 7, 6), 9 * 2, 9 * 2 * 6 + 6),
    (lambda: layers.Conv2D(4, 3, groups=4), (7, 9, 4), (5, 7, 4), 9, 9 * 4 + 4),
    (lambda: layers.Conv3D(3, 2), (4, 5, 6, 2), (3, 4, 5, 3), 8 * 2, 8 * 2 * 3 + 3),
    (lambda: layers.DepthwiseConv1D(3), (11, 5), (9, 5), 3, 3 * 5 + 5),
    (lambda: layers.DepthwiseConv2D(3), (7, 9, 5), (5, 7, 5), 9, 9 * 5 + 5),
    (lambda: layers.DepthwiseConv2D(3, strides=2, depth_multiplier=2, padding="same"),
     (7, 9, 5), (4, 5, 10), 9, 9 * 10 + 10),
]  # fmt: skip


@pytest.mark.parametrize(("make", "given", "made", "per_output", "weights"), PLAIN)
def test_convolutions(make: Any, given: Any, made: Any, per_output: int, weights: int) -> None:
    layer = make()
    expected = (3 * size(made), 3 * size(given), 3 * size(made) * per_output, 0, weights, 1)
    assert six(counted(layer, given, batch_size=3)) == expected
    assert layer.count_params() == weights


def test_groups_are_told_from_depthwise_layers() -> None:
    image = (7, 9, 4)
    assert kinds(graph_of(layers.Conv2D(4, 3, groups=4), image)) == ["grouped_conv"]
    assert kinds(graph_of(layers.Conv2D(4, 3), image)) == ["conv"]
    assert kinds(graph_of(layers.DepthwiseConv2D(3), image)) == ["depthwise_conv"]
    # Output positions x kernel x input channels.
    assert counted(layers.Conv2D(8, 3, groups=2), image, batch_size=2).patches == 2 * 5 * 7 * 9 * 4
    assert counted(layers.DepthwiseConv2D(3), image).patches == 0


@pytest.mark.parametrize(
    ("make", "given", "made"),
    [(layers.Conv1DTranspose, (5, 2), (10, 4)), (layers.Conv2DTranspose, (5, 3, 2), (10, 6, 4)),
     (layers.Conv3DTranspose, (5, 3, 2, 2), (10, 6, 4, 4))],
)  # fmt: skip
def test_transposed_convolutions_work_from_their_input(make: Any, given: Any, made: Any) -> None:
    layer = make(4, 3, strides=2, padding="same")
    kernel = 3 ** (len(given) - 1)
    counts = counted(lambda x: layer(x), given, batch_size=2)
    assert six(counts) == (2 * size(made), 2 * size(given), 2 * size(given) * kernel * 4, 0,
                           kernel * 2 * 4 + 4, 1)  # fmt: skip
    assert layer.count_params() == counts.weights


def test_separable_convolution_is_two() -> None:
    graph = graph_of(layers.SeparableConv2D(4, 3, depth_multiplier=2, activation="relu"), (7, 9, 3))
    assert kinds(graph) == ["depthwise_conv", "conv", "relu"]
    between, out = 5 * 7 * 6, 5 * 7 * 4
    expected = (between + out, 7 * 9 * 3 + between, between * 9 + out * 6, 2 * out,
                9 * 6 + 6 * 4 + 4, 3)  # fmt: skip
    assert six(graph) == expected
    line = graph_of(layers.SeparableConv1D(4, 3, strides=2, use_bias=False), (11, 3))
    assert six(line) == (15 + 20, 33 + 15, 15 * 3 + 20 * 3, 0, 9 + 12, 2)


def test_channels_first_counts_the_same() -> None:
    for make in (
        lambda **f: layers.Conv2D(4, 3, strides=2, groups=2, **f),
        lambda **f: layers.DepthwiseConv2D(3, depth_multiplier=2, **f),
        lambda **f: layers.SeparableConv2D(6, (3, 1), **f),
        lambda **f: layers.Conv2DTranspose(6, 3, **f),
        lambda **f: layers.MaxPooling2D(2, **f),
        lambda **f: layers.GlobalAveragePooling2D(**f),
        lambda **f: layers.UpSampling2D(2, **f),
    ):
        last = counted(make(data_format="channels_last"), (7, 9, 4), batch_size=2)
        first = counted(make(data_format="channels_first"), (4, 7, 9), batch_size=2)
        assert first == last


@pytest.mark.parametrize("given", [(7,), (5, 7), (3, 5, 7)])
def test_dense_on_any_rank(given: tuple[int, ...]) -> None:
    rows = size(given[:-1])
    counts = counted(lambda x: layers.Dense(4)(x), given, batch_size=2)
    assert six(counts) == (0, 0, 2 * rows * 7 * 4, 2 * rows * (7 + 4), 7 * 4 + 4, 1)


def test_an_activation_inside_a_layer_is_an_operation() -> None:
    graph = graph_of(layers.Dense(4, activation="softmax"), (7,))
    assert kinds(graph) == ["dense", "softmax"]
    assert total(graph).traffic == (7 + 4) + (4 + 4)
    assert kinds(graph_of(layers.Conv2D(4, 3, activation=layers.ReLU(6)), (7, 7, 3))) == [
        "conv",
        "relu6",
    ]
    assert kinds(graph_of(layers.Conv2D(4, 3, activation=layers.LeakyReLU()), (7, 7, 3))) == [
        "conv", "leaky_relu"]  # fmt: skip
    assert kinds(graph_of(layers.Dense(4, activation="linear"), (7,))) == ["dense"]


def test_einsum_dense() -> None:
    make = layers.EinsumDense("abc,cde->abde", output_shape=(None, 3, 5), bias_axes="de")
    counts = counted(lambda x: make(x), (4, 7), batch_size=2)
    assert six(counts) == (0, 0, 2 * 4 * 15 * 7, 2 * 4 * (7 + 15), 7 * 15 + 15, 1)
    assert make.count_params() == counts.weights
    joined = layers.EinsumDense("abcd,cde->abe", output_shape=(None, 9))
    counts = counted(lambda x: joined(x), (4, 3, 5))
    assert six(counts) == (0, 0, 4 * 9 * 15, 4 * (15 + 9), 15 * 9, 1)


def test_padding_in_front_of_a_convolution_belongs_to_it() -> None:
    counts = counted(lambda x: layers.Conv2D(4, 3)(layers.ZeroPadding2D(1)(x)), (5, 7, 2))
    assert six(counts) == (5 * 7 * 4, 5 * 7 * 2, 5 * 7 * 4 * 18, 0, 18 * 4 + 4, 1)


def test_padding_in_front_of_a_pool_is_traffic() -> None:
    counts = counted(lambda x: layers.MaxPooling2D(3)(layers.ZeroPadding2D(1)(x)), (5, 7, 2))
    pad, pool = (5 * 7 + 7 * 9) * 2, (7 * 9 + 2 * 3) * 2
    assert six(counts) == (0, 0, 0, pad + pool, 0, 2)
