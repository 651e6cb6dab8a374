"""Probe of the machine's speed now, which needs no framework: NumPy on threads, a tenth of a second in all.

All threads compute at once and wait for each other, as they do for an operation of a network.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .timing import Clock, time_once

ROUNDS, MOST_THREADS, FORKS = 24, 8, 15
SIDE, MATRICES = 64, 16
"""Rows and columns of a product that OpenBLAS computes in the thread that asks; products of a part."""

Probe = tuple[float, float]
"""The fastest and the median time of FORKS forks, ms."""


def products() -> Callable[[], object]:
    """The part of one thread: products of small matrices that caches hold."""
    a, b, out = (np.full((MATRICES, SIDE, SIDE), 0.5, np.float32) for _ in range(3))
    return lambda: np.matmul(a, b, out=out)


def probe(
    threads: int,
    clock: Clock = time.perf_counter,
    parts: Sequence[Callable[[], object]] | None = None,
) -> Probe:
    """Time FORKS forks (of `parts`; None: of `products`) in ROUNDS after one that is not counted."""
    parts = parts or [products() for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def run() -> None:
            for _ in range(FORKS):
                for part in [pool.submit(part) for part in parts]:
                    part.result()

        times_ms = [time_once(run, clock) for _ in range(ROUNDS + 1)][1:]
    return min(times_ms), statistics.median(times_ms)


# ---- What it tells of networks

PER_FORK = 0.5
"""Of the time that a fork takes longer, the part that an operation of a network does: chosen on the first
half of the pairs of probe and networks in `python -m benchmarks run probe`. On a quiet machine networks do
not follow it, so that it is told and changes no latency."""
SPREAD, BUSY = 0.12, 0.6
"""Standard deviations, logarithms, of networks' times around that by the same half, and what other programs
add or take away that want all processors: networks take several times as long, which no probe tells."""


def waking_ms(learned: Sequence[float], now: Sequence[float]) -> float:
    """Time that an operation takes longer to start than when learned, ms.

    `learned`, `now`: the times of a probe, see Probe.
    """
    return PER_FORK * (statistics.fmean(now) - statistics.fmean(learned)) / FORKS
