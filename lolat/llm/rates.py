"""Request rates in steps, and the search for the least number that keeps limits."""

from __future__ import annotations

import math
from collections.abc import Callable

from lolat.arrays import np

FIRST_RATES, STEPS = (1.0, 2.5, 5.0, 10.0), (0, 75, 125, 175)
"""Rates from 1 to 10, and the number of steps to each. Steps of .02, .05 and .1 are 2 % or less; simulated
times are no smoother."""


def step_of(rate: float) -> float:
    """The number of steps from 1 to a rate."""
    exponent = math.floor(math.log10(rate))
    return STEPS[-1] * exponent + float(np.interp(rate / 10.0**exponent, FIRST_RATES, STEPS))


def rate_at(step: int) -> float:
    """The rate that is `step` steps from 1."""
    exponent, more = divmod(step, STEPS[-1])
    return float(f"{np.interp(more, STEPS, FIRST_RATES):.2f}e{exponent}")


def least_within(low: int, high: int, keeps: Callable[[int], bool]) -> int:
    """The least number above `low`, which is too small, that keeps the limits; `high` does.

    The search bisects ratios, as most of many replicas are far too many.
    """
    while high - low > 1:
        middle = math.isqrt(low * high) if low > 0 else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high
