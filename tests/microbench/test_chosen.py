"""Which points are measured again: a rule, checked by hand on made-up points and on the shipped model."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.counts import behaviours, count
from lolat.errors import InputError
from lolat.model import load
from lolat.points import Point
from microbench.blocks import Predefined
from microbench.chosen import FIVE, OTHER, ROLES, choose, measurable
from microbench.layers import Layers


def tiny(channels: int, depthwise: bool = False) -> Any:
    def make() -> Any:
        n = Layers(f"tiny {channels}", 8, 4)
        x = n.conv(n.input, channels)
        return n.done(n.depthwise(x) if depthwise else x)

    return make


def block(name: str, channels: int = 4, depthwise: bool = False) -> Predefined:
    return Predefined(name, tiny(channels, depthwise), (1,))


def point(of: Predefined, ms: float, spread: float | None = 0.01, **counts: int) -> Point:
    graph = of.make()
    known = count(graph).total(1)._asdict() | counts
    return Point(of.name, 1, known, ms, spread=spread, kinds=tuple(behaviours(graph.operations)))


def names(points: list[Point], blocks: list[Predefined], **coefficients: float) -> list[str]:
    return [c.point.name for c in choose(points, coefficients, blocks)]


def test_only_blocks_of_this_version_are_measured_again() -> None:
    a, b = block("a"), block("b")
    points = [
        point(a, 2.0),
        point(block("gone"), 2.0),
        point(b, 2.0, flops=1),
        point(b, 2.0, weights=7),
    ]
    assert [p.name for p, _ in measurable(points, [a, b])] == ["a"]
    assert names(points, [a, b]) == ["a"]


def test_what_to_say_when_there_is_nothing_to_measure() -> None:
    with pytest.raises(InputError, match=r"no points, so there is nothing to measure again"):
        choose([], {})
    with pytest.raises(InputError, match=r"none of the model's 1 points is a predefined block of"):
        choose([point(block("gone"), 1.0)], {})


def test_each_kind_of_work_gets_the_fitting_block_nearest_to_its_target() -> None:
    # ms per unit are such that a block's counts below say what it spends its time on.
    cost = {"ops": 1.0, "traffic": 1.0, "passes": 1.0, "call": 1.0}
    blocks = [block(n) for n in ("ops 1", "ops 2", "ops 9", "traffic 5", "passes 30", "mixed")]
    blocks.append(block("separable", depthwise=True))
    work = [
        {"ops": 99, "traffic": 0}, {"ops": 98, "traffic": 0}, {"ops": 97, "traffic": 0},
        {"ops": 0, "traffic": 99}, {"ops": 0, "passes": 95, "traffic": 0},
        {"ops": 50, "traffic": 49}, {"ops": 50, "traffic": 50},
    ]  # fmt: skip
    times = [1.0, 2.5, 9.0, 5.0, 30.0, 2.0, 6.0]
    points = [point(b, t, **w) for b, t, w in zip(blocks, times, work, strict=True)]
    chosen = {c.role: c.point.name for c in choose(points, cost, blocks, most=5)}
    # "mixed" is nearer to the target of operations, but only half of its time goes to them.
    assert chosen["starting operations"] == "ops 2"
    assert chosen["memory traffic"] == "traffic 5"
    assert chosen["depthwise convolution"] == "separable"
    assert "compute" not in chosen, "no coefficient says that anything computes"


def test_the_rest_is_filled_up_with_the_times_farthest_apart() -> None:
    blocks = [block(f"{2**i} ms") for i in range(6)]
    points = [point(b, 2.0**i) for i, b in enumerate(blocks)]
    assert names(points, blocks) == ["1 ms", "32 ms", "4 ms", "2 ms", "8 ms"]
    assert {c.role for c in choose(points, {}, blocks)} == {OTHER}


def test_another_batch_size_of_a_block_only_where_there_are_no_other_blocks() -> None:
    a, b = block("a"), block("b")
    many = [
        Point("a", n, count(a.make()).total(n)._asdict(), float(n), spread=0.0) for n in (1, 8, 16)
    ]
    assert names([*many, point(b, 1.1)], [a, b]) == ["a", "b", "a", "a"]


def test_steady_points_of_a_good_size_come_first() -> None:
    blocks = [block(str(i)) for i in range(40)]
    points = [point(b, 2.0 + i / 10) for i, b in enumerate(blocks[:20])]
    points += [point(b, 0.1) for b in blocks[20:25]]
    points += [point(b, 400.0) for b in blocks[25:30]]
    points += [point(b, 3.0, spread=0.2) for b in blocks[30:35]]
    points += [point(b, 3.0, spread=None) for b in blocks[35:]]
    assert {int(n) for n in names(points, blocks)} <= set(range(20))
    # Where there are none, the next best are taken.
    assert len(names(points[20:], blocks)) == FIVE


def test_of_the_shipped_model_one_for_each_kind_of_work() -> None:
    model = load("epyc-2t")
    points = [Point.from_dict(p) for p in model.document["points"]]
    cost = model.predictor().to_dict()["coefficients"]
    chosen = choose(points, cost)
    assert [c.role for c in chosen] == [role for role, *_ in ROLES]
    assert len({c.point.name for c in chosen}) == FIVE
    times = sorted(c.point.latency_ms for c in chosen)
    assert times[0] < 3 < 10 < times[-1]
    assert sum(times) < 100
    separable = chosen[2]
    assert "depthwise_conv" in {o.kind for o in separable.graph.operations}
    for c in (chosen[0], chosen[1]):
        largest = max(cost, key=lambda n: cost[n] * c.point.counts.get(n, 0))
        assert largest == ("flops" if c.role == "compute" else "weights")
    assert choose(points, cost) == chosen
