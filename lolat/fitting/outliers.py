"""Times of a table that cannot be right: contradictions, and a table in another unit."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from statistics import median

from lolat.errors import InputError
from lolat.hardware.gpus import fastest_gpu
from lolat.io.progress import Warn
from lolat.io.tables import Row

APART = 2.0
"""Times of the same thing on the same device are never so far apart: other programs ran meanwhile, or one
is of another device or in another unit."""
Timed = tuple[Hashable, str, float, Row]
"""What was timed, the same for rows of the same thing; what it is called; ms; its row."""


def warn_of_contradictions(timed: Iterable[Timed], warn: Warn) -> None:
    """Warn of the two rows of the same thing that are the farthest apart, if by more than APART."""
    rows: dict[Hashable, list[tuple[float, str, Row]]] = {}
    for what, name, ms, row in timed:
        rows.setdefault(what, []).append((ms, name, row))
    ends = [
        (min(same, key=lambda one: one[0]), max(same, key=lambda one: one[0]))
        for same in rows.values()
    ]
    found = [pair for pair in ends if pair[1][0] > APART * pair[0][0]]
    if not found:
        return
    low, high = max(found, key=lambda pair: pair[1][0] / pair[0][0])
    first, second = sorted((low, high), key=lambda one: one[2].line)
    others = len(found) - 1
    more = f"; {others} more {'is' if others == 1 else 'are'} so, too" if others else ""
    warn(
        f"{_places(first[2], second[2])}: {first[1]} takes {first[0]:g} ms and {second[0]:g} ms, "
        f"{high[0] / low[0]:.3g} times apart{more}; remove the wrong time, or measure it again"
    )


def _places(first: Row, second: Row) -> str:
    if first.source == second.source:
        return f"{first.source}, lines {first.line} and {second.line}"
    return f"{first.where} and {second.where}"


# ---- All times in seconds, or in microseconds.

LARGE_MACS = 1e8
"""Multiply-accumulates from which on a row tells the unit: fewer take what starting them takes."""
LEAST_LARGE = 5
FASTEST_MS = 1e-3
"""For an operation of a large network, one with another: kernels of a CUDA graph take about twice that."""
SLOWEST_MACS_MS = 1e5
"""Multiply-accumulates a ms of a microcontroller, on which no large network runs."""
MACS_MS_OF_TFLOPS = 0.5e9  # a multiply-accumulate is two of a data sheet's operations


def tell_other_units(timed: Iterable[tuple[Mapping[str, int], float, Row]], warn: Warn) -> bool:
    """Warn of tables that look to be in seconds or microseconds; return whether one does.

    `timed`: counts (flops: multiply-accumulates; ops, 1 where that is not known), ms, row. A table is
    judged by the middle one of its large rows, so that a few wrong rows say nothing of the others.
    InputError where half of them would be computed faster than any known GPU computes.
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
    """The warning about a table's unit, or "", from MACs per ms and ms per operation of its middle row."""
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
