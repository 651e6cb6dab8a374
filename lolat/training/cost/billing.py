"""Which instances a number of devices needs, and what they cost for a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lolat.errors import InputError
from lolat.training.cost.catalogue import Offer

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


def machines_for(
    offers: Sequence[Offer], devices: int, spot: bool = False, where: str = "these instances"
) -> Machines:
    """The instances for `devices` devices, all of one type: one with as many, where there is one (the
    cheapest), as its devices are linked best; else the cheapest way with several, or with some left idle
    (the fewest instances of equal price).

    InputError where `devices` is below 1, or none of the offers has a price of the kind asked for.
    """
    if devices < 1:
        raise InputError(f"{devices} devices; expected 1 or more")
    ways = [
        Machines(o, n, devices, n * price)
        for o in offers
        if (price := o.spot_price if spot else o.price) is not None
        for n in [-(-devices // o.devices)]
    ]
    if not ways:
        kind, other = ("spot", "without --spot") if spot else ("on-demand", "with --spot")
        raise InputError(
            f"no {kind} price for {where}; expected one: ask {other}, give --price-per-hour, or another "
            "file with --prices"
        )
    exact = [m for m in ways if m.offer.devices == devices]
    return min(exact or ways, key=lambda m: (m.price_per_hour, m.instances, m.offer.instance_type))


def billed_hours(total_s: float, billing: str) -> float:
    """The hours that are paid for: as they are, or begun ones as whole ones.

    By the second a fraction of one is not rounded, nor is a provider's minimum (a minute at AWS) counted.
    """
    hours = total_s / 3600
    return hours if billing == SECOND else float(math.ceil(hours * (1 - _ROUNDING)))
