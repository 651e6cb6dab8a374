"""A part of a network alone: its ends, its operations, and counts that add up to the whole's."""

from __future__ import annotations

from lolat.blocks import cut
from lolat.counts import FEATURES, count
from lolat.graph import GraphBuilder
from lolat.subgraph import subgraph
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


def test_a_whole_network_is_itself() -> None:
    graph = synthetic.network()
    whole = subgraph(graph, range(len(graph.operations)), graph.name)
    assert [o.kind for o in whole.operations] == [o.kind for o in graph.operations]
    assert whole.shapes(whole.inputs) == graph.shapes(graph.inputs)
    assert whole.shapes(whole.outputs) == graph.shapes(graph.outputs)


def test_the_counts_of_the_blocks_add_up() -> None:
    graph = synthetic.network()
    six = len(FEATURES)
    parts = [subgraph(graph, b.operations, b.name) for b in cut(graph)]
    assert len(parts) > 1
    total = [sum(column) for column in zip(*(count(p).total(3)[:six] for p in parts), strict=True)]
    assert total == list(count(graph).total(3)[:six])
