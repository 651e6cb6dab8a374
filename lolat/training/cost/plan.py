"""Time and money of a run for several numbers of devices: pure arithmetic over a prediction of the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from lolat.errors import InputError
from lolat.training.cost.renting import SECOND, Machines, billed_hours

# ---- The frontier of time and money: what nothing else beats in both.


def frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each (time, dollars) whether no other is at least as good in both and better in one."""
    return [not any(o[0] <= p[0] and o[1] <= p[1] and o != p for o in points) for p in points]


# ---- How much longer a run takes on instances that are taken away now and then.
#
# Interruptions of an instance are a Poisson process of rate r an hour; n instances that work together stop
# when one of them does: rate l = n r. After each, S seconds are lost before the run is where it was:
# waiting
# for an instance, starting, loading the last checkpoint, and doing again what came after it. A restart can
# be interrupted too and then begins anew. The time Y from an interruption until the run is where it was is
# the wait for the first gap of S in a Poisson process:
#
#     E[Y] = (exp(l S) - 1) / l,    Var[Y] = (exp(2 l S) - 2 l S exp(l S) - 1) / l^2
#
# Over W of useful work there are Poisson(l W) of them, and their sum is a compound Poisson variable:
#
#     E[T] = W + l W E[Y] = W exp(l S),    Var[T] = l W E[Y^2]
#
# The mean is Daly's (A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22,
# 2006: M exp(R/M) (exp((t+d)/M) - 1) Ts/t) as the checkpoints come close: t + d -> 0.

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


# ---- plan ----------------------------------------

LEFT_OUT = ("storage", "data transfer", "setting up the machines")
"""What a bill has besides, and this does not."""

Predict = Callable[[int], Duration]
"""Number of devices -> time of the whole run on them, without interruptions."""
Rent = Callable[[int], Machines]
"""Number of devices -> what to rent for them."""


@dataclass(frozen=True)
class Option:
    """One way to train: times in seconds, money in US$; intervals are (low, high), None if unknown."""

    devices: int
    instance_type: str
    instances: int
    idle_devices: int
    region: str
    price_per_hour: float
    total_s: float
    interval_s: tuple[float, float] | None
    hours: float
    hours_interval: tuple[float, float] | None
    epoch_s: float
    billed_hours: float
    dollars: float
    dollars_interval: tuple[float, float] | None
    dollars_per_epoch: float
    source: str
    date: str
    on_frontier: bool = False


@dataclass(frozen=True)
class Plan:
    """The options in the order asked for; `cheapest` and `fastest` of them, and those on the frontier."""

    options: tuple[Option, ...]
    epochs: int
    billing: str
    spot: Spot | None
    coverage: float

    @property
    def cheapest(self) -> Option:
        """The least money; of equals the fastest, then the one with the fewest devices."""
        return min(self.options, key=lambda o: (o.dollars, o.total_s, o.devices))

    @property
    def fastest(self) -> Option:
        """The least time; of equals the cheapest."""
        return min(self.options, key=lambda o: (o.total_s, o.dollars, o.devices))

    @property
    def frontier(self) -> tuple[Option, ...]:
        """From the cheapest to the fastest, each slower one cheaper."""
        return tuple(sorted((o for o in self.options if o.on_frontier), key=lambda o: o.dollars))

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "epochs": self.epochs,
            "billing": self.billing,
            "spot": None if self.spot is None else asdict(self.spot),
            "coverage": self.coverage,
            "options": [_plain(o) for o in self.options],
            "cheapest": _plain(self.cheapest),
            "fastest": _plain(self.fastest),
            "frontier": [o.devices for o in self.frontier],
            "left_out": list(LEFT_OUT),
        }


def plan(
    predict: Predict,
    rent: Rent,
    devices: Sequence[int],
    epochs: int,
    billing: str = SECOND,
    spot: Spot | None = None,
    coverage: float = 0.9,
) -> Plan:
    """What the run takes and costs on each number of devices. `coverage`: of the intervals of `predict`.

    An end of the time's interval gives the same end of the money's, as more time is never less money. With
    `spot` times are means over interruptions, and a begun hour is rounded up after that.
    InputError: no devices, one below 1, no epochs.
    """
    if not devices:
        raise InputError("no number of devices; expected one or more, such as --devices 1,2,4,8")
    if epochs < 1:
        raise InputError(f"{epochs} epochs; expected 1 or more")
    options = []
    for k in devices:
        machines = rent(k)
        time = _checked(predict(k), k)
        if spot is not None:
            time = spot.lengthen(time, machines.instances, coverage)
        options.append(_option(machines, time, epochs, billing))
    best = frontier([(o.total_s, o.dollars) for o in options])
    marked = (Option(**{**vars(o), "on_frontier": b}) for o, b in zip(options, best, strict=True))
    return Plan(tuple(marked), epochs, billing, spot, coverage)


def _option(machines: Machines, time: Duration, epochs: int, billing: str) -> Option:
    price = machines.price_per_hour
    billed = billed_hours(time.total_s, billing)

    def ends(of: Callable[[float], float]) -> tuple[float, float] | None:
        return None if time.interval_s is None else (of(time.interval_s[0]), of(time.interval_s[1]))

    return Option(
        devices=machines.devices,
        instance_type=machines.offer.instance_type,
        instances=machines.instances,
        idle_devices=machines.idle,
        region=machines.offer.region,
        price_per_hour=price,
        total_s=time.total_s,
        interval_s=time.interval_s,
        hours=time.total_s / 3600,
        hours_interval=ends(lambda s: s / 3600),
        epoch_s=time.total_s / epochs,
        billed_hours=billed,
        dollars=billed * price,
        dollars_interval=ends(lambda s: billed_hours(s, billing) * price),
        dollars_per_epoch=billed * price / epochs,
        source=machines.offer.source,
        date=machines.offer.date,
    )


def _checked(time: Duration, devices: int) -> Duration:
    low, high = time.interval_s or (time.total_s, time.total_s)
    if not 0.0 <= low <= time.total_s <= high < math.inf:
        raise InputError(
            f"the model's time on {devices} devices is {time.total_s:g} s in {low:g} .. {high:g} s; "
            "expected finite times in order: learn the model again"
        )
    return time


def _plain(option: Option) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(option).items()}
