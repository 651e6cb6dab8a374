"""Times a call as it is in use, and says which latencies are behind the times.

Blocks are timed as they run inside a network: after a network has run, not in a hot loop of their own,
which would find its weights in the caches. The network is timed too: it tells how slow the machine is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Clock = Callable[[], float]
"""Seconds, increasing; `time.perf_counter` outside tests."""

LOOP_S = 0.1  # a network runs for so long in a row
MOST_LOOPS = 3  # calls of it that count, at most


@dataclass(frozen=True)
class Visit:
    """Times of one visit, ms."""

    samples_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    """Of the network that ran before each sample; () in a loop of its own."""
    at_s: tuple[float, ...]
    """When each sample began, seconds since the epoch."""
    before: str = ""
    """Which network ran before each sample, once; "" in a loop of its own."""
    others_s: float | None = None
    """Processor seconds that other programs had used when the visit was over (`environment.others_s`)."""

    @property
    def seconds(self) -> float:
        """How long the calls of the visit took; a loop has one call that is not timed."""
        total_ms = sum(self.samples_ms) + sum(self.reference_ms)
        if self.samples_ms and not self.reference_ms:
            total_ms += self.samples_ms[0]
        return total_ms / 1e3


def time_once(call: Callable[[], object], clock: Clock) -> float:
    """Wall time of one call, ms."""
    start = clock()
    call()
    return (clock() - start) * 1e3


def sample(
    call: Callable[[], object],
    before: Callable[[], object] | None,
    touch: Callable[[], object],
    count: int,
    clock: Clock,
    now: Clock,
) -> Visit:
    """`count` samples of `call` as in use.

    Something smaller than a network runs once after the network `before`, which leaves caches and
    threads as a network does, with its input read (`touch`) as if just written. Without `before` it is a
    network in a loop of its own, whose first call, after something else, does not count. `now`: seconds
    since the epoch.
    """
    samples, references, moments = [], [], []
    if before is None:
        call()
    for _ in range(count):
        if before is not None:
            references.append(time_once(before, clock))
            touch()
        moments.append(now())
        samples.append(time_once(call, clock))
    return Visit(tuple(samples), tuple(references), tuple(moments))


def warm_up(
    call: Callable[[], object],
    clock: Clock,
    limit_s: float = 1.0,
    tolerance: float = 0.1,
    most: int = 20,
) -> float:
    """Call until two times in a row agree within `tolerance` (or `limit_s` or `most` is reached).

    The first call, which compiles and allocates, is not compared. Returns the last time in
    milliseconds: what one call costs, roughly.
    """
    start = clock()
    call()
    previous = time_once(call, clock)
    for _ in range(most):
        if clock() - start > limit_s:
            break
        current = time_once(call, clock)
        if abs(current - previous) <= tolerance * previous:
            return current
        previous = current
    return previous


def loops(estimate_ms: float) -> int:
    """How many calls of a network are timed in a row: for LOOP_S seconds or so."""
    return max(1, min(MOST_LOOPS, int(LOOP_S * 1e3 / max(estimate_ms, 1e-6))))


# ---- From raw samples to the latency of every job, with the state of the machine taken out
#
# A shared machine's speed changes from second to second, and with it everything that runs. So the samples
# of a run are taken in rounds of random order, and are put down to two things: what was run, and how slow
# the machine was just then, as the samples around it say:
#
#     log(sample) = job + slowness(moment)
#
# It is fitted in turns by medians (Tukey's median polish, along time instead of in a table). Slowness is 0
# at the run's middle: what comes out is the latency on the machine as it usually was in the run, with the
# other programs that ran on it then.

NEIGHBORS = 4  # samples on either side that say how slow the machine is: about half a second
TURNS = 25  # until it changes no more, also where a job has most of the samples
LEAST_SAMPLES = 4  # of which halves are compared
QUIET, BUSY = 0.1, 0.9


@dataclass(frozen=True)
class Level:
    """A job's latency as the machine usually was, ms; `spread`: how far two halves are apart, relative."""

    latency_ms: float
    spread: float | None


@dataclass(frozen=True)
class Levels:
    """Every job's level by key, and how slow the machine was.

    `quiet`, `busy`: how long things took in the calmest and the most disturbed tenth of the run, as
    factors of the usual; `others`: how many processors other programs used; `trend`: the last quarter of
    the run over the first.
    """

    jobs: Mapping[str, Level]
    quiet: float
    busy: float
    others: float = 0.0
    trend: float = 1.0

    @property
    def floor(self) -> float:
        """What measuring again gives: the median of the jobs' spreads."""
        known = [level.spread for level in self.jobs.values() if level.spread is not None]
        return statistics.median(known) if known else 0.0


def levels(visits: Mapping[str, Sequence[Visit]]) -> Levels:
    """The levels of jobs by key, from their visits (`timing.sample`).

    A network that ran before a block is a sample too, of that network in a loop that is broken up, and
    tells about the moment alone. ValueError without any sample.
    """
    rows = [
        row
        for key, taken in visits.items()
        for number, visit in enumerate(taken)
        for row in _rows(key, visit, number)
    ]
    if not rows:
        raise ValueError("levels() needs at least one sample")
    rows.sort(key=lambda row: row[1])
    names = list(dict.fromkeys(row[0] for row in rows))
    of = np.array([names.index(row[0]) for row in rows])
    log_ms = np.log(np.maximum([row[2] for row in rows], 1e-9))
    visit = np.array([row[3] for row in rows])
    members = [np.flatnonzero(of == i) for i in range(len(names))]
    slowness = np.zeros(len(rows))
    job = np.zeros(len(names))
    for _ in range(TURNS):
        for i, at in enumerate(members):
            job[i] = np.median(log_ms[at] - slowness[at])
        slowness = _around(log_ms - job[of])
    for i, at in enumerate(members):
        job[i] = np.median(log_ms[at] - slowness[at])
    jobs = {
        name[0]: Level(math.exp(job[i]), _spread((log_ms - slowness)[at], visit[at]))
        for i, (name, at) in enumerate(zip(names, members, strict=True))
        if name[1]
    }
    low, high = np.exp(np.quantile(slowness, (QUIET, BUSY))).tolist()
    others = _others([v for taken in visits.values() for v in taken])
    return Levels(jobs, low, high, others, _trend(slowness))


def _trend(slowness: np.ndarray) -> float:
    """The last quarter of a run over its first; `slowness`: logarithms in the order of time."""
    part = max(len(slowness) // 4, 1)
    return float(np.exp(np.median(slowness[-part:]) - np.median(slowness[:part])))


def _others(visits: Sequence[Visit]) -> float:
    """How many processors other programs used: the median between one visit and the next; 0 if unknown."""
    seen = sorted(
        (v.at_s[-1] + v.samples_ms[-1] / 1e3, v.others_s)
        for v in visits
        if v.others_s is not None and v.at_s
    )
    at, used = np.diff(np.array(seen, float).reshape(-1, 2), axis=0).T
    shares = used[at > 0.0] / at[at > 0.0]
    return max(float(np.median(shares)), 0.0) if len(shares) else 0.0


def _rows(key: str, visit: Visit, number: int) -> list[tuple[tuple[str, bool], float, float, int]]:
    """((key, whether it is a sample of the job itself), moment, ms, number of the visit) of a visit."""
    times = zip(visit.at_s, visit.samples_ms, strict=True)
    rows = [((key, True), at, ms, number) for at, ms in times]
    if visit.before:
        rows += [
            ((visit.before, False), at - ms / 1e3, ms, number)
            for at, ms in zip(visit.at_s, visit.reference_ms, strict=True)
        ]
    return rows


def _around(rest: np.ndarray) -> np.ndarray:
    """(samples,) the median of the NEIGHBORS on either side of each, itself left out; 0 in the middle."""
    padded = np.concatenate([np.full(NEIGHBORS, np.nan), rest, np.full(NEIGHBORS, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBORS + 1)
    others = np.delete(windows, NEIGHBORS, axis=1)
    if len(rest) == 1:
        return np.zeros(1)
    medians = np.nanmedian(others, axis=1)
    return medians - np.median(medians)


def _spread(values: np.ndarray, visit: np.ndarray) -> float | None:
    """How far the medians of every other visit's values are apart; None for too few of either.

    Calls of one visit follow each other, and say nothing of how the next visit differs.
    """
    odd = visit % 2 == 1
    if len(values) < LEAST_SAMPLES or odd.all() or not odd.any():
        return None
    return float(math.expm1(abs(np.median(values[odd]) - np.median(values[~odd]))))
