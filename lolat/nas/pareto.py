"""Searches a space for the front of latency and score: latency from a model, the score from the user.

What is expensive is the score, so that every one asked for is one of a candidate within the time, and none
is asked for twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.errors import AnswerIsNo, InputError, arg
from lolat.io.results import Result, of
from lolat.io.tables import to_csv
from lolat.io.writing import write_text
from lolat.model import Model
from lolat.model.prediction import Prediction
from lolat.nas.objective import Objective, TableObjective
from lolat.nas.scorer import Bounds, Scorer
from lolat.nas.space import Space, bounds_of
from lolat.units import between, milliseconds

# ---- Which candidates no other is better than: faster, or of a higher score.


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
    """(n,) the front that each candidate is in: 0 for the first, 1 for that of what is left, ...

    Equal candidates after the first count as dominated, which keeps copies out. NaN: the last front.
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
    """(n,) how far a candidate's neighbors in its front are apart; infinite at its ends.

    Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, 2002.
    """
    apart = np.zeros(len(latencies))
    for rank in np.unique(ranks):
        members = np.flatnonzero(ranks == rank)
        for values in (latencies, scores):
            order = members[np.argsort(values[members], kind="stable")]
            span = values[order[-1]] - values[order[0]]
            apart[order[[0, -1]]] = np.inf
            if len(order) > 2 and span > 0:
                apart[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / span
    return apart


# ---- The search.

MOST_EXHAUSTIVE = 1_000_000  # scores by a function
DRAWN = 16  # candidates for each that an evolution begins with
TRIES = 200  # draws of as many candidates as are wanted, before what is found has to do
EXHAUSTIVE, EVOLUTIONARY = "exhaustive", "evolutionary"


@dataclass(frozen=True)
class Candidate:
    """A scored candidate: its text, its integers, its latency in ms, its score."""

    arch: str
    choices: tuple[int, ...]
    latency_ms: float
    score: float


@dataclass(frozen=True)
class SearchResult:
    """The front by latency, all that was scored, and how many candidates had no score."""

    method: str
    front: tuple[Candidate, ...]
    scored: tuple[Candidate, ...]
    unscored: int


@dataclass(frozen=True)
class Search:
    """What is searched for; `sign`: -1 where a low score is good.

    `started` is called with the number of scores that will be asked for (at most), `done` after each.
    """

    space: Space
    scorer: Scorer
    objective: Objective
    max_ms: float = math.inf
    sign: float = 1.0
    started: Callable[[int], object] = lambda total: None
    done: Callable[[], object] = lambda: None

    def run(
        self, method: str | None = None, samples: int = 200, generations: int = 10, seed: int = 0
    ) -> SearchResult:
        """Search; the same `seed` finds the same.

        `method`: None is exhaustive for scores from a table and for a space of at most `samples`
        candidates, else evolutionary. `samples`: scores that an evolutionary search asks for,
        in `generations`. InputError for what cannot be, AnswerIsNo where no candidate is within the time.
        """
        if samples < 1 or generations < 1:
            raise InputError(
                f"{samples} samples in {generations} generations: expected whole numbers from 1"
            )
        if method is None:
            small = isinstance(self.objective, TableObjective) or self.space.size <= samples
            method = EXHAUSTIVE if small else EVOLUTIONARY
        run = Run(self, seed)
        if method == EXHAUSTIVE:
            rows = self._feasible()
            self.started(len(rows))
            run.add(rows)
        elif method == EVOLUTIONARY:
            run.evolve(samples, generations)
        else:
            raise InputError(f"method {method!r}: expected {EXHAUSTIVE} or {EVOLUTIONARY}")
        return run.result(method)

    def _feasible(self) -> np.ndarray:
        """All candidates within the time, of a table's or as far as a function can score them."""
        if isinstance(self.objective, TableObjective):
            rows = self.objective.rows
            times = self.scorer.latency(rows)
            rows = rows[times <= self.max_ms]
            return rows if len(rows) else self.none(EXHAUSTIVE, float(times.min()))
        kept: list[np.ndarray] = []
        total = 0
        for indices, _, times in self.scorer.indices():
            kept.append(indices[times <= self.max_ms])
            total += len(kept[-1])
            if total > MOST_EXHAUSTIVE:
                raise InputError(
                    f"more than {MOST_EXHAUSTIVE} of the {self.space.size} candidates are within the time, "
                    f"too many to score one by one; use {arg('method')} evolutionary, or a smaller "
                    f"{arg('max_ms')}"
                )
        if not total:
            self.none(EXHAUSTIVE, self.ms(self.fastest()))
        return self.space.decode(np.concatenate(kept))

    def ms(self, row: np.ndarray) -> float:
        """The latency of one candidate."""
        return float(self.scorer.latency(row[None])[0])

    def none(self, method: str, fastest_ms: float) -> NoReturn:
        """Raise that no candidate is within the time."""
        nothing = SearchAnswer(self, SearchResult(method, (), (), 0), (), fastest_ms).to_dict()
        raise AnswerIsNo(
            f"no candidate of {self.space.name} is within {self.max_ms:g} ms; the fastest takes "
            f"{fastest_ms:.3g} ms",
            nothing,
        )

    def fastest(self) -> np.ndarray:
        """(positions,) a fast candidate: from the first, each position's best choice until none helps."""
        sizes = self.space.grid.sizes
        row = np.zeros(len(sizes), self.space.grid.dtype)
        before = math.inf
        while (now := self.ms(row)) < before:
            before = now
            for position, size in enumerate(sizes):
                tried = np.repeat(row[None], size, axis=0)
                tried[:, position] = np.arange(size)
                row = tried[int(np.argmin(self.scorer.latency(tried)))]
        return row


class Run:
    """A search under way: all candidates that were scored; `known`: their bytes."""

    def __init__(self, search: Search, seed: int) -> None:
        self.search, self.random = search, np.random.default_rng(seed)
        self.candidates: list[Candidate] = []  # with scores as the user's function said
        self.known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.candidates)

    def add(self, rows: np.ndarray) -> list[int]:
        """Score new candidates; their numbers."""
        first = len(self)
        for row, latency in zip(rows, self.search.scorer.latency(rows), strict=True):
            if row.tobytes() in self.known:
                continue
            score = self.search.objective.score(row)
            self.known.add(row.tobytes())
            time = round(float(latency), 9)  # sums in another order are the same
            arch, choices = self.search.space.arch(row), tuple(map(int, row))
            self.candidates.append(Candidate(arch, choices, time, score))
            self.search.done()
        return list(range(first, len(self)))

    def _values(self, candidates: Sequence[Candidate]) -> tuple[np.ndarray, np.ndarray]:
        latencies = np.array([c.latency_ms for c in candidates])
        return latencies, self.search.sign * np.array([c.score for c in candidates])

    def _standing(self, numbers: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, rank, crowding) of some candidates."""
        some = [self.candidates[n] for n in numbers]
        latencies, scores = self._values(some)
        rank = ranks(latencies, scores)
        return np.array([c.choices for c in some]), rank, crowding(latencies, scores, rank)

    def _best(self, numbers: list[int], count: int) -> list[int]:
        """The numbers of the `count` best of some candidates."""
        _, rank, crowd = self._standing(numbers)
        return [numbers[i] for i in np.lexsort((-crowd, rank))[:count]]

    def evolve(self, samples: int, generations: int) -> None:
        """NSGA-II (Deb et al., 2002): ranks, then crowding, decide who has children and who stays."""
        size = max(2, math.ceil(samples / generations))
        new = self._first(min(size, samples))
        self.search.started(samples)
        population = self.add(new)
        while len(self) < samples and len(new):
            new = self._children(population, min(size, samples - len(self)))
            population = self._best([*population, *self.add(new)], size)

    def _first(self, count: int) -> np.ndarray:
        """Candidates within the time, spread evenly over the latencies that there are.

        A latency costs nothing, so that many are drawn: at random, and between those and the fastest, for
        random ones alone lie close together in the middle.
        """
        search, random = self.search, self.random
        fastest = search.fastest()
        if search.ms(fastest) > search.max_ms:
            search.none(EVOLUTIONARY, search.ms(fastest))

        def near(n: int) -> np.ndarray:
            rows = search.space.sample(n, random)
            return np.where(random.random(rows.shape) < 1.5 * random.random((n, 1)), rows, fastest)

        pool = self._new(near, DRAWN * count, [fastest])
        times = search.scorer.latency(pool)
        left = np.argsort(times, kind="stable")
        chosen = []
        for target in np.linspace(times.min(), times.max(), min(count, len(pool))):
            at = int(np.argmin(np.abs(times[left] - target)))
            chosen.append(left[at])
            left = np.delete(left, at)
        return pool[chosen]

    def _children(self, population: list[int], count: int) -> np.ndarray:
        """New candidates within the time, from pairs of parents: each choice from one or the other, and
        one in all positions, at the mean, drawn anew. Random ones where nothing new comes of it."""
        parents, rank, crowd = self._standing(population)
        random, sample = self.random, partial(self.search.space.sample, seed=self.random)

        def winners(n: int) -> np.ndarray:
            a, b = random.integers(0, len(parents), (2, n))
            first = (rank[a] < rank[b]) | ((rank[a] == rank[b]) & (crowd[a] >= crowd[b]))
            return parents[np.where(first, a, b)]

        def draw(n: int) -> np.ndarray:
            rows = np.where(random.random((n, parents.shape[1])) < 0.5, winners(n), winners(n))
            mutated = random.random(rows.shape) < 1.0 / parents.shape[1]
            return np.where(mutated, sample(n), rows)

        children = self._new(draw, count)
        return children if len(children) == count else self._new(sample, count, list(children))

    def _new(
        self, draw: Callable[[int], np.ndarray], count: int, have: Sequence[np.ndarray] = ()
    ) -> np.ndarray:
        """`count` candidates of those drawn that are within the time and new, or as many as there come."""
        search, dtype = self.search, self.search.space.grid.dtype
        new = {row.tobytes(): row for row in have if row.tobytes() not in self.known}
        for _ in range(TRIES):
            if len(new) >= count:
                break
            rows = draw(max(count, 16)).astype(dtype)
            for row in rows[search.scorer.latency(rows) <= search.max_ms]:
                if row.tobytes() not in self.known:
                    new.setdefault(row.tobytes(), row)
        kept = list(new.values())[:count]
        return np.array(kept, dtype).reshape(-1, len(search.space.positions))

    def result(self, method: str) -> SearchResult:
        """What the search found."""
        best = tuple(self.candidates[i] for i in front(*self._values(self.candidates)))
        scored = tuple(c for c in self.candidates if not math.isnan(c.score))
        return SearchResult(method, best, scored, len(self) - len(scored))


# ---- The front of a search as people and other programs read it: a table, CSV, JSON, a plot
# (matplotlib).

MOST_ROWS = 20
OUTSIDE = "*"


@dataclass(frozen=True)
class FrontCandidate:
    """A network of the front: its choices as integers, its score, its latency as the model predicts it."""

    arch: str
    candidate: tuple[int, ...]
    latency_ms: float
    score: float
    interval_ms: tuple[float, float] | None
    coverage: float | None
    in_domain: bool | None


@dataclass(frozen=True, repr=False)
class SearchAnswer(Result):
    """What a search found, with the whole networks of its front as the model predicts them.

    `fastest_ms`: of all candidates, where none is within the time (exit code 3) and the front is empty.
    """

    KEYS = (
        *of("search.space", "space=name", "size"), *of("search.scorer", "batch_size", "predictor"),
        "result.method", "max_ms", "scored", "result.unscored", "front", "fastest_ms",
    )  # fmt: skip

    search: Search
    result: SearchResult
    predictions: tuple[Prediction | Bounds, ...]
    fastest_ms: float | UnsetType = UNSET

    def words(self) -> str:
        """How many were scored, and the ends of the front."""
        front, name = self.result.front, self.search.space.name
        told = f"{name}: {len(self.result.scored)} scored, {len(front)} of them on the front"
        if not front:
            return told
        ends = dict.fromkeys((front[0], front[-1]))
        return f"{told}, " + " to ".join(
            f"{milliseconds(c.latency_ms)} at {c.score:.6g}" for c in ends
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row for each network of the front, by latency."""
        names = ("arch", "latency_ms", "score", "in_domain")
        return [{name: getattr(row, name) for name in names} for row in self.front]

    @property
    def front(self) -> tuple[FrontCandidate, ...]:
        """The front with the predictions."""
        return tuple(
            FrontCandidate(
                c.arch, c.choices, c.latency_ms, c.score, p.interval_ms, p.coverage, p.in_domain
            )
            for c, p in zip(self.result.front, self.predictions, strict=True)
        )

    @property
    def max_ms(self) -> float | None:
        """The longest that a candidate may take; None: as long as it likes."""
        return None if math.isinf(self.search.max_ms) else self.search.max_ms

    @property
    def scored(self) -> int:
        """How many candidates have a score."""
        return len(self.result.scored)


def answer(search: Search, result: SearchResult, model: Model) -> SearchAnswer:
    """The whole networks of a front, predicted: their intervals, whether they are inside the domain."""
    space, scorer = search.space, search.scorer
    rows = np.array([c.choices for c in result.front], space.grid.dtype)
    rows = rows.reshape(-1, len(space.positions))
    return SearchAnswer(search, result, bounds_of(scorer, space, model, rows))


def lines(answer: SearchAnswer) -> Iterator[str]:
    """The front as a table of text: all of it, or MOST_ROWS spread evenly, with both ends."""
    result, search = answer.result, answer.search
    size, count = search.space.size, len(result.front)
    budget = "" if math.isinf(search.max_ms) else f" within {search.max_ms:g} ms"
    without = f" ({result.unscored} more have no score)" if result.unscored else ""
    yield (
        f"{search.space.name}: {f'{size:,}' if size < 10**7 else f'{size:.2g}'} candidates, "
        f"{result.method} search: {len(result.scored):,} scored{budget}{without}, {count} on the front"
    )
    yield f"latencies by {search.scorer.source}"
    if not result.front:
        return
    coverage = next((p.coverage for p in answer.predictions if p.coverage is not None), None)
    sure = "" if coverage is None else f"{100 * coverage:g} % sure of"
    yield ""
    yield f"{'latency':>10}  {sure:<16}{'score':>10}   candidate"
    for number in np.linspace(0, count - 1, min(count, MOST_ROWS)).round().astype(int):
        candidate, prediction = result.front[number], answer.predictions[number]
        bounds = prediction.interval_ms
        interval = between(*bounds) if bounds else ""
        mark = OUTSIDE if prediction.in_domain is False else " "
        time = milliseconds(candidate.latency_ms)
        yield f"{time:>10}{mark} {interval:<16}{candidate.score:>10.6g}   {candidate.arch}"
    if count > MOST_ROWS:
        yield f"{MOST_ROWS} of the {count} are shown; --output writes them all"
    if any(p.in_domain is False for p in answer.predictions):
        yield f"{OUTSIDE} outside what was measured (docs/explanation/domain.md): the interval is wider"


def write_csv(path: str | Path, answer: SearchAnswer) -> None:
    """One row per network of the front, by latency. InputError if not writable."""
    header = ["arch", "latency_ms", "low_ms", "high_ms", "in_domain", "score"]
    rows = []
    for candidate, p in zip(answer.result.front, answer.predictions, strict=True):
        interval = ["", ""] if p.interval_ms is None else [f"{t:.6g}" for t in p.interval_ms]
        inside = "" if p.in_domain is None else str(p.in_domain).lower()
        time = f"{candidate.latency_ms:.6g}"
        rows.append([candidate.arch, time, *interval, inside, repr(candidate.score)])
    write_text(path, to_csv(header, rows))
