"""A scale of request rates in steps, and the search for the least number that keeps limits."""

from __future__ import annotations

import math
from collections.abc import Callable

from lolat.arrays import np

FIRST_RATES, STEPS = (1.0, 2.5, 5.0, 10.0), (0, 75, 125, 175)
"""Rates between 1 and 10 where the step changes, and the number of steps up to each. The steps 0.02, 0.05
and 0.1 are at most 2 % of a rate; simulated times are too noisy for finer steps."""


def step_of(rate: float) -> float:
    """The number of steps from a rate of 1 to another rate."""
    exponent = math.floor(math.log10(rate))
    return STEPS[-1] * exponent + float(np.interp(rate / 10.0**exponent, FIRST_RATES, STEPS))


def rate_at(step: int) -> float:
    """The rate that is `step` steps above a rate of 1; inverse of `step_of`."""
    exponent, more = divmod(step, STEPS[-1])
    return float(f"{np.interp(more, STEPS, FIRST_RATES):.2f}e{exponent}")


def least_within(low: int, high: int, keeps: Callable[[int], bool]) -> int:
    """The least number that keeps the limits; `low` is known to miss them, `high` to keep them.

    The search bisects at the geometric mean, because the answer is usually far below `high`.
    """
    while high - low > 1:
        middle = math.isqrt(low * high) if low > 0 else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high
