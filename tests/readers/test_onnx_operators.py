"""ONNX operators one at a time, at old and new opsets: counts worked out by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import ml_dtypes
from onnx import TensorProto, helper

import lolat
from lolat.graph.analysis import analyze
from lolat.graph.counts import count
from lolat.graph.quantized import int8_steps
from lolat.readers.onnx import read_file
from tests.processes import python
from tests.readers.counting import refused
from tests.readers.onnx_networks import NEWEST, graph_of, kinds, model, node, saved, total

OPSETS = [11, NEWEST]


def test_attributes_of_a_convolution_are_those_of_keras(tmp_path: Path) -> None:
    made = model([node("Conv", "x w", "y", strides=[2, 2], pads=[3, 3, 3, 3])], w=(8, 3, 7, 7))
    (operation,) = graph_of(tmp_path, made).operations
    assert operation.attributes == {
        "kernel": (7, 7), "strides": (2, 2), "dilation": (1, 1), "padding": "same", "bias": False,
        "in_channels": 3, "out_channels": 8, "groups": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pads", "strides", "padding"),
    [
        ([0] * 4, [1, 1], "valid"),
        ([1] * 4, [1, 1], "same"),
        ([2] * 4, [1, 1], ((2, 2), (2, 2))),
        ([0, 1, 0, 1], [1, 1], ((0, 0), (1, 1))),
    ],
)
def test_padding(tmp_path: Path, pads: list[int], strides: list[int], padding: Any) -> None:
    made = model([node("Conv", "x w", "y", pads=pads, strides=strides)], w=(8, 3, 3, 3))
    (operation,) = graph_of(tmp_path, made).operations
    assert operation.attributes["padding"] == padding


def test_what_drops_or_computes_statistics_at_inference(tmp_path: Path) -> None:
    """3 x 8 x 8 elements, read and written."""
    ratio, on = np.array(0.3, np.float32), np.array([True])
    drops = graph_of(tmp_path, model([node("Dropout", "x r t", "y")], r=ratio, t=on[0]))
    assert count(drops).total()[3:6] == (2 * 192, 0, 1)
    assert any("drop elements at inference" in said for said in drops.warnings)
    off = graph_of(tmp_path, model([node("Dropout", "x r t", "y")], r=ratio, t=~on[0]))
    assert count(off).total().ops == 0
    of = dict.fromkeys("sbmv", (3,))
    nodes = [node("BatchNormalization", "x s b m v", "y mean var", training_mode=1)]
    assert kinds(graph_of(tmp_path, model(nodes, **of))) == ["instance_norm"]


def test_a_gemm_of_activations_is_a_product_and_an_addition(tmp_path: Path) -> None:
    made = model([node("Gemm", "x x x", "y", transB=1)], x=(1, 1))
    assert kinds(graph_of(tmp_path, made)) == ["matmul", "add"]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    ("op", "gates", "kind"), [("LSTM", 4, "lstm"), ("GRU", 3, "gru"), ("RNN", 1, "simple_rnn")]
)
def test_recurrent_layers(tmp_path: Path, opset: int, op: str, gates: int, kind: str) -> None:
    nodes = [node(op, "x w r b", "y", hidden_size=5)]
    constants: Any = {"w": (1, gates * 5, 3), "r": (1, gates * 5, 5), "b": (1, gates * 10)}
    graph = graph_of(tmp_path, model(nodes, x=(7, "batch", 3), opset=opset, **constants))
    assert kinds(graph) == [kind]
    counts = total(graph, 2)
    assert counts.flops == 2 * 7 * gates * 5 * 8
    assert counts.weights == gates * 5 * (8 + 2)
    assert counts.ops == 7
    both = [node(op, "x w r b", "y h", hidden_size=5, direction="bidirectional")]
    doubled = {k: (2, *v[1:]) for k, v in constants.items()}
    graph = graph_of(tmp_path, model(both, x=(7, "batch", 3), opset=opset, **doubled))
    assert kinds(graph) == [kind, kind, "concatenate"]
    again = total(graph, 2)
    assert (again.flops, again.weights) == (2 * counts.flops, 2 * counts.weights)
    assert again.traffic == 2 * counts.traffic + 2 * 2 * (2 * 7 * 5)


def test_attention_of_opset_23(tmp_path: Path) -> None:
    """Two heads of 4 features, whose features lie side by side, and a mask."""
    flat = [node("Attention", "x x x m", "y", q_num_heads=2, kv_num_heads=2)]
    masked = graph_of(tmp_path, model(flat, x=("N", 7, 8), opset=23, m=(7, 7)))
    assert kinds(masked) == ["attention"]
    assert total(masked).ops == 5
    assert total(masked).flops == 2 * (2 * 7 * 7) * 4
    past = [node("Attention", "x x x - p p", "y", q_num_heads=2, kv_num_heads=2, name="late")]
    made = model(past, x=("N", 3, 8), opset=23, more={"p": ("N", 2, 7, 4)})
    refused(told(made, y=("N", 3, 8)), "late")


def told(made: Any, **shapes: Any) -> Any:
    """The model with the shapes of tensors, which ONNX does not find behind another's operators."""
    for name, shape in shapes.items():
        made.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return made


@pytest.mark.parametrize(
    "op", ["MultiHeadAttention", "FusedMatMul", "MatMulNBits", "QLinearMatMul"]
)
def test_products_of_onnx_runtime_are_refused(op: str) -> None:
    nodes, inputs = [node("Relu", "a", "y")], "x x x"
    constants: dict[str, Any] = {}
    if op == "QLinearMatMul":
        inputs, constants = "q s z w s z s z", {"s": np.float32(1), "z": np.uint8(0)}
        constants["w"] = np.ones((8, 8), np.uint8)
        nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "a s z", "y")]
    domain = "" if constants else "com.microsoft"
    nodes.insert(len(constants) > 0, node(op, inputs, "a", domain, "fused"))
    made = model(nodes, domains=["com.microsoft"], **constants)
    refused(made if constants else told(made, a=("N", 7, 8)), "fused", op, "QDQ")


# ---- Quantized networks: as the networks in float that they were, and timed as these.

IMAGES = model(
    [node("Conv", "x w1 b1", "c"), node("Sigmoid", "c", "s"), node("Concat", "c s", "j", axis=1),
     node("Conv", "j w2", "e"), node("Add", "e e", "a"), node("GlobalAveragePool", "a", "p"),
     node("Flatten", "p", "f"), node("Gemm", "f w3 b3", "y")],
    w1=(4, 3, 3, 3), b1=(4,), w2=(8, 8, 1, 1), w3=(8, 5), b3=(5,),
)  # fmt: skip
WORDS = model(
    [node("Gather", "w x", "e"), node("MatMul", "e k", "d"), node("Add", "d b", "a"),
     node("Transpose", "a", "t", perm=[0, 2, 1]), node("MatMul", "a t", "s"), node("Softmax", "s", "p"),
     node("MatMul", "p a", "m"), node("LSTM", "m i r", "y", hidden_size=4)],
    x=("N", 9), dtype=TensorProto.INT64, w=(50, 8), k=(8, 8), b=(8,), i=(1, 16, 8), r=(1, 16, 4),
)  # fmt: skip


QUANTIZE = """
import sys
import numpy as np
from onnxruntime import quantization as q
for given, size, dtype in (("images", (2, 3, 8, 8), "float32"), ("words", (2, 9), "int64")):
    data = [{"x": np.ones(size, dtype)}]
    reader = type("Data", (q.CalibrationDataReader,), {"get_next": lambda _: data and data.pop()})
    q.quantize_dynamic(f"{given}.onnx", f"{given} dynamic.onnx")
    q.quantize_static(f"{given}.onnx", f"{given} QDQ.onnx", reader(), quant_format=q.QuantFormat.QDQ)
"""
"""A process of its own: ONNX Runtime opens no session with threads of its own once one shares them."""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both networks, and of what ONNX Runtime makes of them."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("quantized")
    for name, made in (("images", IMAGES), ("words", WORDS)):
        saved(folder, made, f"{name}.onnx")
    done = python(QUANTIZE, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("form", ["dynamic", "QDQ"])
@pytest.mark.parametrize("name", ["images", "words"])
def test_a_quantized_network(quantized: Path, name: str, form: str) -> None:
    """A network that ONNX Runtime quantizes keeps its counts and time, outside the measured range."""
    ours, found = (read_file(str(quantized / f"{name}{end}.onnx")) for end in ("", f" {form}"))
    assert kinds(found) == kinds(ours)
    assert [tuple(count(found).total(n)) for n in (1, 3)] == [total(ours, n) for n in (1, 3)]
    for device in ("epyc-2t-onnxruntime", "t4-fp32", "i7-12700h-compiled"):
        before, after = (lolat.load(device).predict(g, batch_size=64) for g in (ours, found))
        assert after.latency_ms == before.latency_ms
        assert after.in_domain is False
        assert after.interval_ms[1] > before.interval_ms[1]
        assert any("quantized" in w and "as in float" in w for w in after.warnings)
        assert after.memory.weights_bytes < before.memory.weights_bytes / 2


@pytest.mark.parametrize(
    ("zero", "second", "names"),
    [(np.uint8(3), "p", ["convolution"] * 2),  # without a sign: in integers, whoever reads
     (np.int8(3), "p", ["convolution"] * 2),
     (np.int8(3), "d", ["island"] * 2),  # two read a tensor with a sign
     (np.uint16(3), "p", [""] * 2),
     (np.uint8(3), "x", ["convolution", ""])],  # weights alone
)  # fmt: skip
def test_what_runs_in_integers(tmp_path: Path, zero: Any, second: str, names: list[str]) -> None:
    """Two convolutions between tensors in 8 bits; the second reads the first, its input again, or x."""
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "k s", "w"), node("Conv", "d w", "c"),
        node("QuantizeLinear", "c s z", "r"), node("DequantizeLinear", "r s z", "p"),
        node("Conv", f"{second} w", "e"), node("QuantizeLinear", "e s z", "f"),
        node("DequantizeLinear", "f s z", "y"),
    ]  # fmt: skip
    if second != "p":
        nodes.append(node("Identity", "p", "v"))
    outputs = "y" if second == "p" else "y v"
    made = model(
        nodes, s=np.float32(0.1), z=zero, k=np.ones((3, 3, 1, 1), np.int8), outputs=outputs
    )
    graph = graph_of(tmp_path, made)
    assert [s.name for s in int8_steps(graph) if s.name != "other"][:2] == names
    assert all("bits" in o.attributes for o in graph.operations if o.kind == "conv")
    assert analyze(graph).memory(1).weights_bytes == 9 + 4  # one kernel and its scale


OPTIMIZED = """
import sys, onnx, onnxruntime
for path in sys.argv[1:]:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = f"{path} optimized"
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    print(*(node.op_type for node in onnx.load(f"{path} optimized").graph.node))
"""


def between_8_bits(kernel: str, op: str) -> Any:
    """A product between tensors in 8 bits, of a kernel of this type."""
    shape, x = ((4, 4, 3, 3), ("N", 4, 8, 8)) if op == "Conv" else ((4, 4), ("N", 4))
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d")]
    of_kernel = {"w": np.ones(shape, np.float32)}
    if kernel != "float":
        dtype = np.int8 if kernel == "int8" else ml_dtypes.int4
        of_kernel = {"k": np.ones(shape, dtype), "o": np.zeros((), dtype)}
        nodes.append(node("DequantizeLinear", "k s o", "w"))
    nodes += [
        node(op, "d w", "c"), node("QuantizeLinear", "c s z", "r"),
        node("DequantizeLinear", "r s z", "y"),
    ]  # fmt: skip
    return model(nodes, x=x, opset=21, s=np.float32(0.1), z=np.uint8(3), **of_kernel)


def test_a_product_runs_in_integers_where_onnx_runtime_runs_it_so(tmp_path: Path) -> None:
    """By the kernel's type: as ONNX Runtime's own optimizer has it."""
    pytest.importorskip("onnxruntime")
    pairs = [*itertools.product(("int8", "int4", "float"), ("Conv", "MatMul", "Gemm"))]
    files = [saved(tmp_path, between_8_bits(*pair), f"{'-'.join(pair)}.onnx") for pair in pairs]
    done = python(OPTIMIZED, *files)
    assert done.returncode == 0, done.stderr
    for pair, file, line in zip(pairs, files, done.stdout.splitlines(), strict=True):
        in_float = pair[1] in line.split()
        assert in_float is (pair[0] == "int4" or pair == ("float", "MatMul")), pair
        steps = [s.name for s in int8_steps(read_file(file))]
        assert bool({"convolution", "product"} & {*steps}) is not in_float, pair


def test_weights_of_4_bits_have_scales_and_zero_points(tmp_path: Path) -> None:
    """64 x 8 of half a byte; 2 x 8 blocks with a scale and a zero point; 8 biases in float32."""
    nodes = [
        node("DequantizeLinear", "q s z", "w", block_size=32), node("MatMul", "x w", "m"),
        node("Add", "m b", "y"),
    ]  # fmt: skip
    made = model(nodes, x=("N", 64), opset=21, b=(8,), s=(2, 8))
    for name, shape in (("q", [64, 8]), ("z", [2, 8])):
        four = helper.make_tensor(name, TensorProto.INT4, shape, [1] * (shape[0] * shape[1]))
        made.graph.initializer.append(four)
    graph = graph_of(tmp_path, made)
    assert kinds(graph) == ["dense"]
    assert analyze(graph).memory(1).weights_bytes == 64 * 8 / 2 + 16 * (4 + 0.5) + 8 * 4


NUMBER: dict[str, Any] = {"s": np.float32(0.1), "z": np.uint8(0)}


def test_a_quantized_image_is_converted(tmp_path: Path) -> None:
    nodes = [node("DequantizeLinear", "x s z", "d"), node("Conv", "d w", "y")]
    made = model(nodes, dtype=TensorProto.UINT8, w=(4, 3, 3, 3), **NUMBER)
    graph = graph_of(tmp_path, made)
    assert kinds(graph) == ["cast", "conv"]


@pytest.mark.parametrize("shape", [(5, 1, 3), (5, 4, 3), (5, "batch", 3)])
def test_steps_in_front_are_not_the_batch(tmp_path: Path, shape: tuple[Any, ...]) -> None:
    """Of an input and the states of a recurrent layer; the same whether the size is open, 1 or more."""
    made = model(
        [node("LSTM", "x w r - - h c", "y", hidden_size=4)], shape,
        more={"h": (1, *shape[1:2], 4), "c": (1, *shape[1:2], 4)}, w=(1, 16, 3), r=(1, 16, 4),
    )  # fmt: skip
    graph = graph_of(tmp_path, made)
    assert graph.shapes(graph.inputs) == [(5, 1, 3), (1, 1, 4), (1, 1, 4)]
    assert graph.operations[0].attributes["timesteps"] == 5
    assert [count(graph).total(n).flops for n in (1, 3)] == [n * 5 * 16 * (3 + 4) for n in (1, 3)]
