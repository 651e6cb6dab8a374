"""Counts: formulas against counts by hand, convolutions against a loop, and what always holds."""

from __future__ import annotations

import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder, Operation
from lolat.graph.counts import COLUMNS, FORMULAS, MEMBERS, behavior, count
from lolat.graph.kinds import VIEWS, kind_of
from lolat.graph.layers import Layers
from tests.strategies import graphs
from tests.synthetic import one

OF_GRAPHS = {"serial", "border", "threaded", "streamed", "repacked"}
"""Counts that have tests of their own."""


def check(graph: Graph, batch_size: int, **expected: int) -> None:
    """The counts of the graph: those named, and no other but OF_GRAPHS."""
    found = count(graph).total(batch_size)._asdict()
    assert {n: v for n, v in found.items() if v and n not in OF_GRAPHS} == expected


def conv(
    kernel: tuple[int, ...], inside: int, outside: int, groups: int = 1, bias: bool = True
) -> Any:
    return {"kernel": kernel, "in_channels": inside, "out_channels": outside, "groups": groups,
            "bias": bias}  # fmt: skip


def convolved(
    name: str, reads: int, writes: int, macs: int, weights: int, place: str = "conv", **more: int
) -> dict[str, int]:
    """The counts of a convolution, whole and apart."""
    weights_of = "grouped" if name == "depthwise" else name
    return {
        "acts": writes, "inp": reads, "flops": macs, "weights": weights, "ops": 1, f"{name}_macs": macs,
        f"{weights_of}_weights": weights, f"{place}_reads": reads, f"{place}_writes": writes,
        f"{place}_ops": 1, **more,
    }  # fmt: skip


def moved(name: str, traffic: int, started: str = "", **more: int) -> dict[str, int]:
    """The counts of what only moves data."""
    return {
        "traffic": traffic,
        f"{name}_elements": traffic,
        "ops": 1,
        f"{started or name}_ops": 1,
        **more,
    }


# ---- by hand: (kind, shapes read, shapes written, attributes, batch size, counts)

DENSE = {"in_features": 7, "out_features": 4, "bias": True}
CONVOLUTIONS: list[Any] = [
    # a 3x5 kernel from 2 to 4 channels on 7x9, without padding: 5x5 positions
    ("conv", (1, 7, 9, 2), (1, 5, 5, 4), conv((3, 5), 2, 4), 3,
     convolved("spatial", 3 * 126, 3 * 100, 3 * 100 * 30, 30 * 4 + 4, unfolded=3 * 25 * 30)),
    ("conv", (1, 11, 3), (1, 9, 5), conv((3,), 3, 5, bias=False), 2,
     convolved("spatial", 2 * 33, 2 * 45, 2 * 45 * 9, 45, unfolded=2 * 9 * 9)),
    ("conv", (1, 4, 5, 6, 2), (1, 3, 3, 3, 7), conv((2, 3, 4), 2, 7), 1,
     convolved("spatial", 240, 189, 189 * 48, 48 * 7 + 7, unfolded=27 * 48)),
    # a 1x1 kernel unfolds nothing
    ("conv", (1, 7, 9, 5), (1, 7, 9, 4), conv((1, 1), 5, 4), 3,
     convolved("pointwise", 3 * 315, 3 * 252, 3 * 252 * 5, 24)),
    ("grouped_conv", (1, 5, 7, 6), (1, 5, 7, 9), conv((3, 3), 6, 9, 3), 2,
     convolved("grouped", 420, 630, 630 * 18, 18 * 9 + 9, patches=3780, groups=3, maps=6)),
    ("grouped_conv", (1, 5, 7, 16), (1, 5, 7, 2), conv((3, 3), 16, 2, 2, False), 1,
     convolved("grouped", 560, 70, 70 * 72, 144, patches=35 * 144, groups=2, maps=2)),
    ("depthwise_conv", (1, 5, 7, 3), (1, 5, 7, 6), conv((3, 3), 3, 6, 3), 2,
     convolved("depthwise", 210, 420, 420 * 9, 9 * 6 + 6, "depthwise", maps=6)),
    # a transposed one works from its input, whatever its kernel
    ("transposed_conv", (1, 3, 5, 2), (1, 6, 10, 4), conv((3, 3), 2, 4), 2,
     convolved("spatial", 60, 480, 60 * 36, 72 + 4)),
    ("transposed_conv", (1, 3, 5, 2), (1, 3, 5, 4), conv((1, 1), 2, 4, bias=False), 1,
     convolved("spatial", 30, 60, 120, 8)),
]  # fmt: skip
OTHERS: list[Any] = [
    # a dense layer at one position reads its kernel for each sample, on several for all of them
    ("dense", (1, 7), (1, 4), DENSE, 3,
     moved("dense", 33, flops=84, flat_macs=84, weights=32, dense_weights=32)),
    ("dense", (1, 1, 7), (1, 1, 4), DENSE | {"bias": False}, 1,
     moved("dense", 11, flops=28, flat_macs=28, weights=28, dense_weights=28)),
    ("dense", (1, 5, 3, 7), (1, 5, 3, 4), DENSE, 2,
     moved("dense", 30 * 11, flops=30 * 28, dense_macs=30 * 28, weights=32, dense_weights=32)),
    ("embedding", (1, 9), (1, 9, 16), {"rows": 1000, "out_features": 16}, 3,
     moved("moved", 3 * (9 + 144), "move", weights=432, dense_weights=432)),
    ("average_pool", (1, 8, 8, 3), (1, 4, 4, 3), {"kernel": (2, 2)}, 5,
     moved("pool", 5 * 240, means=5 * 48 * 4)),
    ("max_pool", (1, 8, 8, 3), (1, 4, 4, 3), {"kernel": (3, 3)}, 5,
     moved("pool", 5 * 240, maxima=5 * 48 * 9)),
    ("fill", (1, 100), (1, 7), {}, 2, moved("moved", 14, "move")),
    ("batch_norm", (1, 5, 3, 3), (1, 5, 3, 3), {}, 2, moved("norm", 180)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "read", "written", "attributes", "batch", "expected"),
                         CONVOLUTIONS + OTHERS)  # fmt: skip
def test_by_hand(
    kind: str, read: Any, written: Any, attributes: Any, batch: int, expected: dict[str, int]
) -> None:
    check(one(kind, [read], [written], **attributes), batch, **expected)


def test_several_operands_by_hand() -> None:
    graph = one("matmul", [(1, 2, 5, 3), (1, 2, 3, 7)], [(1, 2, 5, 7)], contracted=3)
    check(graph, 4, **moved("dense", 4 * 2 * (15 + 21 + 35), flops=840, product_macs=840))
    for operands in (2, 3):
        check(
            one("add", [(1, 3, 5)] * operands, [(1, 3, 5)]),
            2,
            **moved("pair", 30 * (operands + 1), "pair"),
        )
    graph = one("multiply", [(1, 7, 9, 4), (1, 1, 1, 4)], [(1, 7, 9, 4)])  # as many as it has
    check(graph, 2, **moved("pair", 2 * (252 + 4 + 252)))
    constant = one("add", [(1, 7, 4)], [(1, 7, 4)], constants=[(7, 4)])
    check(constant, 10, **moved("pair", 10 * 28 + 28 + 10 * 28))
    for kind in ("slice", "crop", "split", "gather"):  # reads what it writes, and its indices
        check(one(kind, [(1, 100)], [(1, 7)]), 2, **moved("moved", 28, "move"))
        check(one(kind, [(1, 100), (1, 7)], [(1, 7)]), 2, **moved("moved", 42, "move"))
    check(one("concatenate", [(1, 3, 2), (1, 3, 4)], [(1, 3, 6)]), 2, **moved("joined", 72, "move"))


@pytest.mark.parametrize(("scaled", "masks"), [(True, 0), (False, 0), (True, 1)])
def test_attention_is_the_operations_that_it_consists_of(scaled: bool, masks: int) -> None:
    """2 heads, 5 queries of 3 numbers, 7 keys, values of 4: scores, scale, mask, softmax, mixture."""
    about = {"heads": 2, "key_heads": 2, "queries": 5, "keys": 7, "head_size": 3, "value_size": 4}
    shapes = [(1, 2, 5, 3), (1, 2, 7, 3), (1, 2, 7, 4), (1, 2, 5, 7)]
    whole = one("attention", shapes[: 3 + masks], [(1, 2, 5, 4)], scaled=scaled, **about)
    b, scores = GraphBuilder("composite"), (1, 2, 5, 7)
    q, k, v, mask = (b.input(shape) for shape in shapes)
    x = b.add("matmul", [q, k], scores, contracted=3)
    x = b.add("scale", [x], scores) if scaled else x
    x = b.add("add", [x, mask], scores) if masks else x
    x = b.add("softmax", [x], scores)
    parts = b.build([b.add("matmul", [x, v], (1, 2, 5, 4), contracted=7)])
    wanted = count(parts).total(3)._asdict()
    check(whole, 3, **{n: v for n, v in wanted.items() if v and n not in OF_GRAPHS})
    assert count(whole).total(3).flops == 3 * 2 * 5 * 7 * (3 + 4)


# One step of each, of 3 features and 4 units, reads and writes:
# two products, the sums of 3 gates and 4, three sigmoids and tanh, f*c, i*g, their sum, tanh, o*tanh
LSTM = (3 + 16) + (4 + 16) + 48 + (24 + 8) + 36 + 8 + 12
# two products, the sums and sigmoids of z and r; r*h, the sum, tanh; 1-z, z*h, (1-z)*g, the sum
GRU = (3 + 12) + (4 + 12) + 24 + 16 + 12 + 12 + 8 + 8 + 12 + 12 + 12
# two products, their sum, tanh
RNN = (3 + 4) + (4 + 4) + 12 + 8


@pytest.mark.parametrize(
    ("kind", "gates", "traffic", "biases", "more"),
    [("lstm", 4, LSTM, 16, {}), ("gru", 3, GRU, 24, {}), ("gru", 3, GRU, 12, {"bias_vectors": 1}),
     ("simple_rnn", 1, RNN, 4, {})],
)  # fmt: skip
def test_a_recurrent_layer_is_its_operations_times_the_steps(
    kind: str, gates: int, traffic: int, biases: int, more: dict[str, int]
) -> None:
    graph = one(kind, [(1, 5, 3)], [(1, 4)], units=4, in_features=3, timesteps=5, bias=True, **more)
    macs, weights = 2 * 5 * gates * 4 * 7, gates * 4 * 7 + biases
    expected = moved("dense", 10 * traffic, flops=macs, dense_macs=macs, weights=weights,
                     dense_weights=weights)  # fmt: skip
    check(graph, 2, **expected | {"ops": 5, "dense_ops": 5})


APART = [
    ("global_average_pool global_max_pool adaptive_pool", "pool", "pool"),
    ("batch_norm", "norm", "norm"),
    ("layer_norm group_norm instance_norm rms_norm unit_norm", "layer_norm", "norm"),
    ("sigmoid silu tanh softmax log_softmax elu exp log mish softplus sqrt rsqrt power selu celu "
     "trigonometric log_sigmoid gelu erf hard_sigmoid hard_silu", "curve", "curve"),
    ("relu relu6 leaky_relu prelu clip cast round sign softsign glu squareplus "
     "hard_tanh threshold reciprocal bitwise one_hot hard_shrink soft_shrink tanh_shrink "
     "sparse_plus sparse_sigmoid sparsemax", "clip", "curve"),
    ("add subtract multiply divide maximum minimum average scale rescale square absolute negative "
     "where compare", "pair", "pair"),
    ("concatenate stack", "joined", "move"),
    ("pad resize transpose reduce repeat cumulative roll sort scatter unfold Fancy", "moved", "move"),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "elements", "started"), APART)
def test_what_only_moves_data_reads_and_writes(kinds: str, elements: str, started: str) -> None:
    """15 elements in, 15 out, two samples."""
    for kind in kinds.split():
        more = {
            "exps": 30 * (kind_of(kind).group == "exponential"),
            "gelus": 30 * (kind in ("gelu", "erf")),
        }
        expected = moved(elements, 60, started, **{k: v for k, v in more.items() if v})
        check(one(kind, [(1, 3, 5)], [(1, 3, 5)]), 2, **expected)


def test_every_formula_has_a_count_by_hand() -> None:
    """Here, or in the table of operations of the frameworks."""
    table = tomllib.loads((Path(__file__).parents[1] / "data" / "operations.toml").read_text())
    above = {kind for kinds, _, _ in APART for kind in kinds.split()} - {"Fancy"}
    above |= {row[0] for row in CONVOLUTIONS + OTHERS}
    above |= {kind for row in table["operation"] for kind in row["kinds"].split()}
    assert set(FORMULAS) == above | VIEWS | {"split"}  # of which there is a test below
    for kind in VIEWS:
        check(one(kind, [(1, 6)], [(1, 2, 3)]), 8)


@pytest.mark.parametrize(("positions", "name"), [(1, "flat_macs"), (2, "dense_macs")])
def test_a_dense_layer_of_a_constant_is_the_same_at_any_batch_size(
    positions: int, name: str
) -> None:
    """Two positions that do not grow with the batch are two at batch size 2 as well."""
    b = GraphBuilder("constant")
    x, y = (b.tensor((positions, n), batched=False) for n in (7, 4))
    b.operations.append(Operation("d", "dense", (x,), (y,), DENSE))
    for batch_size in (1, 2, 5):
        macs = {"flops": positions * 28, name: positions * 28}
        check(
            b.build([y]),
            batch_size,
            **moved("dense", positions * 11, weights=32, dense_weights=32, **macs),
        )


# ---- what depends on sizes and on the graph


def test_large_operations_wake_threads_and_leave_the_caches() -> None:
    # 2**16 read and as many written: threads are woken for more than 2**17, caches end at 2**22.
    counts = count(one("relu", [(1, 2**16)], [(1, 2**16)]))
    assert [counts.total(n).threaded for n in (1, 2, 33)] == [0, 1, 1]
    assert [counts.total(n).streamed for n in (1, 2, 32, 33)] == [0, 0, 0, 33 * 2**17]
    wide = one("conv", [(1, 256, 256, 1)], [(1, 256, 256, 2)], **conv((3, 3), 1, 2))
    assert count(wide).total(1).threaded == 1  # 2**16 + 2**17 elements
    steps = one(
        "lstm", [(1, 1000, 64)], [(1, 8)], units=8, in_features=64, timesteps=1000, bias=True
    )
    assert count(steps).total(1).traffic > 2**17
    assert count(steps).total(1).threaded == 0  # each step is small


def test_what_kind_of_work_an_operation_is() -> None:
    shapes = [(1, 8, 8, 1)]
    for kind, of in (("batch_norm", "memory traffic"), ("max_pool", "memory traffic"), ("x", "x")):
        assert behavior(one(kind, shapes, shapes).operations[0]) == of
    line = one("conv", [(1, 8, 1)], [(1, 8, 1)], **conv((3,), 1, 1))
    assert behavior(line.operations[0]) == "conv_1d"


# ---- what is wrong, and what is said


def test_an_unknown_operation_is_named_behind_the_warnings_of_the_reader() -> None:
    graph = one("Fancy", [(1, 3), (1, 5)], [(1, 7), (1, 2)], name="layer_1", path="top")
    check(graph, 2, **moved("moved", 2 * (3 + 5 + 7 + 2), "move"))
    warnings = count(replace(graph, warnings=("of the reader",))).warnings
    assert warnings[0] == "of the reader"
    assert "Fancy (1 x, first 'top/layer_1')" in warnings[1]


@pytest.mark.parametrize(
    "graph",
    [
        one("conv", [(1, 3)], [(1, 3)]),
        one("dense", [], [(1, 3)], in_features=1, out_features=1, bias=False),
        one("lstm", [(1, 3, 0)], [(1, 3)], units=1, in_features=0, timesteps=3, bias=False),
        one("relu", [(1, 3)], [(1, 0)]),
    ],
)
def test_an_operation_without_its_attributes_is_an_error_in_one_line(graph: Graph) -> None:
    with pytest.raises(InputError) as caught:
        count(graph)
    assert caught.value.code == "network"


# ---- a loop over output positions


def positions(size: int, kernel: int, stride: int, dilation: int) -> list[list[int]]:
    """The input positions that each output position of a convolution without padding reads."""
    reach = (kernel - 1) * dilation
    return [[at + dilation * k for k in range(kernel)] for at in range(0, size - reach, stride)]


axis = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)).flatmap(
    lambda t: st.tuples(st.integers((t[0] - 1) * t[2] + 1, 9), *map(st.just, t))
)


@settings(max_examples=50)
@given(st.lists(axis, min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2),
       st.integers(1, 4))  # fmt: skip
def test_convolutions_against_a_loop(
    axes: list[tuple[int, int, int, int]], groups: int, inside: int, outside: int, batch: int
) -> None:
    """The products of kernel weights with input elements, one by one; a transposed convolution, which is
    the gradient of one, has the same products with input and output swapped."""
    reads = [positions(*a) for a in axes]
    taps = [
        (place, tap, group, channel)
        for place in product(*(range(len(r)) for r in reads))
        for tap in product(*(reads[i][p] for i, p in enumerate(place)))
        for group in range(groups)
        for channel in range(inside)
    ]
    macs = len(taps) * outside  # into each output channel of the group
    sizes, kernel = tuple(a[0] for a in axes), tuple(a[1] for a in axes)
    small, large = (1, *map(len, reads), outside * groups), (1, *sizes, inside * groups)
    made = conv(kernel, inside * groups, outside * groups, groups)
    for kind in ("conv", "grouped_conv"):
        counts = count(one(kind, [large], [small], **made)).total(batch)
        assert counts.flops == batch * macs
        assert counts.patches == (batch * len(set(taps)) if kind == "grouped_conv" else 0)
    made = conv(kernel, outside * groups, inside * groups, groups)
    assert (
        count(one("transposed_conv", [small], [large], **made)).total(batch).flops == batch * macs
    )


# ---- what holds of any graph


@settings(max_examples=100)
@given(graphs(), st.integers(1, 300))
def test_counts_of_a_graph(graph: Graph, batch: int) -> None:
    counts = count(graph)
    rows = counts.at(batch)
    assert rows.shape == (len(graph.operations), len(COLUMNS))
    assert (rows >= 0).all()
    assert (counts.scaled >= 0).all()
    assert list(counts.total(batch)) == rows.sum(axis=0).tolist()
    ends = {i for o in graph.operations for i in (*o.inputs, *o.outputs)}
    ends &= {*graph.inputs, *graph.outputs}
    assert counts.total(batch).border == sum(graph.tensors[i].elements(batch) for i in ends)
    renamed = tuple(replace(o, name=f"n{i}", path="x") for i, o in enumerate(graph.operations))
    assert (count(replace(graph, operations=renamed)).at(batch) == rows).all()
    assert count(graph) is counts  # kept with the graph
    # Operation by operation, so that nothing that is missing in one can be too much in another.
    for row in rows.tolist():
        named = dict(zip(COLUMNS, row, strict=True))
        sums = {family: sum(named[n] for n in names) for family, names in MEMBERS.items()}
        elements = named["acts"] + named["inp"] + named["traffic"]
        assert sums == {n: named[n] for n in ("flops", "weights", "ops")} | {"elements": elements}
        for names in MEMBERS.values():
            of = {n for n in names if named[n]}
            both = [{"conv_reads", "conv_writes"}, {"depthwise_reads", "depthwise_writes"}]
            assert len(of) <= 1 or named["product_macs"] or of in both  # attention is several


@settings(max_examples=60)
@given(graphs())
def test_serial_operations_are_those_on_the_longest_path(graph: Graph) -> None:
    ops = count(graph).at(1)[:, COLUMNS.index("ops")].tolist()
    writer = {t: i for i, o in enumerate(graph.operations) for t in o.outputs}

    def longest(position: int) -> int:
        before = [writer[t] for t in graph.operations[position].inputs if t in writer]
        return int(ops[position]) + max(map(longest, before), default=0)

    assert count(graph).total(7).serial == max(map(longest, range(len(ops))), default=0)


def test_weights_of_dense_convolutions_are_reordered_above_batch_1() -> None:
    """7 x (1 + bias) and 7 x 9 x 5 weights; a depthwise convolution has none of these."""
    n = Layers.on("x", 6, 6, 1)
    y = n.conv(n.conv(n.input, 7, 1, bias=True), 5, 3)
    graph = n.done(n.depthwise(y, 3))
    found = [count(graph).total(batch_size).repacked for batch_size in (1, 2, 16)]
    assert found == [0, 7 * 2 + 7 * 9 * 5, 7 * 2 + 7 * 9 * 5]
