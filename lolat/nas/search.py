"""Searches a space for the Pareto front of latency, from a device profile, and the user's score.

A score is expensive: the search only scores candidates within the time, and each only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lolat.device.device import Device
from lolat.device.limits import end_ms
from lolat.errors import AnswerIsNo, InputError, arg, argument_code
from lolat.io.paths import AnyPath
from lolat.io.progress import Progress
from lolat.io.writing import check_file
from lolat.nas.archive import Archive
from lolat.nas.estimators import DECODED, fastest
from lolat.nas.grid import Grid
from lolat.nas.latency import Answer
from lolat.nas.limits import (
    Limit,
    devices_of,
    for_each_device,
    largest_share,
    limits_of,
    no_candidate,
    rows_within,
)
from lolat.nas.objective import Objective
from lolat.nas.search_result import EVOLUTIONARY, EXHAUSTIVE, OtherDevice, SearchResult
from lolat.nas.space import Space
from lolat.nas.user_code import space_and_device
from lolat.parameters import CANDIDATES, check_given, surely
from lolat.units import between, milliseconds

DRAWN_AT_RANDOM = 2000  # candidates of a large space that are compared with the limits


def search(
    space: str | Space,
    model: AnyPath | Device | Sequence[AnyPath | Device],
    objective: AnyPath | Callable[..., Any],
    *,
    max_ms: float | Sequence[float] | None = None,
    sure: float | None = None,
    coverage: float | None = None,
    candidates: int | None = None,
    seed: int | None = None,
    lower_is_better: bool = False,
    batch_size: int | Sequence[int] = 1,
    predictor: str | None = None,
    accuracy: AnyPath | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Find a space's Pareto front of latency on a device and of a score.

    `space`: a `Space`, a name (nasbench201, fbnet, fbnet-cifar) or "package.module:callable". `model`: a
    `Model`, its file, or the name of a bundled profile (for a GPU: `lolat.load("a100")`), or several; the
    front is by the latency on the first. `max_ms`, `batch_size`: a value for all devices, or one for each.
    `objective`: a CSV file with the columns arch (or the choices) and score; or a function that scores one
    candidate, or its name, "package.module:callable". The function's parameter is arch (a text), candidate
    (a tuple of integers) or choices (a dict). `sure`: True if the upper end of a candidate's interval must
    keep `max_ms`, or the interval's coverage in percent. The other arguments are the options of `lolat nas
    search`.

    AnswerIsNo if no candidate is within the time or has a score; InputError for a wrong argument.
    """
    check_given(candidates=candidates, coverage=coverage, seed=seed)
    check_given(lower_is_better=lower_is_better)
    devices = devices_of(model)
    asked = for_each_device(devices, max_ms=max_ms, batch_size=batch_size)
    sure, coverage = surely(sure, coverage)
    if sure and max_ms is None:
        raise InputError(f"{arg('sure')} goes with {arg('max_ms')}", code="sure")
    check_file(accuracy, "accuracy")
    spaces, models = zip(*(space_and_device(space, one) for one in devices), strict=True)
    of_space = spaces[0]
    scores = Objective(of_space, objective, accuracy, progress)
    if scores.rows is not None:
        _refuse_beside_table(objective, accuracy=accuracy, candidates=candidates, seed=seed)
    limits = limits_of(of_space, models, asked, predictor, sure, coverage, progress)
    archive = Archive(limits, scores, -1.0 if lower_is_better else 1.0)
    most = (candidates or CANDIDATES) + (elsewhere := archive.others())
    rows, method, every = _first_candidates(limits, most, scores.rows)
    first, *others = map(_other_device, limits)
    result = SearchResult(
        of_space.label, of_space.size, first.batch_size, first.predictor, first.source, first.device,
        first.profile, method, first.max_ms, 0, 0, (), sure, others=tuple(others),
    )  # fmt: skip
    result = _with_compared(result, limits, every)
    if not len(able := rows_within(limits, rows)):
        near = rows[[int(np.argmin(largest_share(limits, rows)))]]
        table = None if scores.rows is None else objective
        raise _none_keeps_all(result, limits, [limit.answers(near)[0] for limit in limits], table)
    archive.announce(*((most, elsewhere) if method == EVOLUTIONARY else (len(able), 0)))
    with scores:
        archive.add(able) if method == EXHAUSTIVE else evolve(archive, able[0], most, seed or 0)
    return _with_front(result, archive)


def _other_device(limit: Limit) -> OtherDevice:
    """A device of the search, for the result."""
    by, longest = limit.estimator, limit.max_ms if math.isfinite(limit.max_ms) else None
    device = limit.device
    return OtherDevice(
        device.label, device.profile, by.batch_size, by.predictor, by.source, longest
    )


def _with_compared(result: SearchResult, limits: Sequence[Limit], rows: np.ndarray) -> SearchResult:
    """The result with the number of compared `rows`, and the number that keep the limits."""
    if not (given := [limit for limit in limits if math.isfinite(limit.max_ms)]):
        return result
    exact = all(limit.is_exact for limit in given)
    return replace(result, within=len(rows_within(limits, rows)), compared=len(rows), exact=exact)


def _first_candidates(
    limits: Sequence[Limit], most: int, given: np.ndarray | None
) -> tuple[np.ndarray, str, np.ndarray]:
    """(candidates to score first, method of the search, candidates to compare with the limits).

    Scored first are all candidates within the time or, if these are more than `most`, a fast one. Compared
    are all candidates of the space or, if it is large, a random sample. `given`: the candidates of a table.
    """
    if given is not None:
        return given, EXHAUSTIVE, given
    grid = limits[0].estimator.grid
    fast = fastest(grid, partial(largest_share, limits))[None]
    if grid.size > DECODED:
        return fast, EVOLUTIONARY, limits[0].space.sample(DRAWN_AT_RANDOM)
    able = rows_within(limits, every := grid.between(0, grid.size))
    if len(able) <= most:
        return (able if len(able) else every), EXHAUSTIVE, every
    if not len(rows_within(limits, fast)):
        fast = able[[int(np.argmin(largest_share(limits, able)))]]
    return fast, EVOLUTIONARY, every


def _with_front(result: SearchResult, archive: Archive) -> SearchResult:
    """The result with the Pareto front of the scored candidates; AnswerIsNo if the front is empty."""
    unscored = int(np.isnan(archive.scores).sum())
    result = replace(result, scored=len(archive) - unscored, unscored=unscored)
    if not result.scored:
        words = f"gave no finite number for any of {unscored:,} candidates of {result.space}"
        raise AnswerIsNo(f"{arg('objective')} {words}; expected some", result.to_dict())
    found, near = archive.whole_front()
    if not found:
        raise _none_keeps_all(result, archive.limits, near)
    improving = result.method == EVOLUTIONARY and archive.improving()
    return replace(result, front=found, improving=improving)


def _refuse_beside_table(table: Any, **given: Any) -> None:
    """Raise InputError for an argument of a scoring function if the scores come from a table."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{arg(name)} {value}: all networks of the table {table} have a score and are compared; "
                f"leave it out, or give a function as {arg('objective')}",
                code=argument_code(name),
            )


def _none_keeps_all(
    result: SearchResult, limits: Sequence[Limit], near: Sequence[Answer], table: object = None
) -> AnswerIsNo:
    """The error if no candidate keeps every limit; `near`: the answers for the nearest candidate."""
    ends = [end_ms(one, limit.sure) for one, limit in zip(near, limits, strict=True)]
    most, interval = "up to " if result.sure else "", near[0].interval_ms
    if len(limits) == 1:
        sure = "" if interval is None or most else f" ({between(*interval, near[0].latency_ms)})"
        least = replace(result, fastest_ms=ends[0])
        return no_candidate(least, f"the fastest takes {most}{ends[0]:.3g} ms{sure}", table)
    takes = " and ".join(
        f"{most}{milliseconds(end)} on {limit.asked_of}"
        for end, limit in zip(ends, limits, strict=True)
    )
    return no_candidate(result, f"the nearest takes {takes}", table, result.budget_words())


# ---- The candidates that an evolutionary search scores next.


SPREAD = 0.3  # share of new candidates drawn evenly over latencies; the others are neighbors of the front
CLIMBED = 8  # neighbors that are scored before the front is updated
DRAWN = 16  # random candidates drawn for each candidate that is wanted
TRIES = 200  # limit on draws; after it fewer candidates than wanted are used


def evolve(archive: Archive, fast: np.ndarray, count: int, seed: int) -> None:
    """Score `count` candidates: known scores first, then evenly over latencies and near the front in turn.

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
    """Score neighbors of the front (one choice differs) until none is left or `count` are scored.

    A linear fit to the scores predicts which neighbors are highest, or highest above the front: they go
    first.
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
        times = np.array(archive.latencies)[best]
        reached = np.searchsorted(times, estimator.latency(near), "right")
        above = likely - np.append(scores[known].min(), scores[best])[reached]
        high, higher = (np.argsort(-values, kind="stable") for values in (likely, above))
        first = dict.fromkeys([*high[: CLIMBED // 4], *higher[:CLIMBED]])
        archive.add(near[list(first)[: min(CLIMBED, count - len(archive))]])


def _neighbors(archive: Archive, rows: np.ndarray) -> np.ndarray:
    """Unscored candidates within the time that differ from one of `rows` in one choice."""
    sizes = archive.estimator.grid.sizes
    near = np.repeat(rows[None], sum(sizes), axis=0)
    positions = np.repeat(np.arange(len(sizes)), sizes)
    choices = np.concatenate([np.arange(n) for n in sizes])
    near[np.arange(len(near)), :, positions] = choices[:, None]
    near = archive.within(near.reshape(-1, len(sizes)))
    new = {row.tobytes(): row for row in near if row not in archive}
    return np.array(list(new.values()), near.dtype)


def _one_hot(grid: Grid, rows: np.ndarray) -> np.ndarray:
    """(n, choices of all positions) one-hot encoding of candidates."""
    return np.concatenate([np.eye(n)[rows[:, p]] for p, n in enumerate(grid.sizes)], axis=1)


def _spread(
    archive: Archive, fast: np.ndarray, count: int, random: np.random.Generator
) -> np.ndarray:
    """Candidates within the time, spread evenly over the latencies.

    Random candidates have similar latencies, so many are drawn, and some are moved toward `fast`.
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
