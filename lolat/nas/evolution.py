"""The front of latency and score, and the search for it: from many latencies, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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

    A large score is good. `is_known`: whether a candidate was scored before, which costs nothing; `new`:
    how many others may be; `is_full`: that one more was wanted.
    """

    def __init__(
        self,
        scorer: Scorer,
        score: Callable[[np.ndarray], float],
        is_known: Callable[[np.ndarray], bool] = lambda row: False,
        new: float = math.inf,
    ) -> None:
        self.scorer, self.score = scorer, score
        self.is_known, self.new, self.is_full = is_known, new, False
        self.rows: list[np.ndarray] = []
        self.latencies: list[float] = []
        self.scores: list[float] = []
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, row: np.ndarray) -> bool:
        return row.tobytes() in self._known

    def add(self, rows: np.ndarray) -> None:
        """Score new candidates, until it is full."""
        for row, latency in zip(rows, self.scorer.latency(rows), strict=True):
            if row not in self:
                if not self.is_known(row):
                    self.is_full = self.new <= 0
                    if self.is_full:
                        return
                    self.new -= 1
                self.scores.append(self.score(row))
                self.latencies.append(round(float(latency), 9))  # whatever the order of its sum
                self.rows.append(row)
                self._known.add(row.tobytes())

    def front(self) -> list[int]:
        """The numbers of the candidates that no other dominates."""
        return front(np.array(self.latencies), np.array(self.scores)).tolist()


SPREAD = 0.3  # of the candidates, over all latencies
CLIMBED = 8  # neighbors between two looks at the front
DRAWN = 16  # candidates drawn for each one of the first generation
TRIES = 200  # draws, before fewer candidates than wanted have to do


def evolve(
    archive: Archive, fast: np.ndarray, count: int, max_ms: float, random: np.random.Generator
) -> None:
    """Score `count` candidates of at most `max_ms`: some over all latencies, then neighbors of the front.

    `fast`: a candidate within the time.
    """
    new = _spread(archive, fast, math.ceil(SPREAD * count), max_ms, random)
    while len(new) and not archive.is_full:
        archive.add(new)
        climb(archive, count, max_ms)
        left = count - len(archive)
        new = _spread(archive, fast, math.ceil(SPREAD * left), max_ms, random)


def climb(archive: Archive, count: int, max_ms: float) -> None:
    """Score neighbors of the front, one choice apart, until all have a score or `count` candidates have.

    First those that are likely to have the highest score, or the highest above the front: by a linear fit
    to the scores so far.
    """
    grid, scorer = archive.scorer.grid, archive.scorer
    while len(archive) < count and not archive.is_full and (best := archive.front()):
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
        high, higher = (np.argsort(-values, kind="stable") for values in (likely, above))
        first = dict.fromkeys([*high[: CLIMBED // 4], *higher[:CLIMBED]])
        archive.add(near[list(first)[: min(CLIMBED, count - len(archive))]])


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


def _spread(
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
    if not len(pool):
        return pool
    times = archive.scorer.latency(pool)
    left = np.argsort(times, kind="stable")
    chosen = []
    for target in np.linspace(times.min(), times.max(), min(count, len(pool))):
        at = int(np.argmin(np.abs(times[left] - target)))
        chosen.append(left[at])
        left = np.delete(left, at)
    return pool[chosen]


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
