"""Keras' convolutions, dense layers and what belongs to them, against counts done by hand."""

from __future__ import annotations

from math import prod as size
from typing import Any

import pytest

from tests.readers.keras_networks import check, counted, graph_of, kinds, layers

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
    kind = "grouped_conv" if getattr(layer, "groups", 1) > 1 else "conv"
    kind = "depthwise_conv" if "Depthwise" in type(layer).__name__ else kind
    check(
        graph_of(layer, given),
        kind,
        (size(made), size(given), size(made) * per_output, 0, weights, 1),
    )
    assert layer.count_params() == weights


def test_patches_of_groups() -> None:
    """Output positions x kernel x input channels; none of a depthwise layer."""
    image = (7, 9, 4)
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
    macs, weights = size(given) * kernel * 4, kernel * 2 * 4 + 4
    check(graph_of(layer, given), "transposed_conv", (size(made), size(given), macs, 0, weights, 1))
    assert layer.count_params() == weights


def test_separable_convolution_is_two() -> None:
    graph = graph_of(layers.SeparableConv2D(4, 3, depth_multiplier=2, activation="relu"), (7, 9, 3))
    between, out = 5 * 7 * 6, 5 * 7 * 4
    counts = (
        between + out,
        7 * 9 * 3 + between,
        between * 9 + out * 6,
        2 * out,
        9 * 6 + 6 * 4 + 4,
        3,
    )
    check(graph, "depthwise_conv conv relu", counts)
    line = graph_of(layers.SeparableConv1D(4, 3, strides=2, use_bias=False), (11, 3))
    check(line, "depthwise_conv conv", (15 + 20, 33 + 15, 15 * 3 + 20 * 3, 0, 9 + 12, 2))


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
    counts = (0, 0, rows * 7 * 4, rows * (7 + 4), 7 * 4 + 4, 1)
    check(graph_of(layers.Dense(4), given), "dense", counts)


@pytest.mark.parametrize(
    ("layer", "given", "names"),
    [(layers.Dense(4, activation="softmax"), (7,), "dense softmax"),
     (layers.Conv2D(4, 3, activation=layers.ReLU(6)), (7, 7, 3), "conv relu6"),
     (layers.Conv2D(4, 3, activation=layers.LeakyReLU()), (7, 7, 3), "conv leaky_relu"),
     (layers.Dense(4, activation="linear"), (7,), "dense")],
)  # fmt: skip
def test_an_activation_inside_a_layer_is_an_operation(layer: Any, given: Any, names: str) -> None:
    assert " ".join(kinds(graph_of(layer, given))) == names


def test_einsum_dense() -> None:
    make = layers.EinsumDense("abc,cde->abde", output_shape=(None, 3, 5), bias_axes="de")
    check(graph_of(make, (4, 7)), "dense", (0, 0, 4 * 15 * 7, 4 * (7 + 15), 7 * 15 + 15, 1))
    assert make.count_params() == 7 * 15 + 15
    joined = layers.EinsumDense("abcd,cde->abe", output_shape=(None, 9))
    check(graph_of(joined, (4, 3, 5)), "dense", (0, 0, 4 * 9 * 15, 4 * (15 + 9), 15 * 9, 1))


def test_padding_belongs_to_the_convolution_behind_it_and_is_traffic_before_a_pool() -> None:
    graph = graph_of(lambda x: layers.Conv2D(4, 3)(layers.ZeroPadding2D(1)(x)), (5, 7, 2))
    check(graph, "conv", (5 * 7 * 4, 5 * 7 * 2, 5 * 7 * 4 * 18, 0, 18 * 4 + 4, 1))
    graph = graph_of(lambda x: layers.MaxPooling2D(3)(layers.ZeroPadding2D(1)(x)), (5, 7, 2))
    pad, pool = (5 * 7 + 7 * 9) * 2, (7 * 9 + 2 * 3) * 2
    check(graph, "pad max_pool", (0, 0, 0, pad + pool, 0, 2))
