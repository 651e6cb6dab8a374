"""The instances to rent for a number of devices, from a price list or at a given price."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from lolat.errors import InputError, arg
from lolat.hardware.card_names import (
    MAX_Q,
    find_gpu,
    form_of,
    has_several_chips,
    is_other_chip,
    is_same_gpu,
    of_form,
)
from lolat.hardware.environment_section import Environment
from lolat.hardware.gpus import CPU, Gpu, usable_bytes
from lolat.hardware.hardware import Hardware
from lolat.hardware.links import MACHINE, Link
from lolat.hardware.prices import ARM, Offer, Prices, price_list
from lolat.parameters import PARAMETERS
from lolat.units import plain

X86 = re.compile("x86|amd64|avx|sse", re.IGNORECASE)
GIVEN = "the price given"
ALMOST = 0.9  # memory of a device in a sheet and in a list differs by less than this factor


@dataclass(frozen=True)
class Rented:
    """Rented `instances` of one type.

    `accelerator`: name of the devices in the price list; `memory_gib`: memory of such a device, None if the
    profile's device has as much; `price_per_hour`: US$ of all instances; `idle_devices`: devices that are
    paid for but not used; `source`, `date`: origin of the price.
    """

    instance_type: str
    accelerator: str
    instances: int
    idle_devices: int
    region: str
    price_per_hour: float
    source: str
    date: str
    memory_gib: float | None = None


@dataclass(frozen=True)
class Rental:
    """The `offers` of a device.

    `basis`: the names of its cards in the price list and of the list, or GIVEN for a given price; `listed`:
    the name of the list; `note`: an assumption about these cards; `memory_gib`: memory of the device.
    """

    hardware: Hardware
    offers: tuple[Offer, ...]
    basis: str
    memory_gib: float | None = None
    listed: str = GIVEN
    note: str = ""

    def offers_for(self, devices: int) -> list[Offer]:
        """The cheapest instance type for `devices` devices with each kind of link; the cheapest is first.

        At equal prices, a card that is known to have the device's form comes first. A single machine has
        the best link: if a type has exactly `devices` devices, only single machines are returned. Otherwise
        several instances may be needed, and some of their devices may be idle. A machine with the other
        form of the card (SXM, PCIe) has another link: it is left out if a machine with the device's own
        form has exactly `devices` devices.
        """
        whole = [o for o in self.offers if o.devices >= devices]
        other = {"PCIe": "SXM", "SXM": "PCIe"}.get(self._form)
        candidates = [o for o in whole if o.form != other], whole
        fitting = (some for some in candidates if any(o.devices == devices for o in some))

        def price(offer: Offer) -> tuple[float, int, bool, str]:
            instances = -(-devices // offer.devices)
            return instances * offer.price, instances, *self._order(offer)

        dearest_first = sorted(next(fitting, self.offers), key=price, reverse=True)
        by_link = {self.link(devices, offer): offer for offer in dearest_first}
        return sorted(by_link.values(), key=price)

    @property
    def largest_machine(self) -> int:
        """Devices in the largest machine, at most MACHINE; without machine types, in the device's own."""
        found = [min(o.devices, MACHINE) for o in self.offers if o.instance_type]
        return max(found, default=self.hardware.machine)

    @property
    def _form(self) -> str:
        """The form of the device's card; "" if its name does not say it."""
        card = find_gpu(self.hardware.kind)
        return form_of(card.name) if card else ""

    def _order(self, offer: Offer) -> tuple[bool, str]:
        """Sort key of offers at equal prices: cards that are known to have the device's form come first."""
        return self._form not in ("", offer.form), offer.instance_type

    def of_machines(self, devices: int) -> Rental:
        """The rental with machines of at least `devices` devices; unchanged if no machine is so large."""
        whole = tuple(o for o in self.offers if o.devices >= devices or not o.instance_type)
        return replace(self, offers=whole or self.offers)

    def rented(self, devices: int, offer: Offer | None = None) -> Rented:
        """The instances to rent for `devices` devices; `offer`: None for the cheapest."""
        offer = offer or self.offers_for(devices)[0]
        instances = -(-devices // offer.devices)
        gpu, own = find_gpu(offer.accelerator), self.memory_gib
        its = None if gpu is None else gpu.memory_gib
        alike = its is None or own is None or ALMOST <= its / own <= 1.0 / ALMOST
        return Rented(
            offer.instance_type, offer.accelerator, instances, instances * offer.devices - devices,
            offer.region, instances * offer.price, offer.source, offer.date, None if alike else its,
        )  # fmt: skip

    def of_one_device(self) -> Offer:
        """The cheapest offer with a single device, or else the offer with the lowest price per device."""
        return min(
            self.offers,
            key=lambda o: (o.devices > 1, o.price / o.devices, o.devices, *self._order(o)),
        )

    def link(self, devices: int, offer: Offer) -> Link:
        """The link between `devices` devices of an offer, assumed from the names of offer and device."""
        machine = offer.devices if offer.instance_type else None
        return self.hardware.link_of(devices, offer.accelerator, machine, offer.instance_type)


def instances_of(rental: Rental | None) -> tuple[int, ...]:
    """Numbers of devices that the instances of a rental have, up to MACHINE; (1,) if unknown."""
    sizes = {o.devices for o in rental.offers} if rental else set()
    return tuple(sorted(n for n in sizes if n <= MACHINE)) or (1,)


def given_list(price_per_hour: float | None, prices: str | Prices | None) -> Prices | None:
    """The price list that was given, or None. It is read only once, as it may be a pipe.

    Raises as `check_price`.
    """
    check_price(price_per_hour, prices)
    return None if prices is None else price_list(prices)


def check_price(price_per_hour: float | None, prices: str | Prices | None) -> None:
    """Raise InputError if both a price and a price list are given, or the price is not a number from 0."""
    if price_per_hour is not None:
        PARAMETERS["price_per_hour"].check(price_per_hour)
    if price_per_hour is not None and prices is not None:
        raise InputError(
            f"{arg('prices')} beside {arg('price_per_hour')}: expected one of them", code="prices"
        )


def rental_of(
    hardware: Hardware,
    price_per_hour: float | None,
    prices: str | Prices | None,
    memory_gib: float | None = None,
    step_bytes: float | None = None,
) -> Rental | None:
    """The rental of a profile's device at a given price, or from a price list; None if the list lacks it.

    `memory_gib`: the least memory of a device, None for its data sheet's; `step_bytes`: bytes that a
    network needs. InputError if both price and list are given.
    """
    check_price(price_per_hour, prices)
    if price_per_hour is not None:
        return Rental(hardware, (Offer("", "", 0, price_per_hour, source=GIVEN),), GIVEN)
    listed, own = price_list(prices), hardware.gpu.memory_gib if hardware.gpu else None
    if hardware.kind == CPU:
        machines = (o for o in listed.offers if not o.accelerator)
        fitting = (o for o in machines if _has_room(o, memory_gib or 0.0, step_bytes or 0.0))
        offers, note = _processors(tuple(fitting), hardware.environment)
    else:
        enough = None if memory_gib else step_bytes
        offers, note = _gpus(listed.offers, hardware, memory_gib or own or 0.0, enough)
    names = ", ".join(dict.fromkeys(o.accelerator or CPU for o in offers))
    basis = f"{names}{note} in {listed.prices}"
    return Rental(hardware, offers, basis, own, listed.prices, note) if offers else None


def _gpus(
    offers: tuple[Offer, ...], hardware: Hardware, least_gib: float, step_bytes: float | None
) -> tuple[tuple[Offer, ...], str]:
    """(offers of GPUs that may stand for a device, an assumption about them or "").

    These GPUs have the device's name, no less bandwidth, and nearly `least_gib` of memory or enough for
    `step_bytes`. A form (SXM, PCIe) with another chip is left out. So is a PCIe card for an SXM device if
    there are others: it has less power and a slower link.
    """
    gpu, note = hardware.gpu, ""

    def suffices(accelerator: str) -> bool:
        its = find_gpu(accelerator)
        if its and _is_slower(accelerator, its, gpu):
            return False
        if its is None or (its.memory_gib or least_gib) >= ALMOST * least_gib:
            return True
        return step_bytes is not None and step_bytes <= (its.usable_bytes or 0)

    every = {o.accelerator or CPU for o in offers}
    names = {n for n in every if is_same_gpu(n, hardware.kind, gpu) and suffices(n)}
    offers = tuple(
        o for o in offers if (o.accelerator or CPU) in names and not is_other_chip(gpu, o.form)
    )
    if gpu is None:
        return offers, note
    if form_of(gpu.name) == "SXM":
        offers = tuple(o for o in offers if o.form != "PCIe") or offers
        pcie = of_form(gpu.name, "PCIe")
        if pcie and "PCIe" in pcie.name and not all(o.form for o in offers):
            note = " (a row without SXM or PCIe is taken as SXM)"
    if gpu.dies:  # each die of a card is a device
        offers = tuple(replace(o, count=int(o.count * gpu.dies)) for o in offers)
    if gpu.name.endswith(MAX_Q):
        note = " (lists do not mark the Max-Q)"
    return offers, note


def _is_slower(accelerator: str, its: Gpu, own: Gpu | None) -> bool:
    """True if a card has less bandwidth than the device's; False if its form, and so its chip, is open."""
    is_told = bool(form_of(accelerator)) or not has_several_chips(accelerator)
    return is_told and (its.bandwidth_gb_s or 0.0) < ALMOST * ((own and own.bandwidth_gb_s) or 0.0)


def slower_words(hardware: Hardware, listed: Prices) -> str:
    """A clause on cards in a list with the device's name but too little bandwidth; "" if there are none."""
    gpu, names = hardware.gpu, dict.fromkeys(o.accelerator for o in listed.offers if o.accelerator)
    alike = ((n, find_gpu(n)) for n in names if is_same_gpu(n, hardware.kind, gpu))
    slower = [
        f"{plain(name)} has {its.bandwidth_gb_s:,.0f}"
        for name, its in alike
        if its and its.bandwidth_gb_s and _is_slower(name, its, gpu)
    ]
    own = (gpu and gpu.bandwidth_gb_s) or 0.0
    words = f" ({', '.join(slower)} GB/s of memory bandwidth, less than {own:,.0f}: another speed)"
    return words if slower else ""


def _processors(
    offers: tuple[Offer, ...], environment: Environment
) -> tuple[tuple[Offer, ...], str]:
    """(machines without an accelerator that may stand for a processor, an assumption about them).

    ARM does not stand for x86, nor x86 for ARM. Machines with fewer threads are slower: they are offered
    only if no machine has enough.
    """
    told = f"{environment.operating_system} {environment.processor}"
    is_x86 = bool(X86.search(told))
    if is_x86 or ARM.search(told):
        offers = tuple(o for o in offers if o.is_arm != is_x86)
    least = environment.threads or 0
    enough = tuple(o for o in offers if (o.vcpus or 0) >= least)
    kind = f" with {least} vCPUs or more" if least and enough else ""
    return enough or offers, f" (any machine{kind}: taken to be as fast as the device)"


def _has_room(machine: Offer, memory_gib: float, step_bytes: float) -> bool:
    """True if a machine without an accelerator has enough memory, or its memory is unknown."""
    gib = machine.memory_gib  # the operating system keeps as much memory as a GPU's libraries
    return gib is None or (gib >= ALMOST * memory_gib and step_bytes <= usable_bytes(gib))
