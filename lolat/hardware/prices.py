"""Price lists of instances to rent.

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
from lolat.hardware.card_names import find_gpu, form_of, is_same_gpu, names_several
from lolat.hardware.gpus import CPU
from lolat.hardware.links import form_in
from lolat.io.tables import Row, read_table
from lolat.units import did_you_mean, names_in, plain, plural, shortened

BUILT_IN = Path(__file__).with_name("prices.csv")
"""The built-in price list; each of its rows states source and date."""
ARM = re.compile("arm|aarch|neon", re.IGNORECASE)
GRAVITON = re.compile(r"(a1|[a-z]+\d+g[a-z]*)\.")
"""Pattern of AWS's names of machines with ARM processors: a g after the generation, as in t4g.large and
m7gd.large."""
CATALOG = re.compile(r"skypilot-catalog (?:v\d+/)?(\w+)")
"""Pattern of SkyPilot's catalog in the source of a price; its group is the provider."""
PRICE_COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
UNITS = ("priceunit", "price_unit", "unit", "unitofmeasure", "per", "period")
HOURLY = re.compile(
    r"(\$|us\$|usd|dollars?)?[ /-]*(1|per|an?)?[ /-]*(instance|machine|vm)?[ /-]*"
    r"(h|hr|hrs|hour|hours|hourly)",
    re.IGNORECASE,
)
"""Pattern of units that mean an hour of the whole machine: "Hrs", "1 Hour", "$/h", "USD per
instance-hour"."""
KNOWN = {
    *map(str.lower, PRICE_COLUMNS), *UNITS, "region", "vcpus", "memorygib", "arch", "currency", "source",
    "date", "availabilityzone", "gpuinfo", "spotprice", "devicememorygib", "generation", "capabilities",
}  # fmt: skip
"""Columns that are read, and columns of SkyPilot's catalog that are ignored without a remark."""


def provider_of(source: str) -> str:
    """The provider of a price from SkyPilot's catalog; "" for any other source."""
    found = CATALOG.search(source)
    return found[1] if found else ""


@dataclass(frozen=True)
class Offer:
    """An instance type at a provider; `price`: US$ an hour of the whole instance.

    `count`: number of accelerators; 0 if it has none, and `accelerator` is then empty. `memory_gib`: memory
    of the machine without its accelerators'; `memory_gib` and `vcpus` are None if the list does not say.
    `is_arm`: True if its processors are ARM, by the column Arch or else by AWS's names.
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
        """The form of its accelerators; "" if no name says it."""
        return form_of(self.accelerator) or form_in(self.instance_type)

    @property
    def places(self) -> list[str]:
        """Its provider and region, as far as they are known."""
        return [*filter(None, [provider_of(self.source), self.region])]

    @property
    def devices(self) -> int:
        """Number of devices that train: its accelerators, or 1 for a machine without any."""
        return max(self.count, 1)


@dataclass(frozen=True)
class Prices:
    """A price list.

    `prices`: its name for people, with the rows left out and why, and the columns not read; `file`: its
    path, None for the built-in list.
    """

    prices: str
    offers: tuple[Offer, ...]
    file: str | None = None

    def of_gpu(self, gpu: str) -> Prices:
        """The offers with a GPU, in any form and with any memory; `gpu`: one name, or several with commas.

        InputError if one of these GPUs has no offer.
        """
        found = itertools.chain.from_iterable(map(self._of_one, names_in(gpu) or [gpu]))
        return replace(self, offers=tuple(dict.fromkeys(found)))

    def _of_one(self, gpu: str) -> tuple[Offer, ...]:
        sheet, names = find_gpu(gpu), {o.accelerator or CPU: None for o in self.offers}
        if names_several(gpu):
            raise InputError(
                f"{arg('gpu')} {plain(gpu)}: several; expected commas between them", code="gpu"
            )
        if found := tuple(o for o in self.offers if is_same_gpu(o.accelerator or CPU, gpu, sheet)):
            return found
        like = {} if sheet else {name.casefold(): plain(name) for name in names}
        every = f"expected one of {', '.join(map(plain, names))}"
        hint = did_you_mean(gpu.casefold(), like, every)
        raise InputError(f"{arg('gpu')} {plain(gpu)}: not in {self.prices}; {hint}", code="gpu")


def price_list(prices: str | Path | Prices | None = None) -> Prices:
    """A price list: the given one, the one in a file, or the built-in one if `prices` is None.

    InputError if the file is not a price list.
    """
    if prices is None:
        return _built_in()
    if isinstance(prices, Prices):
        return prices
    if not isinstance(prices, (str, PathLike)):
        raise InputError(
            f"{arg('prices')}: a {type(prices).__name__}; expected the path of a CSV table",
            code="prices",
        )
    return _read(fspath(prices))


def no_price(device: str, prices: str | Prices | None) -> str:
    """The remark that a price list which the user gave lacks a device; "" if none was given."""
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
    told = [f"left out: {left_out}"] if left_out else []
    if unread := [name for name in table.names if name and name not in KNOWN]:
        told.append(f"columns that are not read: {shortened(', '.join(unread))}")
    # Zones of a region have the same price: once is enough.
    offers = dict.fromkeys(row for row in rows if isinstance(row, Offer))
    return Prices(
        f"{table.source} ({'; '.join(told)})" if told else table.source, tuple(offers), str(path)
    )


def _offer(row: Row, file_name: str) -> Offer | str:
    """The offer in a row, or else the reason why the row is left out."""
    count, price = _amount(row, "acceleratorcount") or 0.0, _amount(row, "price")
    name = row["acceleratorname"]
    if row.get("currency", "USD").upper() not in ("", "USD", "$"):
        raise row.wrong("currency", "USD: prices are in US dollars")
    if (unit := next(filter(row.get, UNITS), "")) and not HOURLY.fullmatch(row[unit]):
        raise row.wrong(unit, "hour: prices are of an hour of the whole machine")
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
