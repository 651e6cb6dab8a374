"""Time and money of a training run for several numbers of devices, from a prediction of the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lolat.errors import InputError, arg
from lolat.io.results import Result, plain_data
from lolat.training.cost.prices import CPU, Offer, is_of, offers_of
from lolat.training.exchange import MACHINE, Link, assumed_link
from lolat.training.model import Training
from lolat.units import dollars, duration, plain, plural

# ---- Which instances a number of devices needs, and what they cost for a time.

SECOND = "second"
HOUR = "hour"
BILLINGS = (SECOND, HOUR)
# What adding times up may be off by; an hour that is over by less is not a second one.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Machines:
    """`instances` of one offer, for `devices` devices; `price_per_hour` is of all of them, US$."""

    offer: Offer
    instances: int
    devices: int
    price_per_hour: float

    @property
    def idle(self) -> int:
        """Devices that are paid for and not used."""
        return self.instances * self.offer.devices - self.devices


def machines_for(offers: Sequence[Offer], devices: int) -> Machines:
    """The instances for `devices` devices, all of one type: one with as many, where there is one (the
    cheapest), as its devices are linked best; else the cheapest way with several, or with some left idle
    (the fewest instances of equal price).

    `offers`: one at least. InputError where `devices` is below 1.
    """
    if devices < 1:
        raise InputError(f"{devices} devices; expected 1 or more")
    numbers = [-(-devices // o.devices) for o in offers]
    ways = [Machines(o, n, devices, n * o.price) for o, n in zip(offers, numbers, strict=True)]
    exact = [m for m in ways if m.offer.devices == devices]
    return min(exact or ways, key=lambda m: (m.price_per_hour, m.instances, m.offer.instance_type))


def billed_hours(total_s: float, billing: str) -> float:
    """The hours that are paid for: as they are, or begun ones as whole ones.

    By the second a fraction of one is not rounded, nor is a provider's minimum (a minute at AWS) counted.
    """
    hours = total_s / 3600
    return hours if billing == SECOND else float(math.ceil(hours * (1 - _ROUNDING)))


# ---- What is rented for the device of a training model.


def device_of(model: Training) -> str:
    """What a training model calls its device, or else itself."""
    device = _environment(model).get("device")
    if device == "unknown":  # made from tables: what they are follows in brackets
        return model.name.partition(" (")[0]
    # A GPU that was measured is "gpu" there; what it is called, the model's name tells.
    return model.name if device in (None, "", "gpu") else str(device)


def shown_device(model: Training) -> str:
    """The model's device in front of people, who know a processor by its name."""
    device = device_of(model)
    return plain(model.name if device == CPU else device)


def offers_for(
    model: Training, offers: tuple[Offer, ...], accelerator: str, where: str
) -> tuple[Offer, ...]:
    """The offers of an accelerator; of processors alone, those with the model's threads where there are.

    `where`: the price list's name. InputError where it has none of that accelerator.
    """
    own = offers_of(offers, accelerator, where)
    if own[0].count:
        return own
    threads = _environment(model).get("threads")
    least = threads if isinstance(threads, int) else 0
    # A smaller machine would be slower than the one that the model is of.
    return tuple(o for o in own if (o.vcpus or 0) >= least) or own


def is_price_of(accelerator: str, device: str) -> bool:
    """Whether what is paid for is the device; one name may say more than the other: V100, V100-32GB."""
    return is_of(accelerator, device) or is_of(device, accelerator)


def link_of(machines: Machines, model: Training) -> Link:
    """The link of what is rented, as is assumed of its device and between instances."""
    offer, device = machines.offer, device_of(model)
    same = not offer.accelerator or is_price_of(offer.accelerator, device)
    machine = offer.devices if offer.instance_type else MACHINE
    linked = f"{device} {offer.accelerator}" if same else offer.accelerator
    return assumed_link(linked, machines.devices, machine)


def _environment(model: Training) -> dict[str, Any]:
    environment = model.document.get("environment")
    return environment if isinstance(environment, dict) else {}


# ---- The plan.


@dataclass(frozen=True)
class Duration:
    """A time in seconds, and the (low, high) that it lies in with a stated probability, None if unknown."""

    total_s: float
    interval_s: tuple[float, float] | None


LEFT_OUT = ("storage", "data transfer", "setting up the machines")
"""What a bill has besides, and this does not."""

Predict = Callable[[int], Duration]
"""Number of devices -> time of the whole run on them."""
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


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """The options in the order asked for; `cheapest` and `fastest` of them, and those on the frontier."""

    KEYS = (
        "epochs", "billing", "coverage", "options", "cheapest", "fastest",
        "frontier=frontier_devices", "left_out",
    )  # fmt: skip

    options: tuple[Option, ...]
    epochs: int
    billing: str
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

    @property
    def frontier_devices(self) -> tuple[int, ...]:
        """Devices of each of the frontier."""
        return tuple(o.devices for o in self.frontier)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What a bill has besides."""
        return LEFT_OUT

    def words(self) -> str:
        """The cheapest and the fastest."""
        told = [
            f"{name}: {plural(o.devices, 'device')}, {duration(o.total_s)}, {dollars(o.dollars)}"
            for name, o in (("cheapest", self.cheapest), ("fastest", self.fastest))
        ]
        return told[0] if self.cheapest == self.fastest else "; ".join(told)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each number of devices: what is rented, times in s, money in US$."""
        return [
            {k: v for k, v in plain_data(o).items() if not isinstance(v, list)}
            for o in self.options
        ]


def frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each (time, dollars) whether no other is at least as good in both and better in one."""
    return [not any(o[0] <= p[0] and o[1] <= p[1] and o != p for o in points) for p in points]


def plan(
    predict: Predict,
    rent: Rent,
    devices: Sequence[int],
    epochs: int,
    billing: str = SECOND,
    coverage: float = 0.9,
) -> Plan:
    """What the run takes and costs on each number of devices. `coverage`: of the intervals of `predict`.

    An end of the time's interval gives the same end of the money's, as more time is never less money.
    InputError: no devices, one below 1, no epochs.
    """
    if not devices:
        raise InputError(
            f"no number of devices; expected one or more, such as {arg('replicas')} 1,2,4,8"
        )
    if epochs < 1:
        raise InputError(f"{epochs} epochs; expected 1 or more")
    options = []
    for k in devices:
        machines, time = rent(k), predict(k)
        low, high = time.interval_s or (time.total_s, time.total_s)
        if not 0.0 <= low <= time.total_s <= high < math.inf:
            raise InputError(
                f"the model's time on {k} devices is {time.total_s:g} s in {low:g} .. {high:g} s; "
                "expected finite times in order: learn the model again"
            )
        options.append(_option(machines, time, epochs, billing))
    best = frontier([(o.total_s, o.dollars) for o in options])
    marked = (replace(o, on_frontier=b) for o, b in zip(options, best, strict=True))
    return Plan(tuple(marked), epochs, billing, coverage)


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
