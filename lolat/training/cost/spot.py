"""How much longer a run takes on instances that are taken away now and then.

Interruptions of an instance are a Poisson process of rate r an hour; n instances that work together stop
when one of them does: rate l = n r. After each, S seconds are lost before the run is where it was: waiting
for an instance, starting, loading the last checkpoint, and doing again what came after it. A restart can
be interrupted too and then begins anew. The time Y from an interruption until the run is where it was is
the wait for the first gap of S in a Poisson process:

    E[Y] = (exp(l S) - 1) / l,    Var[Y] = (exp(2 l S) - 2 l S exp(l S) - 1) / l^2

Over W of useful work there are Poisson(l W) of them, and their sum is a compound Poisson variable:

    E[T] = W + l W E[Y] = W exp(l S),    Var[T] = l W E[Y^2]

The mean is Daly's (A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22,
2006: M exp(R/M) (exp((t+d)/M) - 1) Ts/t) as the checkpoints come close: t + d -> 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from lolat.errors import InputError

# exp(10): twenty thousand times as long is no plan.
MOST_RATE_TIMES_RESTART = 10.0


@dataclass(frozen=True)
class Duration:
    """A time in seconds, and the (low, high) that it lies in with a stated probability, None if unknown."""

    total_s: float
    interval_s: tuple[float, float] | None


@dataclass(frozen=True)
class Spot:
    """`interruptions_per_hour` of one instance, at least 0, and what each costs in seconds."""

    interruptions_per_hour: float
    restart_cost_s: float

    def __post_init__(self) -> None:
        for option, value in (
            ("--interruptions-per-hour", self.interruptions_per_hour),
            ("--restart-cost-s", self.restart_cost_s),
        ):
            if not 0.0 <= value < math.inf:
                raise InputError(f"{option} {value:g}: expected a number of at least 0")

    def factor(self, instances: int) -> float:
        """Mean time over useful time: exp(l S). InputError where the run would hardly get on."""
        exponent = self._per_second(instances) * self.restart_cost_s
        if exponent > MOST_RATE_TIMES_RESTART:
            raise InputError(
                f"{self.interruptions_per_hour:g} interruptions an hour of each of {instances} instance"
                f"{'s' * (instances != 1)} and {self.restart_cost_s:g} s for each: the run would hardly "
                "get on; expected restarts shorter than the time between interruptions: lower one or the "
                "other"
            )
        return math.exp(exponent)

    def spread_s(self, work_s: float, instances: int) -> float:
        """The standard deviation of the whole time, by the interruptions alone, for `work_s` of work."""
        rate, restart = self._per_second(instances), self.restart_cost_s
        x = rate * restart
        if x == 0.0:
            return 0.0
        mean = math.expm1(x) / rate
        # For small x the difference cancels; its series begins with x^3 / 3.
        core = x**3 / 3 if x < 1e-4 else math.exp(2 * x) - 2 * x * math.exp(x) - 1
        return math.sqrt(rate * work_s * (core / rate**2 + mean**2))

    def lengthen(self, work: Duration, instances: int, coverage: float = 0.9) -> Duration:
        """The time with interruptions: its mean, and both uncertainties, which are independent, together.

        The lower end is never below the work's own: without an interruption it takes that long. Without an
        interval of the work there is none.
        """
        factor = self.factor(instances)
        mean = work.total_s * factor
        if work.interval_s is None:
            return Duration(mean, None)
        low, high = work.interval_s
        by_chance = NormalDist().inv_cdf((1 + coverage) / 2) * self.spread_s(
            work.total_s, instances
        )
        down = math.hypot(mean - low * factor, by_chance)
        up = math.hypot(high * factor - mean, by_chance)
        return Duration(mean, (max(mean - down, low), mean + up))

    def _per_second(self, instances: int) -> float:
        return instances * self.interruptions_per_hour / 3600
