"""Searches a space for the Pareto front of latency, by a device profile, and of the user's score.

A score is expensive: the search asks for it only if a candidate is within the time, and never twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.device import Device
from lolat.device.prediction import end_ms
from lolat.errors import AnswerIsNo, InputError, arg
from lolat.io.paths import AnyPath
from lolat.io.progress import Progress
from lolat.io.results import Result
from lolat.io.writing import check_file
from lolat.nas.estimators import DECODED, LatencyEstimator
from lolat.nas.fewshot import Answer, FewShotModel, answers, estimator
from lolat.nas.space import Grid, Space
from lolat.nas.user_code import Objective, opened
from lolat.parameters import COVERAGE, check_given, surely
from lolat.units import between, milliseconds, plain

CANDIDATES = 200
EXHAUSTIVE, EVOLUTIONARY = "exhaustive", "evolutionary"


@dataclass(frozen=True, kw_only=True)
class FrontCandidate(Answer):
    """A network on the front: its score, and its latency and memory as `predict` answers.

    `inside_share`: share of the time inside the measured range. `fits`: true if the device's memory
    suffices. If samples answer, memory is not known, and a network is
    `in_domain` between their fastest and slowest.
    """

    KEYS = ("arch", "candidate", "choices", "latency_ms", "score", "interval_ms", "coverage", "in_domain",
            "inside_share", "host_bound", "memory_bytes", "fits", "warnings")  # fmt: skip

    arch: str
    candidate: tuple[int, ...]
    choices: dict[str, Any]
    score: float


@dataclass(frozen=True, repr=False)
class SearchResult(Result):
    """The Pareto front of a space with `size` candidates, the fastest first.

    `source` tells where the latencies are from, `device` is the model. `scored`, `unscored`: candidates
    with and without a score. `sure`: the upper ends of the intervals keep `max_ms`. `improving`: the last
    tenth of an evolutionary search's candidates had the best score.
    """

    space: str
    size: int
    batch_size: int
    predictor: str
    source: str
    device: str
    method: str
    max_ms: float | None
    scored: int
    unscored: int
    front: tuple[FrontCandidate, ...]
    sure: bool = False
    improving: bool = False
    fastest_ms: float | UnsetType = UNSET

    def words(self) -> str:
        """Return the number of scored candidates, and of those on the front, in words."""
        without = f" ({self.unscored} more have no score)" if self.unscored else ""
        size = f"{self.size:,}" if self.size < 10**7 else f"{self.size:.2g}"
        of = f"{self.space} on {plain(self.device)}, batch {self.batch_size}: {size} candidates"
        scored = f"{self.method} search: {self.scored:,} scored{self.budget_words()}"
        if self.method == EXHAUSTIVE and not self.unscored:
            scored = f"all {self.scored:,}{self.budget_words()} scored"
        return f"{of}, {scored}{without}, {len(self.front)} on the front{self._outside()}"

    def budget_words(self) -> str:
        """Return the time that candidates keep, and how surely, in words; "" without one."""
        if self.max_ms is None:
            return ""
        coverage = next((c.coverage for c in self.front if c.coverage), None)
        surely = f" ({100 * coverage:g} % sure)" if self.sure and coverage else ""
        return f" within {self.max_ms:g} ms{surely}"

    def _outside(self) -> str:
        """Return how many of the front are outside the measured range, in words."""
        outside = sum(c.in_domain is False for c in self.front)
        how_many = "all" if outside == len(self.front) else outside
        return f", {how_many} of them outside the measured range" if outside else ""

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each network on the front, with its interval and its choice at each position."""
        rows = []
        for c in self.front:
            low, high = c.interval_ms or (None, None)
            bounds = {
                "low_ms": low,
                "high_ms": high,
                "in_domain": c.in_domain,
                "host_bound": c.host_bound,
                "memory_bytes": c.memory_bytes,
                "fits": c.fits,
            }
            row = {"arch": c.arch, "latency_ms": c.latency_ms, **bounds, "score": c.score}
            rows.append(row | c.choices | row)  # a position of such a name gives way
        return rows


def search(
    space: str | Space,
    model: AnyPath | Device,
    objective: AnyPath | Callable[..., Any],
    *,
    max_ms: float | None = None,
    sure: float | None = None,
    coverage: float | None = None,
    candidates: int | None = None,
    seed: int | None = None,
    lower_is_better: bool = False,
    batch_size: int = 1,
    predictor: str | None = None,
    accuracy: AnyPath | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Find a space's Pareto front of latency on a device and of a score.

    `space`: a `Space`, a name (nasbench201, fbnet, fbnet-cifar) or "package.module:callable". `model`: a
    `Model`, its file, or the name of a bundled one (of a GPU: `lolat.load("a100")`). `objective`: a CSV
    file with the columns arch, or the choices, and score; or a function that scores one candidate (its
    parameter is named arch, a text, candidate, a tuple of integers, or choices, a dict), or its name,
    "package.module:callable". `sure`: True where the upper end of a candidate's interval must keep
    `max_ms`, or a number: the interval's coverage in percent.
    The other arguments are the options of `lolat nas search`.

    AnswerIsNo if no candidate is within the time or has a score; InputError for a wrong argument.
    """
    check_given(candidates=candidates, max_ms=max_ms, coverage=coverage, seed=seed)
    check_given(lower_is_better=lower_is_better)
    sure, coverage = surely(sure, coverage)
    if sure and max_ms is None:
        raise InputError(f"{arg('sure')} goes with {arg('max_ms')}")
    check_file(accuracy, "accuracy")
    of_space, loaded = opened(space, model)
    scores = Objective(of_space, objective, accuracy, progress)
    if scores.rows is not None:
        _refuse_beside_table(objective, accuracy=accuracy, candidates=candidates, seed=seed)
    latencies = estimator(of_space, loaded, batch_size, predictor, progress)
    limit = Limit.of(latencies, of_space, loaded, max_ms, sure, coverage)
    most = candidates or CANDIDATES
    rows, method = _to_score(limit, most) if scores.rows is None else (scores.rows, EXHAUSTIVE)
    result = SearchResult(
        of_space.label, of_space.size, batch_size, latencies.predictor, latencies.source, loaded.name,
        method, max_ms, 0, 0, (), sure,
    )  # fmt: skip
    ends = limit.ends(rows)
    if (least := float(ends.min())) > limit.max_ms:
        table, row = None if scores.rows is None else objective, rows[[int(ends.argmin())]]
        interval = answers(latencies, of_space, loaded, row, coverage)[0].interval_ms
        raise none_within(replace(result, fastest_ms=least), least, table, interval)
    able = rows[ends <= limit.max_ms]
    archive = Archive(limit, scores, -1.0 if lower_is_better else 1.0)
    archive.announce(most if method == EVOLUTIONARY else len(able))
    if method == EVOLUTIONARY:
        evolve(archive, able[0], most, seed or 0)
    else:
        archive.add(able)
    return _of_archive(result, archive, of_space, loaded)


def _to_score(limit: Limit, most: int) -> tuple[np.ndarray, str]:
    """Return the candidates within the time, or a fast one if they are more than `most`; and the method."""
    grid, fast = limit.estimator.grid, fastest(limit.estimator)[None]
    if grid.size <= DECODED:
        every = grid.between(0, grid.size)
        within = every[limit.ends(every) <= limit.max_ms]
        if len(within) <= most:
            return (within if len(within) else fast), EXHAUSTIVE
    return fast, EVOLUTIONARY


def _of_archive(
    result: SearchResult, archive: Archive, space: Space, model: Device
) -> SearchResult:
    """Return the result of a search whose candidates are scored; AnswerIsNo if none is good."""
    unscored = int(np.isnan(archive.scores).sum())
    result = replace(result, scored=len(archive) - unscored, unscored=unscored)
    if not result.scored:
        words = f"gave no finite number for any of {unscored:,} candidates of {result.space}"
        raise AnswerIsNo(f"{arg('objective')} {words}; expected some", result.to_dict())
    found, fast = archive.whole_front(space, model)
    if not found:
        least = end_ms(fast, result.sure)
        raise none_within(replace(result, fastest_ms=least), least, interval=fast.interval_ms)
    improving = result.method == EVOLUTIONARY and archive.improving()
    return replace(result, front=found, improving=improving)


def _refuse_beside_table(table: Any, **given: Any) -> None:
    """Raise InputError for an argument that belongs to a function, given with a table of scores."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{arg(name)} {value}: all networks of the table {table} have a score and are compared; "
                f"leave it out, or give a function as {arg('objective')}",
                code=name,
            )


def none_within(
    result: Any,
    fastest_ms: float,
    table: object = None,
    interval: tuple[float, float] | None = None,
) -> AnswerIsNo:
    """Return the error if no candidate of a search or a ranking is within the time.

    `table`: the candidates' table, None if all of the space are meant; `interval`: the fastest one's.
    """
    of = result.space if table is None else f"{table}, a table of {result.space},"
    size = "" if result.batch_size == 1 else f" at batch size {result.batch_size}"
    surely, most = (" for sure", "up to ") if getattr(result, "sure", False) else ("", "")
    ends = "" if interval is None or most else f" ({between(*interval)})"
    return AnswerIsNo(
        f"no candidate of {of} is within {result.max_ms:g} ms{size}{surely}; the fastest takes "
        f"{most}{fastest_ms:.3g} ms{ends}",
        result.to_dict(),
    )


RATIOS = 16  # candidates whose intervals are looked at before a search


@dataclass(frozen=True)
class Limit:
    """The longest time of a candidate, kept by its latency, or if `sure` by the end of its interval.

    Intervals are of `coverage`. `ratio`: an interval's end over the latency, where no samples tell it.
    """

    estimator: LatencyEstimator
    max_ms: float
    sure: bool
    coverage: float | None
    ratio: float = 1.0

    @classmethod
    def of(
        cls, latencies: LatencyEstimator, space: Space, model: Device, max_ms: float | None, sure: bool,
        coverage: float | None,
    ) -> Limit:  # fmt: skip
        """Make the limit; without samples `ratio` is the smallest of a few candidates."""
        limit = cls(latencies, math.inf if max_ms is None else max_ms, sure, coverage)
        if not sure or isinstance(latencies, FewShotModel):
            return limit
        rows = np.vstack([fastest(latencies), space.sample(RATIOS)])
        whole = answers(latencies, space, model, rows, coverage)
        return replace(limit, ratio=min(end_ms(one, sure) / one.latency_ms for one in whole))

    def ends(self, rows: np.ndarray) -> np.ndarray:
        """(n,) ms that keep the limit, or do not."""
        if self.sure and isinstance(self.estimator, FewShotModel):
            return self.estimator.interval(rows, self.coverage or COVERAGE)[1]
        return self.estimator.latency(rows) * self.ratio


# ---- The candidates that were scored, and those that are scored next.


def front(latencies: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the indices of candidates that no other dominates, by latency; of equal ones the first.

    `latencies`: (n,), small is good; `scores`: (n,), large is good; a candidate with a NaN is skipped.
    """
    known = np.flatnonzero(~(np.isnan(latencies) | np.isnan(scores)))
    order = known[np.lexsort((known, -scores[known], latencies[known]))]
    best: list[int] = []
    for i in order:
        if not best or scores[i] > scores[best[-1]]:
            best.append(int(i))
    return np.array(best, np.intp)


def fastest(estimator: LatencyEstimator) -> np.ndarray:
    """(positions,) choices of a fast candidate: each position's best choice in turn, until none helps."""
    sizes = estimator.grid.sizes
    row = np.zeros(len(sizes), estimator.grid.dtype)
    before = math.inf
    while (now := float(estimator.latency(row[None])[0])) < before:
        before = now
        for position, size in enumerate(sizes):
            tried = np.repeat(row[None], size, axis=0)
            tried[:, position] = np.arange(size)
            row = tried[int(np.argmin(estimator.latency(tried)))]
    return row


class Archive:
    """All scored candidates: `rows`, `latencies` in ms, `scores` times `sign` (large is good)."""

    def __init__(self, limit: Limit, objective: Objective, sign: float) -> None:
        self.limit, self.objective, self.sign = limit, objective, sign
        self.estimator = limit.estimator
        self.rows: list[np.ndarray] = []
        self.latencies: list[float] = []
        self.scores: list[float] = []
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, row: np.ndarray) -> bool:
        return row.tobytes() in self._known

    def add(self, rows: np.ndarray) -> None:
        """Score the candidates that are new."""
        for row, latency in zip(rows, self.estimator.latency(rows), strict=True):
            if row in self:
                continue
            self.scores.append(self.sign * self.objective.score(row))
            self.latencies.append(round(float(latency), 9))  # whatever the order of its sum
            self.rows.append(row)
            self._known.add(row.tobytes())

    def front(self) -> list[int]:
        """Return the indices of candidates that no other dominates."""
        return front(np.array(self.latencies), np.array(self.scores)).tolist()

    def within(self, rows: np.ndarray) -> np.ndarray:
        """Return those of `rows` that keep the limit."""
        return rows[self.limit.ends(rows) <= self.limit.max_ms]

    def known(self) -> np.ndarray:
        """Return the candidates with a known score that keep the limit, in the order of their scoring."""
        return self.within(self.objective.space.parse(list(self.objective.known)))

    def announce(self, total: int) -> None:
        """Show how many of `total` candidates a function has yet to score."""
        if self.objective.rows is None:
            self.objective.announce(total, len(self.known()))

    def improving(self) -> bool:
        """Return whether the best score is of the last tenth."""
        before = np.array(self.scores[: -(-9 * len(self) // 10)])
        return bool(np.nanmax(self.scores) > np.nanmax(before, initial=-np.inf))

    def whole_front(self, space: Space, model: Device) -> tuple[tuple[FrontCandidate, ...], Answer]:
        """Return the front by the device's answers for whole networks, and the shortest that was seen.

        These may differ from the estimates: one that does not keep the limit leaves its place to others.
        Of latencies that are equal as printed the front has the best score alone.
        """
        whole: dict[int, Answer] = {}
        times, scores, limit = np.array(self.latencies), np.array(self.scores), self.limit
        while new := [n for n in front(times, scores).tolist() if n not in whole]:
            rows = np.array([self.rows[n] for n in new])
            whole |= zip(
                new, answers(self.estimator, space, model, rows, limit.coverage), strict=True
            )
            for n in new:
                late = end_ms(whole[n], limit.sure) > limit.max_ms + 1e-9
                times[n] = math.nan if late else round(whole[n].latency_ms, 9)
        order = front(times, scores).tolist()
        # Latencies that are printed alike are no choice: the last of them has the best score.
        last = {milliseconds(times[n]): n for n in order}.values()
        found = tuple(
            FrontCandidate(
                arch=space.arch(self.rows[n]), candidate=tuple(self.rows[n].tolist()),
                choices=space.named(self.rows[n]), score=self.sign * float(scores[n]),
                **{**vars(whole[n]), "latency_ms": float(times[n])},
            )
            for n in last
        )  # fmt: skip
        return found, min(whole.values(), key=lambda one: end_ms(one, limit.sure))


SPREAD = (
    0.3  # of a generation, drawn evenly over the latencies; the others are the front's neighbors
)
CLIMBED = 8  # neighbors between two looks at the front
DRAWN = 16  # candidates drawn for each one of the first generation
TRIES = 200  # draws, before fewer candidates than wanted have to do


def evolve(archive: Archive, fast: np.ndarray, count: int, seed: int) -> None:
    """Score `count` candidates, those with a known score first: of all latencies, then near the front.

    `fast`: a candidate within the time.
    """
    random = np.random.default_rng(seed)
    archive.add(archive.known())
    while (left := count - len(archive)) > 0:
        new = _spread(archive, fast, math.ceil(SPREAD * left), random)
        if not len(new):
            break
        archive.add(new)
        climb(archive, count)


def climb(archive: Archive, count: int) -> None:
    """Score neighbors of the front, one choice apart, until none is left or `count` are scored.

    A linear fit to the scores predicts which are highest, or highest above the front; these go first.
    """
    grid, estimator = archive.estimator.grid, archive.estimator
    while len(archive) < count and (best := archive.front()):
        near = _neighbors(archive, np.array([archive.rows[n] for n in best]))
        if not len(near):
            break
        scores = np.array(archive.scores)
        known = np.flatnonzero(~np.isnan(scores))
        features, mean = _one_hot(grid, np.array(archive.rows)[known]), scores[known].mean()
        square = features.T @ features + np.eye(features.shape[1])
        weights = np.linalg.solve(square, features.T @ (scores[known] - mean))
        likely = mean + _one_hot(grid, near) @ weights
        reached = np.searchsorted(
            np.array(archive.latencies)[best], estimator.latency(near), "right"
        )
        above = likely - np.append(scores[known].min(), scores[best])[reached]
        high, higher = (np.argsort(-values, kind="stable") for values in (likely, above))
        first = dict.fromkeys([*high[: CLIMBED // 4], *higher[:CLIMBED]])
        archive.add(near[list(first)[: min(CLIMBED, count - len(archive))]])


def _neighbors(archive: Archive, rows: np.ndarray) -> np.ndarray:
    """Return unscored candidates within the time that differ from one of `rows` in one choice."""
    sizes = archive.estimator.grid.sizes
    near = np.repeat(rows[None], sum(sizes), axis=0)
    positions = np.repeat(np.arange(len(sizes)), sizes)
    choices = np.concatenate([np.arange(n) for n in sizes])
    near[np.arange(len(near)), :, positions] = choices[:, None]
    near = archive.within(near.reshape(-1, len(sizes)))
    new = {row.tobytes(): row for row in near if row not in archive}
    return np.array(list(new.values()), near.dtype)


def _one_hot(grid: Grid, rows: np.ndarray) -> np.ndarray:
    """(n, choices of all positions): 1 for the choice of a candidate, else 0."""
    return np.concatenate([np.eye(n)[rows[:, p]] for p, n in enumerate(grid.sizes)], axis=1)


def _spread(
    archive: Archive, fast: np.ndarray, count: int, random: np.random.Generator
) -> np.ndarray:
    """Return candidates within the time, spread evenly over the latencies.

    Random candidates have similar latencies, so many are drawn, and some are moved toward the fast one.
    """
    latency, grid = archive.estimator.latency, archive.estimator.grid
    wanted = DRAWN * count
    new = {} if fast in archive else {fast.tobytes(): fast}
    for _ in range(TRIES):
        if len(new) >= wanted:
            break
        rows = grid.sample(max(wanted, 16), random)
        toward = random.random(rows.shape) < 1.5 * random.random((len(rows), 1))
        rows = np.where(toward, rows, fast).astype(grid.dtype)
        new.update({r.tobytes(): r for r in archive.within(rows) if r not in archive})
    pool = np.array(list(new.values())[:wanted], grid.dtype).reshape(-1, len(grid.sizes))
    if not len(pool):
        return pool
    times = latency(pool)
    left = np.argsort(times, kind="stable")
    chosen = []
    for target in np.linspace(times.min(), times.max(), min(count, len(pool))):
        at = int(np.argmin(np.abs(times[left] - target)))
        chosen.append(left[at])
        left = np.delete(left, at)
    return pool[chosen]
