"""The largest batch that fits in a device's memory and keeps a time limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lolat.device.limits import Timed, end_ms
from lolat.device.prediction import no_room_words
from lolat.device.question import AUTO, Question
from lolat.errors import AnswerIsNo, InputError, arg
from lolat.graph.analysis import Analysis
from lolat.units import plain

if TYPE_CHECKING:
    from lolat.device.device import Device


def largest_batch(
    device: Device, analysis: Analysis, question: Question,
    predict: Callable[[Device, Analysis, Question], Timed],
) -> int:  # fmt: skip
    """The largest batch size that fits in memory and keeps the question's limit; 1 if none keeps it.

    InputError if the memory is unknown, AnswerIsNo if not even one sample fits.
    """
    mode = device.file.mode
    has, limit = device.file.available_bytes, question.max_ms
    if has is None:
        raise no_memory(device.label)
    most = analysis.largest_batch(mode, has)
    if not most:
        needed = analysis.memory(1, mode).total_bytes
        raise AnswerIsNo(no_room_words(needed, has, 0), code="no-room")
    if limit is None:
        return most

    def keeps(n: int, sure: bool) -> bool:
        return end_ms(predict(device, analysis, replace(question, batch_size=n)), sure) <= limit

    return max(last_within(keeps, most, 1, bool(question.sure)), 1)


NEXT_SMALLER = 0.9
"""Factor from one tried number to the next smaller number."""


def last_within(
    keeps: Callable[[int, bool], bool | None], most: int, start: int, sure: bool
) -> int:
    """The largest of the numbers 1 ... `most` that keeps a time limit; 0 if none does.

    `keeps(n, sure)`: True if n keeps the limit by its latency or, if `sure`, by the upper end of its
    interval; None if there is no prediction for n, which only the smallest and the largest n may lack.
    Latencies grow with n, so bisection from `start` finds the last n that keeps the limit. Upper ends may
    shrink as n grows, because intervals are wide below the measured range; they are tried from that n
    downward.
    """
    if keeps(start, False):
        numbers = range(most + 1)
        last = bisect_left(numbers, True, start + 1, key=lambda i: not keeps(i, False)) - 1
    else:
        last = bisect_left(range(start), True, 1, key=lambda i: keeps(i, False) is False) - 1
    if not sure:
        return last
    low, above = last, last + 1
    while low and not keeps(low, True):
        low, above = min(low - 1, int(NEXT_SMALLER * low)), low
    if low:
        return bisect_left(range(above), True, low + 1, key=lambda i: not keeps(i, True)) - 1
    return bisect_left(range(last + 1), True, 1, key=lambda i: keeps(i, True) is False) - 1


def no_memory(device: str) -> InputError:
    """The error for batch size "auto" on a device whose memory is unknown."""
    return InputError(
        f"{arg('batch_size')} {AUTO}: the memory of {plain(device)} is not known; expected a batch size, "
        f"or {arg('memory_gib')} where a command has it",
        code="no-memory",
        of_device=True,
    )
