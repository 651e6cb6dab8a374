"""Counts: convolutions against a loop over every product, and what holds of any graph."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.graph import Graph, GraphBuilder, Operation
from lolat.graph.counts import COLUMNS, FORMULAS, KINDS, Count, count, count_operation
from tests.synthetic import one


def conv(
    kernel: tuple[int, ...], inside: int, outside: int, groups: int = 1, bias: bool = True
) -> Any:
    return {"kernel": kernel, "in_channels": inside, "out_channels": outside, "groups": groups,
            "bias": bias}  # fmt: skip


# ---- a loop over output positions -----------------------------------------------------------------


def positions(size: int, kernel: int, stride: int, dilation: int) -> list[list[int]]:
    """For each output position of a convolution without padding: the input positions it reads."""
    reach = (kernel - 1) * dilation
    return [[at + dilation * k for k in range(kernel)] for at in range(0, size - reach, stride)]


axis = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)).flatmap(
    lambda t: st.tuples(st.integers((t[0] - 1) * t[2] + 1, 9), *map(st.just, t))
)


@settings(max_examples=50, deadline=None)
@given(st.lists(axis, min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2),
       st.integers(1, 4))  # fmt: skip
def test_convolutions_against_a_loop(
    axes: list[tuple[int, int, int, int]], groups: int, inside: int, outside: int, batch: int
) -> None:
    """Every product of a kernel weight with an input element, one by one."""
    reads = [positions(*a) for a in axes]
    macs = 0
    unfolded = set()
    for place in product(*(range(len(r)) for r in reads)):
        for taps in product(*(reads[i][p] for i, p in enumerate(place))):
            for group in range(groups):
                for channel in range(inside):
                    unfolded.add((place, taps, group, channel))
                    macs += outside  # into each output channel of the group
    sizes, kernel = tuple(a[0] for a in axes), tuple(a[1] for a in axes)
    out = tuple(len(r) for r in reads)
    for kind in ("conv", "grouped_conv"):
        graph = one(kind, [(1, *sizes, inside * groups)], [(1, *out, outside * groups)],
                    **conv(kernel, inside * groups, outside * groups, groups))  # fmt: skip
        counts = count(graph).total(batch)
        assert counts.flops == batch * macs
        assert counts.patches == (batch * len(unfolded) if kind == "grouped_conv" else 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(axis, min_size=1, max_size=2), st.integers(1, 3), st.integers(1, 3))
def test_a_transposed_convolution_against_a_loop(
    axes: list[tuple[int, int, int, int]], inside: int, outside: int
) -> None:
    """It is the gradient of a convolution: the same products, input and output swapped."""
    reads = [positions(*a) for a in axes]
    macs = sum(
        inside * outside
        for place in product(*(range(len(r)) for r in reads))
        for _ in product(*(reads[i][p] for i, p in enumerate(place)))
    )
    graph = one("transposed_conv", [(1, *(len(r) for r in reads), inside)],
                [(1, *(a[0] for a in axes), outside)],
                **conv(tuple(a[1] for a in axes), inside, outside))  # fmt: skip
    assert count(graph).total().flops == macs


# ---- what holds of any graph ----------------------------------------------------------------------


@st.composite
def networks(draw: Any) -> Graph:
    """Operations of every kind, with whatever operands and attributes they accept."""
    b = GraphBuilder("any")
    sizes = st.integers(1, 4)
    known = [b.input((1, draw(sizes), 6)), b.tensor((draw(sizes), 6), batched=False)]
    for _ in range(draw(st.integers(0, 8))):
        inputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        known.append(b.add(
            draw(st.sampled_from([*FORMULAS, "Fancy"])), inputs, (draw(sizes), draw(sizes), 6),
            draw(st.sampled_from(["", "a", "b"])), kernel=(3,), in_channels=6, out_channels=6,
            groups=draw(st.sampled_from([1, 2, 3])), bias=draw(st.booleans()), in_features=6,
            out_features=6, units=3, timesteps=draw(sizes), contracted=draw(sizes),
        ))  # fmt: skip
    return b.build(known[-1:])


@settings(max_examples=60, deadline=None)
@given(networks(), st.integers(1, 300))
def test_counts_of_a_graph_are_those_of_its_operations(graph: Graph, batch: int) -> None:
    counts = count(graph)
    each = [count_operation(graph, o, batch) for o in graph.operations]
    at = counts.at(batch)
    serial, border = COLUMNS.index("serial"), COLUMNS.index("border")  # not of an operation
    per_operation = [
        c._replace(serial=int(row[serial]), border=int(row[border]))
        for c, row in zip(each, at, strict=True)
    ]
    assert at.tolist() == [list(c) for c in per_operation]
    ends = {i for o in graph.operations for i in (*o.inputs, *o.outputs)}
    ends &= {*graph.inputs, *graph.outputs}
    assert at[:, border].sum() == sum(graph.tensors[i].elements(batch) for i in ends)
    assert counts.at(batch).shape == (len(each), len(COLUMNS))
    assert counts.total(batch) == Count(
        *(sum(c) for c in zip(Count(), *per_operation, strict=True))
    )
    assert (counts.at(batch) >= 0).all()
    assert (counts.scaled >= 0).all()


@settings(max_examples=100, deadline=None)
@given(networks(), st.integers(1, 300))
def test_the_kinds_of_a_family_add_up_to_what_it_counts(graph: Graph, batch: int) -> None:
    """Operation by operation, so that nothing that is missing in one can be too much in another."""
    for row in count(graph).at(batch).tolist():
        named = dict(zip(COLUMNS, row, strict=True))
        sums = {family: sum(named[n] for n in names) for family, names in KINDS.items()}
        assert sums == {
            "flops": named["flops"],
            "weights": named["weights"],
            "ops": named["ops"],
            "elements": named["acts"] + named["inp"] + named["traffic"],
        }
        for names in KINDS.values():
            of = {n for n in names if named[n]}
            assert len(of) <= 1 or of in ({"conv_reads", "conv_writes"},
                                          {"depthwise_reads", "depthwise_writes"})  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(networks())
def test_serial_operations_are_those_on_the_longest_path(graph: Graph) -> None:
    ops = [count_operation(graph, o).ops for o in graph.operations]
    writer = {t: i for i, o in enumerate(graph.operations) for t in o.outputs}

    def longest(position: int) -> int:
        before = [writer[t] for t in graph.operations[position].inputs if t in writer]
        return ops[position] + max(map(longest, before), default=0)

    expected = max(map(longest, range(len(ops))), default=0)
    assert count(graph).total(7).serial == expected


@settings(max_examples=40, deadline=None)
@given(networks())
def test_counts_do_not_depend_on_names(graph: Graph) -> None:
    renamed = tuple(
        Operation(f"n{i}", o.kind, o.inputs, o.outputs, o.attributes, "elsewhere")
        for i, o in enumerate(graph.operations)
    )
    other = replace(graph, name="other", operations=renamed, cache={})
    assert (count(other).at(3) == count(graph).at(3)).all()


def test_counts_are_kept_with_the_graph() -> None:
    graph = one("relu", [(1, 3)], [(1, 3)])
    assert count(graph) is count(graph)


def test_counts_are_whole_numbers_beyond_floating_point() -> None:
    side = 2**14
    graph = one("conv", [(1, side, side, 64)], [(1, side, side, 64)], **conv((3, 3), 64, 64))
    total = count(graph).total(101)
    assert total.flops == 101 * side * side * 64 * 576
    assert all(type(n) is int for n in total)


def test_an_empty_graph_counts_nothing() -> None:
    b = GraphBuilder("empty")
    assert count(b.build([b.input((1, 3))])).total(5) == Count()
