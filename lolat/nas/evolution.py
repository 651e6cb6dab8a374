"""The front of latency and score, and NSGA-II, which looks for it.

Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, IEEE Transactions on Evolutionary
Computation 6, 2002.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from lolat.nas.grid import Grid
from lolat.nas.scorer import Scorer


def front(latencies: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Positions of the candidates that are not dominated, by latency: none is faster with as high a score.

    `latencies`: (n,), small is good; `scores`: (n,), large is good; a NaN in either is left out. Of
    several with the same latency and score the first stays.
    """
    known = np.flatnonzero(~(np.isnan(latencies) | np.isnan(scores)))
    order = known[np.lexsort((known, -scores[known], latencies[known]))]
    best: list[int] = []
    for i in order:
        if not best or scores[i] > scores[best[-1]]:
            best.append(int(i))
    return np.array(best, np.intp)


def ranks(latencies: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(n,) the front of each candidate: 0 for the first, 1 for the first of the others, ...

    Equal candidates after the first count as dominated, which removes copies. NaN: the last front.
    """
    rank_of = np.full(len(latencies), len(latencies))
    left = np.arange(len(latencies))
    rank = 0
    while len(best := front(latencies[left], scores[left])):
        rank_of[left[best]] = rank
        left = np.delete(left, best)
        rank += 1
    return rank_of


def crowding(latencies: np.ndarray, scores: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """(n,) the distance between a candidate's neighbors in its front; infinite at its ends."""
    distances = np.zeros(len(latencies))
    for rank in np.unique(ranks):
        members = np.flatnonzero(ranks == rank)
        for values in (latencies, scores):
            order = members[np.argsort(values[members], kind="stable")]
            span = values[order[-1]] - values[order[0]]
            distances[order[[0, -1]]] = np.inf
            if len(order) > 2 and span > 0:
                distances[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / span
    return distances


def fastest(scorer: Scorer) -> np.ndarray:
    """(positions,) a fast candidate: from the first, each position's best choice until none helps."""
    sizes = scorer.grid.sizes
    row = np.zeros(len(sizes), scorer.grid.dtype)
    before = math.inf
    while (now := float(scorer.latency(row[None])[0])) < before:
        before = now
        for position, size in enumerate(sizes):
            tried = np.repeat(row[None], size, axis=0)
            tried[:, position] = np.arange(size)
            row = tried[int(np.argmin(scorer.latency(tried)))]
    return row


class Archive:
    """All candidates that were scored: `rows`, `latencies` in ms, `scores`, NaN where there is none.

    A large score is good.
    """

    def __init__(self, scorer: Scorer, score: Callable[[np.ndarray], float]) -> None:
        self.scorer, self.score = scorer, score
        self.rows: list[np.ndarray] = []
        self.latencies: list[float] = []
        self.scores: list[float] = []
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, row: np.ndarray) -> bool:
        return row.tobytes() in self._known

    def add(self, rows: np.ndarray) -> list[int]:
        """Score new candidates; their numbers."""
        first = len(self)
        for row, latency in zip(rows, self.scorer.latency(rows), strict=True):
            if row not in self:
                self.scores.append(self.score(row))
                self.latencies.append(round(float(latency), 9))  # whatever the order of its sum
                self.rows.append(row)
                self._known.add(row.tobytes())
        return list(range(first, len(self)))

    def front(self) -> list[int]:
        """The numbers of the candidates that no other dominates."""
        return front(np.array(self.latencies), np.array(self.scores)).tolist()

    def standing(self, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """(rank, crowding) of some candidates among themselves."""
        latencies, scores = np.array(self.latencies)[numbers], np.array(self.scores)[numbers]
        rank = ranks(latencies, scores)
        return rank, crowding(latencies, scores, rank)


GENERATIONS = 10
BRED = 0.5  # of the candidates; the others are neighbors
CLIMBED = 8  # neighbors between two looks at the front
DRAWN = 16  # candidates drawn for each one of the first generation
TRIES = 200  # draws, before fewer candidates than wanted have to do


def evolve(
    archive: Archive, fast: np.ndarray, count: int, max_ms: float, random: np.random.Generator
) -> None:
    """Score `count` candidates of at most `max_ms`: NSGA-II, and then the neighbors of the front.

    `fast`: a candidate within the time.
    """
    size = max(2, math.ceil(count / GENERATIONS))
    archive.add(_first(archive, fast, min(size, count), max_ms, random))
    before = 0
    while before < len(archive) < count:
        before = len(archive)
        until = before + math.ceil(BRED * (count - before))
        while (more := min(size, until - len(archive))) > 0:
            numbers = list(range(len(archive)))
            rank, crowd = archive.standing(numbers)
            parents = np.lexsort((-crowd, rank))[:size].tolist()
            children = _children(archive, parents, more, max_ms, random)
            if not archive.add(children):
                break
        climb(archive, count, max_ms)


def climb(archive: Archive, count: int, max_ms: float) -> None:
    """Score neighbors of the front, one choice apart, until all have a score or `count` candidates have.

    First those that are likely to have the highest score, or the highest above the front: by a linear fit
    to the scores so far.
    """
    grid, scorer = archive.scorer.grid, archive.scorer
    while len(archive) < count and (best := archive.front()):
        near = _neighbors(archive, np.array([archive.rows[n] for n in best]), max_ms)
        if not len(near):
            break
        scores = np.array(archive.scores)
        known = np.flatnonzero(~np.isnan(scores))
        features, mean = _one_hot(grid, np.array(archive.rows)[known]), scores[known].mean()
        square = features.T @ features + np.eye(features.shape[1])
        weights = np.linalg.solve(square, features.T @ (scores[known] - mean))
        likely = mean + _one_hot(grid, near) @ weights
        reached = np.searchsorted(np.array(archive.latencies)[best], scorer.latency(near), "right")
        above = likely - np.append(scores[known].min(), scores[best])[reached]
        first = np.argsort(-np.array([likely, above]), kind="stable").T.ravel()[:CLIMBED]
        archive.add(near[list(dict.fromkeys(first.tolist()))[: count - len(archive)]])


def _neighbors(archive: Archive, rows: np.ndarray, max_ms: float) -> np.ndarray:
    """The candidates within the time, not scored yet, that differ in one choice from one of `rows`."""
    sizes = archive.scorer.grid.sizes
    near = np.repeat(rows[None], sum(sizes), axis=0)
    positions = np.repeat(np.arange(len(sizes)), sizes)
    choices = np.concatenate([np.arange(n) for n in sizes])
    near[np.arange(len(near)), :, positions] = choices[:, None]
    near = near.reshape(-1, len(sizes))
    near = near[archive.scorer.latency(near) <= max_ms]
    new = {row.tobytes(): row for row in near if row not in archive}
    return np.array(list(new.values()), near.dtype)


def _one_hot(grid: Grid, rows: np.ndarray) -> np.ndarray:
    """(n, choices of all positions) 1 where a candidate has the choice."""
    return np.concatenate([np.eye(n)[rows[:, p]] for p, n in enumerate(grid.sizes)], axis=1)


def _first(
    archive: Archive, fast: np.ndarray, count: int, max_ms: float, random: np.random.Generator
) -> np.ndarray:
    """Candidates within the time, spread evenly over the latencies.

    A latency costs nothing, so many are drawn: at random, and between those and the fast one, because
    random ones alone lie close together in the middle.
    """
    grid = archive.scorer.grid

    def near(n: int) -> np.ndarray:
        rows = grid.sample(n, random)
        return np.where(random.random(rows.shape) < 1.5 * random.random((n, 1)), rows, fast)

    pool = _new(archive, near, DRAWN * count, max_ms, [fast])
    times = archive.scorer.latency(pool)
    left = np.argsort(times, kind="stable")
    chosen = []
    for target in np.linspace(times.min(), times.max(), min(count, len(pool))):
        at = int(np.argmin(np.abs(times[left] - target)))
        chosen.append(left[at])
        left = np.delete(left, at)
    return pool[chosen]


def _children(
    archive: Archive, population: list[int], count: int, max_ms: float, random: np.random.Generator
) -> np.ndarray:
    """New candidates within the time, from pairs of parents: each choice from one or the other, and
    one choice a candidate, on average, drawn anew. Random ones where these give too few."""
    parents = np.array([archive.rows[n] for n in population])
    rank, crowd = archive.standing(population)
    sample = partial(archive.scorer.grid.sample, random=random)

    def winners(n: int) -> np.ndarray:
        a, b = random.integers(0, len(parents), (2, n))
        first = (rank[a] < rank[b]) | ((rank[a] == rank[b]) & (crowd[a] >= crowd[b]))
        return parents[np.where(first, a, b)]

    def draw(n: int) -> np.ndarray:
        rows = np.where(random.random((n, parents.shape[1])) < 0.5, winners(n), winners(n))
        mutated = random.random(rows.shape) < 1.0 / parents.shape[1]
        return np.where(mutated, sample(n), rows)

    children = _new(archive, draw, count, max_ms)
    return children if len(children) == count else _new(archive, sample, count, max_ms, children)


def _new(
    archive: Archive,
    draw: Callable[[int], np.ndarray],
    count: int,
    max_ms: float,
    begin: Sequence[np.ndarray] | np.ndarray = (),
) -> np.ndarray:
    """`count` candidates of `begin` and of those drawn that are within the time and not scored yet, or
    fewer where there come no more."""
    scorer, dtype = archive.scorer, archive.scorer.grid.dtype
    new = {row.tobytes(): row for row in begin if row not in archive}
    for _ in range(TRIES):
        if len(new) >= count:
            break
        rows = draw(max(count, 16)).astype(dtype)
        for row in rows[scorer.latency(rows) <= max_ms]:
            if row not in archive:
                new.setdefault(row.tobytes(), row)
    return np.array(list(new.values())[:count], dtype).reshape(-1, len(scorer.grid.sizes))
