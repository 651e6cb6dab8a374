"""keras.ops in a network: each common operation has a rule, and the count is the one by hand."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from lolat.graph.counts import count
from lolat.readers.keras.layers import OPERATION_RULES, OPERATIONS
from tests.readers.keras_networks import (
    check,
    counted,
    graph_of,
    keras,
    kinds,
    layers,
    ops,
    since,
    six,
    total,
)

IMAGE = (6, 8, 3)


def constant(*shape: int) -> Any:
    return np.ones(shape, "float32")


# Each: the kind, calls that read the 144 elements of 6 x 8 x 3 and write as many.
SAME: dict[str, list[Any]] = {
    "add": [lambda x: x + 1], "subtract": [lambda x: 1 - x],
    "divide": [lambda x: x / 2, lambda x: x % 2, lambda x: x // 2], "power": [lambda x: x**3],
    "negative": [lambda x: -x], "absolute": [lambda x: abs(x)], "maximum": [lambda x: ops.maximum(x, 0)],
    "minimum": [lambda x: ops.minimum(x, 0)], "square": [ops.square], "sqrt": [ops.sqrt],
    "rsqrt": [ops.rsqrt], "exp": [ops.exp], "log": [ops.log1p], "erf": [ops.erf],
    "clip": [lambda x: ops.clip(x, 0, 1)], "round": [ops.floor], "sign": [ops.sign],
    "trigonometric": [ops.sin, ops.cos], "cast": [lambda x: ops.cast(x, "float16")],
    "compare": [lambda x: x > 0, ops.logical_not], "where": [ops.tril],
    "unit_norm": [lambda x: ops.normalize(x, axis=-1)], "softmax": [ops.softmax], "gelu": [ops.gelu],
    "transpose": [lambda x: ops.transpose(x, (0, 3, 1, 2)), lambda x: ops.swapaxes(x, 1, 2),
                  lambda x: ops.flip(x, axis=1)],
    "cumulative": [lambda x: ops.cumsum(x, axis=1)], "roll": [lambda x: ops.roll(x, 1, axis=1)],
    "sort": [lambda x: ops.sort(x, axis=1), lambda x: ops.argsort(x, axis=1)],
}  # fmt: skip
# Each: the kind, the call, elements read and written.
SIMPLE = [
    *((kind, call, 288) for kind, calls in SAME.items() for call in calls),
    ("add", lambda x: x + x, 3 * 144),
    ("add", lambda x: x + constant(3), 144 + 3 + 144),
    ("multiply", lambda x: ops.multiply(x, constant(6, 8, 3)), 3 * 144),
    ("where", lambda x: ops.where(x, x, 0.0), 3 * 144),
    ("fill", ops.zeros_like, 144),
    ("reduce", lambda x: ops.mean(x, axis=(1, 2)), 144 + 3),
    ("reduce", lambda x: ops.logsumexp(x, axis=(-1,)), 144 + 48),
    ("reduce", lambda x: ops.argmax(x, axis=-1), 144 + 48),
    ("reduce", lambda x: ops.norm(x, axis=-1), 144 + 48),
    ("reduce", lambda x: ops.sum(x, axis=1, keepdims=True), 144 + 24),
    ("slice", lambda x: x[:, 1:3], 2 * 48),
    ("slice", lambda x: x[..., 0], 2 * 48),
    ("repeat", lambda x: ops.repeat(x, 2, axis=1), 3 * 144),
    ("repeat", lambda x: ops.tile(x, (1, 1, 1, 2)), 3 * 144),
    ("pad", lambda x: ops.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0))), 144 + 192),
    ("resize", lambda x: ops.image.resize(x, (3, 4)), 144 + 36),
    ("gather", lambda x: ops.take(x, np.array([0, 2]), axis=1), 2 * 48 + 2),
    ("concatenate", lambda x: ops.concatenate([x, x], axis=-1), 4 * 144),
    ("stack", lambda x: ops.stack([x, x, x], axis=1), 6 * 144),
    ("max_pool", lambda x: ops.max_pool(x, 2), 144 + 36),
    ("average_pool", lambda x: ops.average_pool(x, (2, 4)), 144 + 18),
    ("unfold", lambda x: ops.image.extract_patches(x, 2), 144 + 144),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call", "moved"), SIMPLE)
def test_operations_that_move_data(kind: str, call: Any, moved: int) -> None:
    graph = graph_of(call, IMAGE)
    assert kinds(graph) == [kind]
    assert six(graph) == (0, 0, 0, moved, 0, 1)


def test_one_hot_and_a_constant_that_does_not_grow_with_the_batch() -> None:
    graph = graph_of(lambda x: ops.one_hot(x, 10), (7,), dtype="int32")
    check(graph, "one_hot", (0, 0, 0, 7 + 70, 0, 1))
    assert counted(lambda x: x + constant(6, 8, 3), IMAGE, batch_size=5).traffic == 5 * 288 + 144


@pytest.mark.parametrize(
    "call",
    [lambda x: ops.cast(x, "float32"),
     lambda x: ops.reshape(x, (-1, 18)), lambda x: ops.expand_dims(x, 1), ops.stop_gradient, ops.copy,
     ops.convert_to_tensor, lambda x: ops.squeeze(ops.expand_dims(x, 1), 1)],
)  # fmt: skip
def test_views_are_free(call: Any) -> None:
    assert six(counted(call, IMAGE)) == (0, 0, 0, 0, 0, 0)


def test_several_outputs() -> None:
    graph = graph_of(lambda x: list(ops.moments(x, axes=(1, 2))), IMAGE)
    assert [o.kind for o in graph.operations] == ["reduce"]
    assert graph.shapes(graph.outputs) == [(1, 3), (1, 3)]
    assert total(graph).traffic == 144 + 3 + 3
    graph = graph_of(lambda x: list(ops.top_k(x, 2)), (9,))
    assert six(graph) == (0, 0, 0, 9 + 2 + 2, 0, 1)
    graph = graph_of(lambda x: ops.split(x, 3, axis=-1), IMAGE)
    assert six(graph) == (0, 0, 0, 3 * 2 * 48, 0, 3)


def test_products() -> None:
    weights = constant(7, 4)
    for call in (lambda x: ops.matmul(x, weights), lambda x: x @ weights, lambda x: ops.dot(x, weights),
                 lambda x: ops.tensordot(x, weights, axes=1),
                 lambda x: ops.einsum("bsi,io->bso", x, weights),
                 lambda x: ops.tensordot(x, weights, axes=[[2], [0]])):  # fmt: skip
        check(graph_of(call, (5, 7)), "dense", (0, 0, 5 * 7 * 4, 5 * (7 + 4), 28, 1))
    graph = graph_of(lambda a, b: ops.matmul(a, ops.transpose(b, (0, 2, 1))), (5, 7), (3, 7))
    assert kinds(graph) == ["transpose", "matmul"]
    assert total(graph).flops == 5 * 7 * 3
    graph = graph_of(lambda a, b: ops.einsum("bqhd,bkhd->bhqk", a, b), (5, 2, 7), (3, 2, 7))
    check(graph, "matmul", (0, 0, 2 * 5 * 3 * 7, 70 + 42 + 30, 0, 1))


KERNEL = constant(3, 3, 4, 2)


@pytest.mark.parametrize(
    ("call", "layer"),
    [
        (lambda x: ops.conv(x, constant(3, 3, 4, 6)), layers.Conv2D(6, 3, use_bias=False)),
        (lambda x: ops.depthwise_conv(x, KERNEL),
         layers.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)),
        (lambda x: ops.separable_conv(x, KERNEL, constant(1, 1, 8, 5)),
         layers.SeparableConv2D(5, 3, depth_multiplier=2, use_bias=False)),
        (lambda x: ops.conv_transpose(x, constant(3, 3, 6, 4), 2),
         layers.Conv2DTranspose(6, 3, 2, use_bias=False)),
    ],
)  # fmt: skip
def test_convolutions_count_as_the_layers(call: Any, layer: Any) -> None:
    image = (7, 9, 4)
    assert six(counted(call, image)) == six(counted(lambda x: layer(x), image))


def test_dot_product_attention() -> None:
    graph = graph_of(
        lambda q, k, v: ops.dot_product_attention(q, k, v), (5, 2, 7), (11, 2, 7), (11, 2, 7)
    )
    assert kinds(graph) == ["attention"]
    assert total(graph).flops == 2 * (2 * 5 * 11 * 7)
    assert graph.shapes(graph.outputs) == [(1, 5, 2, 7)]


def test_windows_move_into_the_batch_and_back() -> None:
    """Swin's window partition: 8 x 8 positions as 4 windows of 16."""

    def windows(x: Any) -> Any:
        x = ops.reshape(x, (-1, 2, 4, 2, 4, 3))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        x = ops.reshape(x, (-1, 16, 3))
        x = layers.Dense(5)(x)
        x = layers.MultiHeadAttention(1, 5)(x, x)
        x = ops.reshape(x, (-1, 2, 2, 4, 4, 5))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (-1, 8, 8, 5))

    graph = graph_of(windows, (8, 8, 3))
    inside = next(o for o in graph.operations if o.kind == "dense")
    assert graph.shapes(inside.outputs) == [(4, 16, 5)]
    assert graph.shapes(graph.outputs) == [(1, 8, 8, 5)]
    attention = 4 * 16 * 25 * 4 + 4 * 2 * 16 * 16 * 5
    assert total(graph, 3).flops == 3 * (64 * 3 * 5 + attention)


@since(3, 14)
def test_every_rule_is_of_an_operation_that_keras_has() -> None:
    for name in (*OPERATION_RULES, *OPERATIONS):
        assert _operation(name) is not None, f"keras.ops has no operation {name}"


def _operation(name: str) -> Any:
    for module in pkgutil.iter_modules(keras.src.ops.__path__, "keras.src.ops."):
        if not module.name.endswith("_test") and hasattr(import_module(module.name), name):
            return getattr(import_module(module.name), name)
    return None


def test_an_operation_without_a_rule_is_named_and_counted() -> None:
    graph = graph_of(lambda x: ops.linalg.cholesky(x), (5, 5))
    counts = count(graph)
    assert counts.total().traffic == 50
    assert "no formula for operation Cholesky" in counts.warnings[0]
    graph = graph_of(lambda x: list(ops.linalg.qr(x)), (5, 3))
    assert count(graph).total().traffic == 15 + 15 + 9  # each output is written
