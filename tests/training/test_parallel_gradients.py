"""Gradients in the order in which a backward pass has them, and what of their exchange it hides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import parameters
from lolat.training.exchange import Link
from lolat.training.replicas import ParallelPrediction, gradient_parts, predict_parallel
from tests import synthetic
from tests.training.known_training import KnownTraining

MIB = 2**20


def three_dense(width: int = 512) -> Graph:
    """scale, dense, relu, dense, relu, dense; kernels of 1 MiB each at 512."""
    b = GraphBuilder("three")
    x = b.input((1, width))
    x = b.add("rescale", [x], (1, width), "scale")
    for number in range(3):
        x = b.add("dense", [x], (1, width), f"d{number}", in_features=width, out_features=width,
                  bias=False)  # fmt: skip
        if number < 2:
            x = b.add("relu", [x], (1, width), f"r{number}")
    return b.build([x])


def test_a_part_is_an_operation_and_what_lies_behind_it() -> None:
    # scale, d0, r0, d1, r1, d2: nobody needs the gradient of what is in front of d0.
    sizes, backward = gradient_parts(three_dense(), 8, 70.0, [50, 1, 2, 3, 4, 25])
    assert sizes == [MIB] * 3
    assert backward == pytest.approx([2 * 3, 2 * 7, 2 * 25])


def test_without_times_it_goes_by_what_is_multiplied_and_moved() -> None:
    width, batch = 512, 8
    _, backward = gradient_parts(three_dense(width), batch, 100.0)
    dense = batch * width * width / 10 + 2 * batch * width + width * width
    relu = 2 * batch * width
    whole = 3 * dense + 2 * relu
    assert backward == pytest.approx(
        [100 * (dense + relu) / whole] * 2 + [100 * dense / whole], rel=1e-6
    )


def test_vectors_of_a_normalisation_and_tables_travel_too() -> None:
    b = GraphBuilder("words")
    x = b.input((1, 5), dtype="int32")
    x = b.add("embedding", [x], (1, 5, 16), "words", rows=1000, out_features=16)
    x = b.add("layer_norm", [x], (1, 5, 16), "norm")
    sizes, _ = gradient_parts(b.build([x]), 2, 1.0)
    assert sizes == [4 * 1000 * 16, 4 * 2 * 16]


def test_no_parameters_no_parts() -> None:
    b = GraphBuilder("none")
    x = b.add("relu", [b.input((1, 5))], (1, 5), "r")
    assert gradient_parts(b.build([x]), 2, 9.0) == ([], [])


@given(st.integers(1, 4), st.integers(1, 64), st.floats(0, 1e4), st.booleans(), st.data())
def test_parts_add_up(
    stages: int, batch: int, backward_ms: float, known: bool, data: st.DataObject
) -> None:
    graph = synthetic.network(stages)
    each = st.lists(st.floats(0, 1e3), min_size=len(graph.operations),
                    max_size=len(graph.operations))  # fmt: skip
    weights = data.draw(each) if known else None
    sizes, backward = gradient_parts(graph, batch, backward_ms, weights)
    assert sum(sizes) == 4 * parameters(graph)
    assert sum(backward) == pytest.approx(backward_ms)
    assert len(sizes) == len(backward) == 1 + 2 * stages * 2 + 1  # conv and norm, stem and head


PARTS = {"forward": 30.0, "backward": 60.0, "update": 10.0}
ALIKE = KnownTraining(times=PARTS, each=[0, 1, 0, 1, 0, 1])
LAST = KnownTraining(times=PARTS, each=[0, 0, 0, 0, 0, 90])
LINK = Link(8 * MIB / 1e9 * 1e3, 0.0)  # 1 MiB a ms


def asked(model: KnownTraining, strategy: str = "tree", overlap: bool = True) -> ParallelPrediction:
    # A tree of two: up and down, 2 ms for each MiB. Each kernel is of 9 MiB: 18 ms.
    graph = three_dense(1536)
    return predict_parallel(model, graph, 8, 80, 1, "sgd", 0.9, 2, LINK, strategy, overlap)


def test_buckets_travel_during_the_backward_pass() -> None:
    found = asked(ALIKE)
    # The last kernel leaves when it is ready, after 20 of 60 ms (nearly), alone as it is over 1 MiB; it
    # arrives at 38. The other two, below 25 MiB, leave together at 60: 36 ms are waited for.
    assert found.training.parts_ms["exchange"] == pytest.approx(36, abs=0.1)
    assert found.iteration.hidden_ms == pytest.approx(18, abs=0.1)
    assert found.training.iteration_ms == pytest.approx(136, abs=0.1)
    assert found.training.epoch_s == pytest.approx(5 * 0.136, abs=1e-3)
    told = found.to_dict()
    assert told["hidden_ms"] == found.iteration.hidden_ms
    assert told["parts_ms"] == found.training.parts_ms
    assert sum(told["parts_ms"].values()) == pytest.approx(told["iteration_ms"])


def test_where_the_time_goes_is_the_models_to_tell() -> None:
    # The last layer takes all 60 ms; then everything is ready at once, in two buckets, one by one.
    found = asked(LAST)
    assert found.training.parts_ms["exchange"] == pytest.approx(54)
    assert found.iteration.hidden_ms == pytest.approx(0)


@pytest.mark.parametrize(("strategy", "overlap"), [("tree", False), ("mirrored", True)])
def test_what_hides_nothing(strategy: str, overlap: bool) -> None:
    found = asked(ALIKE, strategy, overlap)
    assert found.iteration.hidden_ms == 0
    # A ring of two sends all bytes once, a tree twice; MirroredStrategy has a cost of its own.
    expected = 54 if strategy == "tree" else 27 + 1.4
    assert found.training.parts_ms["exchange"] == pytest.approx(expected)
