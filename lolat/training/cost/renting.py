"""What is rented for the device of a training model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lolat.errors import InputError
from lolat.training.cost.catalogue import CPU, Offer, offers_of
from lolat.training.cost.prices import is_of
from lolat.training.exchange import MACHINE, Link, assumed_link
from lolat.units import plain

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


# ---- renting ----------------------------------------


class OfDevice(Protocol):
    """What is asked of a training model."""

    @property
    def name(self) -> str:
        """Of the device."""

    @property
    def document(self) -> dict[str, object]:
        """Its file."""


def device_of(model: OfDevice) -> str:
    """What a training model calls its device, or else itself."""
    device = _environment(model).get("device")
    if device == "unknown":  # made from tables: what they are follows in brackets
        return str(model.name).partition(" (")[0]
    # A GPU that was measured is "gpu" there; what it is called, the model's name tells.
    return str(model.name if device in (None, "", "gpu") else device)


def offers_for(
    model: OfDevice, offers: tuple[Offer, ...], accelerator: str, where: str
) -> tuple[Offer, ...]:
    """The offers of an accelerator; of processors alone, those with the model's threads where there are.

    `where`: the price list's name. InputError where it has none of that accelerator.
    """
    found = offers_of(offers, accelerator, where)
    if found[0].count:
        return found
    threads = _environment(model).get("threads")
    least = threads if isinstance(threads, int) else 0
    # A smaller machine would be slower than the one that the model is of.
    return tuple(o for o in found if (o.vcpus or 0) >= least) or found


def is_price_of(accelerator: str, device: str) -> bool:
    """Whether what is paid for is the device; one name may say more than the other: V100, V100-32GB."""
    return is_of(accelerator, device) or is_of(device, accelerator)


def shown_device(model: OfDevice) -> str:
    """The model's device in front of people, who know a processor by its name."""
    device = device_of(model)
    return plain(str(model.name) if device == CPU else device)


def link_of(machines: Machines, device: str) -> Link:
    """The link that is assumed of what is rented: in one instance that of its device, else between them."""
    offer = machines.offer
    same = not offer.accelerator or is_price_of(offer.accelerator, device)
    linked = f"{device} {offer.accelerator}" if same else offer.accelerator
    return assumed_link(linked, machines.devices, offer.devices if offer.instance_type else MACHINE)


def _environment(model: OfDevice) -> dict[str, object]:
    environment = model.document.get("environment")
    return environment if isinstance(environment, dict) else {}
