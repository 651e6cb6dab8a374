"""How channels pass through single operations, on graphs written by hand; sizes as unknowns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.channels import Sizes, number, scaled, times
from lolat.graph.edits import channels, inner, widened
from tests.synthetic import network

# ---- what a factor makes of a count

FACTORS = st.floats(0.01, 8.0)


@pytest.mark.parametrize(
    ("size", "factor", "multiple", "wanted"),
    [
        (64, 0.5, 1, 32),
        (64, 0.55, 1, 32),  # 35.2
        (64, 0.57, 1, 40),  # 36.48: 4.56 eights
        (20, 0.99, 1, 16),
        (20, 1.0, 1, 20),
        (20, 1.01, 1, 24),
        (45, 0.99, 1, 45),  # the nearest multiple is 48, which is more than now
        (4, 0.5, 1, 4),
        (4, 3.0, 1, 16),
        (64, 0.01, 1, 8),
        (128, 0.7, 32, 96),
        (12, 0.5, 3, 6),  # 24 would be more than 12: in multiples of 3
        (24, 0.5, 3, 24),
        (48, 0.5, 3, 24),
        (44, 0.5, 11, 22),
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


# ---- unknowns that are tied, split, divided


def test_what_is_unified_stays_equal() -> None:
    sizes = Sizes()
    a, b, c = (sizes.unknown(64) for _ in range(3))
    sizes.unify(a, b)
    sizes.unify(c, b)
    (free,) = sizes.free()
    assert [sizes.value(x, {free: 48}) for x in (a, b, c)] == [48, 48, 48]


def test_sums_are_unified() -> None:
    sizes = Sizes()
    a, b, whole = sizes.unknown(64), sizes.unknown(192), sizes.unknown(256)
    sizes.unify(whole, a + b)
    first, second = sizes.free()
    assert sizes.value(whole, {first: 32, second: 96}) == 128
    # Of other pieces: the larger ones are split.
    sizes = Sizes()
    left = sizes.unknown(96) + sizes.unknown(32)
    right = sizes.unknown(32) + sizes.unknown(96)
    sizes.unify(left, right)
    new = {u: 2 * sizes.now[u] for u in sizes.free()}
    assert sizes.value(left, new) == sizes.value(right, new) == 256
    for one in sizes.free():
        assert sizes.value(left, {one: 8}) == sizes.value(right, {one: 8})


def test_a_number_fixes_what_it_is_unified_with() -> None:
    sizes = Sizes()
    a = sizes.unknown(10)
    sizes.unify(number(10), a)
    assert not sizes.is_open(a)
    b = sizes.unknown(13)
    sizes.unify(number(3) + sizes.unknown(10), b)
    assert sizes.value(b, {sizes.free()[0]: 20}) == 23
    assert sizes.unknown(1) == number(1)  # it may be broadcast


def test_factors() -> None:
    sizes = Sizes()
    channels = sizes.unknown(64)
    flat = times(channels, 49)
    assert sizes.value(flat, {0: 32}) == 49 * 32
    assert sizes.divided(flat, 49) == channels
    head = sizes.divided(channels, 4)
    (free,) = sizes.free()
    assert (sizes.value(head, {free: 8}), sizes.value(channels, {free: 8})) == (8, 32)
    assert sizes.divided(channels, 7) is None
    assert sizes.divided(number(12), 4) == number(3)
    assert sizes.divided(number(12), 5) is None


def test_factors_that_do_not_go_into_each_other_fix_both() -> None:
    sizes = Sizes()
    sizes.unify(times(sizes.unknown(6), 4), times(sizes.unknown(4), 6))
    assert sizes.free() == []
    sizes.unify(times(sizes.unknown(6), 4), times(sizes.unknown(12), 2))
    (free,) = sizes.free()
    assert sizes.now[free] == 6


@pytest.mark.parametrize("which", [0, 1])
def test_multiples_are_kept_through_ties(which: int) -> None:
    sizes = Sizes()
    both = sizes.unknown(96), sizes.unknown(96)
    sizes.need_multiple(both[which], 32)
    sizes.unify(*both)
    (free,) = sizes.free()
    assert sizes.scaled(free, 0.7) == 64
    assert sizes.multiple[free] == 32


def test_what_only_follows_has_no_say() -> None:
    sizes = Sizes()
    constant = sizes.unknown(64, follows=True)
    assert sizes.free() == []
    sizes.unify(constant, sizes.unknown(64))
    assert len(sizes.free()) == 1


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
        ("layer_norm", (1, 10, 32), (1, 10, 16)),
        ("slice", (1, 4, 32), (1, 4, 16)),
        ("slice", (1, 32), (1, 16)),
        ("reduce", (1, 32), (1, 16)),
        ("reduce", (1, 10, 1), (1, 10, 1)),  # over the free axis
        ("global_average_pool", (1, 32), (1, 16)),
        ("pad", (1, 12, 32), (1, 12, 16)),
        ("gather", (1, 5, 32), (1, 5, 16)),
        ("reshape", (1, 320), (1, 160)),
        ("reshape", (1, 2, 5, 32), (1, 2, 5, 16)),
        ("reshape", (1, 10, 2, 16), (1, 10, 2, 8)),
        ("expand_dims", (1, 1, 10, 32), (1, 1, 10, 16)),
        ("glu", (1, 10, 16), (1, 10, 8)),
        ("cumulative", (1, 10, 32), (1, 10, 16)),
    ],
)
def test_the_free_axis_passes_through(
    kind: str, shape: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    graph = through(kind, shape)
    found = widened(graph, 0.5)
    assert found.tensors[graph.operations[1].outputs[0]].shape == wanted
    assert found.operations[2].attributes["in_features"] == wanted[-1]
    assert found.tensors[found.outputs[0]].shape == graph.tensors[graph.outputs[0]].shape


def turned(steps: int, **attributes: Any) -> Graph:
    """32 features on some steps, transposed; nobody reads the result."""
    b = GraphBuilder("turned")
    b.add("transpose", [dense(b, b.input((1, steps, 8)), 32)], (1, 32, steps), **attributes)
    return b.build([])


def test_a_transposed_axis_is_known_by_the_permutation_or_by_its_size() -> None:
    for graph in (turned(10), turned(10, permutation=(0, 2, 1)), turned(32, permutation=(0, 2, 1))):
        steps = graph.tensors[0].shape[1]
        assert widened(graph, 0.5).tensors[-1].shape == (1, 16, steps)
    with pytest.raises(InputError, match="transpose"):
        widened(turned(32), 0.5)


def test_where_a_part_begins_goes_with_the_size_it_is_of() -> None:
    b = GraphBuilder("parts")
    x = dense(b, b.input((1, 10, 8)), 32)
    parts = [b.add("slice", [x], (1, 10, 16), starts=(0, 0, n), steps=(1, 1, 1)) for n in (0, 16)]
    y = b.add(
        "slice", [b.add("concatenate", parts, (1, 10, 32), axis=-1)], (1, 10, 32), starts=(0, 0, 0)
    )
    b.add("slice", [0], (1, 5, 8), "of the input", starts=(0, 2, 0))
    graph = b.build([b.add("reduce", [y], (1, 10))])
    slices = [o for o in widened(graph, 0.5).operations if o.kind == "slice"]
    starts = [o.attributes["starts"] for o in slices]
    assert starts == [(0, 0, 0), (0, 0, 8), (0, 0, 0), (0, 2, 0)]
    assert widened(graph, 1.0) == graph


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
        ("reshape", (1, 10, 31)),
    ],
)
def test_what_is_not_clear_is_said(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"operation 'middle' \({kind}\)"):
        widened(through(kind, shape), 0.5)


@pytest.mark.parametrize(
    ("kind", "shape", "attributes"),
    [
        ("conv", (1, 32, 5), {"in_channels": 7, "out_channels": 5, "groups": 1, "kernel": (3,)}),
        ("dense", (1, 16, 5), {"in_features": 10, "out_features": 5}),
        ("lstm", (1, 32, 5), {"in_features": 10, "units": 5}),
        ("reshape", (1, 32 * 16), {}),  # of two sizes that are free
    ],
)
def test_a_layer_whose_features_are_not_where_it_reads_them(
    kind: str, shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """Its steps are what is free, or it has no axis of that many channels."""
    b = GraphBuilder("turned")
    x = dense(b, b.input((1, 10, 8)), 32)
    x = b.add("transpose", [x], (1, 32, 10), permutation=(0, 2, 1))
    x = dense(b, x, 16) if kind == "reshape" else x
    graph = b.build([b.add(kind, [x], shape, "reader", bias=True, **attributes)])
    with pytest.raises(InputError, match=rf"operation 'reader' \({kind}"):
        widened(graph, 0.5)


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


def test_a_product_that_may_be_either() -> None:
    with pytest.raises(InputError, match=r"'product' \(matmul\)"):
        widened(multiplied((1, 6, 32), (1, 32, 32), (1, 6, 32), 32), 0.5)


# ---- networks


def test_inner_counts_do_not_leave_a_block() -> None:
    graph = network(stages=2, width=32)
    block = [p for p, o in enumerate(graph.operations) if o.name.startswith("conv1_block1")]
    (unknown,) = inner(graph, block)
    changed = [
        (o.name, o.attributes.get("in_channels"), o.attributes.get("out_channels"))
        for o, before in zip(
            channels(graph).resized({unknown: 16}).operations, graph.operations, strict=True
        )
        if o != before
    ]
    assert changed == [("conv1_block1_1_conv", 32, 16), ("conv1_block1_2_conv", 16, 32)]
    assert inner(graph, [0]) == {}


@pytest.mark.parametrize("order", [1, -1])
def test_a_very_deep_network(order: int) -> None:
    """Two thousand additions, whichever operand comes first."""
    b = GraphBuilder("deep")
    x = dense(b, b.input((1, 16)), 32)
    for _ in range(2000):
        x = b.add("add", [x, dense(b, x, 32)][::order], (1, 32))
    found = widened(b.build([dense(b, x, 3)]), 0.5)
    inside = [o.attributes["in_features"] for o in found.operations if o.kind == "dense"]
    assert inside == [16] * 2002


def test_nodes_without_a_name_are_not_one_layer() -> None:
    """ONNX' nodes are then named after their kind; a layer of Keras' called again is the same layer."""

    def chain(framework: str) -> Graph:
        builder = GraphBuilder("chain", framework)
        tensor = builder.input((1, 8, 8, 32))
        about = {"in_channels": 32, "out_channels": 32, "kernel": (1, 1), "groups": 1}
        for _ in range(3):
            tensor = builder.add("conv", [tensor], (1, 8, 8, 32), bias=False, **about)
        return builder.build([tensor])

    wide = widened(chain("onnx"), 2.0)
    assert [o.attributes["out_channels"] for o in wide.operations] == [64, 64, 32]
    with pytest.raises(InputError, match="none of its channel counts is free"):
        widened(chain("keras"), 2.0)
