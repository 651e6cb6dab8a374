"""The common parts of benchmarks: registry, figures of errors, timing in turns.

A benchmark is a function with `@benchmark(...)` that returns tables: {name: (columns, rows)} of text. It
is run by `python -m benchmarks run NAME` (see `benchmarks/__main__.py`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
Tables = Mapping[str, Table]


@dataclass(frozen=True)
class Benchmark:
    """`name`: as it is run; `topic`, `formula`: of its results; `data`: the files that DATA must hold."""

    name: str
    topic: str
    formula: str
    data: str
    make: Callable[..., Tables]

    @property
    def about(self) -> str:
        """The first line of its description."""
        return (self.make.__doc__ or "").strip().partition("\n")[0]

    def run(self, data: Path | None, options: Mapping[str, str]) -> Tables:
        """Its tables; SystemExit where it needs DATA and has none."""
        if self.data and data is None:
            raise SystemExit(f"{self.name} needs --data DIR, a folder with {self.data}")
        return self.make(data, **options) if self.data else self.make(**options)


ALL: dict[str, Benchmark] = {}


def benchmark(
    name: str, topic: str, formula: str, data: str = ""
) -> Callable[[Callable[..., Tables]], Callable[..., Tables]]:
    """Registers a function as a benchmark; with `data` its first argument is the folder of the data."""

    def register(make: Callable[..., Tables]) -> Callable[..., Tables]:
        ALL[name] = Benchmark(name, topic, formula, data, make)
        return make

    return register


# ---- Figures


def percent(share: float, digits: int = 1) -> str:
    """A share as text: `5.3 %`."""
    return f"{100 * share:.{digits}f} %"


@dataclass(frozen=True)
class Errors:
    """Relative errors, predicted / measured - 1, and for each whether the interval holds the time."""

    off: np.ndarray
    inside: Sequence[bool] = ()
    widths: Sequence[float] = ()

    @property
    def median(self) -> str:
        """The median of their sizes."""
        return percent(float(np.median(np.abs(self.off))))

    @property
    def mean(self) -> str:
        """The mean of their sizes."""
        return percent(float(np.mean(np.abs(self.off))))

    @property
    def bias(self) -> str:
        """The median error with its sign."""
        return f"{100 * np.median(self.off):+.1f} %"

    @property
    def within(self) -> str:
        """The share of errors of at most 10 %."""
        return percent(float(np.mean(np.abs(self.off) <= 0.1)), 0)

    @property
    def held(self) -> str:
        """The number of intervals that contain the measured time, of all."""
        return f"{sum(self.inside)} of {len(self.inside)}"

    @property
    def width(self) -> str:
        """The median width of the intervals, relative."""
        return percent(float(np.median(self.widths)))


def joined(many: Iterable[Errors]) -> Errors:
    """The errors of several, as one."""
    every = list(many)
    return Errors(
        np.concatenate([e.off for e in every]),
        [hit for e in every for hit in e.inside],
        [width for e in every for width in e.widths],
    )


# ---- Speed


def in_turns(*calls: Callable[[], object], rounds: int = 9) -> list[float]:
    """Median seconds of each call, measured in turns in one run."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, kept in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]
