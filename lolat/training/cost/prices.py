"""Prices of instances: a table in the layout of SkyPilot's catalogue, and the list built in.

The layout: github.com/skypilot-org/skypilot-catalog, README.md, "vms.csv": CSV, columns by name, whose
order differs from provider to provider. A row is an instance type in a region, with the accelerators in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lolat.errors import InputError, arg
from lolat.io.tables import Row, read_table
from lolat.units import plain

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
CPU = "cpu"
"""What an instance without an accelerator is called where an accelerator is asked for."""
LARGEST_BYTES = 64 * 2**20
MOST_NAMES = 12
_EXPECTED = (
    f"expected a price list in the layout of SkyPilot's catalogue, with the columns {','.join(NEEDED)} "
    "and, where known, Region, vCPUs"
)


@dataclass(frozen=True)
class Offer:
    """An instance type at a provider; `price`: US$ an hour of the whole instance.

    `count`: its accelerators; 0 for an instance without, where `accelerator` is empty too.
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
        """How many devices a training run has in it: its accelerators, or itself."""
        return max(self.count, 1)


# ---- A price list in a file.


def read_catalogue(path: str | Path) -> tuple[Offer, ...]:
    """The offers in a CSV file, each once. InputError: not there, no table, lacks a column, a wrong price.

    Left out: a row without an instance type (an accelerator that is rented on top of some machine), without
    a price, or with a fraction of an accelerator.
    """
    if Path(path).is_file() and Path(path).stat().st_size > LARGEST_BYTES:
        raise InputError(f"{plain(str(path))} is too large; {_EXPECTED}, of at most 64 MiB")
    table = read_table(path, NEEDED, _EXPECTED)
    # Regions have zones at the same price: once is enough.
    offers = tuple(
        dict.fromkeys(o for row in table if (o := _offer(row, Path(path).name)) is not None)
    )
    if not offers:
        raise InputError(f"{table.source} has no instance with a price; {_EXPECTED}")
    return offers


def _offer(row: Row, source: str) -> Offer | None:
    count = _amount(row, "acceleratorcount") or 0.0
    name, price = row["acceleratorname"], _amount(row, "price")
    if not row["instancetype"] or price is None or count != int(count):
        return None
    if bool(name) != (count > 0):
        raise row.wrong(
            "acceleratorname", f"a name and a count above 0 (it is {count:g}), or neither"
        )
    return Offer(
        row["instancetype"], name, int(count), price, row.get("region", ""), _amount(row, "vcpus"),
        _amount(row, "memorygib"), source,
    )  # fmt: skip


def _amount(row: Row, column: str) -> float | None:
    if not row.get(column):
        return None
    return row.number(column, 0.0, expected="a number of at least 0, or nothing")


# ---- Names of accelerators.


def offers_of(offers: Sequence[Offer], accelerator: str, where: str) -> tuple[Offer, ...]:
    """The offers with that accelerator, by its name without regard to case, spaces and hyphens.

    "cpu" is for instances without one. InputError, with the names that there are in `where`, if none.
    """
    wanted = name_key(accelerator)
    own = tuple(o for o in offers if name_key(o.accelerator or CPU) == wanted)
    if not own:
        raise InputError(
            f"no price of {plain(accelerator)} in {where}; expected one of "
            f"{listed(accelerators(offers), near=accelerator)}; or give "
            f"{arg('price_per_hour')}"
        )
    return own


def accelerators(offers: Iterable[Offer]) -> list[str]:
    """The names of what can be asked for, sorted; "cpu" where there are instances without."""
    return sorted({o.accelerator or CPU for o in offers}, key=str.casefold)


def listed(names: Sequence[str], near: str = "") -> str:
    """Names with commas between them: of many, those that look like `near` first, and how many more."""
    if len(names) <= MOST_NAMES:
        return ", ".join(map(plain, names))
    by_key = {name_key(n): n for n in names}
    close = difflib.get_close_matches(name_key(near), by_key, n=MOST_NAMES, cutoff=0.5)
    first = list(dict.fromkeys([*(by_key[k] for k in close), *names]))[:MOST_NAMES]
    return f"{', '.join(map(plain, first))} ... ({len(names)} in all, `lolat prices` lists them)"


def name_key(name: str) -> str:
    """A name as it is compared: "RTX 4090" and "rtx-4090" are the same."""
    return "".join(name_words(name))


def name_words(name: str) -> list[str]:
    """The words of a name: "A100-80GB" has a100 and 80gb."""
    return "".join(c if c.isalnum() else " " for c in name.casefold()).split()


def accelerator_of(device: str, offers: Iterable[Offer]) -> str | None:
    """The accelerator of the offers that a device's name says: "Tesla V100-SXM2-16GB" is a V100.

    The longest name that `is_of` it; None where none is.
    """
    names = {o.accelerator or CPU for o in offers}
    return max(
        (n for n in names if is_of(n, device)), key=lambda n: (len(name_key(n)), n), default=None
    )


def is_of(accelerator: str, device: str) -> bool:
    """Whether a device's name says an accelerator: its words in a row, however they are parted ("RTX 4090"
    and "rtx4090"), or all of them somewhere ("v100-pcie-32gb" is a V100-32GB). "cpu" is only itself.
    """
    key, words = name_key(accelerator), name_words(device)
    if CPU in (key, name_key(device)):
        return key == name_key(device)
    starts = range(len(words))
    rows = {"".join(words[i : j + 1]) for i in starts for j in starts[i:]}
    return key in rows or set(words).issuperset(name_words(accelerator))


# ---- Where prices come from: a file that is given, or the small list built in.

CATALOGUE = "skypilot-org/skypilot-catalog"
"""On GitHub; what a row says after it is the folder in its `catalogs`, or the provider."""
_READ = "2026-11-20"


def _rows(
    source: str, region: str, *rows: tuple[str, str, int, float, float, float]
) -> tuple[Offer, ...]:
    return tuple(
        Offer(kind, name, count, price, region, vcpus, gib, f"{CATALOGUE} {source}", _READ)
        for kind, name, count, vcpus, gib, price in rows
    )


BUILT_IN = (
    *_rows(
        "aws", "us-east-1",
        ("p3.2xlarge", "V100", 1, 8, 61, 3.06),
    ),
    *_rows(
        "v7/lambda", "us-east-1",
        ("gpu_8x_v100", "V100", 8, 92, 448, 4.4),
        ("gpu_1x_a6000", "A6000", 1, 14, 100, 0.8),
        ("gpu_2x_a6000", "A6000", 2, 28, 200, 1.6),
        ("gpu_4x_a6000", "A6000", 4, 56, 400, 3.2),
        ("gpu_8x_a100", "A100", 8, 124, 1800, 10.32),
        ("cpu_4x_general", "", 0, 4, 16, 0.2),
    ),
    *_rows(
        "v5/paperspace", "East Coast (NY2)",
        ("H100", "H100", 1, 15, 80, 5.95),
        ("H100x8", "H100", 8, 128, 640, 47.6),
        ("A100-80G", "A100-80GB", 1, 12, 80, 3.18),
        ("A100-80Gx8", "A100-80GB", 8, 96, 640, 25.44),
        ("A100", "A100", 1, 12, 80, 3.09),
        ("A100x4", "A100", 4, 48, 160, 12.36),
        ("V100-32G", "V100-32GB", 1, 8, 32, 2.3),
        ("V100-32Gx2", "V100-32GB", 2, 16, 64, 4.6),
        ("V100-32Gx4", "V100-32GB", 4, 32, 128, 9.2),
    ),
)  # fmt: skip
"""Some prices, to have an answer without a network; `date` is the day they were read in the catalogue."""


@dataclass(frozen=True)
class Prices:
    """What instances cost, US$ an hour of the whole instance, and where the prices are from."""

    KEYS = ("prices=where", "offers")

    offers: tuple[Offer, ...]
    where: str


def find_prices(path: str | Path | None = None) -> Prices:
    """The prices in the file at `path`; without one those built in."""
    if path is not None:
        return Prices(read_catalogue(path), plain(str(path)))
    return Prices(BUILT_IN, f"the built-in table of {_READ}")
