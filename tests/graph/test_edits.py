"""Operations changed, left out and replaced, parts alone: by hand, and against what Keras builds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder, edits
from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.graph.edits import block_graph, subgraph
from lolat.graph.layers import Layers
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


# ---- the size of images


def shrinking(size: int, width: int = 0) -> Graph:
    """A network that shrinks its images by 8."""
    layers = Layers.on("shrinking", size, width or size, 3)
    x = layers.conv(layers.input, 16, 3, stride=2)
    x = layers.squeeze_excite(layers.depthwise(x, 5), 4)
    x = layers.conv(layers.pool(x, 2, 2), 32, 3, stride=2)
    return layers.done(layers.classifier(layers.global_pool(x), 10))


def test_the_total_stride() -> None:
    assert edits.total_stride(shrinking(64)) == 8
    assert edits.total_stride(shrinking(52)) is None  # 52 / 7 is no whole number
    assert edits.total_stride(one("relu", [(1, 8)], [(1, 8)])) is None
    assert edits.image_side(shrinking(64)) == 64
    assert edits.image_side(shrinking(64, 32)) is None
    assert edits.image_side(one("add", [(1, 8, 8, 3)] * 2, [(1, 8, 8, 3)])) is None
    assert edits.image_side(one("relu", [(1, 3, 8, 8)], [(1, 3, 8, 8)])) == 8


# ---- any network


@settings(max_examples=60)
@given(graphs(), st.data(), st.floats(0.1, 4.0))
def test_what_is_changed_is_a_network_again(
    graph: Graph, data: st.DataObject, factor: float
) -> None:
    """That can be counted, with the ends that it had: a Graph checks itself that it can run."""
    before = graph.to_dict()
    parts = [list(block.operations) for block in cut(graph)]
    positions = data.draw(st.sampled_from([*parts, list(everything(graph))]))
    found = [
        edits.bypassed(graph, positions),
        Widths(graph).at(factor),
        Widths(graph, positions).at(factor),
    ]
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


def test_separated_convolutions_are_those_that_keras_builds() -> None:
    pytest.importorskip("keras")
    from tests.readers.keras_networks import graph_of, layers

    full, separable = (
        graph_of(lambda x, layer=layer: layer(24, 3, strides=2, padding="same")(x), (32, 32, 16))
        for layer in (layers.Conv2D, layers.SeparableConv2D)
    )
    found = edits.separated(full, [0])
    assert found is not None
    assert count(found).total(2) == count(separable).total(2)
    assert edits.separated(separable, range(len(separable.operations))) is None
