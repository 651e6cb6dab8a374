"""keras.ops in a network: each common operation has a rule, and the count is the one by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lolat
from lolat.graph.counts import count
from tests.readers.keras_networks import graph_of, layers, ops, total

IMAGE = (6, 8, 3)


def constant(*shape: int) -> Any:
    return np.ones(shape, "float32")


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


def test_an_operation_without_a_rule_is_named_and_counted() -> None:
    graph = graph_of(lambda x: ops.linalg.cholesky(x), (5, 5))
    counts = count(graph)
    assert counts.total().traffic == 50
    assert "no formula for operation Cholesky" in counts.warnings[0]
    graph = graph_of(lambda x: list(ops.linalg.qr(x)), (5, 3))
    assert count(graph).total().traffic == 15 + 15 + 9  # each output is written


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: ops.vectorized_map(lambda row: ops.matmul(row, w), x),
        lambda x, w: ops.map(lambda row: ops.matmul(row, w), x),
        lambda x, w: ops.scan(lambda c, row: (ops.matmul(row, w), row), x[0], x)[0],
        lambda x, w: ops.cond(ops.sum(x) > 0, lambda: ops.matmul(x, w), lambda: x),
        lambda x, w: ops.fori_loop(0, 8, lambda i, y: ops.matmul(y, w), x),
        lambda x, w: ops.while_loop(lambda y: ops.sum(y) > 0, lambda y: ops.matmul(y, w), x),
        lambda x, w: ops.switch(ops.cast(ops.sum(x), "int32"), [lambda y: ops.matmul(y, w)], x),
    ],
)
def test_products_inside_a_function_are_outside_the_measured_range(call: Any) -> None:
    """They are not followed: an answer that leaves them out must not look like one that is measured."""

    class Own(layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(6, 6), name="w")

        def call(self, x: Any) -> Any:
            return call(x, self.w)

    answer = lolat.load("epyc-2t").predict(graph_of(lambda x: Own()(x), (5, 6)))
    assert not answer.in_domain
    assert any("without its products" in said for said in answer.warnings)
