"""A network without a block, and the size of its images: by hand; what any change leaves.

Other changes are compared with the changed network as PyTorch builds it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lolat
from lolat.graph import Graph, GraphBuilder
from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.graph.edits import (
    bypassed,
    folded,
    separated,
    with_fewer_heads,
    with_small_kernels,
)
from lolat.graph.images import image_side, total_stride
from lolat.graph.width import Widths
from tests.strategies import graphs
from tests.synthetic import network, one


def positions(graph: Graph, start: str) -> list[int]:
    return [p for p, o in enumerate(graph.operations) if o.name.startswith(start)]


def test_a_block_is_left_out() -> None:
    three, two = network(stages=3), network(stages=2)
    found = bypassed(three, positions(three, "conv3_block1"))
    assert found is not None
    assert count(found).total(4) == count(two).total(4)
    b = GraphBuilder("chain")
    x = b.input((1, 8))
    for _ in range(3):
        x = b.add("relu", [x], (1, 8))
    graph = b.build([x])
    without_last = bypassed(graph, [2])
    assert without_last is not None
    assert without_last.outputs == graph.operations[1].outputs


def test_what_changes_the_shape_cannot_be_left_out() -> None:
    graph = network()
    # Half a block: the addition reads two tensors of it.
    half = positions(graph, "conv1_block1_2") + positions(graph, "conv1_block1_add")
    for members in (positions(graph, "stem"), range(len(graph.operations)), half):
        assert bypassed(graph, members) is None


def test_the_side_of_the_only_image() -> None:
    for shapes, side in (
        ([(1, 8, 8, 3)], 8),
        ([(1, 3, 8, 8)], 8),
        ([(1, 8, 9, 3)], None),
        ([(1, 8, 8, 3)] * 2, None),
        ([(1, 8, 8)], None),
    ):
        assert image_side(one("add", shapes, shapes[:1])) == side
    assert total_stride(network()) == 1
    assert total_stride(one("max_pool", [(1, 52, 52, 3)], [(1, 13, 13, 3)], kernel=(4, 4))) == 4
    assert total_stride(one("max_pool", [(1, 52, 52, 3)], [(1, 7, 7, 3)], kernel=(8, 8))) == 32


@settings(max_examples=60)
@given(graphs(), st.data(), st.floats(0.1, 4.0))
def test_what_is_changed_is_a_network_again(
    graph: Graph, data: st.DataObject, factor: float
) -> None:
    """That can be counted, with the ends that it had: a Graph checks itself that it can run."""
    before = graph.to_dict()
    parts = [list(block.operations) for block in cut(graph)]
    some = data.draw(st.sampled_from([*parts, list(range(len(graph.operations)))]))
    for changed in (
        bypassed(graph, some),
        folded(graph, some),
        with_small_kernels(graph, some),
        Widths(graph).at(factor),
        Widths(graph, some).at(factor),
    ):
        if changed is not None:
            assert (count(changed).at(2) >= 0).all()
            assert len(changed.outputs) == len(graph.outputs)
            assert len(changed.inputs) == len(graph.inputs)
    assert graph.to_dict() == before


def convolutions(torch: Any, kernel: int, stride: int, is_folded: bool) -> Any:
    """Two convolutions, the second grouped, each with its normalization or with a bias for it."""
    nn, pad = torch.nn, kernel // 2
    return nn.Sequential(
        nn.Conv2d(3, 16, kernel, stride, pad, bias=is_folded),
        *([] if is_folded else [nn.BatchNorm2d(16)]),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel, 1, pad, groups=16, bias=is_folded),
        *([] if is_folded else [nn.BatchNorm2d(32)]),
        nn.BatchNorm2d(32),  # behind another one: it stays
        nn.Conv2d(32, 8, 1),
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_a_folded_network_and_one_of_small_kernels_are_those_that_pytorch_builds(
    stride: int,
) -> None:
    torch = pytest.importorskip("torch")

    def graph_of(*about: Any) -> Graph:
        return lolat.read(convolutions(torch, *about), (3, 33, 33))

    large = graph_of(7, stride, False)
    every = range(len(large.operations))
    for changed, wanted in (
        (folded(large, every), graph_of(7, stride, True)),
        (with_small_kernels(large, every), graph_of(3, stride, False)),
    ):
        assert changed is not None
        assert count(changed).total(2) == count(wanted).total(2)
        assert changed.shapes(changed.outputs) == wanted.shapes(wanted.outputs)
    assert with_small_kernels(graph_of(3, stride, False), every) is None


def test_fewer_heads_are_those_of_a_transformer_of_fewer() -> None:
    torch = pytest.importorskip("torch")

    def graph_of(heads: int) -> Graph:
        layer = torch.nn.TransformerEncoderLayer(64, heads, 128, batch_first=True)
        return lolat.read(layer.eval(), (10, 64))

    def fewer(graph: Graph) -> Graph | None:
        return with_fewer_heads(graph, range(len(graph.operations)))

    eight, four = graph_of(8), graph_of(4)
    found = fewer(eight)
    assert found is not None
    assert count(found).total(2) == count(four).total(2) != count(eight).total(2)
    assert fewer(graph_of(1)) is None


def test_separated_convolutions_are_those_that_keras_builds() -> None:
    pytest.importorskip("keras")
    from tests.readers.keras_networks import graph_of, layers

    full, separable = (
        graph_of(lambda x, layer=layer: layer(24, 3, strides=2, padding="same")(x), (32, 32, 16))
        for layer in (layers.Conv2D, layers.SeparableConv2D)
    )
    found = separated(full, [0])
    assert found is not None
    assert count(found).total(2) == count(separable).total(2)
    assert separated(separable, range(len(separable.operations))) is None
