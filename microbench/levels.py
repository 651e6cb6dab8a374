"""From raw samples to the latency of every job, with the state of the machine taken out.

A shared machine's speed changes from second to second, and with it everything that runs. So the samples of
a run are taken in rounds of random order, and are put down to two things: what was run, and how slow the
machine was just then, as the samples around it say:

    log(sample) = job + slowness(moment)

It is fitted in turns by medians (Tukey's median polish, along time instead of in a table). Slowness is 0
at the run's middle: what comes out is the latency on the machine as it usually was in the run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from microbench.timer import Visit, quantile

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
    factors of the usual.
    """

    jobs: Mapping[str, Level]
    quiet: float
    busy: float

    @property
    def floor(self) -> float:
        """What measuring again gives: the median of the jobs' spreads."""
        known = [level.spread for level in self.jobs.values() if level.spread is not None]
        return statistics.median(known) if known else 0.0


def levels(visits: Mapping[str, Sequence[Visit]]) -> Levels:
    """The levels of a run's jobs from their visits (`timer.sample`), by key.

    A network that ran before a block is a sample too, of that network in a loop that is broken up, and
    tells about the moment alone. ValueError without any sample.
    """
    rows = [row for key, taken in visits.items() for visit in taken for row in _rows(key, visit)]
    if not rows:
        raise ValueError("levels() needs at least one sample")
    rows.sort(key=lambda row: row[1])
    names = list(dict.fromkeys(row[0] for row in rows))
    of = np.array([names.index(row[0]) for row in rows])
    log_ms = np.log(np.maximum([row[2] for row in rows], 1e-9))
    members = [np.flatnonzero(of == i) for i in range(len(names))]
    slowness = np.zeros(len(rows))
    job = np.zeros(len(names))
    for _ in range(TURNS):
        for i, at in enumerate(members):
            job[i] = np.median(log_ms[at] - slowness[at])
        slowness = _around(log_ms - job[of])
    for i, at in enumerate(members):
        job[i] = np.median(log_ms[at] - slowness[at])
    found = {
        name[0]: Level(math.exp(job[i]), _spread((log_ms - slowness)[members[i]]))
        for i, name in enumerate(names)
        if name[1]
    }
    low, high = (math.exp(quantile(list(slowness), q)) for q in (QUIET, BUSY))
    return Levels(found, low, high)


def _rows(key: str, visit: Visit) -> list[tuple[tuple[str, bool], float, float]]:
    """((key, whether it is a sample of the job itself), moment, ms) of a visit."""
    rows = [((key, True), at, ms) for at, ms in zip(visit.at_s, visit.samples, strict=True)]
    if visit.before:
        rows += [
            ((visit.before, False), at - ms / 1e3, ms)
            for at, ms in zip(visit.at_s, visit.reference, strict=True)
        ]
    return rows


def _around(rest: np.ndarray) -> np.ndarray:
    """(samples,) the median of the NEIGHBORS on either side of each, itself left out; 0 in the middle."""
    padded = np.concatenate([np.full(NEIGHBORS, np.nan), rest, np.full(NEIGHBORS, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBORS + 1)
    others = np.delete(windows, NEIGHBORS, axis=1)
    if len(rest) == 1:
        return np.zeros(1)
    found = np.nanmedian(others, axis=1)
    return found - np.median(found)


def _spread(values: np.ndarray) -> float | None:
    """How far the medians of every other value are apart; None of too few."""
    if len(values) < LEAST_SAMPLES:
        return None
    return float(math.expm1(abs(np.median(values[::2]) - np.median(values[1::2]))))
