"""How channels pass through single operations, on graphs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.channels import Sizes, fixed, transposed, viewed
from lolat.graph.edits import inner, inner_widened, widened
from tests.synthetic import network


def through(kind: str, shape: Sequence[int], **attributes: Any) -> Graph:
    """A dense layer of 32 features on 10 steps, then one operation, then a dense layer of 3."""
    b = GraphBuilder("made")
    x = b.input((1, 10, 8))
    x = b.add("dense", [x], (1, 10, 32), "first", in_features=8, out_features=32, bias=True)
    x = b.add(kind, [x], shape, "middle", **attributes)
    last = (*shape[:-1], 3)
    x = b.add("dense", [x], last, "last", in_features=shape[-1], out_features=3, bias=True)
    return b.build([x])


@pytest.mark.parametrize(
    ("kind", "shape", "wanted"),
    [
        ("relu", (1, 10, 32), (1, 10, 16)),
        ("layer_norm", (1, 10, 32), (1, 10, 16)),
        ("slice", (1, 4, 32), (1, 4, 16)),
        ("slice", (1, 32), (1, 16)),
        ("reduce", (1, 32), (1, 16)),
        ("global_average_pool", (1, 32), (1, 16)),
        ("pad", (1, 12, 32), (1, 12, 16)),
        ("gather", (1, 5, 32), (1, 5, 16)),
        ("reshape", (1, 320), (1, 160)),
        ("reshape", (1, 2, 5, 32), (1, 2, 5, 16)),
        ("reshape", (1, 10, 2, 16), (1, 10, 2, 8)),
        ("expand_dims", (1, 1, 10, 32), (1, 1, 10, 16)),
        ("glu", (1, 10, 16), (1, 10, 8)),
        ("transpose", (1, 32, 10), (1, 16, 10)),
        ("cumulative", (1, 10, 32), (1, 10, 16)),
    ],
)
def test_the_free_axis_passes_through(
    kind: str, shape: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    graph = through(kind, shape)
    if kind == "transpose":  # the dense layer behind it works on the other axis
        graph = Graph(graph.name, graph.tensors, graph.operations[:2], graph.inputs, ())
    found = widened(graph, 0.5)
    assert found.tensors[graph.operations[1].outputs[0]].shape == wanted
    if kind != "transpose":
        assert found.operations[2].attributes["in_features"] == wanted[-1]
        assert found.tensors[found.outputs[0]].shape == graph.tensors[graph.outputs[0]].shape


def test_a_mean_over_the_free_axis_leaves_a_number() -> None:
    graph = widened(through("reduce", (1, 10, 1)), 0.5)
    assert graph.operations[2].attributes["in_features"] == 1


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("teleport", (1, 10, 32)),
        ("sort", (1, 10, 32)),
        ("slice", (1, 10, 16)),  # half of it; the other half goes nowhere
        ("pad", (1, 10, 34)),
        ("add", (1, 10, 33)),
        ("one_hot", (1, 10, 32, 5)),
        ("glu", (1, 10, 15)),
        ("stack", (1, 10, 3, 32)),
        ("concatenate", (10, 32)),
        ("transpose", (1, 10, 31)),
    ],
)
def test_what_is_not_clear_is_said(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"operation 'middle' \({kind}\)"):
        widened(through(kind, shape), 0.5)


def product(a: Sequence[int], b: Sequence[int], out: Sequence[int], contracted: int) -> Graph:
    """Two dense layers whose results are multiplied."""
    builder = GraphBuilder("product")
    x = builder.input((*a[:-1], 5))
    y = builder.input((*b[:-1], 5))
    left = builder.add("dense", [x], a, "left", in_features=5, out_features=a[-1], bias=False)
    right = builder.add("dense", [y], b, "right", in_features=5, out_features=b[-1], bias=False)
    z = builder.add("matmul", [left, right], out, "product", contracted=contracted)
    z = builder.add("reduce", [z], (1, 1))
    return builder.build([z])


def test_scores_keep_their_heads() -> None:
    graph = widened(product((1, 6, 64), (1, 7, 64), (1, 4, 6, 7), 16), 0.5)
    assert graph.operations[2].attributes["contracted"] == 8
    assert graph.tensors[graph.operations[2].outputs[0]].shape == (1, 4, 6, 7)


def test_grouped_queries_share_keys() -> None:
    """Four heads of queries on one of keys: the sizes of a head are tied."""
    graph = widened(product((1, 6, 64), (1, 7, 16), (1, 4, 6, 7), 16), 2.0)
    left, right, scores, _ = graph.operations
    assert (left.attributes["out_features"], right.attributes["out_features"]) == (128, 32)
    assert scores.attributes["contracted"] == 32


@pytest.mark.parametrize(
    ("b", "out", "wanted"),
    [((1, 32, 24), (1, 6, 24), (1, 6, 24)), ((1, 7, 32), (1, 6, 7), (1, 6, 7))],
)
def test_matrix_products(b: tuple[int, ...], out: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """(..., m, k) x (..., k, n), where the rows are fixed, and x (..., n, k) transposed."""
    graph = widened(product((1, 6, 32), b, out, 32), 0.5)
    contracted = graph.operations[2].attributes["contracted"]
    left = graph.tensors[graph.operations[0].outputs[0]].shape
    assert contracted == left[-1] == (32 if b[-1] == 24 else 16)  # 32 rows are an input's
    n = graph.tensors[graph.operations[2].outputs[0]].shape
    assert n == (wanted if b[-1] == 32 else (1, 6, 16))


def test_a_product_that_may_be_either() -> None:
    with pytest.raises(InputError, match=r"'product' \(matmul\)"):
        widened(product((1, 6, 32), (1, 32, 32), (1, 6, 32), 32), 0.5)


def test_inner_counts_do_not_leave_a_block() -> None:
    graph = network(stages=2, width=32)
    block = [p for p, o in enumerate(graph.operations) if o.name.startswith("conv1_block1")]
    (unknown,) = inner(graph, block)
    found = inner_widened(graph, [unknown], 0.5)
    changed = [
        (o.name, o.attributes.get("in_channels"), o.attributes.get("out_channels"))
        for o, before in zip(found.operations, graph.operations, strict=True)
        if o != before
    ]
    assert changed == [("conv1_block1_1_conv", 32, 16), ("conv1_block1_2_conv", 16, 32)]
    assert inner(graph, [0]) == {}


def test_views() -> None:
    sizes = Sizes()
    a, b = sizes.unknown(6), sizes.unknown(4)
    assert viewed(sizes, (a, b), (6, 4), (24,)) is None  # a product of two
    assert viewed(sizes, fixed((6, 4)), (6, 4), (24,)) == fixed((24,))
    assert viewed(sizes, (*fixed((6,)), b), (6, 4), (3, 8)) is not None
    assert viewed(sizes, (a,), (6,), (5,)) is None
    assert transposed((a, b), [0], (6, 4), (4, 6)) == (*fixed((4,)), a)
    assert transposed((a, a), [0], (6, 6), (6, 6)) is None


@pytest.mark.parametrize("order", [1, -1])
def test_a_very_deep_network(order: int) -> None:
    """Two thousand additions, whichever operand comes first."""
    b = GraphBuilder("deep")
    x = b.input((1, 16))
    x = b.add("dense", [x], (1, 32), in_features=16, out_features=32, bias=False)
    for _ in range(2000):
        y = b.add("dense", [x], (1, 32), in_features=32, out_features=32, bias=False)
        x = b.add("add", [x, y][::order], (1, 32))
    x = b.add("dense", [x], (1, 3), in_features=32, out_features=3, bias=False)
    found = widened(b.build([x]), 0.5)
    inside = [o.attributes["in_features"] for o in found.operations if o.kind == "dense"]
    assert inside == [16] * 2002
