"""What is rented for a training, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lolat.errors import InputError, arg
from lolat.training.link import MACHINE, Link, assumed_link
from lolat.training.model import Rented, TrainingPrediction
from lolat.training.prices import CPU, Offer, Prices, accelerator_of, is_named, offers_of
from lolat.units import plain


@dataclass(frozen=True)
class Rental:
    """The `offers` of `device`, from `prices`: a list or an option."""

    device: str
    offers: tuple[Offer, ...]
    prices: str

    def offer_for(self, devices: int) -> Offer:
        """The instance type for `devices` devices: one with just as many if there is one (the cheapest),
        as its devices are linked best; else the cheapest way with several, or with some left idle (of
        equal price the fewest instances).
        """
        exact = [o for o in self.offers if o.devices == devices]

        def price(offer: Offer) -> tuple[float, int, str]:
            instances = -(-devices // offer.devices)
            return instances * offer.price, instances, offer.instance_type

        return min(exact or self.offers, key=price)

    def rented(self, devices: int) -> Rented:
        """What is rented for `devices` devices."""
        offer = self.offer_for(devices)
        instances = -(-devices // offer.devices)
        return Rented(
            offer.instance_type, instances, instances * offer.devices - devices, offer.region,
            instances * offer.price, offer.source, offer.date,
        )  # fmt: skip

    def link(self, devices: int) -> Link:
        """The link of what is rented, assumed from its name and the device's."""
        offer = self.offer_for(devices)
        machine = offer.devices if offer.instance_type else MACHINE
        return assumed_link(f"{self.device} {offer.accelerator}", devices, machine)


def device_of(document: Mapping[str, Any]) -> str:
    """The hardware of a model file: "cpu", or the name of a GPU."""
    device = document.get("environment", {}).get("device")
    if device == "unknown":  # made from tables, which the brackets describe
        return str(document["device"]).partition(" (")[0]
    # A GPU that was measured is "gpu" there; the model's device tells its name.
    return str(document["device"]) if device in (None, "", "gpu") else str(device)


def given_price(document: Mapping[str, Any], price_per_hour: float) -> Rental:
    """A rental of a model's device at a price for each device."""
    if not 0.0 <= price_per_hour < float("inf"):
        raise InputError(f"{arg('price_per_hour')} {price_per_hour:g}: expected 0 or more")
    name = "the price given"
    return Rental(device_of(document), (Offer("", "", 0, price_per_hour, source=name),), name)


def find_rental(
    document: Mapping[str, Any], prices: Prices, accelerator: str | None = None
) -> Rental | None:
    """What a price list has for a model's device; None if it has nothing.

    `accelerator`: its name in the list, if not as the device's name says. InputError where that is another
    device, whose price says nothing of the model's times, or not in the list. Of processors: those with at
    least the model's threads, as a smaller machine would be slower.
    """
    device = device_of(document)
    name = accelerator or accelerator_of(device, prices.offers)
    if name is None:
        return None
    offers = offers_of(prices, name)
    # One name may say more than the other: V100, V100-32GB.
    if not (is_named(name, device) or is_named(device, name)):
        raise InputError(
            f"the price is of {plain(name)}, the times of the model are of "
            f"{plain(str(document['device']))}; give a model of {plain(name)}, or {arg('price_per_hour')}",
            code="other-device",
        )
    if not offers[0].count:
        threads = document["environment"].get("threads")
        least = threads if isinstance(threads, int) else 0
        offers = tuple(o for o in offers if (o.vcpus or 0) >= least) or offers
    return Rental(device, offers, f"{CPU if not offers[0].count else name} in {prices.prices}")


def priced(prediction: TrainingPrediction, rental: Rental) -> TrainingPrediction:
    """A prediction with what is rented and, of a total time, its price by the second.

    More time is never less money: an end of the time's interval gives the same end of the money's.
    """
    rented = rental.rented(prediction.devices)

    def dollars(seconds: float) -> float:
        return seconds / 3600 * rented.price_per_hour

    total, interval = prediction.total_s, prediction.interval_s
    return replace(
        prediction,
        rented=rented,
        dollars=None if total is None else dollars(total),
        dollars_interval=None if interval is None else (dollars(interval[0]), dollars(interval[1])),
    )
