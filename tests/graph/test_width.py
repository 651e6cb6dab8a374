"""Channels that pass through single operations, on graphs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.width import Widths, scaled, widened, widths
from tests.synthetic import network

# ---- what a factor makes of a count

FACTORS = st.floats(0.01, 8.0)


@pytest.mark.parametrize(
    ("size", "factor", "multiple", "wanted"),
    [
        (64, 0.55, 1, 32),  # 35.2
        (20, 1.01, 1, 24),
        (45, 0.99, 1, 45),  # the nearest multiple is 48, which is more than now
        (128, 0.7, 32, 96),
        (12, 0.5, 3, 6),  # 24 would be more than 12: in multiples of 3
    ],
)
def test_a_count_times_a_factor(size: int, factor: float, multiple: int, wanted: int) -> None:
    assert scaled(size, factor, multiple) == wanted


@given(st.integers(2, 4096), st.sampled_from([1, 2, 3, 4, 8, 32]), FACTORS, FACTORS)
def test_a_larger_factor_never_gives_fewer(
    size: int, multiple: int, one: float, two: float
) -> None:
    size *= multiple
    low, high = sorted((one, two))
    assert 0 < scaled(size, low, multiple) <= scaled(size, high, multiple)
    assert scaled(size, 1.0, multiple) == size
    new = scaled(size, one, multiple)
    assert new % multiple == 0
    assert new == size or new % 8 == 0 or 8 * multiple > size
    assert (new <= size) if one < 1 else (new >= size)


# ---- single operations


def dense(b: GraphBuilder, x: int, features: int, name: str = "") -> int:
    """A dense layer on the last axis."""
    *lead, inside = b.tensors[x].shape
    about = {"in_features": inside, "out_features": features, "bias": True}
    return b.add("dense", [x], (*lead, features), name, **about)


def through(kind: str, shape: Sequence[int], **attributes: Any) -> Graph:
    """A dense layer of 32 features on 10 steps, then one operation, then a dense layer of 3."""
    b = GraphBuilder("made")
    x = b.input((1, 10, 8))
    x = b.add(kind, [dense(b, x, 32)], shape, "middle", **attributes)
    return b.build([dense(b, x, 3)])


@pytest.mark.parametrize(
    ("kind", "shape", "wanted"),
    [
        ("relu", (1, 10, 32), (1, 10, 16)),
        ("slice", (1, 4, 32), (1, 4, 16)),
        ("reduce", (1, 32), (1, 16)),
        ("reduce", (1, 10, 1), (1, 10, 1)),  # over the free axis
        ("pad", (1, 12, 32), (1, 12, 16)),
        ("reshape", (1, 320), (1, 160)),
        ("reshape", (1, 2, 5, 32), (1, 2, 5, 16)),
        ("reshape", (1, 10, 2, 16), (1, 10, 2, 8)),
        ("glu", (1, 10, 16), (1, 10, 8)),
        ("teleport", (1, 10, 32), (1, 10, 16)),  # a kind that nobody knows
        ("slice", (1, 10, 16), (1, 10, 8)),  # a part
        ("pad", (1, 10, 48), (1, 10, 24)),
    ],
)
def test_the_free_axis_passes_through(
    kind: str, shape: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    graph = through(kind, shape)
    found = widened(graph, 0.5)
    assert found.tensors[graph.operations[1].outputs[0]].shape == wanted
    read = graph.operations[2].attributes["in_features"]
    assert found.operations[2].attributes["in_features"] == wanted[-1] * read // shape[-1]
    assert found.tensors[found.outputs[0]].shape == graph.tensors[graph.outputs[0]].shape


@pytest.mark.parametrize("kind", ["transpose", "reshape"])
@pytest.mark.parametrize("steps", [10, 16])
def test_a_transposed_axis_is_known_by_its_size(steps: int, kind: str) -> None:
    """32 features on some steps, transposed; some readers write that as a view."""
    b = GraphBuilder("turned")
    b.add(kind, [dense(b, b.input((1, steps, 8)), 32)], (1, 32, steps))
    assert widened(b.build([]), 0.5).tensors[-1].shape == (1, 16, steps)


def multiplied(a: Sequence[int], b: Sequence[int], out: Sequence[int], contracted: int) -> Graph:
    """Two dense layers whose results are multiplied."""
    builder = GraphBuilder("product")
    sides = [dense(builder, builder.input((*s[:-1], 5)), s[-1]) for s in (a, b)]
    z = builder.add("matmul", sides, out, "product", contracted=contracted)
    return builder.build([builder.add("reduce", [z], (1, 1))])


def test_grouped_queries_share_keys() -> None:
    """Four heads of queries on one of keys: the sizes of a head are tied."""
    graph = widened(multiplied((1, 6, 64), (1, 7, 16), (1, 4, 6, 7), 16), 2.0)
    left, right, scores, _ = graph.operations
    assert (left.attributes["out_features"], right.attributes["out_features"]) == (128, 32)
    assert scores.attributes["contracted"] == 32


@pytest.mark.parametrize(
    ("b", "out", "contracted", "wanted"),
    [((1, 32, 24), (1, 6, 24), 32, (1, 6, 16)), ((1, 7, 32), (1, 6, 7), 16, (1, 6, 7))],
)
def test_matrix_products(b: Any, out: Any, contracted: int, wanted: tuple[int, ...]) -> None:
    """(..., m, k) x (..., k, n), where the rows are an input's, and x (..., n, k) transposed."""
    graph = widened(multiplied((1, 6, 32), b, out, 32), 0.5)
    left, _, product, _ = graph.operations
    assert product.attributes["contracted"] == left.attributes["out_features"] == contracted
    assert graph.tensors[product.outputs[0]].shape == wanted


# ---- networks


def test_inner_counts_do_not_leave_a_block() -> None:
    graph = network(stages=2, width=32)
    block = [p for p, o in enumerate(graph.operations) if o.name.startswith("conv1_block1")]
    inside = Widths(graph, block)
    assert inside.pairs(0.5) == ((32, 16),)
    changed = [
        (o.name, o.attributes.get("in_channels"), o.attributes.get("out_channels"))
        for o, before in zip(inside.at(0.5).operations, graph.operations, strict=True)
        if o != before
    ]
    assert changed == [("conv1_block1_1_conv", 32, 16), ("conv1_block1_2_conv", 16, 32)]
    assert not Widths(graph, [0]).scalable


def test_what_is_added_to_an_input_or_reaches_an_output_stays() -> None:
    """The first layer's result is added to the input, and all that is added to that stays too."""
    b = GraphBuilder("residual")
    start = x = b.input((1, 10, 32))
    for _ in range(3):
        x = b.add(
            "add", [x, dense(b, b.add("relu", [dense(b, x, 64)], (1, 10, 64)), 32)], (1, 10, 32)
        )
    other = dense(b, start, 32)
    graph = b.build([b.add("softmax", [x], (1, 10, 32)), b.add("tanh", [other], (1, 10, 32))])
    assert widths(graph).pairs(0.5) == ((64, 32),)
    made = [
        o.attributes["out_features"] for o in widened(graph, 0.5).operations if o.kind == "dense"
    ]
    assert made == [32] * 7
    assert widened(graph, 0.5).tensors[graph.outputs[0]].shape == (1, 10, 32)


def test_steps_are_no_channels() -> None:
    """An MLP-Mixer: dense layers over the steps, whose number stays."""
    b = GraphBuilder("mixer")
    x = dense(b, b.input((1, 10, 8)), 48)
    for _ in range(3):
        y = b.add("transpose", [x], (1, 48, 10))
        y = b.add("transpose", [dense(b, dense(b, y, 24), 10)], (1, 10, 48))
        x = b.add("add", [x, y], (1, 10, 48))
    graph = b.build([dense(b, b.add("reduce", [x], (1, 48)), 3)])
    assert widths(graph).pairs(0.5) == ((24, 16), (48, 24))
    assert {t.shape for t in widened(graph, 0.5).tensors[1:-2]} == {
        (1, 10, 24), (1, 24, 10), (1, 24, 16)
    }  # fmt: skip


def test_a_network_without_a_free_count() -> None:
    b = GraphBuilder("linear")
    graph = b.build([dense(b, b.add("sort", [b.input((1, 10, 8))], (1, 10, 8)), 3)])
    assert widths(graph).pairs(0.5) == ()
    with pytest.raises(InputError, match="none of its channel counts is free"):
        widened(graph, 0.5)


def test_channels_that_become_pixels_and_pixels_that_become_channels() -> None:
    """Against the same network written with half the channels."""
    from torch import nn

    import lolat
    from lolat.graph.counts import count

    def upscaling(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 2 * width, 3, padding=1), nn.PixelUnshuffle(2), nn.ReLU(),
            nn.Conv2d(8 * width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.ReLU(),
            nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2),
        )  # fmt: skip

    whole, half = (lolat.read(upscaling(width), (3, 24, 40)) for width in (64, 32))
    narrow = widened(whole, 0.5)
    assert count(narrow).total(3) == count(half).total(3)
    assert narrow.shapes(narrow.outputs) == [(1, 3, 48, 80)]
