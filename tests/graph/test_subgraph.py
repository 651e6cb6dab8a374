"""A part of a network alone: its ends, its operations, and counts that add up to the whole's."""

from __future__ import annotations

import pytest

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.blocks import cut
from lolat.graph.counts import behaviors, count
from lolat.graph.edits import block_graph, block_kinds, subgraph
from tests import synthetic


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


def test_the_blocks_and_the_whole_are_what_they_were() -> None:
    graph = synthetic.network()
    whole = subgraph(graph, range(len(graph.operations)), graph.name)
    assert [o.kind for o in whole.operations] == [o.kind for o in graph.operations]
    assert whole.shapes(whole.inputs) == graph.shapes(graph.inputs)
    assert whole.shapes(whole.outputs) == graph.shapes(graph.outputs)
    parts = [count(subgraph(graph, b.operations, b.name)).total(3)[:6] for b in cut(graph)]
    assert len(parts) > 1
    assert tuple(map(sum, zip(*parts, strict=True))) == count(graph).total(3)[:6]


def test_a_part_that_nobody_reads_gives_what_is_left_over() -> None:
    b = GraphBuilder("n")
    x = b.input((1, 4))
    first = b.add("relu", [x], (1, 4))
    b.add("tanh", [b.add("square", [x], (1, 4))], (1, 4))
    part = subgraph(b.build([first]), [1, 2], "unread")
    assert [o.kind for o in part.operations] == ["square", "tanh"]
    assert part.outputs == part.operations[1].outputs


def test_kinds_of_the_blocks_and_whether_a_model_can_learn_of_them() -> None:
    graph = synthetic.network()
    kinds, able = block_kinds(graph, {"float32"})
    assert len(kinds) == len(able) == len(cut(graph))
    assert all(able)
    assert frozenset().union(*kinds) == behaviors(graph.operations)
    assert "dense" in kinds[-1]
    assert "dense" not in kinds[0]
    assert not any(block_kinds(graph, {"float16"})[1])

    b = GraphBuilder("whole numbers are of no type that matters")
    x = b.add("add", [b.input((1, 8), "int32")], (1, 8), dtype="int64")
    assert block_kinds(b.build([x]), {"float32"})[1] == [True]

    document = graph.to_dict()
    document["operations"][-1]["kind"] = "teleport"
    assert block_kinds(Graph.from_dict(document), {"float32"})[1] == [*able[:-1], False]


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
