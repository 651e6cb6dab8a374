"""Counts: every row of the table against a count done by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder, Operation
from lolat.graph.counts import (
    COLUMNS,
    ELEMENTWISE,
    FEATURES,
    FORMULAS,
    FREE,
    GROUPS,
    KINDS,
    NORMALIZATIONS,
    PASSES,
    PLAIN,
    POOLINGS,
    count,
    count_operation,
)
from tests.synthetic import one


def check(graph: Graph, batch_size: int, **expected: int) -> None:
    """The counts of the graph; of the six that every model has, those not named are 0."""
    of_graph = count(graph).total(batch_size)
    of_operation = count_operation(graph, graph.operations[0], batch_size)
    names = dict.fromkeys([*FEATURES, *expected])
    assert {n: getattr(of_graph, n) for n in names} == dict.fromkeys(names, 0) | expected
    assert {n: getattr(of_operation, n) for n in names} == dict.fromkeys(names, 0) | expected


# ---- by hand -------------------------------------------------------------------------------------


def conv(
    kernel: tuple[int, ...], inside: int, outside: int, groups: int = 1, bias: bool = True
) -> Any:
    return {"kernel": kernel, "in_channels": inside, "out_channels": outside, "groups": groups,
            "bias": bias}  # fmt: skip


def test_convolution() -> None:
    # A 3x5 kernel from 2 to 4 channels on 7x9, without padding: 5x5 positions.
    graph = one("conv", [(1, 7, 9, 2)], [(1, 5, 5, 4)], **conv((3, 5), 2, 4))
    check(graph, 3, acts=3 * 5 * 5 * 4, inp=3 * 7 * 9 * 2, flops=3 * 5 * 5 * 4 * (3 * 5 * 2),
          weights=3 * 5 * 2 * 4 + 4, ops=1)  # fmt: skip


def test_convolution_of_one_and_of_three_dimensions() -> None:
    line = one("conv", [(1, 11, 3)], [(1, 9, 5)], **conv((3,), 3, 5, bias=False))
    check(
        line, 2, acts=2 * 9 * 5, inp=2 * 11 * 3, flops=2 * 9 * 5 * 3 * 3, weights=3 * 3 * 5, ops=1
    )
    cube = one("conv", [(1, 4, 5, 6, 2)], [(1, 3, 3, 3, 7)], **conv((2, 3, 4), 2, 7))
    check(cube, 1, acts=27 * 7, inp=4 * 5 * 6 * 2, flops=27 * 7 * 2 * 3 * 4 * 2,
          weights=24 * 2 * 7 + 7, ops=1)  # fmt: skip


def test_grouped_convolution_unfolds_patches() -> None:
    graph = one("grouped_conv", [(1, 5, 7, 6)], [(1, 5, 7, 9)], **conv((3, 3), 6, 9, 3))
    check(graph, 2, acts=2 * 35 * 9, inp=2 * 35 * 6, flops=2 * 35 * 9 * (9 * 6 // 3),
          weights=9 * 2 * 9 + 9, ops=1, patches=2 * 35 * 9 * 6, narrow=2 * 35 * 9 * 6,
          groups=3)  # fmt: skip
    wide = one("grouped_conv", [(1, 5, 7, 16)], [(1, 5, 7, 2)], **conv((3, 3), 16, 2, 2, False))
    check(wide, 1, acts=70, inp=35 * 16, flops=70 * 9 * 8, weights=9 * 8 * 2, ops=1,
          patches=35 * 9 * 16, narrow=0, groups=2)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "inside", "outside", "groups", "ragged"),
    [
        ("conv", 16, 48, 1, 0),
        ("conv", 3, 48, 1, 1),
        ("conv", 16, 1000, 1, 1),
        ("grouped_conv", 32, 64, 2, 0),
        ("grouped_conv", 32, 32, 4, 1),  # 8 channels a group
        ("depthwise_conv", 64, 64, 64, 1),
        ("transposed_conv", 32, 16, 1, 0),
        ("transposed_conv", 32, 8, 1, 1),
    ],
)
def test_channels_that_fill_no_vectors(
    kind: str, inside: int, outside: int, groups: int, ragged: int
) -> None:
    graph = one(kind, [(1, 4, 4, inside)], [(1, 4, 4, outside)],
                **conv((3, 3), inside, outside, groups))  # fmt: skip
    assert count(graph).total(5).ragged == ragged


def test_kernels_of_1x1_convolutions_are_repacked_above_batch_size_1() -> None:
    pointwise = one("conv", [(1, 7, 9, 5)], [(1, 7, 9, 4)], **conv((1, 1), 5, 4))
    assert [count(pointwise).total(n).repacked for n in (1, 2, 64)] == [0, 20, 20]
    at_one_position = one("conv", [(1, 1, 1, 5)], [(1, 1, 1, 4)], **conv((1, 1), 5, 4))
    assert [count(at_one_position).total(n).repacked for n in (1, 2, 64)] == [0, 60, 60]
    for graph in (
        one("conv", [(1, 7, 9, 5)], [(1, 7, 9, 4)], **conv((3, 1), 5, 4)),
        one("grouped_conv", [(1, 7, 9, 4)], [(1, 7, 9, 4)], **conv((1, 1), 4, 4, 2)),
        one("dense", [(1, 5)], [(1, 4)], in_features=5, out_features=4, bias=False),
    ):
        assert count(graph).total(2).repacked == 0


def test_large_operations_wake_threads_and_leave_the_caches() -> None:
    # 2**16 read and as many written: threads are woken for more than 2**17, caches end at 2**22.
    graph = one("relu", [(1, 2**16)], [(1, 2**16)])
    totals = {n: count(graph).total(n) for n in (1, 2, 32, 33)}
    assert [t.threaded for t in totals.values()] == [0, 1, 1, 1]
    assert [t.streamed for t in totals.values()] == [0, 0, 0, 33 * 2**17]
    wide = one("conv", [(1, 256, 256, 1)], [(1, 256, 256, 2)], **conv((3, 3), 1, 2))
    assert count(wide).total(1).threaded == 1  # 2**16 + 2**17 elements
    steps = one("lstm", [(1, 1000, 64)], [(1, 8)], units=8, in_features=64, timesteps=1000,
                bias=True)  # fmt: skip
    assert count(steps).total(1).traffic > 2**17
    assert count(steps).total(1).threaded == 0  # each step is small


def test_depthwise_convolution_with_a_multiplier() -> None:
    graph = one("depthwise_conv", [(1, 5, 7, 3)], [(1, 5, 7, 6)], **conv((3, 3), 3, 6, 3))
    check(graph, 2, acts=2 * 35 * 6, inp=2 * 35 * 3, flops=2 * 35 * 6 * 9, weights=9 * 6 + 6, ops=1)


def test_transposed_convolution_works_from_its_input() -> None:
    graph = one("transposed_conv", [(1, 3, 5, 2)], [(1, 6, 10, 4)], **conv((3, 3), 2, 4))
    check(graph, 2, acts=2 * 60 * 4, inp=2 * 15 * 2, flops=2 * 15 * 2 * (9 * 4),
          weights=9 * 2 * 4 + 4, ops=1)  # fmt: skip


@pytest.mark.parametrize("steps", [(), (5,), (5, 3)])
def test_dense_on_any_rank(steps: tuple[int, ...]) -> None:
    graph = one(
        "dense", [(1, *steps, 7)], [(1, *steps, 4)], in_features=7, out_features=4, bias=True
    )
    rows = 2 * int(np.prod(steps, dtype=int))
    check(graph, 2, flops=rows * 7 * 4, traffic=rows * (7 + 4), weights=7 * 4 + 4, ops=1)
    graph = one("dense", [(1, 7)], [(1, 4)], in_features=7, out_features=4, bias=False)
    check(graph, 1, flops=28, traffic=11, weights=28, ops=1)


def test_matmul_of_two_activations() -> None:
    graph = one("matmul", [(1, 2, 5, 3), (1, 2, 3, 7)], [(1, 2, 5, 7)], contracted=3)
    check(graph, 4, flops=4 * 2 * 5 * 7 * 3, traffic=4 * 2 * (15 + 21 + 35), ops=1)


def test_embedding_reads_the_rows_it_gathers() -> None:
    graph = one("embedding", [(1, 9)], [(1, 9, 16)], rows=1000, out_features=16)
    check(graph, 3, traffic=3 * 9 + 3 * 9 * 16, weights=3 * 9 * 16, ops=1)


def recurrent(kind: str, **more: int) -> Graph:
    """5 steps of 3 features into 4 units."""
    return one(kind, [(1, 5, 3)], [(1, 4)], units=4, in_features=3, timesteps=5, bias=True, **more)


def test_lstm_is_its_operations_times_the_steps() -> None:
    products = (3 + 16) + (4 + 16)  # each reads its vector and writes four gates of 4 units
    added = 3 * 16
    gates = 3 * (4 + 4) + (4 + 4)  # three sigmoids, tanh
    cell = 3 * 4 + 3 * 4 + 3 * 4  # f*c, i*g, their sum
    out = (4 + 4) + 3 * 4  # tanh, o*tanh
    check(recurrent("lstm"), 2, flops=2 * 5 * 4 * 4 * (3 + 4),
          traffic=2 * 5 * (products + added + gates + cell + out),
          weights=4 * 4 * (3 + 4) + 4 * 4, ops=5)  # fmt: skip


def test_gru_is_its_operations_times_the_steps() -> None:
    products = (3 + 12) + (4 + 12)
    gates = 3 * 8 + 2 * 8  # z and r: the sum of the products, two sigmoids of 4 units
    candidate = 3 * 4 + 3 * 4 + 2 * 4  # r*h, the sum, tanh
    mixed = 2 * 4 + 3 * 4 + 3 * 4 + 3 * 4  # 1-z, z*h, (1-z)*g, the sum
    expected = {"flops": 2 * 5 * 3 * 4 * (3 + 4),
                    "traffic": 2 * 5 * (products + gates + candidate + mixed),
                    "ops": 5}  # fmt: skip
    check(recurrent("gru"), 2, weights=3 * 4 * (3 + 4) + 2 * 3 * 4, **expected)
    check(recurrent("gru", bias_vectors=1), 2, weights=3 * 4 * (3 + 4) + 3 * 4, **expected)


def test_simple_rnn_is_its_operations_times_the_steps() -> None:
    step = (3 + 4) + (4 + 4) + 3 * 4 + 2 * 4  # two products, their sum, tanh
    check(recurrent("simple_rnn"), 2, flops=2 * 5 * 4 * 7, traffic=2 * 5 * step,
          weights=4 * 7 + 4, ops=5)  # fmt: skip


@pytest.mark.parametrize("kind", sorted(ELEMENTWISE))
def test_elementwise_reads_and_writes(kind: str) -> None:
    further = PASSES.get(kind, 0)
    check(one(kind, [(1, 3, 5)], [(1, 3, 5)]), 2, traffic=2 * (15 + 15), ops=1, passes=60 * further)


@pytest.mark.parametrize("kind", sorted(NORMALIZATIONS))
def test_normalisation_is_no_mac_and_no_weights(kind: str) -> None:
    further = PASSES.get(kind, 0)
    traffic = 2 * 2 * 105
    check(one(kind, [(1, 3, 5, 7)], [(1, 3, 5, 7)]), 2, traffic=traffic, ops=1,
          passes=traffic * further)  # fmt: skip


def test_normalising_an_image_is_narrow() -> None:
    for channels, narrow in ((3, 2 * 2 * 45), (8, 0)):
        graph = one("batch_norm", [(1, 5, 3, 3)], [(1, 5, 3, 3)], channels=channels)
        check(graph, 2, traffic=180, ops=1, passes=180, narrow=narrow)


@pytest.mark.parametrize("kind", sorted(POOLINGS))
def test_pooling_is_no_mac(kind: str) -> None:
    traffic = 5 * (72 + 18)
    check(one(kind, [(1, 6, 4, 3)], [(1, 3, 2, 3)], kernel=(2, 2)), 5, traffic=traffic, ops=1,
          passes=traffic)  # fmt: skip


def test_passes_are_those_of_the_document() -> None:
    """docs/counting.md: one, three and six further passes, by kind."""
    assert {PASSES[k] for k in ("batch_norm", "max_pool", "silu", "sigmoid", "tanh")} == {1}
    assert {PASSES[k] for k in ("gelu", "softmax")} == {3}
    assert {PASSES[k] for k in ("layer_norm", "group_norm")} == {6}
    assert not {"relu", "add", "concatenate", "unit_norm"} & set(PASSES)


MOVES = ["concatenate", "stack", "pad", "resize", "transpose", "reduce", "repeat", "cumulative", "roll",
         "sort", "scatter", "unfold"]  # fmt: skip


@pytest.mark.parametrize("kind", MOVES)
def test_moves_read_and_write(kind: str) -> None:
    check(one(kind, [(1, 3), (1, 5)], [(1, 8), (1, 2)]), 3, traffic=3 * (3 + 5 + 8 + 2), ops=1)


@pytest.mark.parametrize("kind", ["slice", "crop", "split", "gather"])
def test_a_selection_reads_what_it_writes_and_its_indices(kind: str) -> None:
    check(one(kind, [(1, 100)], [(1, 7)]), 2, traffic=2 * (7 + 7), ops=1)
    check(one(kind, [(1, 100), (1, 7)], [(1, 7)]), 2, traffic=2 * (7 + 7 + 7), ops=1)


def test_a_fill_writes() -> None:
    check(one("fill", [(1, 100)], [(1, 7)]), 2, traffic=14, ops=1)


@pytest.mark.parametrize("kind", sorted(FREE))
def test_what_moves_nothing_is_free(kind: str) -> None:
    check(one(kind, [(1, 6)], [(1, 2, 3)]), 8)


def test_every_row_has_a_count_by_hand() -> None:
    by_hand = {"conv", "grouped_conv", "depthwise_conv", "transposed_conv", "dense", "matmul",
               "embedding", "lstm", "gru", "simple_rnn", "slice", "crop", "split", "gather",
               "fill"}  # fmt: skip
    above = by_hand.union(ELEMENTWISE, NORMALIZATIONS, POOLINGS, MOVES, FREE)
    assert set(FORMULAS) == above


@pytest.mark.parametrize("operands", [2, 3])
def test_add_counts_each_operand(operands: int) -> None:
    graph = one("add", [(1, 3, 5)] * operands, [(1, 3, 5)])
    check(graph, 2, traffic=2 * 15 * (operands + 1), ops=1)


def test_a_broadcast_operand_counts_the_elements_it_has() -> None:
    check(one("multiply", [(1, 7, 9, 4), (1, 1, 1, 4)], [(1, 7, 9, 4)]), 2,
          traffic=2 * (252 + 4 + 252), ops=1)  # fmt: skip
    constant = one("add", [(1, 7, 4)], [(1, 7, 4)], constants=[(7, 4)])
    check(constant, 10, traffic=10 * 28 + 28 + 10 * 28, ops=1)


def test_concatenation_reads_all_and_writes_all() -> None:
    graph = one("concatenate", [(1, 3, 2), (1, 3, 4), (1, 3, 5)], [(1, 3, 11)])
    check(graph, 2, traffic=2 * (6 + 12 + 15 + 33), ops=1)


def test_an_unknown_operation_is_named_and_counted_as_traffic() -> None:
    graph = one("Fancy", [(1, 3), (1, 5)], [(1, 7), (1, 2)], name="layer_1", path="top")
    check(graph, 2, traffic=2 * (3 + 5 + 7 + 2), ops=1)
    (warning,) = count(graph).warnings
    assert "Fancy (1 x, first 'top/layer_1')" in warning


def test_the_warnings_of_a_reader_come_first() -> None:
    graph = replace(one("Fancy", [(1, 3)], [(1, 3)]), warnings=("of the reader",), cache={})
    assert count(graph).warnings[0] == "of the reader"
    assert len(count(graph).warnings) == 2


def test_an_operation_without_its_attributes_is_an_error_in_one_line() -> None:
    for graph in (one("conv", [(1, 3)], [(1, 3)]), one("dense", [], [(1, 3)], in_features=1,
                  out_features=1, bias=False), one("lstm", [(1, 3, 0)], [(1, 3)], units=1,
                  in_features=0, timesteps=3, bias=False)):  # fmt: skip
        with pytest.raises(InputError, match="cannot be counted as") as caught:
            count(graph)
        assert "\n" not in str(caught.value)


def test_windows_and_exponentials_by_hand() -> None:
    """8 x 8 pixels of 3 channels at batch 5, pooled 3 x 3 with stride 2 to 4 x 4, and so on."""
    image, small = (1, 8, 8, 3), (1, 4, 4, 3)
    pooled = count(one("max_pool", [image], [small], kernel=(3, 3))).total(5)
    assert (pooled.maxima, pooled.means) == (5 * 4 * 4 * 3 * 9, 0)
    pooled = count(one("average_pool", [image], [small], kernel=(2, 2))).total(5)
    assert (pooled.maxima, pooled.means) == (0, 5 * 4 * 4 * 3 * 4)
    for kind in ("silu", "sigmoid", "gelu", "softmax", "tanh", "exponential"):
        assert count(one(kind, [image], [image])).total(5).exps == 5 * 8 * 8 * 3, kind
    for kind in ("relu", "hard_silu", "add", "batch_norm", "layer_norm"):
        assert count(one(kind, [image], [image])).total(5).exps == 0, kind


def test_the_border_is_what_a_graph_is_given_and_gives() -> None:
    """Through two operations: 5 samples of 6 x 7 in, of 2 out; what lies between is inside."""
    b = GraphBuilder("two")
    x = b.input((1, 6, 7))
    y = b.add("reduce", [b.add("relu", [x], (1, 6, 7))], (1, 2))
    graph = b.build([y])
    border = COLUMNS.index("border")
    assert count(graph).at(5)[:, border].tolist() == [5 * 6 * 7, 5 * 2]


def test_the_document_explains_every_count() -> None:
    text = (Path(__file__).parents[2] / "docs" / "counting.md").read_text()
    table = text[text.index("| count |") : text.index("\n\nThose from")]
    names = [row.split("|")[1].strip().lower() for row in table.splitlines()[2:]]
    assert names == [name.lower() for name in COLUMNS]


# ---- told apart by kinds of operations, by hand ---------------------------------------------------

APART = (*(name for names in KINDS.values() for name in names), "unfolded", "gelus", "maps")


def apart(graph: Graph, batch_size: int, **expected: int) -> None:
    """The counts of kinds of operations: those named, and no other."""
    found = count(graph).total(batch_size)._asdict()
    assert {n: found[n] for n in APART if found[n]} == expected
    alone = count_operation(graph, graph.operations[0], batch_size)._asdict()
    assert {n: alone[n] for n in APART if alone[n]} == expected


def test_a_pointwise_convolution_apart() -> None:
    """5 channels to 4 on 7 x 9: no windows to unfold, with a stride or without."""
    graph = one("conv", [(1, 7, 9, 5)], [(1, 7, 9, 4)], **conv((1, 1), 5, 4))
    apart(graph, 3, pointwise_macs=3 * 63 * 5 * 4, pointwise_weights=5 * 4 + 4,
          conv_reads=3 * 63 * 5, conv_writes=3 * 63 * 4, conv_ops=1)  # fmt: skip


def test_a_larger_convolution_apart() -> None:
    """3 x 5 from 2 to 4 channels, 25 positions, each of which sees a window of 3 x 5 x 2."""
    graph = one("conv", [(1, 7, 9, 2)], [(1, 5, 5, 4)], **conv((3, 5), 2, 4, bias=False))
    apart(graph, 3, spatial_macs=3 * 25 * 30 * 4, spatial_weights=30 * 4, conv_reads=3 * 63 * 2,
          conv_writes=3 * 25 * 4, conv_ops=1, unfolded=3 * 25 * 30)  # fmt: skip


def test_a_transposed_convolution_apart() -> None:
    """Whatever its kernel, it is no product of matrices alone; it unfolds nothing that it reads."""
    graph = one("transposed_conv", [(1, 3, 5, 2)], [(1, 6, 10, 4)], **conv((3, 3), 2, 4))
    apart(graph, 2, spatial_macs=2 * 15 * 2 * 36, spatial_weights=9 * 2 * 4 + 4,
          conv_reads=2 * 30, conv_writes=2 * 60 * 4, conv_ops=1)  # fmt: skip
    small = one("transposed_conv", [(1, 3, 5, 2)], [(1, 3, 5, 4)], **conv((1, 1), 2, 4, bias=False))
    apart(small, 1, spatial_macs=15 * 2 * 4, spatial_weights=8, conv_reads=30, conv_writes=60,
          conv_ops=1)  # fmt: skip


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_grouped_convolution_apart(kernel: int) -> None:
    side = (kernel, kernel)
    graph = one("grouped_conv", [(1, 5, 7, 6)], [(1, 5, 7, 9)], **conv(side, 6, 9, 3))
    apart(graph, 2, grouped_macs=2 * 35 * 9 * kernel**2 * 2, grouped_weights=kernel**2 * 2 * 9 + 9,
          conv_reads=2 * 35 * 6, conv_writes=2 * 35 * 9, conv_ops=1, maps=2 * 3)  # fmt: skip


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_depthwise_convolution_apart(kernel: int) -> None:
    side = (kernel, kernel)
    graph = one("depthwise_conv", [(1, 5, 7, 3)], [(1, 5, 7, 6)], **conv(side, 3, 6, 3))
    apart(graph, 2, depthwise_macs=2 * 35 * 6 * kernel**2, grouped_weights=kernel**2 * 6 + 6,
          depthwise_reads=2 * 35 * 3, depthwise_writes=2 * 35 * 6, depthwise_ops=1, maps=2 * 3)  # fmt: skip


def test_a_dense_layer_apart() -> None:
    """Once a sample it reads its kernel for one position; on 5 positions of a sequence for five."""
    layer = {"in_features": 7, "out_features": 4, "bias": True}
    apart(one("dense", [(1, 7)], [(1, 4)], **layer), 3, flat_macs=3 * 28, dense_weights=32,
          dense_elements=3 * 11, dense_ops=1)  # fmt: skip
    apart(one("dense", [(1, 1, 7)], [(1, 1, 4)], **layer), 3, flat_macs=3 * 28, dense_weights=32,
          dense_elements=3 * 11, dense_ops=1)  # fmt: skip
    apart(one("dense", [(1, 5, 7)], [(1, 5, 4)], **layer), 3, dense_macs=3 * 5 * 28,
          dense_weights=32, dense_elements=3 * 5 * 11, dense_ops=1)  # fmt: skip


@pytest.mark.parametrize(("positions", "name"), [(1, "flat_macs"), (2, "dense_macs")])
def test_a_dense_layer_of_a_constant_is_the_same_at_any_batch_size(
    positions: int, name: str
) -> None:
    """Two positions that do not grow with the batch are two at batch size 2 as well."""
    b = GraphBuilder("constant")
    b.input((1, 3))
    x = b.tensor((positions, 7), batched=False)
    y = b.tensor((positions, 4), batched=False)
    b.operations.append(Operation("d", "dense", (x,), (y,), {
        "in_features": 7, "out_features": 4, "bias": False}))  # fmt: skip
    graph = b.build([y])
    for batch_size in (1, 2, 5):
        apart(graph, batch_size, dense_weights=28, dense_elements=positions * 11, dense_ops=1,
              **{name: positions * 28})  # fmt: skip


def test_a_product_of_activations_apart() -> None:
    graph = one("matmul", [(1, 2, 5, 3), (1, 2, 3, 7)], [(1, 2, 5, 7)], contracted=3)
    apart(graph, 4, product_macs=4 * 70 * 3, dense_elements=4 * 2 * (15 + 21 + 35), dense_ops=1)


@pytest.mark.parametrize("kind", ["lstm", "gru", "simple_rnn"])
def test_a_recurrent_layer_apart(kind: str) -> None:
    """As dense layers on many positions; its other counts are done by hand above."""
    graph = recurrent(kind)
    whole = count(graph).total(2)
    gates = {"lstm": 4, "gru": 3, "simple_rnn": 1}[kind]
    apart(graph, 2, dense_macs=2 * 5 * gates * 4 * (3 + 4), dense_weights=whole.weights,
          dense_elements=whole.traffic, dense_ops=5)  # fmt: skip


def test_an_embedding_apart() -> None:
    graph = one("embedding", [(1, 9)], [(1, 9, 16)], rows=1000, out_features=16)
    apart(graph, 3, dense_weights=3 * 144, moved_elements=3 * (9 + 144), move_ops=1)


@pytest.mark.parametrize(
    ("kinds", "elements", "started"),
    [
        ("max_pool average_pool global_average_pool global_max_pool adaptive_pool", "pool", "pool"),
        ("batch_norm", "norm", "norm"),
        ("layer_norm group_norm instance_norm rms_norm unit_norm", "layer_norm", "norm"),
        ("sigmoid silu tanh softmax log_softmax elu exponential log mish softplus sqrt rsqrt power "
         "trigonometric", "curve", "curve"),
        ("relu relu6 leaky_relu hard_sigmoid hard_silu clip cast round sign", "clip", "curve"),
        ("add subtract multiply divide maximum minimum average scale rescale square absolute negative "
         "where compare", "pair", "pair"),
        ("concatenate stack", "joined", "move"),
        ("pad resize transpose reduce repeat cumulative roll sort scatter unfold Fancy", "moved", "move"),
    ],
)  # fmt: skip
def test_what_only_moves_data_apart(kinds: str, elements: str, started: str) -> None:
    """15 elements in, 15 out, two samples."""
    for kind in kinds.split():
        graph = one(kind, [(1, 3, 5)], [(1, 3, 5)], kernel=(1, 1))
        apart(graph, 2, **{f"{elements}_elements": 60, f"{started}_ops": 1})


@pytest.mark.parametrize("kind", ["gelu", "erf"])
def test_a_gelu_is_dearer_than_an_exponential(kind: str) -> None:
    apart(one(kind, [(1, 3, 5)], [(1, 3, 5)]), 2, curve_elements=60, curve_ops=1, gelus=30)


def test_a_selection_apart() -> None:
    for kind in ("slice", "crop", "split", "gather"):
        apart(one(kind, [(1, 100)], [(1, 7)]), 2, moved_elements=28, move_ops=1)
    apart(one("fill", [(1, 100)], [(1, 7)]), 2, moved_elements=14, move_ops=1)


@pytest.mark.parametrize("kind", sorted(FREE))
def test_what_is_free_is_of_no_kind(kind: str) -> None:
    apart(one(kind, [(1, 6)], [(1, 2, 3)]), 8)


def test_every_count_is_of_a_group() -> None:
    assert set(GROUPS) == set(COLUMNS)
    assert set(GROUPS.values()) == {"flops", "weights", "memory", "patches", "ops"}
    for family, names in KINDS.items():
        group = "memory" if family == "elements" else family
        assert {GROUPS[name] for name in names} == {group}
    assert {name for name in COLUMNS if GROUPS[name] == "flops" and name not in KINDS["flops"]} == {
        "flops", "exps", "gelus"
    }  # fmt: skip


def test_columns_stand_where_files_have_them() -> None:
    """The six first, then those of models of before, then the others; nothing twice."""
    assert COLUMNS[: len(PLAIN)] == PLAIN
    assert PLAIN[:6] == FEATURES
    assert len(set(COLUMNS)) == len(COLUMNS)
    assert set(COLUMNS) - set(PLAIN) == set(APART)
