"""Prices of instances, and what is rented for a training.

The price list is a table in the layout of SkyPilot's catalog, prices.csv beside this file if not given. The
layout (github.com/skypilot-org/skypilot-catalog, README.md, "vms.csv"): CSV, columns by name, whose order
differs from provider to provider. A row is an instance type in a region, with the accelerators in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lolat.errors import InputError, arg
from lolat.hardware.gpus import Gpu, find_gpu, gpu_of
from lolat.hardware.links import MACHINE, Link, assumed_link
from lolat.io.tables import Row, read_table
from lolat.units import dollars, plain

BUILT_IN = Path(__file__).with_name("prices.csv")
"""Some prices, to have an answer without a network; its rows say where they are from, and the day."""
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
CPU = "cpu"
"""The name of an instance without an accelerator, where an accelerator is asked for."""


@dataclass(frozen=True)
class Offer:
    """An instance type at a provider; `price`: US$ an hour of the whole instance.

    `count`: its accelerators; 0 for an instance without, whose `accelerator` is empty. `memory_gib`: of the
    machine, not of its accelerators; None where the list does not say, as of `vcpus`.
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

    @property
    def devices(self) -> int:
        """Devices for a training: its accelerators, or itself."""
        return max(self.count, 1)


@dataclass(frozen=True)
class Prices:
    """A price list; `prices`: its name in front of people."""

    prices: str
    offers: tuple[Offer, ...]


def read_prices(path: str | Path | None = None) -> Prices:
    """The prices in a file, or without one those built in. InputError for what is no price list.

    Left out: a row without an instance type (an accelerator that is rented on top of some machine), without
    a price, with a fraction of an accelerator, or with a name or a number of accelerators alone.
    """
    return _built_in() if path is None else _read(path)


def price_list(prices: str | Prices | None) -> Prices:
    """A list that was read already, or see `read_prices`."""
    return prices if isinstance(prices, Prices) else read_prices(prices)


def no_price(device: str, prices: str | Prices | None) -> str:
    """The remark that a given list lacks a device; empty where none was given."""
    return "" if prices is None else f"no price of {plain(device)} in {price_list(prices).prices}"


@cache
def _built_in() -> Prices:
    offers = _read(BUILT_IN).offers
    return Prices(f"the built-in table of {max(o.date for o in offers)}", offers)


def _read(path: str | Path) -> Prices:
    table = read_table(path, COLUMNS, rows="instance")
    # Zones of a region have the same price: once is enough.
    rows = (_offer(row, Path(path).name) for row in table)
    return Prices(table.source, tuple(dict.fromkeys(offer for offer in rows if offer is not None)))


def _offer(row: Row, file_name: str) -> Offer | None:
    count, price = _amount(row, "acceleratorcount") or 0.0, _amount(row, "price")
    name = row["acceleratorname"]
    if row.get("currency", "USD").upper() not in ("", "USD", "$"):
        raise row.wrong("currency", "USD: prices are in US dollars")
    if not row["instancetype"] or price is None or count != int(count) or bool(name) != (count > 0):
        return None
    return Offer(
        row["instancetype"], name, int(count), price, row.get("region", ""), _amount(row, "vcpus"),
        row.get("source", file_name), row.get("date", ""), _amount(row, "memorygib"),
    )  # fmt: skip


def _amount(row: Row, column: str) -> float | None:
    return row.number(column, 0.0, expected="a number from 0") if row.get(column) else None


# ---- Names of accelerators.

OTHER_CARDS = frozenset(["ti", "super", "laptop", "mobile", "ada", "pro"])
"""Words of a device's name with which it is another card than one of the same number without them."""


def offers_of(prices: Prices, accelerator: str) -> tuple[Offer, ...]:
    """The offers with an accelerator of that name, without regard to case, spaces and hyphens; "cpu": those
    without one. InputError if there are none.
    """
    wanted = "".join(_words(accelerator))
    offers = tuple(o for o in prices.offers if "".join(_words(o.accelerator or CPU)) == wanted)
    if not offers:
        raise InputError(
            f"no price of {plain(accelerator)} in {prices.prices}; expected one that `lolat prices` lists"
        )
    return offers


def is_named(accelerator: str, device: str) -> bool:
    """Return whether a device's name contains an accelerator's: its words in a row, however they are
    separated ("RTX 4090" and "rtx4090"), or all of them somewhere ("v100-pcie-32gb" is a V100-32GB).
    "cpu" is only itself, and a name with a word of another card is not this one: no RTX2080 is in an "RTX
    2080 Ti".
    """
    wanted, words = _words(accelerator), _words(device)
    if [CPU] in (wanted, words):
        return wanted == words
    if any(word in OTHER_CARDS and word not in "".join(wanted) for word in words):
        return False
    starts = range(len(words))
    rows = {"".join(words[i : j + 1]) for i in starts for j in starts[i:]}
    return "".join(wanted) in rows or set(words).issuperset(wanted)


def _words(name: str) -> list[str]:
    """The words of a name: "A100-80GB" has a100 and 80gb."""
    words = "".join(c if c.isalnum() else " " for c in name.casefold()).split()
    return [word for word in words if word not in MAKERS]


# ---- What is rented.

GIVEN = "the price given"


@dataclass(frozen=True)
class Rented:
    """A rental: `instances` of one type; `accelerator`: their accelerator, as the list calls it;
    `memory_gib`: of each, where it is another than that of the model's device; `price_per_hour`: US$ of all
    of them; `idle_devices`: paid for and not used; `source`, `date`: where the price is from.
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
    """The `offers` of `device`, from `prices`: a list or an option; `memory_gib`: of the device."""

    device: str
    offers: tuple[Offer, ...]
    prices: str
    memory_gib: float | None = None

    def offers_for(self, devices: int, linked: bool = True) -> list[Offer]:
        """The instance types that supply `devices` devices, the cheapest per hour first.

        For each kind of link the cheapest type, in one instance or several, some devices perhaps idle.
        `linked`: if some have exactly as many devices, only the cheapest of these, which are linked best.
        """
        exact = [o for o in self.offers if o.devices == devices]

        def price(offer: Offer) -> tuple[float, int, str]:
            instances = -(-devices // offer.devices)
            return instances * offer.price, instances, offer.instance_type

        if exact and linked:
            return [min(exact, key=price)]
        dearest_first = sorted(self.offers, key=price, reverse=True)
        by_link = {self.link(devices, offer): offer for offer in dearest_first}
        return sorted(by_link.values(), key=price)

    def rented(self, devices: int, offer: Offer | None = None) -> Rented:
        """The rental of `devices` devices: of an offer, or of the cheapest."""
        offer = offer or self.offers_for(devices)[0]
        instances = -(-devices // offer.devices)
        its, own = _memory_gib(offer.accelerator), self.memory_gib
        alike = its is None or own is None or ALMOST <= its / own <= 1.0 / ALMOST
        return Rented(
            offer.instance_type, offer.accelerator, instances, instances * offer.devices - devices,
            offer.region,
            instances * offer.price, offer.source, offer.date, None if alike else its,
        )  # fmt: skip

    def busiest(self) -> Offer:
        """The cheapest offer for each device, where all that an instance holds are used."""
        return min(self.offers, key=lambda o: (o.price / o.devices, o.devices, o.instance_type))

    def cheaper_than(
        self, other: Rental, replicas: Sequence[int], batch_for: Callable[[float], int]
    ) -> str | None:
        """The cards with less memory that are cheaper per device than all of `other`, in words with the
        batch that fits them; None if there are none.

        `replicas`: numbers of devices; `batch_for`: bytes -> batch.
        """

        def each(rental: Rental, devices: int) -> float:
            return rental.rented(devices).price_per_hour / devices

        best = min(replicas, key=lambda k: each(self, k))
        offer = self.offers_for(best)[0]
        gpu = find_gpu(offer.accelerator)
        if gpu is None or each(self, best) >= min(each(other, k) for k in replicas):
            return None
        batch = batch_for(gpu.usable_bytes or 0)
        said = (
            f"{plain(offer.instance_type)} ({offer.devices} x {plain(offer.accelerator)} with "
            f"{gpu.memory_gib:g} GiB, {dollars(offer.price)} an hour) is cheaper, and holds a batch of "
            f"{batch:,}: --batch-size {batch}"
        )
        return said if batch else None

    def replicas_per_hour(self, replicas: int, devices: int) -> float:
        """US$ per hour of `replicas` replicas of `devices` devices each.

        Replicas do not talk to each other: they share instances or have their own, whichever is cheaper.
        """
        apart = replicas * self.rented(devices).price_per_hour
        return min(apart, self.rented(replicas * devices).price_per_hour)

    def link(self, devices: int, offer: Offer) -> Link:
        """The link of so many devices of an offer, assumed from its names and the device's."""
        machine = offer.devices if offer.instance_type else MACHINE
        names = f"{self.device} {offer.accelerator} {offer.instance_type}"
        return assumed_link(names, devices, machine)


def instances_of(rental: Rental | None) -> tuple[int, ...]:
    """The number of devices in an instance of a rental, up to MACHINE; one if unknown."""
    held = {o.devices for o in rental.offers} if rental else set()
    return tuple(sorted(n for n in held if n <= MACHINE)) or (1,)


def device_of(document: Mapping[str, Any]) -> str:
    """The hardware of a model file: "cpu", or the name of a GPU."""
    device = document.get("environment", {}).get("device")
    if device == "unknown":  # made from tables, which the brackets describe
        return str(document["device"]).partition(" (")[0]
    # A GPU that was measured is "gpu" there; the model's device tells its name.
    return str(document["device"]) if device in (None, "", "gpu") else str(device)


def check_price(price_per_hour: float | None, prices: str | Prices | None) -> None:
    """InputError where a price is given beside a price list."""
    if price_per_hour is not None and prices is not None:
        raise InputError(f"{arg('prices')} beside {arg('price_per_hour')}: expected one of them")


def rental_of(
    document: Mapping[str, Any],
    price_per_hour: float | None,
    prices: str | Prices | None,
    memory_gib: float | None = None,
    step_bytes: float | None = None,
) -> Rental | None:
    """The rental of a model's device: at the price given for one, or by a price list (see
    `read_prices`); None where neither has one. `memory_gib`, `step_bytes`: see `find_rental`. InputError
    where both are given.
    """
    check_price(price_per_hour, prices)
    if price_per_hour is not None:
        offer = Offer("", "", 0, price_per_hour, source=GIVEN)
        return Rental(device_of(document), (offer,), GIVEN)
    return find_rental(document, price_list(prices), memory_gib, step_bytes)


MAKERS = frozenset(["nvidia", "tesla", "geforce"])
MEMORY = re.compile(r"[-_ ]?\d+ ?GB\b", re.IGNORECASE)
FORM = re.compile(r"[-_ ](SXM\d?|HBM\d?e?|PCIe)\b", re.IGNORECASE)
ALMOST = 0.9  # of its memory: what a sheet and a list call the same differ by less


def find_rental(
    document: Mapping[str, Any],
    prices: Prices,
    memory_gib: float | None = None,
    step_bytes: float | None = None,
) -> Rental | None:
    """The rental that a price list offers for a model's device; None if it has none.

    `memory_gib`: that a device must have; `step_bytes`: that a network takes of it. Of GPUs: those of its
    name, with as much memory (`memory_gib`, or that of its data sheet) or more; without `memory_gib` also
    those with less, where `step_bytes` fit. Of processors: those with that memory, of them those with at
    least the model's threads, as a smaller machine would be slower.
    """
    device, gpu = device_of(document), gpu_of(document)
    own = None if gpu is None else gpu.memory_gib
    needed = memory_gib or own or 0.0
    enough = None if memory_gib else step_bytes
    listed = dict.fromkeys(o.accelerator or CPU for o in prices.offers)
    # "Tesla V100-SXM2-16GB" is a V100; an A100-80GB does what an A100 of 40 GB does.
    names = [
        n for n in listed
        if is_named(n, device) or is_named(short := MEMORY.sub("", n), device)
        or (is_named(FORM.sub("", short), device) and _as_many(n, gpu))
    ]  # fmt: skip
    if needed:
        names = [
            n for n in names
            if (_memory_gib(n) or needed) >= ALMOST * needed or (enough is not None and _holds(n, enough))
        ]  # fmt: skip
    if not names:
        return None
    offers = tuple(o for name in names for o in offers_of(prices, name))
    if names == [CPU]:
        offers = tuple(o for o in offers if _has_room(o, memory_gib or 0.0, step_bytes or 0.0))
        threads = document["environment"].get("threads")
        least = threads if isinstance(threads, int) else 0
        offers = tuple(o for o in offers if (o.vcpus or 0) >= least) or offers
    if not offers:
        return None
    return Rental(device, offers, f"{', '.join(names)} in {prices.prices}", own)


def _as_many(accelerator: str, gpu: Gpu | None) -> bool:
    """Return whether a GPU of that name has as many multiprocessors: an H100 PCIe has fewer than an SXM."""
    other = find_gpu(accelerator)
    return other is not None and gpu is not None and other.multiprocessors == gpu.multiprocessors


def _memory_gib(accelerator: str) -> float | None:
    gpu = find_gpu(accelerator)
    return None if gpu is None else gpu.memory_gib


def _has_room(machine: Offer, memory_gib: float, step_bytes: float) -> bool:
    """Return whether a machine without an accelerator has so much memory; True if unknown."""
    has = Gpu("", machine.memory_gib)  # its system keeps as much as a GPU's libraries
    if has.memory_gib is None or has.usable_bytes is None:
        return True
    return has.memory_gib >= ALMOST * memory_gib and step_bytes <= has.usable_bytes


def _holds(accelerator: str, step_bytes: float) -> bool:
    """Return whether so many bytes fit into the memory of a GPU of that name, by its data sheet."""
    gpu = find_gpu(accelerator)
    return gpu is not None and gpu.usable_bytes is not None and step_bytes <= gpu.usable_bytes
