"""The graph: what it refuses, names, padding in front of convolutions, and its JSON round trip."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder, Operation, Tensor, floating_types, kind_label
from lolat.graph.counts import count


def refusal(make: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        make(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


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


# ---- what it refuses -----------------------------------------------------------------------------


def test_operations_stand_in_an_order_in_which_they_can_run() -> None:
    message = refusal(graph_of, [((2,), (1,)), ((0,), (2,))])
    assert "'op0' reads tensor 2 before it is written" in message


def test_an_operation_does_not_read_what_it_writes() -> None:
    assert "reads tensor 1 before it is written" in refusal(graph_of, [((1,), (1,))])


@pytest.mark.parametrize("written", [(), (1, 1)])
def test_an_operation_writes_at_least_one_tensor_and_each_once(written: tuple[int, ...]) -> None:
    assert "'op0' writes the tensors" in refusal(graph_of, [((0,), written)])


def test_a_tensor_is_written_once() -> None:
    assert "'op1' writes the tensors [1]" in refusal(graph_of, [((0,), (1,)), ((0,), (1,))])


def test_an_input_is_not_written() -> None:
    assert "input 1 is written" in refusal(graph_of, [((0,), (1,))], 4, (0, 1))


@pytest.mark.parametrize(
    ("operations", "inputs", "outputs", "wrong"),
    [([((9,), (1,))], (0,), (), 9), ([((0,), (4,))], (0,), (), 4), ([], (-1,), (), -1),
     ([], (0,), (7,), 7)],
)  # fmt: skip
def test_every_index_is_of_a_tensor(operations: Any, inputs: Any, outputs: Any, wrong: int) -> None:
    message = refusal(graph_of, operations, 4, inputs, outputs)
    assert f"names tensor {wrong}; it has 4 tensors" in message


def test_an_order_that_can_run_is_accepted() -> None:
    graph = graph_of([((0,), (1, 2)), ((1, 2, 1), (3,))], outputs=(3, 0))
    assert graph.consumers() == {0: [0], 1: [1, 1], 2: [1]}
    assert graph.shapes([3, 0]) == [(1, 5), (1, 5)]


# ---- the builder ---------------------------------------------------------------------------------


def test_names_are_unique_within_a_module_path() -> None:
    b = GraphBuilder("names")
    x = b.input((1, 3))
    for path in ("", "head"):
        for name in ("a", "a:2", "a", "a", "a:2"):
            b.add("relu", [x], (1, 3), name, path)
    b.add("relu", [x], (1, 3))
    names = [operation.full_name for operation in b.build([]).operations]
    assert len(set(names)) == len(names) == 11
    assert names[:3] == ["a", "a:2", "a:3"]
    assert names[5].startswith("head/a")
    assert names[-1] == "relu"


@given(
    st.lists(st.tuples(st.sampled_from(["", "p"]), st.sampled_from(["", "a", "a:2", "a:3", "b"])))
)
def test_names_are_unique_whatever_the_layers_are_called(used: list[tuple[str, str]]) -> None:
    b = GraphBuilder("names")
    x = b.input((1, 3))
    for path, name in used:
        b.add("relu", [x], (1, 3), name, path)
    assert len({o.full_name for o in b.operations}) == len(used)


def test_what_is_made_of_constants_alone_does_not_grow_with_the_batch() -> None:
    b = GraphBuilder("constants")
    x, table = b.input((1, 3)), b.tensor((5, 3), batched=False)
    scaled = b.add("scale", [table], (5, 3))
    both = b.add("add", [x, scaled], (5, 3))
    assert [b.tensors[t].batched for t in (scaled, both)] == [False, True]
    assert b.tensors[scaled].elements(7) == 15
    assert b.tensors[both].elements(7) == 105


def test_the_type_is_what_is_said_or_the_readers_or_that_of_the_first_input() -> None:
    b = GraphBuilder("types")
    x = b.input((1, 3), "int32")
    first = b.add("relu", [x], (1, 3))
    b.dtype = "float16"
    second = b.add("relu", [x], (1, 3))
    third = b.add("relu", [x], (1, 3), dtype="bfloat16")
    assert [b.tensors[t].dtype for t in (first, second, third)] == ["int32", "float16", "bfloat16"]
    assert list(floating_types(b.build([]))) == ["float16", "bfloat16"]


def test_several_outputs_are_one_operation() -> None:
    b = GraphBuilder("several")
    x = b.input((1, 6))
    parts = b.add_several("reduce", [x], [(1, 2), (1, 3)], "moments")
    graph = b.build(parts)
    assert [o.outputs for o in graph.operations] == [tuple(parts)]
    assert graph.shapes(graph.outputs) == [(1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("kernel", "label"), [((3,), "conv_1d"), ((3, 3), "conv"), ((3, 3, 3), "conv_3d"), ((), "conv")]
)
def test_convolutions_of_other_dimensions_are_kinds_of_their_own(
    kernel: tuple[int, ...], label: str
) -> None:
    assert kind_label(Operation("c", "conv", (), (), {"kernel": kernel})) == label


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


@pytest.mark.parametrize("users", [("max_pool",), ("conv", "max_pool"), ()])
def test_other_padding_is_traffic(users: tuple[str, ...]) -> None:
    graph = padded(*users, output=not users)
    assert graph.operations[0].kind == "pad"
    pad = (5 * 7 + 7 * 9) * 2
    pool = (7 * 9 + 5 * 7) * 2 if "max_pool" in users else 0
    assert count(graph).total().traffic == pad + pool
    assert count(graph).total().inp == (7 * 9 * 2 if "conv" in users else 0)


def test_padding_that_is_an_output_stays() -> None:
    assert [o.kind for o in padded("conv", output=True).operations] == ["pad", "conv"]


# ---- JSON ----------------------------------------------------------------------------------------

names = st.text(max_size=8)
scalars = (
    st.integers(-(2**53), 2**53) | st.booleans() | names | st.floats(allow_nan=False) | st.none()
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


@st.composite
def graphs(draw: Any) -> Graph:
    b = GraphBuilder(draw(names))
    shapes = st.lists(st.integers(0, 9), max_size=4)
    known = [
        b.input(draw(shapes), draw(st.sampled_from(["float32", "int64"])), draw(st.booleans()))
    ]
    for _ in range(draw(st.integers(0, 6))):
        made = b.add_several(
            draw(st.sampled_from(["relu", "add", "pad", "mystery"])),
            draw(st.lists(st.sampled_from(known), max_size=3)),
            draw(st.lists(shapes, min_size=1, max_size=2)),
            draw(names), draw(names), draw(st.sampled_from([None, "float16"])),
        )  # fmt: skip
        known += made
        attributes = draw(st.dictionaries(names, values, max_size=3))
        last = b.operations.pop()
        b.operations.append(Operation(last.name, last.kind, last.inputs, last.outputs, attributes,
                                      last.path))  # fmt: skip
    b.warnings = draw(st.lists(names, max_size=2))
    return b.build(draw(st.lists(st.sampled_from(known), max_size=3)))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_json_round_trip(graph: Graph) -> None:
    text = json.dumps(graph.to_dict())
    again = Graph.from_dict(json.loads(text))
    assert again == graph
    assert json.dumps(again.to_dict()) == text
    assert (count(again).at(3) == count(graph).at(3)).all()


def test_what_it_was_written_in_is_kept_but_no_part_of_the_value() -> None:
    def made(framework: str) -> Graph:
        b = GraphBuilder("n", framework)
        x = b.input((1, 8, 8, 3))
        y = b.add("pad", [x], (1, 10, 10, 3), padding=((1, 1), (1, 1)))
        return b.build([b.add("conv", [y], (1, 8, 8, 4), kernel=(3, 3), filters=4, groups=1)])

    torch = made("torch")
    assert torch.framework == "torch"
    assert Graph.from_dict(json.loads(json.dumps(torch.to_dict()))).framework == "torch"
    assert torch == made("keras")
    before = torch.to_dict()  # of a LoLat that did not know it
    del before["framework"]
    assert Graph.from_dict(before).framework == ""


def document() -> dict[str, Any]:
    return padded("max_pool").to_dict()


@pytest.mark.parametrize(
    "other", [None, [], "text", 3, {}, {"schema": "lolat-model", "version": 1}]
)
def test_another_document_is_refused(other: Any) -> None:
    assert 'expected a graph document with "schema": "lolat-graph"' in refusal(
        Graph.from_dict, other
    )


def test_another_version_is_refused() -> None:
    assert "got schema 'lolat-graph', version 2" in refusal(
        Graph.from_dict, document() | {"version": 2}
    )


@pytest.mark.parametrize(
    "damage",
    [{"tensors": None}, {"tensors": [[[1, -2], True, "float32"]]}, {"tensors": [[[1.5], True]]},
     {"tensors": [[["3"], True, "float32"]]}, {"operations": [{}]}, {"operations": [3]},
     {"inputs": [0.5]}, {"inputs": [-1]}, {"outputs": [99]}, {"warnings": 3}, {"inputs": {"a": 1}}],
)  # fmt: skip
def test_a_damaged_document_is_an_error_in_one_line(damage: dict[str, Any]) -> None:
    refusal(Graph.from_dict, document() | damage)


@pytest.mark.parametrize("missing", ["name", "tensors", "operations", "inputs", "outputs"])
def test_a_document_without_a_part_is_an_error_in_one_line(missing: str) -> None:
    whole = document()
    del whole[missing]
    assert f"damaged graph document (KeyError: '{missing}')" in refusal(Graph.from_dict, whole)
