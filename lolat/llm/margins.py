"""Searches the rates at which requests keep their limits, in few simulations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lolat.arrays import np

if TYPE_CHECKING:
    from lolat.llm.answer import ServingConfig
    from lolat.llm.question import ServingQuestion

RATES, STEPS = (1.0, 2.5, 5.0, 10.0), (0, 75, 125, 175)
"""Rates from 1 to 10 in steps of .02, .05 and .1, of 2 % or less, as simulated times are no smoother; and
the number of steps to each."""


def step_of(rate: float) -> float:
    """Return the number of steps from 1 to a rate."""
    exponent = math.floor(math.log10(rate))
    return STEPS[-1] * exponent + float(np.interp(rate / 10.0**exponent, RATES, STEPS))


def rate_at(step: int) -> float:
    """Return the rate that is so many steps from 1."""
    exponent, more = divmod(step, STEPS[-1])
    return float(f"{np.interp(more, STEPS, RATES):.2f}e{exponent}")


@dataclass
class Margins:
    """The margins of the limits by the requests a second of a replica: limits divided by times, less 1.

    `largest`: the rate that a replica serves at most. `alone`: about the margin of a request that has a
    replica to itself. `seen`: margins by rate; -1 of a rate that is not served.
    """

    asked: ServingQuestion
    largest: float
    alone: float
    seen: dict[float, float] = field(default_factory=dict)

    def add(self, rate: float, row: ServingConfig) -> None:
        """Add the margin of a row whose replicas have a rate."""
        self.seen[rate] = math.expm1(-self.asked.off(row))

    def known(self) -> tuple[float, float]:
        """Return the largest rate that was seen to keep the limits, and the least that was not."""
        inside = max((rate for rate, margin in self.seen.items() if margin >= 0.0), default=0.0)
        outside = min(
            (rate for rate, margin in self.seen.items() if margin < 0.0), default=math.inf
        )
        return inside, outside

    def guess(self) -> float:
        """Return about the largest rate that keeps the limits.

        The inverse of a time falls linearly with the rate, as in a queue (M/M/1), to 0 at the largest rate.
        """
        inside, outside = self.known()
        points = sorted((self.seen | {0.0: max(self.alone, 0.0)}).items())
        above = self.seen.get(inside, points[0][1])
        below = self.seen.get(outside, -1.0)
        if outside >= self.largest:
            outside, below = self.largest, -1.0
        # No limits of times, or a log whose parts differ.
        if above == math.inf or inside >= outside:
            return max(inside, outside)
        found = inside + (outside - inside) * above / (above - below)
        lower, higher = max((one for one in points if one[0] < inside), default=(inside, above))
        if higher > above:  # often far below the largest rate, where a prompt makes few others wait
            found = max(found, inside + (inside - lower) * above / (higher - above))
        return min(found, outside)

    def least(
        self, low: int, high: int, number_at: Callable[[float], float],
        row_of: Callable[[int], ServingConfig],
    ) -> int:  # fmt: skip
        """Return the least number above `low`, which is too few, that keeps the limits; `high` does.

        `number_at`: about the number that has a rate; rates fall with it. `row_of`: returns the row of a
        number, and adds it.
        """
        before, steps = None, 0
        while high - low > 1:
            number = math.ceil(number_at(self.guess()))
            step = 1 << max(steps - 1, 0)  # wider while the guesses stay on one side
            number = max(number, low + step) if before is False else number
            number = min(number, high - step) if before else number
            number = min(max(number, low + 1), high - 1)
            kept = self.asked.within(row_of(number))
            low, high = (low, number) if kept else (number, high)
            before, steps = kept, steps + 1 if kept == before else 0
        return high
