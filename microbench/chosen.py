"""Which of a model's points to measure again, when a few must stand for all.

Up to FIVE of the model's own points that this version can still build: one for each kind of work in ROLES
(what the model says most of their time goes to), of sizes spread over the targets given there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lolat.counts import count
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.points import Point
from microbench.blocks import BLOCKS, Predefined

FIVE = 5
ROLES: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("compute", ("flops",), 14.0),
    ("reading weights", ("weights",), 8.0),
    ("depthwise convolution", (), 6.0),
    ("memory traffic", ("acts", "inp", "traffic", "passes"), 4.0),
    ("starting operations", ("ops", "serial"), 2.0),
)
"""A kind of work, the terms of the formula that are it, and the time in ms that its block should take.
Depthwise convolutions have no term: any block that has one, the nearest to the target."""
OTHER = "another size"  # of a block that was taken for no kind of work
GOOD_SHARE = 0.75  # of the largest share of a kind of work that any point has
SHORTEST_MS, LONGEST_MS = 1.0, 40.0  # below, noise is large; above, there is time for few samples
STEADY = 0.05  # a point whose own halves were further apart says little
POOL = 15  # at least so many points to choose from, where there are
SAME = (
    "acts",
    "inp",
    "flops",
    "weights",
)  # a block of this name that counts otherwise is another one


@dataclass(frozen=True)
class Chosen:
    """A point to measure again, what it is a block of, and the kind of work it stands for."""

    point: Point
    graph: Graph
    role: str


def measurable(
    points: Sequence[Point], blocks: Sequence[Predefined] = BLOCKS
) -> list[tuple[Point, Graph]]:
    """The points that are predefined blocks of this version, by name and counts, with their graphs."""
    known = {b.name: b for b in blocks}
    graphs: dict[str, Graph] = {}
    found = []
    for point in points:
        if point.name not in known:
            continue
        if point.name not in graphs:
            graphs[point.name] = known[point.name].make()
        graph = graphs[point.name]
        now = count(graph).total(point.batch_size)._asdict()
        if all(point.counts.get(c) == now[c] for c in SAME):
            found.append((point, graph))
    return found


def choose(
    points: Sequence[Point],
    coefficients: Mapping[str, float],
    blocks: Sequence[Predefined] = BLOCKS,
    most: int = FIVE,
) -> list[Chosen]:
    """Up to `most` of the points to measure again; the same for the same model.

    `coefficients`: ms per unit of each count, of the model's default predictor. Looked at are points
    that took SHORTEST_MS to LONGEST_MS and were STEADY (where those are fewer than POOL, the next
    ones too). For each of ROLES: of those whose share of its terms is at least GOOD_SHARE of the
    largest, the one nearest to its target, no block twice. Where that gives too few, those whose time is
    the farthest from those chosen. Raises InputError when there is none.
    """
    if not points:
        raise InputError(
            "the model has no points, so there is nothing to measure again; expected a model that "
            "was learned by measuring: python learn_model.py cpu"
        )
    able = measurable(points, blocks)
    if not able:
        raise InputError(
            f"none of the model's {len(points)} points is a predefined block of this version, so "
            "there is nothing to measure again; learn again: python learn_model.py cpu"
        )
    pool = _pool(able)
    chosen: list[Chosen] = []
    for role, terms, target in ROLES[:most]:
        free = [p for p in pool if p[0].name not in {c.point.name for c in chosen}]
        fit = _fitting(free, terms, coefficients)
        if fit:
            point, graph = min(fit, key=lambda p: abs(math.log(p[0].latency_ms / target)))
            chosen.append(Chosen(point, graph, role))
    while len(chosen) < most and (extra := _farthest(pool, chosen)):
        chosen.append(Chosen(*extra, OTHER))
    return chosen


Able = tuple[Point, Graph]


def _pool(able: Sequence[Able]) -> list[Able]:
    """The points to choose from: of a good size and steady, or the next best."""

    def fault(p: Able) -> tuple[float, bool]:
        ms, spread = p[0].latency_ms, p[0].spread
        outside = max(0.0, math.log(SHORTEST_MS / ms), math.log(ms / LONGEST_MS))
        return outside, spread is None or spread > STEADY

    good = sum(fault(p) == (0.0, False) for p in able)
    return sorted(able, key=fault)[: max(good, POOL)]


def _fitting(
    free: Sequence[Able], terms: Sequence[str], coefficients: Mapping[str, float]
) -> list[Able]:
    """Those that spend much of their time on `terms`; without terms, those with a depthwise convolution."""
    if not terms:
        return [p for p in free if "depthwise_conv" in p[0].kinds]
    shares = [_share(point, terms, coefficients) for point, _ in free]
    best = max(shares, default=0.0)
    return [p for p, s in zip(free, shares, strict=True) if s > 0 and s >= GOOD_SHARE * best]


def _share(point: Point, terms: Sequence[str], coefficients: Mapping[str, float]) -> float:
    """Which part of a point's time the formula gives to `terms`."""
    cost = {c: coefficients.get(c, 0.0) * n for c, n in point.counts.items()}
    whole = sum(cost.values()) + coefficients.get("call", 0.0)
    return sum(cost.get(t, 0.0) for t in terms) / whole if whole > 0 else 0.0


def _farthest(pool: Sequence[Able], chosen: Sequence[Chosen]) -> Able | None:
    """The point whose time is the farthest from those chosen, of another block where there is one."""
    taken = [c.point for c in chosen]
    rest = [p for p in pool if p[0] not in taken]
    fresh = [p for p in rest if p[0].name not in {t.name for t in taken}]

    def distance(p: Able) -> float:
        return min((abs(math.log(p[0].latency_ms / t.latency_ms)) for t in taken), default=0.0)

    return max(fresh or rest, key=distance, default=None)
