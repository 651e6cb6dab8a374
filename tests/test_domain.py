"""The measured domain: what is inside, and what is said of the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lolat.counts import FEATURES
from lolat.domain import SLACK, Domain
from lolat.points import Point
from tests import synthetic


def point(kinds: tuple[str, ...] = ("conv",), **counts: int) -> Point:
    whole = {"acts": 100, "inp": 100, "flops": 1000, "traffic": 200, "weights": 50, "ops": 4}
    return Point("a block", 1, whole | counts, 1.0, kinds=kinds)


def row(**counts: int) -> np.ndarray:
    return np.array([point(**counts).counts[c] for c in FEATURES], float)


# 400 elements each; 2.5 and 25 FLOPs per element; 100 and 50 elements per operation.
DOMAIN = Domain.of_points([point(), point(("conv", "relu"), flops=10_000, ops=8)])


def test_ranges_are_those_of_the_points() -> None:
    assert DOMAIN is not None
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
    assert DOMAIN is not None
    remarks = DOMAIN.outside(np.array([row(), row(**counts)]), ["first", "second"])
    assert SLACK == 2.0
    if remark is None:
        assert remarks == []
    else:
        assert any(remark in r for r in remarks)
        assert all("1 of 2 blocks has" in r and "('second')" in r for r in remarks)


def test_blocks_are_judged_one_by_one_and_not_their_total() -> None:
    assert DOMAIN is not None
    many = np.array([row()] * 50)
    assert DOMAIN.outside(many, [f"b{i}" for i in range(50)]) == []
    assert DOMAIN.outside(many.sum(axis=0, keepdims=True), ["the network"]) != []


def test_remarks_count_the_blocks_and_name_the_first() -> None:
    assert DOMAIN is not None
    remarks = DOMAIN.outside(np.array([row(), *[row(weights=500)] * 3]), list("abcd"))
    assert remarks == ["3 of 4 blocks have more weights than any measured block (first: 'b')"]


def test_each_side_has_a_remark_of_its_own() -> None:
    assert DOMAIN is not None
    few, many = row(flops=200), row(flops=9_000, acts=10, inp=10, traffic=20)
    per_element = [
        r for r in DOMAIN.outside(np.array([few, row(), many, many]), list("abcd"))
        if "FLOPs per element" in r
    ]  # fmt: skip
    assert per_element == [
        "2 of 4 blocks have more FLOPs per element than any measured block (first: 'c')",
        "1 of 4 blocks has fewer FLOPs per element than any measured block ('a')",
    ]


def test_kinds_and_types_that_were_not_measured() -> None:
    assert DOMAIN is not None
    assert DOMAIN.unmeasured(["conv", "relu"], ["float32"]) == []
    assert DOMAIN.unmeasured(["lstm", "gelu", "conv", "gelu"], []) == [
        "no measured block has the operations gelu, lstm"
    ]
    assert DOMAIN.unmeasured(["lstm"], ["float16"]) == [
        "no measured block has the operation lstm",
        "measured in float32, asked for float16",
    ]


def test_it_survives_the_model_file() -> None:
    assert DOMAIN is not None
    assert Domain.from_dict(json.loads(json.dumps(DOMAIN.to_dict()))) == DOMAIN
    assert Domain.from_dict({}) is None


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
    assert DOMAIN.outside(counts, ["most", "head"], np.array([0.96, 0.04])) == []
    assert DOMAIN.outside(counts, ["most", "head"], np.array([0.94, 0.06])) != []
