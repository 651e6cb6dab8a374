"""Operations changed, left out and replaced, parts alone: by hand, and against what Keras builds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder, edits
from lolat.graph.blocks import cut
from lolat.graph.counts import Count, count
from lolat.graph.edits import block_graph, subgraph
from lolat.graph.width import Widths
from tests import synthetic
from tests.strategies import graphs
from tests.synthetic import network, one


def everything(graph: Graph) -> range:
    return range(len(graph.operations))


def positions(graph: Graph, start: str) -> list[int]:
    return [p for p, o in enumerate(graph.operations) if o.name.startswith(start)]


def names(graph: Graph | None) -> list[str]:
    return [o.name for o in graph.operations]


def only(graph: Graph | None, name: str) -> Count:
    """The counts of the operation of this name, but for what is a matter of the graph."""
    (row,) = positions(graph, name)
    return Count(*count(graph).at(1)[row].tolist())._replace(serial=0, border=0)


def convolution(kernel: tuple[int, int], inside: int = 16, outside: int = 32, groups: int = 1,
                kind: str = "conv", padding: str = "same", strides: tuple[int, int] = (1, 1),
                size: int = 14, **more: Any) -> Graph:  # fmt: skip
    b = GraphBuilder("one")
    x = b.input((1, size, size, inside))
    out = (1, size // strides[0], size // strides[1], outside)
    x = b.add(kind, [x], out, "conv", kernel=kernel, in_channels=inside, out_channels=outside,
              groups=groups, bias=True, padding=padding, strides=strides, dilation=(1, 1),
              **more)  # fmt: skip
    x = b.add("silu", [x], out, "act")
    return b.build([b.add("tanh", [x], out, "last")])


# ---- left out


def test_a_block_is_left_out() -> None:
    three, two = network(stages=3), network(stages=2)
    found = edits.bypassed(three, positions(three, "conv3_block1"))
    assert count(found).total(4) == count(two).total(4)
    assert names(found) == names(two)
    b = GraphBuilder("chain")
    x = b.input((1, 8))
    for i in range(3):
        x = b.add("relu", [x], (1, 8), f"r{i}")
    graph = b.build([x])
    without_last = edits.bypassed(graph, [2])
    assert without_last.outputs == graph.operations[1].outputs


def test_what_changes_the_shape_cannot_be_left_out() -> None:
    graph = network()
    assert edits.bypassed(graph, positions(graph, "stem")) is None
    assert edits.bypassed(graph, everything(graph)) is None
    # Half a block: the addition reads two tensors of it.
    half = positions(graph, "conv1_block1_2") + positions(graph, "conv1_block1_add")
    assert edits.bypassed(graph, half) is None


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": (1, 1)},
        {"kernel": (3, 3), "inside": 3},
        {"kernel": (2, 2), "strides": (2, 2)},
        {"kernel": (3, 3), "inside": 32, "groups": 32, "kind": "grouped_conv"},
    ],
)
def test_convolutions_that_stay(options: dict[str, Any]) -> None:
    graph = convolution(**options)
    assert edits.separated(graph, everything(graph)) is None


@pytest.mark.parametrize(("strides", "groups"), [(1, 1), (2, 1), (1, 4)])
def test_separated(strides: int, groups: int) -> None:
    """MACs of a depthwise and a pointwise convolution: positions x inputs x (kernel + outputs)."""
    kind = "conv" if groups == 1 else "grouped_conv"
    graph = convolution((3, 3), 16, 32, groups, kind, strides=(strides, strides))
    found = edits.separated(graph, everything(graph))
    out = (14 // strides) ** 2
    a, b = only(found, "conv_depthwise"), only(found, "conv_pointwise")
    assert (a.flops, b.flops) == (out * 16 * 9, out * 16 * 32)
    assert (a.inp, a.acts, b.inp, b.acts) == (14 * 14 * 16, out * 16, out * 16, out * 32)
    assert (a.weights, b.weights) == (9 * 16, 16 * 32 + 32)
    assert found.operations[2] == graph.operations[1]


def test_separated_with_channels_first() -> None:
    graph = one("conv", [(1, 16, 14, 14)], [(1, 32, 14, 14)], kernel=(3, 3), in_channels=16,
                out_channels=32, groups=1, bias=False)  # fmt: skip
    graph = replace(graph, channels_first=True)
    found = edits.separated(graph, [0])
    assert found.tensors[found.operations[0].outputs[0]].shape == (1, 16, 14, 14)


def test_separated_against_keras() -> None:
    pytest.importorskip("keras")
    from tests.readers.keras_networks import graph_of, layers

    full, separable = (
        graph_of(lambda x, layer=layer: layer(24, 3, strides=2, padding="same")(x), (32, 32, 16))
        for layer in (layers.Conv2D, layers.SeparableConv2D)
    )
    found = edits.separated(full, [0])
    assert count(found).total(2) == count(separable).total(2)


# ---- smaller images, against the same network read at half the size; strides


def shrinking(size: int, width: int = 0) -> Graph:
    """A network that shrinks its images by 8."""
    pytest.importorskip("keras")
    from tests.readers.keras_networks import graph_of, layers

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

    return graph_of(network, (size, width or size, 3))


@pytest.mark.parametrize("size", [64, 56, 52])
def test_half_the_images_is_the_network_at_half_the_size(size: int) -> None:
    """All operations halved are the network on half the input; 52 is rounded up on the way."""
    graph, small = shrinking(size), shrinking(size // 2)
    found = edits.halved(graph, everything(graph))
    assert [t.shape for t in found.tensors] == [t.shape for t in small.tensors]
    assert np.array_equal(count(found).at(3), count(small).at(3))


def test_the_neighbors_stay_as_they_were() -> None:
    graph, inside = shrinking(64), [2, 3, 4, 5, 6]
    found = edits.halved(graph, inside)
    wanted = count(graph).at(1)
    wanted[inside] = count(shrinking(32)).at(1)[inside]
    assert np.array_equal(count(found).at(1), wanted)
    assert cut(found) == cut(graph)
    assert count(found).total() != count(graph).total()


FIRST: dict[str, Any] = {
    "kernel": (3, 3),
    "in_channels": 3,
    "out_channels": 6,
    "groups": 1,
    "bias": False,
}


@pytest.mark.parametrize(
    ("graph", "shapes"),
    [
        (replace(one("conv", [(1, 3, 20, 20)], [(1, 6, 20, 20)], padding="same", **FIRST),
                 channels_first=True), [(1, 3, 10, 10), (1, 6, 10, 10)]),
        (one("resize", [(1, 8, 8, 3)], [(1, 16, 16, 3)]), [(1, 4, 4, 3), (1, 8, 8, 3)]),
        (one("resize", [(1, 7, 7, 3)], [(1, 14, 14, 3)]), None),
        (one("dense", [(1, 16)], [(1, 8)], in_features=16, out_features=8, bias=True), None),
        (one("relu", [(1, 10, 16)], [(1, 10, 16)]), None),
        (one("sort", [(1, 8, 8, 3)], [(1, 8, 8, 3)]), None),
        (one("flatten", [(1, 8, 8, 3)], [(1, 192)]), None),
        (one("conv", [(1, 8, 8, 3)], [(1, 6, 6, 6)], padding="valid", strides=(1, 1), **FIRST), None),
    ],
)  # fmt: skip
def test_what_halves_and_what_does_not(graph: Graph, shapes: Any) -> None:
    found = edits.halved(graph, [0])
    assert (found and [t.shape for t in found.tensors]) == shapes


def test_the_total_stride() -> None:
    assert edits.total_stride(shrinking(64)) == 8
    assert edits.total_stride(shrinking(52)) is None  # 52 / 7 is no whole number
    assert edits.total_stride(one("relu", [(1, 8)], [(1, 8)])) is None
    assert edits.image_side(shrinking(64)) == 64
    assert edits.image_side(shrinking(64, 32)) is None
    assert edits.image_side(one("add", [(1, 8, 8, 3)] * 2, [(1, 8, 8, 3)])) is None
    assert edits.image_side(one("relu", [(1, 3, 8, 8)], [(1, 3, 8, 8)])) == 8


# ---- any network

CHANGES = (edits.bypassed, edits.separated, edits.halved)


@settings(max_examples=60)
@given(graphs(), st.data(), st.floats(0.1, 4.0))
def test_what_is_changed_is_a_network_again(
    graph: Graph, data: st.DataObject, factor: float
) -> None:
    """That can be counted, with the ends that it had: a Graph checks itself that it can run."""
    before = graph.to_dict()
    parts = [list(block.operations) for block in cut(graph)]
    positions = data.draw(st.sampled_from([*parts, list(everything(graph))]))
    found = [change(graph, positions) for change in CHANGES]
    found += [Widths(graph).at(factor), Widths(graph, positions).at(factor)]
    for changed in filter(None, found):
        assert (count(changed).at(2) >= 0).all()
        assert len(changed.outputs) == len(graph.outputs)
        assert len(changed.inputs) == len(graph.inputs)
    assert graph.to_dict() == before


# ---- A part of a network alone: its ends, its operations, and counts that add up to the whole's


def test_what_a_part_reads_and_writes() -> None:
    b = GraphBuilder("n")
    x = b.input((1, 4))
    constant = b.tensor((1, 4), batched=False)
    first = b.add("relu", [x], (1, 4))
    second = b.add("add", [first, constant], (1, 4))
    third = b.add("multiply", [second, first], (1, 4))
    graph = b.build([third])

    middle = subgraph(graph, [1], "middle")
    assert [o.kind for o in middle.operations] == ["add"]
    assert middle.name == "middle"
    assert len(middle.tensors) == 3
    assert len(middle.inputs) == 1  # the constant is no input
    assert not middle.tensors[middle.operations[0].inputs[1]].batched

    last = subgraph(graph, [1, 2], "last")
    assert last.outputs == (last.operations[1].outputs[0],)  # what is read inside only is none
    assert last.inputs == (last.operations[0].inputs[0],)

    first_two = subgraph(graph, [1, 0], "first two")  # `first` is read by what comes later
    assert [o.kind for o in first_two.operations] == ["relu", "add"]
    assert len(first_two.outputs) == 2


def test_a_part_that_nobody_reads_gives_what_is_left_over() -> None:
    b = GraphBuilder("n")
    x = b.input((1, 4))
    first = b.add("relu", [x], (1, 4))
    b.add("tanh", [b.add("square", [x], (1, 4))], (1, 4))
    part = subgraph(b.build([first]), [1, 2], "unread")
    assert [o.kind for o in part.operations] == ["square", "tanh"]
    assert part.outputs == part.operations[1].outputs


def test_a_block_alone_is_asked_for_by_its_number() -> None:
    graph = synthetic.network()
    alone = block_graph(graph, 1, "second")
    assert alone.name == "second"
    assert [o.name for o in alone.operations] == [
        graph.operations[p].name for p in cut(graph)[1].operations
    ]
    last = len(cut(graph)) - 1
    for number in (-1, last + 1):
        with pytest.raises(InputError, match=f"no block {number}: expected 0 to {last}"):
            block_graph(graph, number, "none")
