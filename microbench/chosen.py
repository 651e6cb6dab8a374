"""Which of a model's points to measure again: whole networks, which tell the state of the machine."""

from __future__ import annotations

from collections.abc import Sequence

from lolat.counts import count
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.points import Point
from microbench.blocks import NETWORKS, Predefined
from microbench.learn import REFERENCES

SAME = ("acts", "inp", "flops", "weights")
"""A network of this name that counts otherwise is another one."""

Chosen = tuple[Point, Graph]


def choose(points: Sequence[Point], networks: Sequence[Predefined] = NETWORKS) -> list[Chosen]:
    """The points that are REFERENCES of this version, one of each, with their graphs.

    Where none of those is there, all whole networks that are. InputError when there is none.
    """
    known = {n.name: n for n in networks}
    found: dict[str, Chosen] = {}
    for point in points:
        if point.whole and point.name in known and point.name not in found:
            graph = known[point.name].make()
            now = count(graph).total(point.batch_size)._asdict()
            if all(point.counts.get(c) == now[c] for c in SAME):
                found[point.name] = (point, graph)
    if not found:
        raise InputError(
            f"none of the model's {len(points)} points is a whole network of this version, so there is "
            "nothing to measure again; expected a model learned by measuring: python learn_model.py cpu"
        )
    return [c for name, c in found.items() if name in REFERENCES] or list(found.values())
