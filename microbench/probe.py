"""Probe of the machine's speed now, which needs no framework: kernels of NumPy, a fifth of a second in all.

A kernel runs in all threads at once, so that it ends when the slowest of them does, as an operation of a
network does. Its fastest time tells the clock and the caches, its median what neighbors take.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from .timing import Clock, time_once

ROUNDS, MOST_THREADS, FORKS = 8, 8, 15
SIDE = 64
"""Rows and columns of a product that OpenBLAS computes in the thread that asks for it."""

Call = Callable[[], object]
Probe = Mapping[str, tuple[float, float]]
"""Kernel -> its fastest and its median time, ms."""


@dataclass(frozen=True)
class Kernel:
    """`parts`: each is done by a thread; they start together and wait for each other, `forks` times."""

    parts: Sequence[Call]
    forks: int = 1


def products(matrices: int, times: int) -> Call:
    """Products of `matrices` pairs one after the other, `times` over; caches hold 16 pairs."""
    a, b, out = (np.full((matrices, SIDE, SIDE), 0.5, np.float32) for _ in range(3))

    def run() -> None:
        for _ in range(times):
            np.matmul(a, b, out=out)

    return run


def elementwise(elements: int, times: int) -> Call:
    """Activations of a tensor of float32, `times` over: vector units and the caches that hold it."""
    a, out = (np.ones(elements, np.float32) for _ in range(2))

    def run() -> None:
        for _ in range(times):
            np.maximum(a, 0.5, out=out)

    return run


def copying(elements: int) -> Call:
    """A copy of float32 that no cache holds."""
    a, out = (np.ones(elements, np.float32) for _ in range(2))
    return lambda: np.copyto(out, a)


def kernels(threads: int) -> dict[str, Kernel]:
    """The kernels by name, some 2 ms each."""
    each = range(threads)
    return {
        "product": Kernel([products(16, 16) for _ in each]),
        "large product": Kernel([products(512 // threads, 1) for _ in each]),
        "elementwise": Kernel([elementwise(2**17, 25) for _ in each]),
        "copy": Kernel([copying(2**23 // threads) for _ in each]),
        "forks": Kernel([products(16, 1) for _ in each], forks=FORKS),
        "calls": Kernel([elementwise(16, 3000)]),  # the interpreter, as a framework's host code
    }


def probe(
    threads: int,
    clock: Clock = time.perf_counter,
    made: Mapping[str, Kernel] | None = None,
    rounds: int = ROUNDS,
) -> Probe:
    """Time the kernels (`made`; None: `kernels`) in `rounds` after one that is not counted."""
    made = kernels(threads) if made is None else made
    times: dict[str, list[float]] = {name: [] for name in made}
    with ThreadPoolExecutor(threads) as pool:

        def run(kernel: Kernel) -> None:
            for _ in range(kernel.forks):
                for part in [pool.submit(part) for part in kernel.parts]:
                    part.result()

        for turn in range(rounds + 1):
            for name, kernel in made.items():
                ms = time_once(partial(run, kernel), clock)
                if turn:
                    times[name].append(ms)
    return {name: (min(ms), statistics.median(ms)) for name, ms in times.items()}


def middle(probes: Sequence[Probe]) -> dict[str, list[float]]:
    """The median of several probes, as a model file has it."""
    return {
        name: [round(statistics.median(p[name][i] for p in probes), 4) for i in (0, 1)]
        for name in probes[0]
    }


# ---- What it tells of networks

PER_FORK = 0.5
"""Of the time that a fork takes longer, the part that an operation of a network does: chosen on the first
half of the pairs of probe and networks in `python -m benchmarks run probe`, which has other kernels too. On
a quiet machine networks do not follow it, so that it is told and changes no latency."""
SPREAD, BUSY = 0.12, 0.6
"""Standard deviations, logarithms, of networks' times around that by the same half, and what other programs
add or take away that want all processors: networks take several times as long, which no probe tells."""


def waking_ms(learned: Probe, now: Probe) -> float:
    """Time that an operation takes longer to start than when learned, ms."""
    longer = statistics.fmean(now["forks"]) - statistics.fmean(learned["forks"])
    return PER_FORK * longer / FORKS
