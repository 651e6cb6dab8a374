"""Operations that exporters take apart are put together again; those that only look like it are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.readers.counting import check
from tests.readers.onnx_networks import graph_of, kinds, model, node, total


def number(value: float) -> np.ndarray:
    return np.float32(value)  # type: ignore[return-value]


C: dict[str, Any] = {
    "one": number(1), "half": number(0.5), "root": number(2**0.5), "inverse": number(0.5**0.5),
    "three": number(3), "six": number(6), "zero": number(0), "sixth": number(1 / 6),
    "cubic": number(0.044715),
    "factor": number(0.7978846), "two": number(2), "small": number(1e-5), "gamma": (8,), "beta": (8,),
    "axis": np.array([-1]),
}  # fmt: skip

HARD = [node("Add", "x three", "a"), node("Clip", "a zero six", "b")]
CENTER = [node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d")]
VARIANCE = [
    *CENTER, node("Pow", "d two", "e"), node("ReduceMean", "e", "f", axes=[-1]),
    node("Add", "f small", "g"),
    node("Sqrt", "g", "h"),
]  # fmt: skip
MEAN_SQUARE = [
    node("Pow", "x two", "a"), node("ReduceMean", "a", "b", axes=[-1]), node("Add", "b small", "c"),
    node("Sqrt", "c", "d"),
]  # fmt: skip
GATE = [node("Tanh", "t", "u"), node("Add", "u one", "v")]
TANH = [*GATE, node("Mul", "x v", "w"), node("Mul", "w half", "y")]

PATTERNS: dict[str, tuple[str, list[Any]]] = {
    "gelu by division": ("gelu", [
        node("Div", "x root", "a"), node("Erf", "a", "b"), node("Add", "b one", "c"),
        node("Mul", "x c", "d"),
        node("Mul", "d half", "y"),
    ]),
    "gelu, half first": ("gelu", [
        node("Mul", "half x", "h"), node("Mul", "x inverse", "a"), node("Erf", "a", "b"),
        node("Add", "one b", "c"), node("Mul", "h c", "y"),
    ]),
    "gelu by tanh and power": ("gelu", [
        node("Pow", "x three", "a"), node("Mul", "a cubic", "b"), node("Add", "x b", "c"),
        node("Mul", "c factor", "t"), *TANH,
    ]),
    "gelu by tanh and products": ("gelu", [
        node("Mul", "x x", "a"), node("Mul", "a x", "b"), node("Mul", "cubic b", "c"),
        node("Add", "x c", "d"),
        node("Mul", "d factor", "t"), *TANH,
    ]),
    "silu": ("silu", [node("Sigmoid", "x", "a"), node("Mul", "x a", "y")]),
    "log sigmoid": ("log_sigmoid", [node("Sigmoid", "x", "a"), node("Log", "a", "y")]),
    "mish": ("mish", [node("Softplus", "x", "a"), node("Tanh", "a", "b"), node("Mul", "x b", "y")]),
    "hard swish": ("hard_silu", [*HARD, node("Mul", "x b", "c"), node("Div", "c six", "y")]),
    "hard swish by a factor": ("hard_silu", [*HARD, node("Mul", "b sixth", "c"), node("Mul", "c x", "y")]),
    "hard swish of opset 13": ("hard_silu", [node("HardSigmoid", "x", "a"), node("Mul", "x a", "y")]),
    "hard sigmoid": ("hard_sigmoid", [*HARD, node("Div", "b six", "y")]),
    "layer norm": ("layer_norm", [*VARIANCE, node("Div", "d h", "y")]),
    "layer norm with factors": ("layer_norm", [
        *VARIANCE, node("Div", "d h", "i"), node("Mul", "i gamma", "j"), node("Add", "j beta", "y"),
    ]),
    "layer norm, squared by a product": ("layer_norm", [
        *CENTER, node("Mul", "d d", "e"), node("ReduceMean", "e", "f", axes=[-1]),
        node("Add", "f small", "g"),
        node("Sqrt", "g", "h"), node("Reciprocal", "h", "i"), node("Mul", "d i", "y"),
    ]),
    "rms norm": ("rms_norm", [
        *MEAN_SQUARE, node("Div", "one d", "e"), node("Mul", "x e", "f"), node("Mul", "gamma f", "y"),
    ]),
    "softmax": ("softmax", [
        node("ReduceMax", "x", "m", axes=[-1]), node("Sub", "x m", "a"), node("Exp", "a", "b"),
        node("ReduceSum", "b axis", "s"), node("Div", "b s", "y"),
    ]),
    "normalized": ("unit_norm", [
        node("ReduceL2", "x", "n", axes=[-1]), node("Clip", "n small", "m"), node("Div", "x m", "y"),
    ]),
}  # fmt: skip


def with_constants(nodes: list[Any], outputs: str = "y") -> Any:
    """A network of nodes, and of what they read of C."""
    used = {n for p in nodes for n in p.input}
    constants = {k: v for k, v in C.items() if k in used}
    return model(nodes, x=("N", 5, 8), opset=13, outputs=outputs, **constants)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_of_exporters(tmp_path: Path, name: str) -> None:
    kind, nodes = PATTERNS[name]
    check(graph_of(tmp_path, with_constants(nodes)), kind, (0, 0, 0, 80, 0, 1))


ALONE: dict[str, tuple[list[str], str, list[Any]]] = {
    "a gate of something else": (["sigmoid", "relu", "multiply"], "y", [
        node("Sigmoid", "x", "a"), node("Relu", "x", "b"), node("Mul", "b a", "y"),
    ]),
    "what is inside is read outside": (["sigmoid", "multiply", "relu"], "y z", [
        node("Sigmoid", "x", "a"), node("Mul", "x a", "y"), node("Relu", "a", "z"),
    ]),
    "what is inside is an output": (["sigmoid", "multiply"], "y a", [
        node("Sigmoid", "x", "a"), node("Mul", "x a", "y"),
    ]),
    "a batch norm taken apart": (["multiply", "add", "relu6"], "y", [
        node("Mul", "x gamma", "a"), node("Add", "a beta", "b"), node("Clip", "b zero six", "y"),
    ]),
    "other limits": (["add", "clip", "multiply"], "y", [
        node("Add", "x three", "a"), node("Clip", "a zero three", "b"), node("Mul", "x b", "y"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_what_only_looks_like_a_pattern_is_left_alone(tmp_path: Path, name: str) -> None:
    expected, outputs, nodes = ALONE[name]
    graph = graph_of(tmp_path, with_constants(nodes, outputs))
    assert sorted(kinds(graph)) == sorted(expected)


def test_group_norm_by_instance_norm(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x s", "a"), node("InstanceNormalization", "a i i", "b"), node("Shape", "x", "t"),
        node("Reshape", "b t", "c"), node("Mul", "c g", "d"), node("Add", "d g", "y"),
    ]  # fmt: skip
    constants: Any = {"s": np.array([0, 2, -1]), "i": (2,), "g": (4, 1, 1)}
    made = model(nodes, x=("N", 4, 6, 6), opset=13, **constants)
    check(graph_of(tmp_path, made), "group_norm", (0, 0, 0, 288, 0, 1))


def test_an_added_channel_vector_is_the_bias_of_a_convolution(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Add", "a b", "y")]
    constants: Any = {"w": (4, 3, 1, 1), "b": (1, 4, 1, 1)}
    check(graph_of(tmp_path, model(nodes, **constants)), "conv", (256, 192, 768, 0, 16, 1))
    heads = [node("Einsum", "x w", "a", equation="abcd,def->abcef"), node("Add", "a b", "y")]
    of_heads: Any = {"w": (8, 2, 5), "b": (2, 5)}
    check(graph_of(tmp_path, model(heads, **of_heads)), "dense", (0, 0, 1920, 192 + 240, 90, 1))
    per_column: Any = {"w": (8, 3, 1, 1), "b": (8,)}  # adds along the width
    assert kinds(graph_of(tmp_path, model(nodes, **per_column))) == ["conv", "add"]


def test_a_roll_along_two_axes(tmp_path: Path) -> None:
    def rolled(x: str, y: str, axis: int) -> list[Any]:
        i = f"i{axis}"
        return [
            node("Slice", f"{x} k e {i}", f"{y}1"), node("Slice", f"{x} o k {i}", f"{y}2"),
            node("Concat", f"{y}1 {y}2", y, axis=axis),
        ]  # fmt: skip

    constants: Any = {"k": np.array([3]), "e": np.array([99]), "o": np.array([0]), "i2": np.array([2]),
                      "i3": np.array([3])}  # fmt: skip
    graph = graph_of(tmp_path, model([*rolled("x", "a", 2), *rolled("a", "y", 3)], **constants))
    check(graph, "roll", (0, 0, 0, 384, 0, 1))


# ---- what stands in the file -------------------------------------------------------------------------


def test_a_network_of_channels_last_counts_its_transposes(tmp_path: Path) -> None:
    nodes = [  # as tf2onnx writes Keras' Conv2D, and a dense layer on the channels
        node("Transpose", "x", "a", perm=[0, 3, 1, 2]), node("Conv", "a w", "b"), node("Relu", "b", "c"),
        node("Transpose", "c", "d", perm=[0, 2, 3, 1]), node("MatMul", "d v", "e"),
        node("Transpose", "e", "f", perm=[0, 3, 1, 2]), node("Add", "c f", "y"),
    ]  # fmt: skip
    graph = graph_of(tmp_path, model(nodes, x=("N", 8, 8, 3), w=(4, 3, 1, 1), v=(4, 4)))
    names = ["transpose", "conv", "relu", "transpose", "dense", "transpose", "add"]
    assert kinds(graph) == names
    image, channels = 8 * 8 * 3, 8 * 8 * 4
    assert total(graph).traffic == 2 * image + (2 + 2 + 2 + 2 + 3) * channels


def test_attention_is_what_the_exporter_wrote(tmp_path: Path) -> None:
    """One layer of two heads of 4 features on x: scalings of queries and of keys, transposes of all."""
    nodes = [
        node("MatMul", "x w", "q0"), node("Reshape", "q0 h", "q1"),
        node("Transpose", "q1", "q", perm=[0, 2, 1, 3]), node("Mul", "q s", "qs"),
        node("MatMul", "x w", "k0"), node("Reshape", "k0 h", "k1"),
        node("Transpose", "k1", "k", perm=[0, 2, 3, 1]), node("Mul", "k s", "ks"),
        node("MatMul", "x w", "v0"), node("Reshape", "v0 h", "v1"),
        node("Transpose", "v1", "v", perm=[0, 2, 1, 3]),
        node("MatMul", "qs ks", "a"), node("Softmax", "a", "b", axis=-1), node("MatMul", "b v", "c"),
        node("Transpose", "c", "d", perm=[0, 2, 1, 3]), node("Reshape", "d f", "y"),
    ]  # fmt: skip
    constants: Any = {"h": np.array([0, 5, 2, 4]), "f": np.array([0, 5, 8]), "s": number(0.7)}
    graph = graph_of(tmp_path, model(nodes, x=("N", 5, 8), w=(8, 8), **constants))
    assert sorted(kinds(graph)) == sorted(
        ["dense"] * 3 + ["transpose"] * 4 + ["multiply"] * 2 + ["matmul", "softmax", "matmul"]
    )
    counts, scores, size = total(graph, 2), 2 * 25, 5 * 8
    assert counts.flops == 2 * (3 * size * 8 + 2 * scores * 4)
    products = (2 * size + scores) + (scores + 2 * size)
    assert counts.traffic == 2 * ((3 + 4 + 2) * 2 * size + products + 2 * scores)
