"""The measured domain: what is inside, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.fitting.domain import (
    FOR_NETWORK,
    NEGLIGIBLE_SHARE,
    PASSED_OVER_SHARE,
    Domain,
    advice,
    widened,
)
from lolat.fitting.points import Point
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import FEATURES
from lolat.model import Model
from tests import synthetic


def point(kinds: tuple[str, ...] = ("conv",), **counts: int) -> Point:
    whole = {"acts": 100, "inp": 100, "flops": 1000, "traffic": 200, "weights": 50, "ops": 4}
    return Point("a block", 1, whole | counts, 1.0, kinds=kinds)


def row(**counts: int) -> np.ndarray:
    return np.array([point(**counts).counts[c] for c in FEATURES], float)


# 400 elements each; 2.5 and 25 FLOPs per element; 100 and 50 elements per operation.
OWN = [point(), point(("conv", "relu"), flops=10_000, ops=8)]
_DOMAIN = Domain.of_points(OWN)
assert _DOMAIN is not None
DOMAIN: Domain = _DOMAIN


def test_ranges_are_those_of_the_points() -> None:
    assert DOMAIN.ratios == {"FLOPs per element": (2.5, 25.0), "elements per operation": (50, 100)}
    assert DOMAIN.sizes == {"FLOPs": (1000, 10_000), "elements": (400, 400), "weights": (50, 50)}
    assert DOMAIN.kinds == {"conv", "relu"}


@pytest.mark.parametrize(
    ("counts", "remark"),
    [
        ({}, None),
        ({"flops": 20_000}, None),  # within the slack of two
        ({"flops": 400 * 2}, None),
        ({"flops": 0}, None),  # a block without any multiplication has no such ratio
        ({"flops": 20_400}, "more FLOPs"),
        ({"flops": 400}, "fewer FLOPs per element"),
        ({"weights": 101}, "more weights"),
        ({"weights": 0}, None),  # small is no other thing
        ({"traffic": 601, "flops": 3000}, "more elements"),
        ({"ops": 17}, "fewer elements per operation"),
        ({"ops": 1}, "more elements per operation"),
    ],
)
def test_a_block_is_judged_by_ratios_and_sizes(counts: dict[str, int], remark: str | None) -> None:
    remarks = DOMAIN.outside(np.array([row(), row(**counts)]), ["first", "second"])
    if remark is None:
        assert remarks == []
    else:
        assert any(remark in r for r in remarks)
        assert all("1 of 2 blocks has" in r and "('second')" in r for r in remarks)


def test_blocks_are_judged_one_by_one_and_not_their_total() -> None:
    many = np.array([row()] * 50)
    assert DOMAIN.outside(many, [f"b{i}" for i in range(50)]) == []
    assert DOMAIN.outside(many.sum(axis=0, keepdims=True), ["the network"]) != []


def test_remarks_count_the_blocks_and_name_the_first_of_each_side() -> None:
    remarks = DOMAIN.outside(np.array([row(), *[row(weights=500)] * 3]), list("abcd"))
    assert remarks == [
        "3 of 4 blocks have more weights than any measured block (first: 'b'), 75 % of the time"
    ]
    few, many = row(flops=200), row(flops=9_000, acts=10, inp=10, traffic=20)
    remarks = DOMAIN.outside(np.array([few, row(), many, many]), list("abcd"))
    assert [r for r in remarks if "FLOPs per element" in r] == [
        "2 of 4 blocks have more FLOPs per element than any measured block (first: 'c'), 50 % of the time",
        "1 of 4 blocks has fewer FLOPs per element than any measured block ('a'), 25 % of the time",
    ]
    counts = np.array([few, row(), many, many]).reshape(4, -1)
    assert DOMAIN.beyond(counts).tolist() == [True, False, True, True]


def chain_of(kinds: Sequence[str], dtype: str = "float32") -> Graph:
    b = GraphBuilder("a chain")
    x = b.input((1, 8, 8, 3))
    for kind in kinds:
        x = b.add(kind, [x], (1, 8, 8, 3), dtype=dtype)
    return b.build([x])


def remarks_on(domain: Domain, graph: Graph) -> list[str]:
    """With operations that all take as long."""
    kinds, dtypes = domain.unmeasured(graph)
    shares = np.full(len(graph.operations), 1 / len(graph.operations))
    return list(domain.unmeasured_remarks(kinds, dtypes, shares))


def test_kinds_and_types_that_were_not_measured() -> None:
    assert DOMAIN.unmeasured(chain_of(["conv", "relu"])) == ({}, {})
    found = chain_of(["lstm", "gelu", "conv", "gelu"])
    assert DOMAIN.unmeasured(found) == ({0: "lstm", 1: "gelu", 3: "gelu"}, {})
    assert remarks_on(DOMAIN, found) == [
        "no measured block has the operations gelu, lstm, 75 % of the time"
    ]
    assert remarks_on(DOMAIN, chain_of(["conv", "lstm"], "float16")) == [
        "no measured block has the operation lstm, 50 % of the time",
        "measured in float32, asked for float16",
    ]
    (said,) = remarks_on(
        DOMAIN, chain_of(["lstm", "gru", *("softmax", "gelu", "silu", "erf", "mish")])
    )
    assert "erf, gelu, gru, lstm, mish, silu and 1 more" in said


@pytest.mark.parametrize(
    ("number", "named"),
    [(1, " a"), (6, "s a, b, c, d, e, f"), (8, "s a, b, c, d, e, f and 2 more")],
)
def test_some_kinds_are_named(number: int, named: str) -> None:
    kinds = dict(enumerate("hgfedcba"[-number:]))
    (said,) = DOMAIN.unmeasured_remarks(kinds, {}, np.full(20, 0.1))
    share = f"{10 * number} % of the time"
    assert said == f"no measured block has the operation{named}, {share}"


def test_moving_memory_is_one_kind_only_where_it_was_measured_as_such() -> None:
    """What is known of a relu tells nothing of a pool; what was measured of blocks, of all of them."""
    graph = chain_of(["conv", "relu", "add", "max_pool", "batch_norm", "flatten"])
    kinds, _ = DOMAIN.unmeasured(graph)
    assert kinds == {2: "add", 3: "max_pool", 4: "batch_norm"}
    of_blocks = Domain.of_points([point(("conv", "memory traffic"))])
    assert of_blocks is not None
    assert of_blocks.unmeasured(graph) == ({}, {})


def test_it_survives_the_model_file() -> None:
    assert Domain.from_dict(json.loads(json.dumps(DOMAIN.to_dict()))) == DOMAIN
    assert Domain.from_dict({}) is None


def test_a_file_that_says_less() -> None:
    found = Domain.from_dict({"ratios": {"FLOPs per element": [1, 2]}})
    assert found == Domain(frozenset(), frozenset(), {"FLOPs per element": (1.0, 2.0)}, {})
    assert Domain.from_dict({"kinds": ["conv"]}) is None


def test_points_whose_counts_do_not_tell_have_none() -> None:
    assert Domain.of_points([]) is None
    three = ("acts", "inp", "flops")
    assert Domain.of_points(synthetic.measured(5, columns=three)) is None
    assert Domain.of_points(synthetic.measured(5, columns=(*three, "traffic"))) is None


def test_a_ratio_that_no_block_has_is_left_out() -> None:
    """Else the model file would hold an infinity, which JSON cannot."""
    domain = Domain.of_points([point(flops=0), point(flops=0)])
    assert domain is not None
    assert "FLOPs per element" not in domain.ratios
    json.dumps(domain.to_dict(), allow_nan=False)


def test_blocks_that_take_no_time_to_speak_of_are_passed_over() -> None:
    counts = np.array([row(), row(flops=10**15)])
    assert DOMAIN.outside(counts, ["most", "head"], np.array([0.99, 0.01])) == []
    assert DOMAIN.outside(counts, ["most", "head"], np.array([0.98, 0.02])) != []


@given(st.floats(0.01, 2.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_interval_is_wider_by_what_is_outside(half: float, a: float, b: float) -> None:
    """Against the times of three parts, each off by as much as its own interval has it."""
    outside, strange = a, (1 - a) * b
    times = max(4 ** (1 + strange), np.exp(2 * half))  # what was not measured at all is off by
    inside = 1 - outside - strange
    slowest = inside * np.exp(half) + outside * np.exp(2 * half) + strange * times
    found = widened(half, outside, strange)
    assert found == pytest.approx(np.log(slowest))
    assert half <= found * (1 + 1e-9)
    fastest = inside * np.exp(-half) + outside * np.exp(-2 * half) + strange / times
    assert np.exp(-found) <= fastest * (1 + 1e-9)


def test_a_width_beyond_what_a_float_holds() -> None:
    assert widened(100.0, 0.0, 1.0) == 100.0
    assert widened(0.3, 0.0) == pytest.approx(0.3)
    assert widened(0.3, 1.0) == pytest.approx(0.6)


# ---- which blocks to measure ---------------------------------------------------------------------


def planned(
    points: Sequence[Point],
    shares: Sequence[float] | None = None,
    able: Sequence[bool] | None = None,
) -> tuple[list[int], bool]:
    """What is to be measured of blocks with the counts and kinds of `points`."""
    return DOMAIN.to_measure(
        np.array([[p.counts[c] for c in FEATURES] for p in points], float),
        [frozenset(p.kinds) for p in points],
        np.full(len(points), 1 / len(points)) if shares is None else np.array(shares),
        np.ones(len(points), bool) if able is None else np.array(able),
    )


@pytest.mark.parametrize(
    ("blocks", "rows"),
    [
        ([point(), point(flops=19_000)], []),
        # The farthest block stands for the others.
        ([point(weights=500), point(), point(weights=4000), point(weights=900)], [2]),
        # Either brings the other inside; the second is also of a kind that was not measured.
        ([point(weights=500), point(("lstm",), weights=300)], [1]),
        ([point(weights=700), point(("lstm",), weights=300)], [0, 1]),
        # Each side needs a block of its own.
        ([point(flops=100), point(), point(weights=400)], [0, 2]),
        ([point(), point(flops=100, weights=400)], [1]),
    ],
)
def test_which_blocks_are_measured(blocks: list[Point], rows: list[int]) -> None:
    assert planned(blocks) == (rows, True)


def test_of_equal_ones_the_longest() -> None:
    assert planned([point(weights=500)] * 3, [0.2, 0.5, 0.3]) == ([1], True)


def test_extremes_that_take_no_time_need_not_be_measured() -> None:
    blocks = [point(weights=10**9), point(weights=900), point()]
    assert PASSED_OVER_SHARE < 0.02 < NEGLIGIBLE_SHARE
    assert planned(blocks, [0.009, 0.4, 0.591]) == ([1], True)
    assert planned(blocks, [0.02, 0.4, 0.58]) == ([0], True)
    assert planned(blocks[::2], [0.009, 0.991]) == ([], True)


def test_what_cannot_be_measured() -> None:
    blocks = [point(weights=500), point(("teleport",))]
    assert planned(blocks, able=[True, False]) == ([0], False)
    assert planned(blocks, able=[False, False]) == ([], False)
    assert planned([point(weights=500), point(weights=400)], able=[False, True]) == ([1], True)


KINDS = ("conv", "relu", "dense", "lstm", "gru")
sizes = st.integers(1, 10**7)
strange_blocks = st.builds(
    lambda kinds, acts, inp, flops, traffic, weights, ops: point(
        tuple(sorted(kinds)), acts=acts, inp=inp, flops=flops, traffic=traffic, weights=weights, ops=ops
    ),
    st.sets(st.sampled_from(KINDS)), sizes, sizes, sizes, sizes, sizes, st.integers(1, 200),
)  # fmt: skip


def brings_inside(points: Sequence[Point], measured: Sequence[int]) -> bool:
    """Whether a domain of the old points and of those measured holds all of them."""
    domain = Domain.of_points([*OWN, *(points[i] for i in measured)])
    assert domain is not None
    counts = np.array([[p.counts[c] for c in FEATURES] for p in points], float)
    names = [str(i) for i in range(len(points))]
    kinds = {k for p in points for k in p.kinds}
    return not domain.outside(counts, names) and kinds <= domain.kinds


@given(st.lists(strange_blocks, min_size=1, max_size=5))
def test_what_is_planned_brings_all_inside_with_few_blocks(points: list[Point]) -> None:
    """Tried against all subsets: greedy is exact where one is enough, and else one off at most."""
    rows, complete = planned(points)
    assert complete
    assert brings_inside(points, rows)
    subsets = chain.from_iterable(
        combinations(range(len(points)), n) for n in range(len(points) + 1)
    )
    fewest = len(next(s for s in subsets if brings_inside(points, s)))
    assert len(rows) <= (fewest if fewest < 2 else fewest + 1)


# ---- as a prediction says it ---------------------------------------------------------------------

MODEL = Model(synthetic.document(), "my models/desk.json")


def test_a_prediction_inside_names_no_blocks() -> None:
    found = MODEL.predict(synthetic.network())
    assert found.in_domain is True
    assert found.to_dict()["measure"] == []
    assert found.warnings == ()


def test_a_prediction_outside_names_the_blocks_and_the_command() -> None:
    found = MODEL.predict(synthetic.network(width=4096, size=224), 2)
    assert found.in_domain is False
    assert found.measure
    assert set(found.measure) <= set(found.names)
    assert found.to_dict()["measure"] == list(found.measure)
    label = found.measure[0].partition(" · ")[0]
    assert (
        f"to bring it inside, measure {len(found.measure)} of its blocks ('{label}'"
        in (found.warnings[-1])
    )
    assert found.warnings[-1].endswith(
        f"lolat learn --extend 'my models/desk.json' {FOR_NETWORK} --batch-size 2"
    )


def too_large(kind: str = "dense", dtype: str = "float32") -> Graph:
    """A network too large whose head is of another kind or type."""
    document = synthetic.network(width=4096, size=224).to_dict()
    head = document["operations"][-1]
    head["kind"] = kind
    shape, batched, _ = document["tensors"][head["outputs"][0]]
    document["tensors"][head["outputs"][0]] = [shape, batched, dtype]
    return Graph.from_dict(document)


def test_measuring_does_not_help_with_a_kind_without_a_formula() -> None:
    b = GraphBuilder("odd")
    x = b.input((1, 56, 56, 32))
    found = MODEL.predict(b.build([b.add("teleport", [x], (1, 56, 56, 32))]))
    assert found.in_domain is False
    assert found.measure == ()
    assert not [w for w in found.warnings if "--extend" in w]


@pytest.mark.parametrize("graph", [too_large("teleport"), too_large(dtype="float16")])
def test_what_measuring_can_mend_is_named_all_the_same(graph: Graph) -> None:
    found = MODEL.predict(graph)
    assert found.in_domain is False
    assert 0 < len(found.measure) < len(found.names)
    assert all("to bring it inside" not in w for w in found.warnings)


def test_the_advice_names_the_first_few() -> None:
    assert advice("m.json", [], False, 1) == ()
    assert advice("m.json", ["a · conv", "b"], True, 1) == (
        "to bring it inside, measure 2 of its blocks ('a', 'b') on the model's device: "
        "lolat learn --extend m.json --for NETWORK",
    )
    (said,) = advice("m.json", list("abcde"), False, 8)
    assert said == (
        "to bring it nearer, measure 5 of its blocks ('a', 'b', 'c' and 2 more) on the model's device: "
        "lolat learn --extend m.json --for NETWORK --batch-size 8"
    )
