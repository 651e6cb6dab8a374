"""Memory foreseen, against sums done by hand."""

from __future__ import annotations

import pytest

from lolat.graph import Graph, GraphBuilder
from microbench.jobs import activation_bytes, keep_bytes, peak_bytes, weight_bytes
from microbench.layers import Layers

MIB = 2**20


def layers(name: str) -> Layers:
    """Layers on an input that is no square: 3x5x2."""
    n = Layers(name, 3, 2)
    n.builder = GraphBuilder(name)
    n.input = n.builder.input((1, 3, 5, 2))
    return n


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


def test_weights() -> None:
    # 3x3x2x7 and 7 biases; 7x4
    assert weight_bytes(chain()) == 4 * (126 + 7 + 28)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_chain_keeps_two_tensors_at_a_time(batch: int) -> None:
    # 30+105, 105+105, 105+60
    assert activation_bytes(chain(), batch) == 4 * 210 * batch


@pytest.mark.parametrize("batch", [1, 5])
def test_a_shortcut_is_kept_until_it_is_added(batch: int) -> None:
    # 30+105, 30+105+30, 30+30+30
    assert activation_bytes(residual(), batch) == 4 * 165 * batch


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


def test_nothing_to_do_is_its_input() -> None:
    b = GraphBuilder("nothing")
    assert activation_bytes(b.build([b.input((1, 10))]), 2) == 80


def test_the_peak_is_twice_all_of_it_and_some() -> None:
    graph = chain()
    assert peak_bytes(graph, 1) == 2 * 4 * 161 + 2 * 4 * 210 + 32 * MIB
    assert keep_bytes(graph, 3) == 4 * 161 + 3 * 4 * 30
