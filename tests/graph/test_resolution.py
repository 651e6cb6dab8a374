"""Blocks on smaller images, against the same network read at half the size; and strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.graph.edits import halved, image_side, total_stride
from tests.readers.keras_networks import graph_of, layers
from tests.synthetic import one


def network(x: Any) -> Any:
    x = layers.Conv2D(16, 3, strides=2, padding="same")(x)
    y = layers.DepthwiseConv2D(5, padding="same")(layers.ReLU()(x))
    s = layers.GlobalAveragePooling2D(keepdims=True)(y)
    y = layers.Multiply()([y, layers.Conv2D(16, 1, activation="sigmoid")(s)])
    y = layers.BatchNormalization()(layers.Conv2D(16, 1)(y))
    x = layers.Concatenate()([x, y])
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = layers.Conv2D(32, 3, strides=2, padding="same")(x)
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


@pytest.mark.parametrize("size", [64, 56, 52])
def test_half_the_images_is_the_network_at_half_the_size(size: int) -> None:
    """All operations halved are the network on half the input; 52 is rounded up on the way."""
    graph, small = graph_of(network, (size, size, 3)), graph_of(network, (size // 2, size // 2, 3))
    found = halved(graph, range(len(graph.operations)))
    assert found is not None
    assert [t.shape for t in found.tensors] == [t.shape for t in small.tensors]
    assert np.array_equal(count(found).at(3), count(small).at(3))


def test_the_neighbours_stay_as_they_were() -> None:
    graph, small = graph_of(network, (64, 64, 3)), graph_of(network, (32, 32, 3))
    inside = [2, 3, 4, 5, 6]
    found = halved(graph, inside)
    assert found is not None
    wanted = count(graph).at(1)
    wanted[inside] = count(small).at(1)[inside]
    assert np.array_equal(count(found).at(1), wanted)
    assert cut(found) == cut(graph)
    assert count(found).total() != count(graph).total()


def test_channels_first() -> None:
    def first(x: Any) -> Any:
        return layers.Conv2D(16, 3, padding="same", data_format="channels_first")(x)

    graph, small = graph_of(first, (3, 20, 20)), graph_of(first, (3, 10, 10))
    found = halved(graph, [0])
    assert found is not None
    assert count(found).total(2) == count(small).total(2)


@pytest.mark.parametrize(
    "graph",
    [
        one("dense", [(1, 16)], [(1, 8)], in_features=16, out_features=8, bias=True),
        one("relu", [(1, 10, 16)], [(1, 10, 16)]),
        one("sort", [(1, 8, 8, 3)], [(1, 8, 8, 3)]),
        one("flatten", [(1, 8, 8, 3)], [(1, 192)]),
        one("resize", [(1, 7, 7, 3)], [(1, 14, 14, 3)]),
        one("conv", [(1, 8, 8, 3)], [(1, 6, 6, 3)], kernel=(3, 3), in_channels=3, out_channels=3,
            groups=1, bias=False, padding="valid", strides=(1, 1)),
    ],
)  # fmt: skip
def test_what_does_not_halve(graph: Any) -> None:
    assert halved(graph, [0]) is None


def test_what_enlarges_halves_where_it_is_even() -> None:
    found = halved(one("resize", [(1, 8, 8, 3)], [(1, 16, 16, 3)]), [0])
    assert found is not None
    assert [t.shape for t in found.tensors] == [(1, 4, 4, 3), (1, 8, 8, 3)]


def test_the_total_stride() -> None:
    assert total_stride(graph_of(network, (64, 64, 3))) == 8
    assert total_stride(graph_of(network, (52, 52, 3))) is None  # 52 / 7 is no whole number
    assert total_stride(one("relu", [(1, 8)], [(1, 8)])) is None
    assert image_side(graph_of(network, (64, 64, 3))) == 64
    assert image_side(graph_of(network, (64, 32, 3))) is None
    assert image_side(one("add", [(1, 8, 8, 3)] * 2, [(1, 8, 8, 3)])) is None
    assert image_side(one("relu", [(1, 3, 8, 8)], [(1, 3, 8, 8)])) == 8
