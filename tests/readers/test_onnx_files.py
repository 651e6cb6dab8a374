"""ONNX files: what is none, open sizes, constants elsewhere, sub-graphs, the batch, names of modules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import lolat
from lolat.errors import MissingPackageError
from lolat.graph.counts import count
from lolat.graph.weights import parameters
from lolat.readers.onnx import read_file, read_inputs, read_model
from lolat.readers.size import as_size
from lolat.training.memory import numbers_of
from tests.readers.counting import refused
from tests.readers.onnx_networks import graph_of, kinds, model, node, saved, six, total

PAIR = [node("Gemm", "x w b", "h"), node("Gemm", "h w c", "y")]
TABLE = [node("Gather", "t i", "p"), node("Add", "x p", "h"), node("MatMul", "h w", "y")]
NORM = [node("BatchNormalization", "x s s b m", "h"), node("MatMul", "h w", "y")]


@pytest.mark.parametrize(
    ("nodes", "constants", "number"),
    [
        (PAIR, {"w": (64, 64), "b": (64,), "c": (64,)}, 64 * 64 + 2 * 64),
        (TABLE, {"w": (64, 64), "t": (512, 64), "i": np.array([3])}, 64 * 64 + 512 * 64),
        ([node("Add", "x p", "y")], {"p": (1, 64), "unread": (64, 64)}, 64),
        (NORM, {"s": (64,), "b": (64,), "m": (64,), "w": (64, 64)}, 64 * 64 + 2 * 64),
    ],
)
def test_parameters_are_the_initializers_that_are_read(
    tmp_path: Path, nodes: Any, constants: dict[str, Any], number: int
) -> None:
    graph = graph_of(tmp_path, model(nodes, ("N", 64), **constants))
    assert parameters(graph) == number
    told = any("are the weights of no operation" in text for text in graph.warnings)
    assert told == (nodes is TABLE)


def test_a_matrix_on_the_left_of_a_product_is_its_weight(tmp_path: Path) -> None:
    """By hand: 300 x 64 parameters, all trained, as in PyTorch."""
    product = model([node("MatMul", "w x", "y")], ("N", 64, 20), w=(300, 64))
    graph = graph_of(tmp_path, product)
    assert graph.warnings == ()
    assert numbers_of(graph) == (300 * 64, 0)


CONV = [node("Conv", "x w b", "y")]
WEIGHTS: dict[str, Any] = {"w": (4, 3, 3, 3), "b": (4,)}


def typed(name: str, shape: Any = None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def test_a_path_is_a_network(tmp_path: Path) -> None:
    graph = lolat.read(saved(tmp_path, made := model(CONV, **WEIGHTS)))
    assert graph.name == "network"
    assert six(graph) == (4 * 36, 192, 4 * 36 * 27, 0, 112, 1)
    before = made.SerializeToString()
    assert total(read_model(made)) == total(graph)
    assert made.SerializeToString() == before


# ---- what is no ONNX network


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    for contents in (b"", b"<!DOCTYPE html>", model(CONV, **WEIGHTS).SerializeToString()[:200]):
        path.write_bytes(contents)
        refused(path, "network")
    refused(tmp_path / "none.onnx", "none.onnx")


def test_nodes_in_another_order(tmp_path: Path) -> None:
    """As converters to half precision write them: a cast of the input behind what reads it."""
    cast = node("Cast", "x", "h", to=TensorProto.FLOAT)
    made = model([node("Conv", "h w b", "y"), cast], **WEIGHTS)
    assert total(read_model(made)).flops == 4 * 36 * 27


def test_an_operator_of_an_optimizer_asks_for_the_file_before() -> None:
    made = model(
        [node("FusedConv", "x w", "y", "com.microsoft")], domains=["com.microsoft"], w=(4, 3, 1, 1)
    )
    refused(made, "FusedConv", "before it is optimized")


REFUSED = {
    "an input that nothing writes": model([node("Relu", "q", "y")]),
    "no input": model([node("Shape", "", "y")]),
    "an operand of another size": model([node("MatMul", "x w", "y")], w=(5, 5)),
    "an operator of another domain": model([node("Twist", "x", "y", domain="my")], domains=["my"]),
    "an operator of a newer version": model([node("Tomorrow", "x", "y")], opset=99),
    "a shape that depends on data": model([node("NonZero", "x", "y")]),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_network_that_cannot_be_read(tmp_path: Path, what: str) -> None:
    refused(saved(tmp_path, REFUSED[what]), "network")


def test_without_the_package_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, model(CONV, **WEIGHTS))
    for package in ("onnx", "onnxscript.optimizer"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(MissingPackageError, match=r"pip install .*\[onnx\]'"):
                read_file(path)


# ---- other domains, functions, sub-graphs


def test_another_domain_whose_shapes_are_told_is_reported(tmp_path: Path) -> None:
    nodes = [node("Twist", "x", "a", domain="my.own", name="twist"), node("Relu", "a", "y")]
    made = model(nodes, domains=["my.own"])
    made.graph.value_info.append(typed("a", ("N", 5)))
    graph = graph_of(tmp_path, made)
    assert kinds(graph) == ["my.own.Twist", "relu"]
    assert count(graph).total(2).traffic == 2 * (192 + 5 + 10)
    (warning,) = count(graph).warnings
    assert "no formula for operation my.own.Twist (1 x, first 'twist')" in warning


def test_local_functions_are_put_in_place_of_their_calls(tmp_path: Path) -> None:
    made = model([node("Twice", "x", "y", domain="my.own")], domains=["my.own"])
    body = [node("Relu", "a", "b"), node("Sigmoid", "b", "c")]
    made.functions.append(
        helper.make_function("my.own", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 20)])
    )
    assert kinds(graph_of(tmp_path, made)) == ["relu", "sigmoid"]


def branch(*nodes: Any, out: str) -> Any:
    return helper.make_graph(list(nodes), "branch", [], [typed(out)])


THEN = {"then_branch": branch(node("Relu", "x", "t"), out="t")}
BOTH = {**THEN, "else_branch": branch(node("MatMul", "x w", "e"), out="e")}


@pytest.mark.parametrize(("taken", "kind"), [(True, "relu"), (False, "dense")])
def test_a_branch_that_is_known_is_taken(tmp_path: Path, taken: bool, kind: str) -> None:
    graph = graph_of(tmp_path, model([node("If", "c", "y", **BOTH)], c=np.array(taken), w=(8, 8)))
    assert kinds(graph) == [kind]
    assert graph.warnings == ()


def test_products_that_cannot_be_counted_are_refused(tmp_path: Path) -> None:
    """Products in a branch that depends on data, and in an unknown operator whose shapes are told."""
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m z", "c"),
        node("If", "c", "y", name="which", **BOTH),
    ]  # fmt: skip
    refused(model(nodes, w=(8, 8), z=np.float32(0)), "which", "If")
    made = model([node("FusedConv", "x w", "y", "my")], domains=["my"], w=(4, 3, 1, 1))
    made.graph.value_info.append(typed("y", ("N", 4, 8, 8)))
    refused(made, "FusedConv")


def test_integer_products_in_a_branch_are_refused() -> None:
    body = [
        node("DynamicQuantizeLinear", "x", "q s o"), node("MatMulInteger", "q w", "i"),
        node("Cast", "i", "e", to=TensorProto.FLOAT),
    ]  # fmt: skip
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m z", "c"),
        node("If", "c", "y", name="which", then_branch=THEN["then_branch"],
             else_branch=branch(*body, out="e")),
    ]  # fmt: skip
    made = model(nodes, z=np.float32(0), w=np.ones((8, 8), np.int8))
    refused(made, "which", "If")


# ---- constants elsewhere


def elsewhere(tensor: Any, location: str) -> None:
    """Say that a tensor's contents are in a file."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def test_external_data_are_never_read(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a"), node("Reshape", "a s", "b", name="flat"), node("Relu", "b", "y")
    ]  # fmt: skip
    made = model(nodes, w=(4, 3, 1, 1), s=np.array([0, -1]))
    expected = total(graph_of(tmp_path, made))
    elsewhere(made.graph.initializer[0], "weights.bin")
    assert total(graph_of(tmp_path, made)) == expected
    (tmp_path / "shapes.bin").write_bytes(np.array([0, -1]).tobytes())
    elsewhere(made.graph.initializer[1], "shapes.bin")
    refused(saved(tmp_path, made), "network", "flat")
    made.graph.value_info.append(typed("b", ("N", 256)))
    assert total(graph_of(tmp_path, made)) == expected


@pytest.mark.parametrize("form", ["raw", "numbers", "a constant in a node"])
def test_large_constants_are_left_out_in_every_form(tmp_path: Path, form: str) -> None:
    nodes = [node("MatMul", "x w", "y")]
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(100, 200))
    if form == "numbers":
        tensor.float_data.extend([1.0] * 20000)
    else:
        tensor.raw_data = bytes(80000)
    if form == "a constant in a node":
        nodes.insert(0, node("Constant", "", "w", value=tensor))
    made = model(nodes, x=("N", 100))
    if len(nodes) == 1:
        made.graph.initializer.append(tensor)
    assert six(graph_of(tmp_path, made)) == (0, 0, 20000, 300, 20000, 1)


# ---- sizes


def shape_of(graph: Any) -> tuple[int, ...]:
    return tuple(graph.tensors[graph.inputs[0]].shape)


@pytest.mark.parametrize(
    ("x", "size", "expected"),
    [
        (("N", 3, "h", "w"), 8, (1, 3, 8, 8)),
        (("N", 3, "s", "s"), 8, (1, 3, 8, 8)),
        (("N", 3, None, None), (8, 6), (1, 3, 8, 6)),
        ((None, 3, 8, 8), None, (1, 3, 8, 8)),
        ((1, 3, 8, 8), 8, (1, 3, 8, 8)),
    ],
)
def test_input_sizes(tmp_path: Path, x: Any, size: Any, expected: tuple[int, ...]) -> None:
    path = saved(tmp_path, model([node("Conv", "x w", "y")], x=x, w=(4, 3, 1, 1)))
    assert shape_of(lolat.read(path, size)) == expected


NAMED = ("batch_size", "num_channels", "height", "width")  # as optimum has them


def test_open_channels_are_three() -> None:
    made = model([node("Conv", "x w", "y")], x=NAMED, w=(4, 3, 1, 1))
    for size in (8, (3, 8, 8)):
        assert lolat.read(made, size).input_sizes == [(3, 8, 8)]
    refused(made, "its input is ?x?x?")
    last = model([node("Relu", "x", "y")], x=("N", None, None, 3))
    assert lolat.read(last, 8).input_sizes == [(8, 8, 3)]


def test_channels_that_a_kernel_does_not_read_are_refused() -> None:
    nodes = [node("Conv", "x w", "y", name="stem")]
    refused(model(nodes, x=("N", 2, 8, 8), w=(4, 3, 1, 1)), "stem", "reads 2 channels", "has 3")
    refused(model(nodes, x=NAMED, w=(4, 3, 1, 1)), "stem", "has 3", size=(2, 8, 8))


def of_type(made: Any, name: str, kind: int) -> Any:
    """The model with an input of another type."""
    next(i for i in made.graph.input if i.name == name).type.tensor_type.elem_type = kind
    return made


def test_images_and_texts_that_are_both_open() -> None:
    """As CLIP is exported: one number is not enough, and neither is for the other's axes."""
    nodes = [
        node("Conv", "x w", "c"), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "f"),
        node("Gather", "e ids", "g"), node("ReduceMean", "g a", "t", keepdims=0), node("Mul", "f t", "y"),
    ]  # fmt: skip
    made = model(nodes, NAMED, more={"ids": ("batch_size", "sequence")}, w=(4, 3, 1, 1), e=(9, 4),
                 a=np.array([1]))  # fmt: skip
    of_type(made, "ids", TensorProto.INT64)
    for size in (8, {"sequence_length": 7}):
        refused(made, "x: ", "x?; ids: ?", "sequence_length", size=size)
    for size in ({"input_size": 8, "sequence_length": 7}, [(3, 8, 8), (7,)]):
        graph = lolat.read(made, size)
        assert graph.input_sizes == [(3, 8, 8), (7,)]
    assert lolat.load("epyc-2t").predict(made, input_size=size).counts["flops"] == 12 * 64


def test_a_decoder_with_earlier_tokens_needs_its_shapes() -> None:
    """One more token behind 7: two products of 1 x 8 x 8."""
    nodes = [
        node("Gather", "e ids", "t"), node("Concat", "x t", "k", axis=1),
        node("Transpose", "k", "u", perm=[0, 2, 1]), node("MatMul", "t u", "s"),
        node("Add", "s mask", "m"), node("MatMul", "m k", "y"),
    ]  # fmt: skip
    past, new = "past_sequence_length", "sequence_length"
    more = {"ids": ("batch_size", new), "mask": ("batch_size", new, f"{past} + {new}")}
    made = model(nodes, ("batch_size", past, 8), more=more, e=(9, 8), outputs="y k")
    of_type(made, "ids", TensorProto.INT64)
    for size in (None, 5, {"sequence_length": 5}):
        refused(made, past, "earlier tokens", size=size)
    assert total(lolat.read(made, [(7, 8), (1,), (1, 8)])).flops == 2 * 1 * 8 * 8


def test_an_axis_of_another_name_is_not_the_batch(tmp_path: Path) -> None:
    nodes = [node("Gather", "w x", "a"), node("Gather", "v p", "b"), node("Add", "a b", "y")]
    x, more = ("batch", "tokens"), {"p": ("tokens",)}
    made = model(nodes, x=x, more=more, dtype=TensorProto.INT64, w=(9, 4), v=(9, 4))
    graph = graph_of(tmp_path, made, (7,))
    assert [(graph.tensors[i].shape, graph.tensors[i].batched) for i in graph.inputs] == [
        ((1, 7), True), ((7,), False),
    ]  # fmt: skip
    assert total(graph, 3).traffic == 3 * (7 + 28) + (7 + 28) + 2 * 3 * 28 + 28


# ---- the batch


def test_a_batch_of_one_written_into_a_reshape(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Reshape", "a s", "b"), node("MatMul", "b v", "y")]
    constants: Any = {"w": (4, 3, 1, 1), "v": (256, 5)}
    fixed = graph_of(tmp_path, model(nodes, x=(1, 3, 8, 8), s=np.array([1, 256]), **constants))
    free = graph_of(tmp_path, model(nodes, s=np.array([0, -1]), **constants))
    assert total(fixed, 4) == total(free, 4)
    assert fixed.warnings == ()


@pytest.mark.parametrize(
    ("x", "batched"),
    [
        (("seq_len", 8), False), (("num_frames", 8), False), (("num_patches", 8), False),
        (("num_points", 8), False), (("num_tokens", 8), False), (("T", 1, 8), True),
        (("src_len", "N", 8), True),
    ],
)  # fmt: skip
def test_steps_in_front_are_no_batch(tmp_path: Path, x: Any, batched: bool) -> None:
    """5 steps: 5 x 8 x 6 products, and as many for each sample where there is a batch."""
    made = model([node("MatMul", "x w", "y")], x, w=(8, 6))
    graph = graph_of(tmp_path, made, as_size({"sequence_length": 5}))
    assert graph.input_sizes == [(5, 8)]
    assert [count(graph).total(n).flops for n in (1, 2)] == [240, 240 * (1 + batched)]
    assert any("no batch axis" in text for text in graph.warnings) != batched
    of_one = (5, 1, 8) if batched else (5, 8)
    (out,) = ReferenceEvaluator(made).run(None, {"x": np.zeros(of_one, np.float32)})
    assert graph.tensors[graph.outputs[0]].elements() == out.size
    refused(made, "its input is ?x8")


@pytest.mark.parametrize(("name", "told"), [("T", True), ("num_frames", True), ("N", False)])
def test_a_first_axis_that_is_taken_as_the_batch_is_told(name: str, told: bool) -> None:
    graph = read_model(model([node("Conv", "x w", "y")], (name, 3, 8, 8), w=(4, 3, 1, 1)))
    assert graph.input_sizes == [(3, 8, 8)]
    said = f"the first axis of x, {name}, is taken as the batch"
    assert (said in graph.warnings) == told
    assert count(graph).total(2).flops == 2 * 4 * 3 * 64


def test_a_larger_batch_is_read_at_one_where_it_can_be(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Reshape", "a s", "y", name="flat")]
    made = model(nodes, x=(8, 3, 8, 8), s=np.array([0, -1]), w=(4, 3, 1, 1))
    graph = graph_of(tmp_path, made)
    assert shape_of(graph) == (1, 3, 8, 8)
    assert "input 'x' is fixed at 8" in graph.warnings[0]
    baked = model(nodes, x=(8, 3, 8, 8), s=np.array([8, 256]), w=(4, 3, 1, 1))
    refused(path := saved(tmp_path, baked), "exported at a fixed batch of 8", "dynamic_axes")
    assert read_inputs(path)["x"].fixed == 8
    nodes = [node("Conv", "x w", "a"), node("Reshape", "a s", "r"), node("Add", "r p", "y")]
    sizes: dict[str, Any] = {"x": (8, 3, 8, 8), "w": (4, 3, 1, 1)}
    halves = model(nodes, s=np.array([2, -1]), p=(2, 1024), **sizes)
    refused(halves, "exported at a fixed batch of 8")  # two rows of one sample have 128 elements
    broken = model(nodes, s=np.array([0, -1]), p=(1, 7), **sizes)
    refused(broken, "the shapes", "Incompatible dimensions")  # at any batch


def test_a_fixed_batch_of_one_is_told_where_another_is_asked(tmp_path: Path) -> None:
    fixed = graph_of(tmp_path, model([node("Conv", "x w", "y")], x=(1, 3, 8, 8), w=(4, 3, 1, 1)))
    (told,) = fixed.batch_independent
    assert "fixed batch of 1 ('x')" in told
    assert told not in fixed.warnings
    one, several = (lolat.load("rtx-4090").predict(fixed, n).warnings for n in (1, 4))
    assert (told in one, told in several) == (False, True)


def test_a_long_network_takes_no_longer_per_operation(tmp_path: Path) -> None:
    """Reading is linear: at thousands of operations, a quadratic step would take minutes."""
    nodes = []
    for i in range(0, 3000, 3):
        nodes += [
            node("Relu", f"t{i}", f"t{i + 1}"), node("Identity", f"t{i + 1}", f"t{i + 2}"),
            node("Sigmoid", f"t{i + 2}", f"t{i + 3}"),
        ]  # fmt: skip
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    assert kinds(graph_of(tmp_path, model(nodes))) == ["relu", "sigmoid"] * 1000


def test_a_constant_grows_with_the_batch_where_it_is_repeated_alone(tmp_path: Path) -> None:
    nodes = [  # a token for each sample, and a table that has the batch nowhere
        node("Shape", "x", "s", start=0, end=1), node("Concat", "s o o", "t", axis=0),
        node("Expand", "c t", "d"), node("Concat", "d x", "e", axis=1), node("Add", "e p", "y"),
    ]  # fmt: skip
    graph = graph_of(tmp_path, model(nodes, x=("N", 4, 6), o=np.array([1]), c=(1, 1, 6), p=(5, 6)))
    assert kinds(graph) == ["repeat", "concatenate", "add"]
    for batch in (1, 3):
        assert total(graph, batch).traffic == (6 + 6 * batch) + 60 * batch + 60 * batch + 30


# ---- names


def test_names_of_exporters_are_paths(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a", name="/layer1/layer1.0/conv1/Conv"),
        node("Relu", "a", "b", name="/layer1/layer1.0/Relu"),
        node("Relu", "b", "c", name="/layer1/layer1.0/Relu_1"),
        node("Sigmoid", "c", "d", name="/act/Sigmoid"), node("Mul", "c d", "e", name="/act/Mul"),
        node("Relu", "e", "f", name="model/last/Relu"), node("Relu", "f", "g"),
        node("Relu", "g", "y", name="n0"),
    ]  # fmt: skip
    graph = graph_of(tmp_path, model(nodes, w=(3, 3, 1, 1)))
    assert [o.full_name for o in graph.operations] == [
        "layer1/layer1.0/conv1/conv", "layer1/layer1.0/relu", "layer1/layer1.0/relu_1", "act/silu",
        "model/last/relu", "relu",
        "n0",
    ]  # fmt: skip
    assert graph.operations[0].path == "layer1/layer1.0/conv1"


def test_modules_in_the_metadata_of_nodes(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a", name="node_relu"), node("Relu", "a", "y", name="node_relu_1")]
    made, above = model(nodes), ["", "layer1", "layer1.0"]
    scopes = [*above, "layer1.0.act", "relu"], [*above, "relu_1"]
    for made_node, value in zip(made.graph.node, scopes, strict=True):
        made_node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(value))
    graph = graph_of(tmp_path, made)
    names = [o.full_name for o in graph.operations]
    assert names == ["layer1.0/act/relu", "layer1.0/relu_1"]


def test_an_empty_file_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "e.onnx").touch()
    refused(str(tmp_path / "e.onnx"), "e.onnx' cannot be read: it is empty; expected")


@pytest.mark.parametrize("first", [True, False])
def test_an_old_file_lists_its_constants_among_the_inputs(tmp_path: Path, first: bool) -> None:
    """Before version 4 of the format it had to; those of any size are constants all the same."""
    old = model(PAIR, ("N", 64), w=(64, 64), b=(64,), c=(64,))
    listed = [
        helper.make_tensor_value_info(i.name, i.data_type, i.dims) for i in old.graph.initializer
    ]
    inputs = [*old.graph.input]
    del old.graph.input[:]
    old.graph.input.extend([*listed, *inputs] if first else [*inputs, *listed])
    new = graph_of(tmp_path, old)
    old.ir_version = 3
    graph = graph_of(tmp_path, old)
    assert total(graph) == total(new)
    assert parameters(graph) == 64 * 64 + 2 * 64
