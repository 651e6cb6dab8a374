"""The order of a run, what is held in memory together, and memory foreseen, against sums done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.graph import Graph, GraphBuilder
from lolat.graph.layers import Layers
from microbench.runner import (
    Job,
    Settings,
    activation_bytes,
    groups,
    keep_bytes,
    peak_bytes,
    visiting_order,
    weight_bytes,
)

MIB = 2**20


def layers(name: str) -> Layers:
    """Layers on an input that is no square: 3x5x2."""
    return Layers.on(name, 3, 5, 2)


def chain() -> Graph:
    """3x5x2 (30 elements) -> conv to 7 channels (105) -> relu (105) -> 1x1 conv to 4 (60)."""
    n = layers("chain")
    x = n.conv(n.input, 7, 3, bias=True)
    return n.done(n.conv(n.same("relu", x), 4))


def residual() -> Graph:
    """30 elements, kept until they are added to what two convolutions made of them."""
    n = layers("residual")
    y = n.conv(n.conv(n.input, 7, 3), 2)
    return n.done(n.same("add", n.input, y))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    ("graph", "elements"),
    [(chain(), 105 + 105), (residual(), 30 + 105 + 30)],
    ids=["two tensors at a time", "a shortcut until it is added"],
)
def test_the_largest_sum_of_what_is_alive(graph: Graph, elements: int, batch: int) -> None:
    assert activation_bytes(graph, batch) == 4 * elements * batch


def test_an_output_is_kept_to_the_end() -> None:
    n = layers("two outputs")
    early = n.conv(n.input, 7)
    late = n.conv(n.conv(early, 1), 1)
    # 30+105, 105+15, 105+15+15
    assert activation_bytes(n.done(late), 1) == 4 * 135
    assert activation_bytes(n.done(early, late), 1) == 4 * 135
    last = n.conv(late, 9)
    # 105 is dead when 15+135 are alive; as an output it is not
    assert activation_bytes(n.done(last), 1) == 4 * 150
    assert activation_bytes(n.done(early, last), 1) == 4 * (105 + 150)


def test_a_second_input_is_there_from_the_start() -> None:
    b = GraphBuilder("two inputs")
    first, second = b.input((1, 10)), b.input((1, 100))
    x = b.add("relu", [first], (1, 10))
    graph = b.build([b.add("concatenate", [x, second], (1, 110))])
    # 10+100+10, then 10+100+110
    assert activation_bytes(graph, 3) == 4 * 3 * 220
    assert keep_bytes(graph, 3) == 4 * 3 * 110
    nothing = GraphBuilder("nothing to do is its input")
    assert activation_bytes(nothing.build([nothing.input((1, 10))]), 2) == 80


def test_the_peak_is_twice_all_of_it_and_some() -> None:
    graph = chain()
    assert weight_bytes(graph) == 4 * (126 + 7 + 28)  # 3x3x2x7 and 7 biases; 7x4
    assert peak_bytes(graph, 1) == 2 * 4 * 161 + 2 * 4 * 210 + 32 * MIB
    assert keep_bytes(graph, 3) == 4 * 161 + 3 * 4 * 30


# ---- Order and groups


def test_the_order_is_random_and_the_same_for_the_same_seed() -> None:
    jobs = [Job(str(i), {}) for i in range(30)]

    def order(seed: int) -> list[str]:
        return [j.key for _, j in visiting_order(jobs, Settings(rounds=2, seed=seed))]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1)[:30] != order(1)[30:]
    assert order(1)[:30] != [j.key for j in jobs]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1),
    st.integers(100, 300),
)
def test_a_group_fits(sizes: list[tuple[int, int]], free: int) -> None:
    jobs = [
        Job(str(i), {}, need_bytes=keep + more, keep_bytes=keep)
        for i, (keep, more) in enumerate(sizes)
    ]
    assert groups(jobs, None) == [jobs]
    made = groups(jobs, free)
    assert [j for group in made for j in group] == jobs
    for group in made:
        held = sum(j.keep_bytes for j in group)
        more = max(j.need_bytes - j.keep_bytes for j in group)
        assert len(group) == 1 or (held <= free / 2 and held + more <= free)
