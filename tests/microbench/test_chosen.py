"""Which of a model's points are measured again: the whole networks of this version, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.errors import InputError
from lolat.fitting.points import Point
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from microbench.backends.known import known_blocks
from microbench.blocks import BLOCKS, NETWORKS, Predefined
from microbench.doctor import choose
from microbench.learn import REFERENCES


def tiny(channels: int) -> Any:
    def make() -> Any:
        n = Layers.on(f"tiny {channels}", 8, 8, 4)
        return n.done(n.conv(n.input, channels))

    return make


def network(name: str, channels: int = 4) -> Predefined:
    return Predefined(name, tiny(channels), (1, 4), True)


def point(of: Predefined, batch_size: int = 1, whole: bool = True, **counts: int) -> Point:
    known = count(of.make()).total(batch_size)._asdict() | counts
    return Point(of.name, batch_size, known, 2.0, whole=whole)


def names(points: list[Point], networks: list[Predefined]) -> list[str]:
    found = choose(points, networks)
    assert all(p in points for p, _ in found)
    return [p.name for p, _ in found]


def test_a_network_comes_with_its_graph() -> None:
    a, b = network("a"), network("b", 5)
    (first, graph), (second, other) = choose([point(a), point(b)], [b, a])
    assert (first.name, second.name) == ("a", "b")
    assert (graph, other) == (a.make(), b.make())


@pytest.mark.parametrize("changed", [{"acts": 1}, {"inp": 1}, {"flops": 1}, {"weights": 1}])
def test_a_network_that_counts_otherwise_is_another_one(changed: dict[str, int]) -> None:
    a, b = network("a"), network("b")
    assert names([point(a, **changed), point(b)], [a, b]) == ["b"]


def test_counts_that_later_versions_add_do_not_matter() -> None:
    a = network("a")
    old = Point("a", 1, {k: v for k, v in point(a).counts.items() if k in
                         ("acts", "inp", "flops", "weights")}, 2.0, whole=True)  # fmt: skip
    assert names([old, point(network("b"), ops=999)], [a, network("b")]) == ["a", "b"]


def test_blocks_and_unknown_networks_are_left_out() -> None:
    a, b = network("a"), network("b")
    assert names([point(network("gone")), point(a, whole=False), point(b)], [a, b]) == ["b"]


def test_one_of_each_at_the_batch_size_that_comes_first() -> None:
    a = network("a")
    ((found, _),) = choose([point(a, 4), point(a, 1)], [a])
    assert found.batch_size == 4


def test_references_where_there_are_some() -> None:
    some = [network(REFERENCES[0]), network("other"), network(REFERENCES[2])]
    assert names([point(n) for n in some], some) == [REFERENCES[0], REFERENCES[2]]
    assert names([point(n) for n in some[1:2]], some) == ["other"], "else what there is"


def test_what_to_say_when_there_is_nothing_to_measure() -> None:
    a = network("a")
    for points in ([], [point(a, whole=False)], [point(a, flops=1)]):
        with pytest.raises(InputError) as caught:
            choose(points, [a])
        assert str(caught.value) == (
            f"none of the model's {len(points)} points is a whole network of this version, so there is "
            "nothing to measure again; expected a model learned by measuring: python learn_model.py cpu"
        )


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "onnxruntime+threads=1"])
def test_of_a_model_of_this_version_the_five_references(backend: str) -> None:
    known = known_blocks(backend, [*BLOCKS, *NETWORKS])
    whole = [b for b in known if b.whole]
    points = [point(b, n, b.whole) for b in (*known[:3], *whole) for n in b.batch_sizes]
    found = choose(points, whole)
    assert sorted(p.name for p, _ in found) == sorted(REFERENCES)
    assert {p.batch_size for p, _ in found} == {1}
