"""The graph: what it refuses, names, padding in front of convolutions, and its JSON round trip."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder, Operation, Tensor, cached_on_graph
from lolat.graph.counts import count
from lolat.graph.kinds import ATTRIBUTES
from lolat.readers import read
from lolat.readers.bundled import bundled_networks
from tests.strategies import graphs


def graph_of(operations: list[tuple[tuple[int, ...], tuple[int, ...]]], tensors: int = 4,
             inputs: tuple[int, ...] = (0,), outputs: tuple[int, ...] = ()) -> Graph:  # fmt: skip
    """A graph of relu operations, each (tensors read, tensors written)."""
    return Graph(
        "bad",
        tuple(Tensor((1, 5)) for _ in range(tensors)),
        tuple(Operation(f"op{i}", "relu", r, w) for i, (r, w) in enumerate(operations)),
        inputs,
        outputs,
    )


# ---- what it refuses


@pytest.mark.parametrize(
    ("operations", "inputs", "outputs"),
    [
        ([((2,), (1,)), ((0,), (2,))], (0,), ()),  # read before it is written
        ([((0,), (1, 1))], (0,), ()),  # written twice
        ([((0,), (1,)), ((0,), (1,))], (0,), ()),
        ([((0,), (1,))], (0, 1), ()),  # an input that is written
        ([((0,), (4,))], (0,), ()),
        ([((0,), (-1,))], (0,), ()),
        ([], (0,), (7,)),
    ],
)
def test_what_cannot_run_is_refused(operations: Any, inputs: Any, outputs: Any) -> None:
    with pytest.raises(InputError, match=r"^graph 'bad': .*$") as caught:
        graph_of(operations, 4, inputs, outputs)
    assert caught.value.code == "network"


# ---- the builder ---------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(["", "p"]), st.sampled_from(["", "a", "a:2", "a:3", "b"])))
)
def test_names_are_unique_whatever_the_layers_are_called(used: list[tuple[str, str]]) -> None:
    b = GraphBuilder("names")
    x = b.input((1, 3))
    for path, name in used:
        b.add("relu", [x], (1, 3), name, path)
    names = [o.full_name for o in b.operations]
    assert len(set(names)) == len(used)
    assert all(n.startswith(f"{p}/{x}" if p else x) for n, (p, x) in zip(names, used, strict=True))


def test_what_is_made_of_constants_alone_does_not_grow_with_the_batch() -> None:
    b = GraphBuilder("constants")
    x, table = b.input((1, 3)), b.tensor((5, 3), batched=False)
    scaled = b.add("scale", [table], (5, 3))
    both = b.add("add", [x, scaled], (5, 3))
    assert [b.tensors[t].batched for t in (scaled, both)] == [False, True]
    assert b.tensors[scaled].elements(7) == 15
    assert b.tensors[both].elements(7) == 105


def test_the_type_is_what_is_said_or_that_of_the_first_input() -> None:
    b = GraphBuilder("types")
    x = b.input((1, 3), "int32")
    made = b.add("relu", [x], (1, 3)), b.add("relu", [x], (1, 3), dtype="bfloat16")
    assert [b.tensors[t].dtype for t in made] == ["int32", "bfloat16"]


# ---- padding -------------------------------------------------------------------------------------


def padded(*users: str, output: bool = False) -> Graph:
    """A padding of 5 x 7 to 7 x 9 by one, then an operation of each kind that reads it."""
    b = GraphBuilder("padded")
    x = b.input((1, 5, 7, 2))
    pad = b.add("pad", [x], (1, 7, 9, 2), "zero_padding", padding=((1, 1), (1, 1)))
    outs = [
        b.add(kind, [pad], (1, 5, 7, 2), kernel=(3, 3), in_channels=2, out_channels=2, groups=1,
              bias=False)
        for kind in users
    ]  # fmt: skip
    return b.build([*outs, pad] if output else outs)


def test_padding_in_front_of_convolutions_belongs_to_them() -> None:
    graph = padded("conv", "depthwise_conv")
    assert [o.kind for o in graph.operations] == ["conv", "depthwise_conv"]
    assert all(o.attributes["pad_before"] == ((1, 1), (1, 1)) for o in graph.operations)
    total = count(graph).total()
    assert total.inp == 2 * (5 * 7 * 2)  # before padding
    assert total.traffic == 0


@pytest.mark.parametrize(
    ("users", "output"),
    [(("max_pool",), False), (("conv", "max_pool"), False), ((), True), (("conv",), True)],
)
def test_other_padding_is_traffic(users: tuple[str, ...], output: bool) -> None:
    graph = padded(*users, output=output)
    assert [o.kind for o in graph.operations] == ["pad", *users]
    pad = (5 * 7 + 7 * 9) * 2
    pool = (7 * 9 + 5 * 7) * 2 if "max_pool" in users else 0
    assert count(graph).total().traffic == pad + pool
    assert count(graph).total().inp == (7 * 9 * 2 if "conv" in users else 0)


# ---- JSON ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(graphs())
def test_json_round_trip(graph: Graph) -> None:
    text = json.dumps(graph.to_dict())
    again = Graph.from_dict(json.loads(text))
    assert again == graph
    assert json.dumps(again.to_dict()) == text
    assert (count(again).at(3) == count(graph).at(3)).all()


def test_results_are_kept_by_function_and_arguments() -> None:
    """Two functions of one name have a result each; so have 1 and "1"."""
    calls: list[object] = []

    def keeping(told: str) -> Any:
        @cached_on_graph
        def result(graph: Graph, size: object = 0) -> tuple[str, object]:
            calls.append(size)
            return told, size

        return result

    def other() -> Any:
        @cached_on_graph
        def result(graph: Graph) -> str:
            return "other"

        return result

    kept, graph = keeping("first"), Graph("a", (), (), (), ())
    assert [kept(graph, size) for size in (1, "1", 1)] == [
        ("first", 1),
        ("first", "1"),
        ("first", 1),
    ]
    assert calls == [1, "1"]
    assert (other()(graph), kept(graph)) == ("other", ("first", 0))
    assert graph == Graph("a", (), (), (), ())
    assert graph.to_dict() == Graph("a", (), (), (), ()).to_dict()


def test_what_is_no_graph_document_is_refused() -> None:
    whole = padded("max_pool").to_dict()
    for document in (None, {}, whole | {"version": 2}, whole | {"outputs": [99]}):
        with pytest.raises(InputError):
            Graph.from_dict(document)


def test_a_file_that_does_not_say_what_shares_a_parameter_is_refused() -> None:
    builder = GraphBuilder("old")
    x = builder.input((1, 8))
    for more in ({}, {"tied": True, "parameter": 0}):
        x = builder.add("dense", [x], (1, 8), in_features=8, out_features=8, bias=True, **more)
    document = builder.build([x]).to_dict()
    assert Graph.from_dict(document).to_dict() == document
    del document["operations"][1]["attributes"]["parameter"]
    with pytest.raises(InputError, match=r"'dense:2' shares a parameter.*read the network again"):
        Graph.from_dict(document)


def test_every_attribute_of_the_bundled_networks_is_listed() -> None:
    every = (read(name) for name in bundled_networks()[::5])
    found = {name for graph in every for o in graph.operations for name in o.attributes}
    assert {"kernel", "in_features", "vectors"} <= found <= ATTRIBUTES.keys()
