"""A price list in the layout of SkyPilot's catalogue: CSV, columns by name, one offer of a provider a row.

The layout: github.com/skypilot-org/skypilot-catalog, README.md, "vms.csv". The columns' order differs from
provider to provider. A row is an instance type in a region, with the accelerators that are in it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lolat.errors import InputError
from lolat.units import plain

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
OTHERS = ("SpotPrice", "Region", "vCPUs", "MemoryGiB", "Source", "Date")
"""Columns that are read where they are there; Source and Date are LoLat's own, the rest is SkyPilot's."""
CPU = "cpu"
"""What an instance without an accelerator is called where an accelerator is asked for."""
LARGEST_BYTES = 64 * 2**20
MOST_NAMES = 12

_EXPECTED = "expected a price list in the layout of SkyPilot's catalogue"


@dataclass(frozen=True)
class Offer:
    """An instance type at a provider. Prices are in US$ an hour of the whole instance, None where unknown.

    `count`: its accelerators; 0 for an instance without, where `accelerator` is empty too.
    """

    instance_type: str
    accelerator: str
    count: int
    price: float | None
    spot_price: float | None = None
    region: str = ""
    vcpus: float | None = None
    memory_gib: float | None = None
    source: str = ""
    date: str = ""

    @property
    def devices(self) -> int:
        """How many devices a training run has in it: its accelerators, or itself."""
        return max(self.count, 1)


def read_catalogue(path: str | Path, source: str | None = None) -> tuple[Offer, ...]:
    """The offers in a CSV file. InputError: not there, not a table, lacks a column, a wrong price."""
    shown = plain(str(path))
    try:
        if Path(path).is_file() and Path(path).stat().st_size > LARGEST_BYTES:
            raise InputError(f"{shown} is too large; {_EXPECTED} of at most 64 MiB")
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{shown}: no such file; {_EXPECTED}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"cannot read {shown}: {reason}; {_EXPECTED}") from None
    return parse(content, shown, source if source is not None else Path(path).name)


def parse(content: bytes, shown: str, source: str = "", date: str = "") -> tuple[Offer, ...]:
    """The offers in the text of a CSV file, which messages call `shown`; errors as `read_catalogue`.

    `source` and `date` are of rows that name none. Left out: a row without an instance type (an accelerator
    that is rented on top of some machine), without any price, or with a fraction of an accelerator.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{shown} is not UTF-8 text (at byte {error.start}); {_EXPECTED}"
        ) from None
    found = [
        offer
        for line, cells in _rows(text, shown)
        if (offer := _offer(cells, f"{shown}, line {line}", source, date)) is not None
    ]
    if not found:
        raise InputError(f"{shown} has no instance with a price; {_EXPECTED}, one row for each")
    return tuple(found)


def offers_of(offers: Sequence[Offer], accelerator: str, where: str) -> tuple[Offer, ...]:
    """The offers with that accelerator, by its name without regard to case, spaces and hyphens.

    "cpu" is for instances without one. InputError, with the names that there are in `where`, if none.
    """
    wanted = name_key(accelerator)
    found = tuple(o for o in offers if name_key(o.accelerator or CPU) == wanted)
    if not found:
        raise InputError(
            f"no price of {plain(accelerator)} in {where}; expected one of "
            f"{listed(accelerators(offers), near=accelerator)}; or give --price-per-hour"
        )
    return found


def accelerators(offers: Iterable[Offer]) -> list[str]:
    """The names of what can be asked for, sorted; "cpu" where there are instances without."""
    return sorted({o.accelerator or CPU for o in offers}, key=str.casefold)


def listed(names: Sequence[str], near: str = "") -> str:
    """Names with commas between them: of many, those that look like `near` first, and how many more."""
    if len(names) <= MOST_NAMES:
        return ", ".join(map(plain, names))
    import difflib

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


def _rows(text: str, shown: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line in the file, cell by column) of each row; InputError where a column is missing."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next((row for row in reader if row), [])
        at = _columns(header, shown)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"{shown}, line {reader.line_num}: {len(cells)} cell{'s' * (len(cells) != 1)}; "
                    f"expected {len(header)}, as in the first line"
                )
            yield reader.line_num, {name: cells[i].strip() for name, i in at.items()}
    except csv.Error as error:
        raise InputError(f"{shown} is not a CSV table: {error}; {_EXPECTED}") from None


def _columns(header: Sequence[str], shown: str) -> dict[str, int]:
    """Where each known column stands."""
    names = [name.strip().casefold() for name in header]
    missing = [name for name in NEEDED if name.casefold() not in names]
    if missing:
        found = ", ".join(plain(name.strip()) for name in header[:MOST_NAMES]) or "nothing"
        raise InputError(
            f"{shown} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
            f"found {found[:200]}; {_EXPECTED}: {','.join(NEEDED)} in any order, "
            "and SpotPrice, Region where known"
        )
    known = (name for name in (*NEEDED, *OTHERS) if name.casefold() in names)
    return {name: names.index(name.casefold()) for name in known}


def _offer(cells: Mapping[str, str], where: str, source: str, date: str) -> Offer | None:
    count = number(cells["AcceleratorCount"], f"{where}, AcceleratorCount") or 0.0
    price = number(cells["Price"], f"{where}, Price")
    spot = number(cells.get("SpotPrice", ""), f"{where}, SpotPrice")
    name = cells["AcceleratorName"]
    if not cells["InstanceType"] or (price is None and spot is None) or count != int(count):
        return None
    if bool(name) != (count > 0):
        raise InputError(
            f"{where}: accelerator {plain(name)!r} and a count of {count:g}; expected a name and a count "
            "above 0, or neither"
        )
    return Offer(
        cells["InstanceType"],
        name,
        int(count),
        price,
        spot,
        cells.get("Region", ""),
        number(cells.get("vCPUs", ""), f"{where}, vCPUs"),
        number(cells.get("MemoryGiB", ""), f"{where}, MemoryGiB"),
        cells.get("Source") or source,
        cells.get("Date") or date,
    )


def number(cell: str, where: str) -> float | None:
    """A number of at least 0, None for an empty cell; InputError for anything else, NaN too."""
    if not cell:
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise InputError(f"{where}: {plain(cell)!r}; expected a number of at least 0, or nothing")
    return value
