"""Prices of instances, and the instances to rent for a number of devices.

A price list is a table in the layout of SkyPilot's catalog (github.com/skypilot-org/skypilot-catalog,
README.md, "vms.csv"): CSV with columns by name, in any order. A row is an instance type in a region, with
its accelerators.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike, fspath
from pathlib import Path

from lolat.errors import InputError, arg
from lolat.hardware.environment import Environment, Hardware
from lolat.hardware.gpus import (
    CPU,
    MAX_Q,
    Gpu,
    find_gpu,
    form_of,
    has_several_chips,
    is_other_chip,
    is_same_gpu,
    names_several,
    of_form,
    usable_bytes,
)
from lolat.hardware.links import MACHINE, Link, form_in
from lolat.io.tables import Row, read_table
from lolat.parameters import PARAMETERS
from lolat.units import did_you_mean, names_in, plain, plural, shortened

BUILT_IN = Path(__file__).with_name("prices.csv")
"""Some prices; each row has its source and date."""
ARM, X86 = (re.compile(words, re.IGNORECASE) for words in ("arm|aarch|neon", "x86|amd64|avx|sse"))
GRAVITON = re.compile(r"(a1|[a-z]+\d+g[a-z]*)\.")
"""AWS's names of machines with ARM processors: a g after the generation, as in t4g.large and m7gd.large."""
CATALOG = re.compile(r"skypilot-catalog (?:v\d+/)?(\w+)")
"""A source in SkyPilot's catalog, with its provider."""
PRICE_COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
UNITS = ("priceunit", "price_unit", "unit", "unitofmeasure", "per", "period")
HOURLY = re.compile(r"(\b|\d)(h|hr|hrs|hour|hours|hourly)\b", re.IGNORECASE)
KNOWN = {
    *map(str.lower, PRICE_COLUMNS), *UNITS, "region", "vcpus", "memorygib", "arch", "currency", "source",
    "date", "availabilityzone", "gpuinfo", "spotprice", "devicememorygib", "generation", "capabilities",
}  # fmt: skip
"""Columns that are read, and those of SkyPilot's catalog that are not."""


@dataclass(frozen=True)
class Offer:
    """An instance type at a provider; `price`: US$ an hour of the whole instance.

    `count`: its accelerators; 0 if it has none, `accelerator` is then empty. `memory_gib`: memory of the
    machine without that of accelerators; it and `vcpus` are None if the list is silent. `is_arm`: its
    processors are ARM, by the column Arch or else by AWS's names.
    """

    instance_type: str
    accelerator: str
    count: int
    price: float
    region: str = ""
    vcpus: float | None = None
    source: str = ""
    date: str = ""
    memory_gib: float | None = None
    is_arm: bool = False

    @property
    def form(self) -> str:
        """The form of its accelerators; "" if its names do not tell."""
        return form_of(self.accelerator) or form_in(self.instance_type)

    @property
    def places(self) -> list[str]:
        """Its provider, if SkyPilot's catalog is the source, and its region; without those not told."""
        provider = CATALOG.search(self.source)
        return [*filter(None, [provider and provider[1], self.region])]

    @property
    def devices(self) -> int:
        """Devices for a training: its accelerators, or itself."""
        return max(self.count, 1)


@dataclass(frozen=True)
class Prices:
    """A price list; `prices`: its name for people, with what is left out: rows, and why; columns."""

    prices: str
    offers: tuple[Offer, ...]

    def of_gpu(self, gpu: str) -> Prices:
        """The offers with a GPU, in any form and of any memory, or with each of several with commas.

        InputError if there are none of one of them.
        """
        found = itertools.chain.from_iterable(map(self._of_one, names_in(gpu) or [gpu]))
        return replace(self, offers=tuple(dict.fromkeys(found)))

    def _of_one(self, gpu: str) -> tuple[Offer, ...]:
        sheet, names = find_gpu(gpu), {o.accelerator or CPU: None for o in self.offers}
        if names_several(gpu):
            raise InputError(f"{arg('gpu')} {plain(gpu)}: several; expected commas between them")
        if found := tuple(o for o in self.offers if is_same_gpu(o.accelerator or CPU, gpu, sheet)):
            return found
        like = {} if sheet else {name.casefold(): plain(name) for name in names}
        every = f"expected one of {', '.join(map(plain, names))}"
        hint = did_you_mean(gpu.casefold(), like, every)
        raise InputError(f"{arg('gpu')} {plain(gpu)}: not in {self.prices}; {hint}")


def price_list(prices: str | Path | Prices | None = None) -> Prices:
    """A price list that was read, that of a file, or the built-in one. InputError for any other file."""
    if prices is None:
        return _built_in()
    if isinstance(prices, Prices):
        return prices
    if not isinstance(prices, (str, PathLike)):
        raise InputError(
            f"{arg('prices')}: a {type(prices).__name__}; expected the path of a CSV table"
        )
    return _read(fspath(prices))


def no_price(device: str, prices: str | Prices | None) -> str:
    """The remark that a given list lacks a device; "" if no list was given."""
    return "" if prices is None else f"no price of {plain(device)} in {price_list(prices).prices}"


@cache
def _built_in() -> Prices:
    offers = _read(BUILT_IN).offers
    return Prices(f"the built-in table of {max(o.date for o in offers)}", offers)


def _read(path: str | Path) -> Prices:
    table = read_table(path, PRICE_COLUMNS, rows="instance")
    rows = [_offer(row, Path(path).name) for row in table]
    reasons = Counter(row for row in rows if isinstance(row, str))
    left_out = ", ".join(f"{plural(n, 'row')} {why}" for why, n in reasons.items())
    told = [f"left out: {left_out}"] * bool(left_out)
    if unread := [name for name in table.names if name and name not in KNOWN]:
        told.append(f"columns that are not read: {shortened(', '.join(unread))}")
    # Zones of a region have the same price: once is enough.
    offers = dict.fromkeys(row for row in rows if isinstance(row, Offer))
    return Prices(f"{table.source} ({'; '.join(told)})" if told else table.source, tuple(offers))


def _offer(row: Row, file_name: str) -> Offer | str:
    """The offer of a row, or why it is left out."""
    count, price = _amount(row, "acceleratorcount") or 0.0, _amount(row, "price")
    name = row["acceleratorname"]
    if row.get("currency", "USD").upper() not in ("", "USD", "$"):
        raise row.wrong("currency", "USD: prices are in US dollars")
    if (unit := next(filter(row.get, UNITS), "")) and not HOURLY.search(row[unit]):
        raise row.wrong(unit, "hour: prices are of an hour")
    reasons = {
        "of accelerators without an instance type": not row["instancetype"],
        "without a price": price is None,
        "with a part of an accelerator": count != int(count),
        "with only one of an accelerator's name and number": bool(name) != (count > 0),
    }
    if price is None or any(reasons.values()):
        return next(why for why, is_so in reasons.items() if is_so)
    return Offer(
        row["instancetype"], name, int(count), price, row.get("region", ""), _amount(row, "vcpus"),
        row.get("source", file_name), row.get("date", ""), _amount(row, "memorygib"),
        bool(ARM.search(arch) if (arch := row.get("arch", "")) else GRAVITON.match(row["instancetype"])),
    )  # fmt: skip


def _amount(row: Row, column: str) -> float | None:
    return row.number(column, 0.0, expected="a number from 0") if row.get(column) else None


# ---- Renting

GIVEN = "the price given"
ALMOST = 0.9  # memory of a device in a sheet and in a list differs by less than this factor


@dataclass(frozen=True)
class Rented:
    """Rented `instances` of one type.

    `accelerator`: its name in the list; `memory_gib`: its memory, None if the model's device has as much;
    `price_per_hour`: US$ of all instances; `idle_devices`: devices that are paid for and not used;
    `source`, `date`: origin of the price.
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

    `prices`: its names in the price list, and that of the list, `listed`, or of the option that gave the
    price; `note`: what is taken for granted; `memory_gib`: memory of the device.
    """

    hardware: Hardware
    offers: tuple[Offer, ...]
    prices: str
    memory_gib: float | None = None
    listed: str = GIVEN
    note: str = ""

    def offers_for(self, devices: int) -> list[Offer]:
        """The cheapest instance type of each kind of link for `devices` devices, the cheapest first;
        of equal prices the one whose card surely has the own form.

        One machine has the best link: if a type has exactly that many devices, only single machines are
        returned. Else several instances may be needed. Some of their devices may be idle. A machine with
        the other form of the card has another link: it is left out beside one with as many devices of the
        own form.
        """
        whole = [o for o in self.offers if o.devices >= devices]
        other = {"PCIe": "SXM", "SXM": "PCIe"}.get(self._form)
        of_form = [o for o in whole if o.form != other], whole
        held = (some for some in of_form if any(o.devices == devices for o in some))

        def price(offer: Offer) -> tuple[float, int, bool, str]:
            instances = -(-devices // offer.devices)
            return instances * offer.price, instances, *self._order(offer)

        dearest_first = sorted(next(held, self.offers), key=price, reverse=True)
        by_link = {self.link(devices, offer): offer for offer in dearest_first}
        return sorted(by_link.values(), key=price)

    @property
    def largest_machine(self) -> int:
        """Devices of the largest machine, at most MACHINE; those of the device's own if no type is told."""
        found = [min(o.devices, MACHINE) for o in self.offers if o.instance_type]
        return max(found, default=self.hardware.machine)

    @property
    def _form(self) -> str:
        """The form of the own card; "" if its name does not tell."""
        card = find_gpu(self.hardware.kind)
        return form_of(card.name) if card else ""

    def _order(self, offer: Offer) -> tuple[bool, str]:
        """Sort key of offers at equal price: cards known to have the device's form are first."""
        return self._form not in ("", offer.form), offer.instance_type

    def of_machines(self, devices: int) -> Rental:
        """The offers of machines with so many devices or more; all offers if there are none."""
        whole = tuple(o for o in self.offers if o.devices >= devices or not o.instance_type)
        return replace(self, offers=whole or self.offers)

    def rented(self, devices: int, offer: Offer | None = None) -> Rented:
        """The instances for `devices` devices, by an offer or the cheapest one."""
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
        """The cheapest offer of just one device; without one, that with the lowest price of a device if all
        devices of an instance are used.
        """
        return min(
            self.offers,
            key=lambda o: (o.devices > 1, o.price / o.devices, o.devices, *self._order(o)),
        )

    def link(self, devices: int, offer: Offer) -> Link:
        """The link of `devices` devices of an offer, assumed by its names and the device's."""
        machine = offer.devices if offer.instance_type else None
        return self.hardware.link_of(devices, offer.accelerator, machine, offer.instance_type)


def instances_of(rental: Rental | None) -> tuple[int, ...]:
    """The number of devices in an instance of a rental, up to MACHINE; one if unknown."""
    held = {o.devices for o in rental.offers} if rental else set()
    return tuple(sorted(n for n in held if n <= MACHINE)) or (1,)


def given_list(price_per_hour: float | None, prices: str | Prices | None) -> Prices | None:
    """The price list if one is given, read once, as it may be a pipe. Raises as `check_price`."""
    check_price(price_per_hour, prices)
    return None if prices is None else price_list(prices)


def check_price(price_per_hour: float | None, prices: str | Prices | None) -> None:
    """InputError if both a price and a price list are given, and for a price that is no number from 0."""
    if price_per_hour is not None:
        PARAMETERS["price_per_hour"].check(price_per_hour)
    if price_per_hour is not None and prices is not None:
        raise InputError(f"{arg('prices')} beside {arg('price_per_hour')}: expected one of them")


def rental_of(
    hardware: Hardware,
    price_per_hour: float | None,
    prices: str | Prices | None,
    memory_gib: float | None = None,
    step_bytes: float | None = None,
) -> Rental | None:
    """The rental of a model's device at a given price, or by a price list; None if the list lacks it.

    `memory_gib`: the least memory of a device; `step_bytes`: memory that a network takes. GPUs: those of
    its name with as much memory (`memory_gib`, or that of its data sheet) or more, but for a form
    (SXM, PCIe) that is another chip, or a PCIe card for an SXM where others are offered; without
    `memory_gib` also those with less that hold `step_bytes`. Processors: those with that memory, not ARM
    for x86 or the reverse, and at least the model's threads, since a smaller machine would be slower; if
    none has as many threads, all others of them. InputError if both price and list are given.
    """
    check_price(price_per_hour, prices)
    device, gpu = hardware.kind, hardware.gpu
    own = None if gpu is None else gpu.memory_gib
    if price_per_hour is not None:
        given = Offer("", "", 0, price_per_hour, source=GIVEN)
        return Rental(hardware, (given,), GIVEN)
    listed, needed = price_list(prices), memory_gib or own or 0.0
    enough = None if memory_gib else step_bytes

    def suffices(accelerator: str) -> bool:
        """True if an accelerator has nearly the needed memory, or holds what the network takes.

        One with less bandwidth does not suffice; a card of unknown form is not judged by its bandwidth.
        """
        its = find_gpu(accelerator)
        if its and _is_slower(accelerator, its, gpu):
            return False
        if its is None or (its.memory_gib or needed) >= ALMOST * needed:
            return True
        return enough is not None and enough <= (its.usable_bytes or 0)

    every = dict.fromkeys(o.accelerator or CPU for o in listed.offers)
    names = [n for n in every if is_same_gpu(n, device, gpu) and suffices(n)]
    held = (o for o in listed.offers if (o.accelerator or CPU) in names)
    offers = tuple(o for o in held if not is_other_chip(gpu, o.form))
    taken = ""
    if gpu is not None and form_of(gpu.name) == "SXM":
        # a PCIe card has less power and a slower link
        offers = tuple(o for o in offers if o.form != "PCIe") or offers
        pcie = of_form(gpu.name, "PCIe")
        if pcie and "PCIe" in pcie.name and not all(o.form for o in offers):
            taken = " (a row without SXM or PCIe is taken as SXM)"
    if names == [CPU]:
        offers = tuple(o for o in offers if _has_room(o, memory_gib or 0.0, step_bytes or 0.0))
        offers, taken = _processors(offers, hardware.environment)
    if gpu and gpu.dies:  # a card is so many devices
        offers = tuple(replace(o, count=int(o.count * gpu.dies)) for o in offers)
    names = [*dict.fromkeys(o.accelerator or CPU for o in offers)]
    if gpu and gpu.name.endswith(MAX_Q):
        taken = " (lists do not mark the Max-Q)"
    source = f"{', '.join(names)}{taken} in {listed.prices}"
    return Rental(hardware, offers, source, own, listed.prices, taken) if offers else None


def _is_slower(accelerator: str, its: Gpu, own: Gpu | None) -> bool:
    """True if a card has less bandwidth than a device's; one of unknown form is not judged by it."""
    is_told = bool(form_of(accelerator)) or not has_several_chips(accelerator)
    return is_told and (its.bandwidth_gb_s or 0.0) < ALMOST * ((own and own.bandwidth_gb_s) or 0.0)


def slower_words(hardware: Hardware, listed: Prices) -> str:
    """A clause on the device's cards in a list that are not rented for their bandwidth; "" without any."""
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
    """Machines without an accelerator that may stand for a processor, and what that takes for granted."""
    told = f"{environment.operating_system} {environment.processor}"
    is_x86 = bool(X86.search(told))
    if is_x86 or ARM.search(told):
        offers = tuple(o for o in offers if o.is_arm != is_x86)
    least = environment.threads or 0
    enough = tuple(o for o in offers if (o.vcpus or 0) >= least)
    kind = f" with {least} vCPUs or more" if least and enough else ""
    return enough or offers, f" (any machine{kind}: taken to be as fast as the device)"


def _has_room(machine: Offer, memory_gib: float, step_bytes: float) -> bool:
    """True if a machine without an accelerator has this memory, or its memory is unknown."""
    gib = machine.memory_gib  # its system keeps as much as a GPU's libraries
    return gib is None or (gib >= ALMOST * memory_gib and step_bytes <= usable_bytes(gib))
