"""Prices of instances: a table in the layout of SkyPilot's catalog, prices.csv beside this file if not
given.

The layout: github.com/skypilot-org/skypilot-catalog, README.md, "vms.csv": CSV, columns by name, whose
order differs from provider to provider. A row is an instance type in a region, with the accelerators in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lolat.errors import InputError, arg
from lolat.io.tables import Row, read_table
from lolat.units import plain

BUILT_IN = Path(__file__).with_name("prices.csv")
"""Some prices, to have an answer without a network; its rows say where they are from, and the day."""
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
CPU = "cpu"
"""The name of an instance without an accelerator, where an accelerator is asked for."""
_EXPECTED = (
    f"expected a price list in the layout of SkyPilot's catalog, with the columns {','.join(COLUMNS)} "
    "and, where known, Region, vCPUs"
)


@dataclass(frozen=True)
class Offer:
    """An instance type at a provider; `price`: US$ an hour of the whole instance.

    `count`: its accelerators; 0 for an instance without, whose `accelerator` is empty.
    """

    instance_type: str
    accelerator: str
    count: int
    price: float
    region: str = ""
    vcpus: float | None = None
    memory_gib: float | None = None
    source: str = ""
    date: str = ""

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
    a price, or with a fraction of an accelerator.
    """
    table = read_table(path or BUILT_IN, COLUMNS, _EXPECTED)
    # Zones of a region have the same price: once is enough.
    rows = (_offer(row, Path(path or BUILT_IN).name) for row in table)
    offers = tuple(dict.fromkeys(offer for offer in rows if offer is not None))
    if not offers:
        raise InputError(f"{table.source} has no instance with a price; {_EXPECTED}")
    dated = f"the built-in table of {max(o.date for o in offers)}"
    return Prices(dated if path is None else table.source, offers)


def _offer(row: Row, file_name: str) -> Offer | None:
    count, price = _amount(row, "acceleratorcount") or 0.0, _amount(row, "price")
    name = row["acceleratorname"]
    if not row["instancetype"] or price is None or count != int(count):
        return None
    if bool(name) != (count > 0):
        raise row.wrong(
            "acceleratorname", f"a name and a count above 0 (it is {count:g}), or neither"
        )
    return Offer(
        row["instancetype"], name, int(count), price, row.get("region", ""), _amount(row, "vcpus"),
        _amount(row, "memorygib"), row.get("source", file_name), row.get("date", ""),
    )  # fmt: skip


def _amount(row: Row, column: str) -> float | None:
    if not row.get(column):
        return None
    return row.number(column, 0.0, expected="a number of at least 0, or nothing")


# ---- Names of accelerators.


def offers_of(prices: Prices, accelerator: str) -> tuple[Offer, ...]:
    """The offers with an accelerator of that name, without regard to case, spaces and hyphens; "cpu": those
    without one. InputError if there are none.
    """
    wanted = "".join(_words(accelerator))
    offers = tuple(o for o in prices.offers if "".join(_words(o.accelerator or CPU)) == wanted)
    if not offers:
        raise InputError(
            f"no price of {plain(accelerator)} in {prices.prices}; expected one of its accelerators, which "
            f"`lolat prices` lists, or {arg('price_per_hour')}"
        )
    return offers


def accelerators(offers: Iterable[Offer]) -> list[str]:
    """The names in a price list, sorted; "cpu" if it has instances without an accelerator."""
    return sorted({o.accelerator or CPU for o in offers}, key=str.casefold)


def accelerator_of(device: str, offers: Iterable[Offer]) -> str | None:
    """The accelerator that a device's name says: "Tesla V100-SXM2-16GB" is a V100. Of several the
    longest.
    """
    names = (n for n in accelerators(offers) if is_named(n, device))
    return max(names, key=lambda n: (len("".join(_words(n))), n), default=None)


def is_named(accelerator: str, device: str) -> bool:
    """Whether a device's name says an accelerator: its words in a row, however they are separated ("RTX
    4090" and "rtx4090"), or all of them somewhere ("v100-pcie-32gb" is a V100-32GB). "cpu" is only itself.
    """
    wanted, words = _words(accelerator), _words(device)
    if [CPU] in (wanted, words):
        return wanted == words
    starts = range(len(words))
    rows = {"".join(words[i : j + 1]) for i in starts for j in starts[i:]}
    return "".join(wanted) in rows or set(words).issuperset(wanted)


def _words(name: str) -> list[str]:
    """The words of a name: "A100-80GB" has a100 and 80gb."""
    return "".join(c if c.isalnum() else " " for c in name.casefold()).split()
