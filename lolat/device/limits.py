"""Limits on a time or a rate, and the verdict whether a prediction keeps them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from lolat.errors import InputError, arg

if TYPE_CHECKING:
    from lolat.device.prediction import Prediction


T = TypeVar("T")
TimeVerdict = Literal["yes", "likely", "unlikely", "not known", "no"]
NO_PRICE = "no price"
VERDICTS = ("yes", "likely", "unlikely", NO_PRICE, "not known", "no")
"""The verdicts on a limit, the best first."""


def within_limit(
    time: float, interval: tuple[float, float] | None, limit: float, sure: bool = False
) -> TimeVerdict:
    """The verdict on a time limit.

    "yes" if the whole interval keeps the limit, "likely" if the time does, "unlikely" if only a part of the
    interval does, "no" if no part does. `sure`: "yes" as before, "not known" if there is no interval, else
    "no". Times and limit have one unit.
    """
    low, high = interval or (time, math.inf)
    if high <= limit:
        return "yes"
    if sure and interval is None:
        return "not known"
    if sure or low > limit:
        return "no"
    return "likely" if time <= limit else "unlikely"


PROBABLE = 0.8
"""A choice with at least this chance is probably right: it keeps its limits, or is better than another."""
LITTLE = 1.05
"""A choice that surely keeps the limits replaces a likely one whose price or time is at most this factor
better.
"""


def best_or_sure(
    options: Sequence[T],
    worth: Callable[[T], Any],
    is_sure: Callable[[T], bool],
    amount: Callable[[T], float],
) -> T | None:
    """The best of options that keep limits; the best one that surely does, if its price or time, the
    `amount`, is little more. None without options.

    `worth`: the key of the order.
    """
    best = min(options, key=worth, default=None)
    sure = min((one for one in options if is_sure(one)), key=worth, default=None)
    if best is None or sure is None or amount(sure) > LITTLE * amount(best):
        return best
    return sure


class Timed(Protocol):
    """A latency in ms and its interval; the interval is None if it is unknown."""

    @property
    def latency_ms(self) -> float: ...  # noqa: D102

    @property
    def interval_ms(self) -> tuple[float, float] | None: ...  # noqa: D102


@dataclass(frozen=True)
class Limits:
    """Limits on a prediction: the longest time of a batch in ms, and the fewest samples per second.

    `sure`: True if the upper end of the interval must keep the limits, not only the latency.
    """

    max_ms: float | None = None
    min_samples_per_s: float | None = None
    sure: bool = False

    def __bool__(self) -> bool:
        return self.max_ms is not None or self.min_samples_per_s is not None

    @property
    def words(self) -> str:
        """The limits as words that follow a noun: "within 33 ms", "that keeps 30 samples/s"."""
        if self.min_samples_per_s is None:
            return f"within {self.max_ms:g} ms"
        within = "" if self.max_ms is None else f"{self.max_ms:g} ms and "
        return f"that keeps {within}{self.min_samples_per_s:g} samples/s"

    @property
    def heading(self) -> str:
        """The limits as the heading of a column: "<= 33 ms, >= 30 samples/s"; "" without limits."""
        parts = {"<= {:g} ms": self.max_ms, ">= {:g} samples/s": self.min_samples_per_s}
        return ", ".join(words.format(limit) for words, limit in parts.items() if limit is not None)

    def longest_ms(self, batch_size: int) -> float:
        """The longest time in ms that a batch may take."""
        rate = self.min_samples_per_s
        by_rate = math.inf if rate is None else 1e3 * batch_size / rate
        return min(by_rate, math.inf if self.max_ms is None else self.max_ms)

    def devices_needed(self, prediction: Prediction) -> int | None:
        """Number of such devices that together compute the rate; None without a rate, or if one batch takes
        longer than `max_ms`.
        """
        ms = end_ms(prediction, self.sure)
        if not self.min_samples_per_s or (self.max_ms is not None and ms > self.max_ms):
            return None
        return math.ceil(self.min_samples_per_s * ms / (1e3 * prediction.batch_size))

    def kept(self, prediction: Prediction) -> TimeVerdict:
        """The verdict of `within_limit` on a prediction; "no" if the network does not fit in memory."""
        if prediction.fits is False:
            return "no"
        longest = self.longest_ms(prediction.batch_size)
        return within_limit(prediction.latency_ms, prediction.interval_ms, longest, self.sure)

    def are_kept(self, prediction: Prediction) -> bool:
        """True if the latency, or if `sure` the upper end of its interval, keeps them and it fits.

        InputError if a sure one has no interval.
        """
        longest = self.longest_ms(prediction.batch_size)
        return prediction.fits is not False and end_ms(prediction, self.sure) <= longest


NO_LIMITS = Limits()


def end_ms(prediction: Timed, sure: bool) -> float:
    """The latency in ms, or if `sure` the upper end of its interval; InputError without an interval."""
    if not sure:
        return prediction.latency_ms
    if prediction.interval_ms is None:
        raise InputError(
            f"{arg('sure')} needs an interval, and the profile has too few points for one",
            code="too-few-points",
        )
    return prediction.interval_ms[1]
