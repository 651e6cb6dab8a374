"""Timing calls under the conditions of their use, and estimating latencies from the times.

A block is timed right after a network; in its own loop it would find its weights in the caches. The network
is timed too, because its time shows the machine's speed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Clock = Callable[[], float]
"""A function that returns increasing seconds; `time.perf_counter` outside of tests."""

LOOP_S = 0.1  # seconds that a network runs in a loop
MOST_LOOPS = 3  # most calls of such a loop that are timed


@dataclass(frozen=True)
class Visit:
    """Times of one visit, in ms."""

    samples_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    """Times of the network that ran before each sample; () in a loop of its own."""
    at_s: tuple[float, ...]
    """The start of each sample, in seconds since the epoch."""
    before: str = ""
    """The key of the network that ran once before each sample; "" in a loop of its own."""
    others_s: float | None = None
    """Processor seconds that other programs had used by the end of the visit: `other_programs_s`."""

    @property
    def seconds(self) -> float:
        """Duration of the visit's calls, including the first call of a loop, which is not timed."""
        total_ms = sum(self.samples_ms) + sum(self.reference_ms)
        if self.samples_ms and not self.reference_ms:
            total_ms += self.samples_ms[0]
        return total_ms / 1e3


def time_once(call: Callable[[], object], clock: Clock) -> float:
    """Wall time of one call, in ms."""
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
    """Take `count` samples of `call` under the conditions of its use.

    A block runs after the network `before`, which leaves caches and threads as they are in use; `touch`
    reads the block's input, as if it had just been written. A network has no `before`: it runs in a loop
    whose first call is not timed. `now`: a clock of seconds since the epoch.
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
    """Call until two consecutive times agree within `tolerance`; return the last time in ms.

    It stops after `limit_s` seconds or `most` calls as well. The first call, which compiles and allocates,
    is not compared.
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
    """The number of calls of a network to time in a row, for about LOOP_S seconds."""
    return max(1, min(MOST_LOOPS, int(LOOP_S * 1e3 / max(estimate_ms, 1e-6))))


# ---- From raw samples to the latency of every job, without the drift of the machine
#
# The speed of a shared machine changes from second to second. Samples are taken in rounds of random order.
# Each is split into a part of its job, and a drift that the samples around it show:
#
#     log(sample) = job + drift(moment)
#
# The fit is Tukey's median polish along time. The median drift is 0: a job's latency is the latency on the
# machine in its usual state during the run, with the other programs that ran.

NEIGHBORS = 4  # samples on either side that give the drift: about half a second
TURNS = 25  # iterations; the fit has then converged, even if one job has most of the samples
LEAST_SAMPLES = 4  # fewer samples have no spread
QUIET, BUSY = 0.1, 0.9


@dataclass(frozen=True)
class JobLatency:
    """A job's latency in ms, without drift; `spread`: relative difference of two halves of its samples."""

    latency_ms: float
    spread: float | None


@dataclass(frozen=True)
class Latencies:
    """Every job's latency by key, and the drift of the machine.

    `quiet`, `busy`: times in the calmest and in the most disturbed tenth of the run / usual times;
    `others`: number of processors that other programs used; `trend`: times in the last quarter / in the
    first.
    """

    jobs: Mapping[str, JobLatency]
    quiet: float
    busy: float
    others: float = 0.0
    trend: float = 1.0

    @property
    def floor(self) -> float:
        """The median of the jobs' spreads, which is the noise of a repeated measurement."""
        known = [job.spread for job in self.jobs.values() if job.spread is not None]
        return statistics.median(known) if known else 0.0


def latencies(visits: Mapping[str, Sequence[Visit]]) -> Latencies:
    """The latencies of jobs by key, from their visits (`timing.sample`), which need at least one sample.

    A network before a block counts as a separate job, whose samples only show the drift.
    """
    rows = [
        row
        for key, taken in visits.items()
        for number, visit in enumerate(taken)
        for row in _rows(key, visit, number)
    ]
    rows.sort(key=lambda row: row[1])
    names, _, times, numbers = zip(*rows, strict=True)
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    of, visit = np.array([places[name] for name in names]), np.array(numbers)
    log_ms = np.log(np.maximum(times, 1e-9))
    members = [np.flatnonzero(of == i) for i in range(len(places))]
    drift = np.zeros(len(rows))
    for _ in range(TURNS):
        job = np.array([np.median(log_ms[at] - drift[at]) for at in members])
        drift = _around(log_ms - job[of])
    steady = log_ms - drift
    jobs = {
        key: JobLatency(math.exp(np.median(steady[at])), _spread(steady[at], visit[at]))
        for (key, is_own), at in zip(places, members, strict=True)
        if is_own
    }
    low, high = np.exp(np.quantile(drift, (QUIET, BUSY))).tolist()
    part = max(len(drift) // 4, 1)
    trend = float(np.exp(np.median(drift[-part:]) - np.median(drift[:part])))
    return Latencies(jobs, low, high, _others([v for vs in visits.values() for v in vs]), trend)


def unrest(visits: Sequence[Visit]) -> float:
    """Median / fastest round of a job, which shows the load of a busy machine."""
    rounds = [statistics.median(visit.samples_ms) for visit in visits]
    return statistics.median(rounds) / max(min(rounds), 1e-9)


def _others(visits: Sequence[Visit]) -> float:
    """Number of processors that other programs used, the median over visits; 0 if unknown."""
    seen = sorted(
        (v.at_s[-1] + v.samples_ms[-1] / 1e3, v.others_s)
        for v in visits
        if v.others_s is not None and v.at_s
    )
    at, used = np.diff(np.array(seen, float).reshape(-1, 2), axis=0).T
    shares = used[at > 0.0] / at[at > 0.0]
    return max(float(np.median(shares)), 0.0) if len(shares) else 0.0


def _rows(key: str, visit: Visit, number: int) -> list[tuple[tuple[str, bool], float, float, int]]:
    """((key, True if the time is the job's own), moment, ms, number of the visit) of each time."""
    own = zip(visit.at_s, visit.samples_ms, strict=True)
    others = zip(visit.at_s, visit.reference_ms, strict=True) if visit.before else ()
    return [((key, True), at, ms, number) for at, ms in own] + [
        ((visit.before, False), at - ms / 1e3, ms, number) for at, ms in others
    ]


def _around(rest: np.ndarray) -> np.ndarray:
    """(samples,) median of the NEIGHBORS samples on either side of each sample, shifted to median 0."""
    if len(rest) == 1:
        return np.zeros(1)
    padded = np.pad(rest, NEIGHBORS, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBORS + 1)
    medians = np.nanmedian(np.delete(windows, NEIGHBORS, axis=1), axis=1)
    return medians - np.median(medians)


def _spread(values: np.ndarray, visit: np.ndarray) -> float | None:
    """Relative difference between the medians of odd and even visits; None with too few samples.

    Calls of one visit follow each other, so they say nothing about the next visit.
    """
    odd = visit % 2 == 1
    if len(values) < LEAST_SAMPLES or odd.all() or not odd.any():
        return None
    return float(math.expm1(abs(np.median(values[odd]) - np.median(values[~odd]))))
