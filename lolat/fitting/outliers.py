"""Wrong times in tables: contradictory times, odd times, and times in another unit."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from lolat.errors import InputError
from lolat.fitting.times import Times
from lolat.graph.modes import FLOAT32, TF32
from lolat.graph.work import BATCHED, DENSE
from lolat.hardware.gpus import MACS_MS_OF_TFLOPS, Gpu, fastest_gpu
from lolat.io.progress import Warn
from lolat.io.tables import Row
from lolat.units import digits

CONTRADICTION = 2.0
"""Ratio of two times of the same work above which one must be wrong, such as a time of another device or in
another unit."""
KeyedTime = tuple[Hashable, str, float, Row]
"""(key that is equal for rows of the same work, name of the work, ms, row)."""


def warn_of_contradictions(timed: Iterable[KeyedTime], warn: Warn) -> None:
    """Warn about the two rows of the same work that differ most, if by more than CONTRADICTION times."""
    rows: dict[Hashable, list[tuple[float, str, Row]]] = {}
    for what, name, ms, row in timed:
        rows.setdefault(what, []).append((ms, name, row))
    ends = [
        (min(same, key=lambda one: one[0]), max(same, key=lambda one: one[0]))
        for same in rows.values()
    ]
    contradictions = [pair for pair in ends if pair[1][0] > CONTRADICTION * pair[0][0]]
    if not contradictions:
        return
    low, high = max(contradictions, key=lambda pair: pair[1][0] / pair[0][0])
    first, second = sorted((low, high), key=lambda one: one[2].line)
    others = len(contradictions) - 1
    more = f"; {others} more {'is' if others == 1 else 'are'} so, too" if others else ""
    warn(
        f"{first[2].where} and {second[2].where}: {first[1]} takes {first[0]:g} ms and {second[0]:g} ms, "
        f"{digits(high[0] / low[0])} times apart{more}; remove the wrong time, or measure it again"
    )


# ---- Times that the others contradict

LONG = 1500  # a table with more times is long
WRONG = 20.0  # least error factor of a wrong time; 16 is the largest in the 20 tables of bundled profiles
ODD = 6.0
"""Smallest error factor of an odd time, in a table that is not LONG. In 128 tables with 6 to 16 of timm's
networks each, no right time is odd; a time ten times too long or too short is odd in 92 % of the tables."""


def odd_time(
    timed: Sequence[tuple[Row, str, float]], off: np.ndarray, warn: Warn, leaves_out: bool = False
) -> int | None:
    """Warn about the time with the largest error, if it is odd; return its position if it must be left out.

    It must be left out if its error factor is above WRONG and `leaves_out` is True. `timed`: (row, name,
    ms) of each time; `off`: (times,) log(measured / predicted), predicted by fits without the time.
    """
    relative = off - np.median(off)
    far, worst = np.abs(relative), int(np.argmax(np.abs(relative)))
    others = int((far > np.log(WRONG if len(off) > LONG else ODD)).sum()) - 1
    if others < 0:
        return None
    is_left_out = bool(leaves_out and far[worst] > np.log(WRONG))
    # The other odd times may be right: a time a thousand times off makes right times look odd too.
    more = f", and {others} more are far off" if others and not is_left_out else ""
    (row, name, ms), way = timed[worst], "longer" if relative[worst] > 0.0 else "shorter"
    then = "left out" if is_left_out else "it hardly counts in the fit, but makes the interval wide"
    warn(
        f"{row.where}: {name} takes {ms:g} ms, {digits(np.exp(far[worst]))} times {way} than the other "
        f"rows say{more}; {then}: measure it again, or remove it"
    )
    return worst if is_left_out else None


# ---- Tables in float32 that were timed in TF32

BEYOND_SHEET = 1.25
"""Largest measured rate / rate of the data sheet that a higher clock can explain. Dense layers in float32
reach up to 0.98 on two A100s (NeuSight's rows)."""


def fastest_in_tf32(times: Times, gpu: Gpu | None) -> tuple[int, float] | None:
    """(position, TFLOPS) of the float32 time that exceeds the GPU's float32 peak most; None without one.

    Only rates that TF32 could reach count. Convolutions do not count: by default PyTorch computes them in
    TF32.
    """
    float32, tf32 = ((gpu and gpu.peak(dtype)) or 0.0 for dtype in (FLOAT32, TF32))
    dense = times.work.is_of(DENSE, BATCHED)
    tflops = times.total(times.work.macs * dense) / times.latency_ms / MACS_MS_OF_TFLOPS
    faster = (tflops > BEYOND_SHEET * float32) & (tflops <= BEYOND_SHEET * tf32)
    if not float32 or not faster.any():
        return None
    fastest = int(np.argmax(np.where(faster, tflops, 0.0)))
    return fastest, float(tflops[fastest])


# ---- Tables whose times are in seconds or microseconds

LARGE_MACS = 1e8  # the time of fewer MACs is mostly launch overhead, and does not show its unit
LEAST_LARGE = 5  # rows with LARGE_MACS that a table needs to show its unit
FASTEST_MS = (
    1e-3  # least mean time of a network's operations; in a CUDA graph they take about twice that
)
SLOWEST_MACS_MS = 1e5  # MACs per ms of a microcontroller, on which no large network runs


def tell_other_units(timed: Iterable[tuple[Mapping[str, int], float, Row]], warn: Warn) -> bool:
    """Warn about tables that seem to be in seconds or microseconds; return True if there is one.

    `timed`: (counts, ms, row), with the counts `flops` and `ops` (1 if absent). The median of a table's
    large rows decides, so that a few wrong rows do not matter. InputError if that median is faster than any
    known GPU.
    """
    large: dict[str, list[tuple[float, float]]] = {}
    for counts, ms, row in timed:
        if (macs := counts["flops"]) >= LARGE_MACS:
            of_one = macs / ms, ms / max(counts.get("ops", 1), 1)
            large.setdefault(row.source, []).append(of_one)
    is_said = False
    for source, rows in large.items():
        if len(rows) < LEAST_LARGE:
            continue
        if words := _other_unit(source, *map(median, zip(*rows, strict=True))):
            warn(words)
            is_said = True
    return is_said


def _other_unit(source: str, macs_ms: float, operation_ms: float) -> str:
    """A warning that a table is in another unit than ms; "" if the unit seems right.

    `macs_ms`, `operation_ms`: medians over the table's large rows: MACs per ms, ms per operation.
    """
    gpu, tflops = fastest_gpu(), macs_ms / MACS_MS_OF_TFLOPS
    seconds = f"{source}: the times look like seconds: half of the large rows"
    if gpu.half_tflops is not None and tflops > gpu.half_tflops:
        raise InputError(
            f"{seconds} compute {tflops:,.0f} TFLOPS or more, the fastest GPU that is known "
            f"({gpu.name}) {gpu.half_tflops:,.0f}; expected milliseconds: multiply the times by 1000"
        )
    if operation_ms < FASTEST_MS:
        return (
            f"{seconds} take {1e3 * operation_ms:.2g} µs an operation or less, as on no known device; if "
            "they are, multiply them by 1000: expected milliseconds"
        )
    if macs_ms < SLOWEST_MACS_MS:
        return (
            f"{source}: the times look like microseconds: half of the large rows compute {macs_ms:,.0f} "
            "multiply-accumulates a ms or fewer; if they are, divide them by 1000: expected milliseconds"
        )
    return ""
