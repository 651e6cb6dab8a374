"""Probing the machine's speed in a tenth of a second, without a framework: NumPy on threads.

All threads compute at once and wait for each other, as in an operation of a network.
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
"""(rows and columns of a matrix so small that OpenBLAS starts no threads, products of a thread)."""

Probe = tuple[float, float]
"""(fastest, median) time of FORKS forks, in ms."""


def products() -> Callable[[], object]:
    """The work of one thread: products of small matrices, which fit in caches."""
    a, b, out = (np.full((MATRICES, SIDE, SIDE), 0.5, np.float32) for _ in range(3))
    return lambda: np.matmul(a, b, out=out)


def probe(
    threads: int,
    clock: Clock = time.perf_counter,
    parts: Sequence[Callable[[], object]] | None = None,
) -> Probe:
    """Time FORKS forks in each of ROUNDS rounds, after a first round that is not counted.

    `parts`: what the threads run in a fork; None for `products`.
    """
    parts = parts or [products() for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def run() -> None:
            for _ in range(FORKS):
                for part in [pool.submit(part) for part in parts]:
                    part.result()

        times_ms = [time_once(run, clock) for _ in range(ROUNDS + 1)][1:]
    return min(times_ms), statistics.median(times_ms)


# ---- From a probe to networks

PER_FORK = 0.5
"""Additional time of an operation in a network / additional time of a fork; chosen on the first half of the
pairs of probe and networks in `python -m benchmarks run probe`. On a quiet machine, networks do not follow
the probe. It is therefore only reported, and changes no latency."""
SPREAD, BUSY_SPREAD = 0.12, 0.6
"""Standard deviations of networks' log times around the probe's estimate. SPREAD: on the same half of the
pairs. BUSY_SPREAD: while other programs use all processors, when networks take several times as long and no
probe shows it."""


def waking_ms(learned: Sequence[float], now: Sequence[float]) -> float:
    """Additional time in ms to launch an operation, compared with the learned device.

    `learned`, `now`: times of the probe, see Probe.
    """
    return PER_FORK * (statistics.fmean(now) - statistics.fmean(learned)) / FORKS
