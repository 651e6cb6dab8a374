"""Prices of instances: a table in the layout of SkyPilot's catalogue, the list built in, and downloading.

The layout: github.com/skypilot-org/skypilot-catalog, README.md, "vms.csv": CSV, columns by name, whose
order differs from provider to provider. A row is an instance type in a region, with the accelerators in it.
"""

from __future__ import annotations

import datetime
import difflib
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lolat.errors import InputError
from lolat.io import paths
from lolat.io.tables import Row, Table, parse_table, read_table
from lolat.io.tables import to_csv as table_text
from lolat.io.writing import write_bytes
from lolat.units import plain

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
COLUMNS = (
    "InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "Price", "SpotPrice",
    "Region", "Source", "Date",
)  # fmt: skip
"""As LoLat writes them; Source and Date are its own, and all but NEEDED may be absent."""
CPU = "cpu"
"""What an instance without an accelerator is called where an accelerator is asked for."""
LARGEST_BYTES = 64 * 2**20
MOST_NAMES = 12
_EXPECTED = (
    f"expected a price list in the layout of SkyPilot's catalogue, with the columns {','.join(NEEDED)} "
    "and, where known, SpotPrice, Region"
)


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


# ---- A price list in a file.


def read_catalogue(path: str | Path, source: str | None = None) -> tuple[Offer, ...]:
    """The offers in a CSV file. InputError: not there, not a table, lacks a column, a wrong price."""
    if Path(path).is_file() and Path(path).stat().st_size > LARGEST_BYTES:
        raise InputError(f"{plain(str(path))} is too large; {_EXPECTED}, of at most 64 MiB")
    table = read_table(path, NEEDED, _EXPECTED)
    return _offers(table, source if source is not None else Path(path).name, "")


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
    return _offers(parse_table(text, shown, NEEDED, _EXPECTED), source, date)


def _offers(table: Table, source: str, date: str) -> tuple[Offer, ...]:
    offers = tuple(o for row in table if (o := _offer(row, source, date)) is not None)
    if not offers:
        raise InputError(f"{table.source} has no instance with a price; {_EXPECTED}")
    return offers


def _offer(row: Row, source: str, date: str) -> Offer | None:
    count = _amount(row, "acceleratorcount") or 0.0
    price, spot = _amount(row, "price"), _amount(row, "spotprice")
    name = row["acceleratorname"]
    if not row["instancetype"] or (price is None and spot is None) or count != int(count):
        return None
    if bool(name) != (count > 0):
        raise row.wrong(
            "acceleratorname", f"a name and a count above 0 (it is {count:g}), or neither"
        )
    return Offer(
        row["instancetype"], name, int(count), price, spot, row.get("region", ""), _amount(row, "vcpus"),
        _amount(row, "memorygib"), row.get("source") or source, row.get("date") or date,
    )  # fmt: skip


def _amount(row: Row, column: str) -> float | None:
    if not row.get(column):
        return None
    return row.number(column, 0.0, expected="a number of at least 0, or nothing")


def to_csv(offers: Iterable[Offer]) -> str:
    """Offers as text that `read_catalogue` reads back."""
    rows = (
        (o.instance_type, o.accelerator, o.count or None, o.vcpus, o.memory_gib, o.price, o.spot_price,
         o.region, o.source, o.date)
        for o in offers
    )  # fmt: skip
    return table_text(COLUMNS, (["" if c is None else c for c in row] for row in rows))


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
            f"{listed(accelerators(offers), near=accelerator)}; or give --price-per-hour"
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


# ---- Where prices come from: a file that is given, the list downloaded last, or the small one built in.

CATALOGUE = "skypilot-org/skypilot-catalog"
"""On GitHub; what a row says after it is the folder in its `catalogs`, or the provider."""
_READ = "2026-11-20"


def _rows(
    source: str, region: str, *rows: tuple[str, str, int, float, float, float | None, float | None]
) -> tuple[Offer, ...]:
    return tuple(
        Offer(kind, name, count, price, spot, region, vcpus, gib, f"{CATALOGUE} {source}", _READ)
        for kind, name, count, vcpus, gib, price, spot in rows
    )


BUILT_IN = (
    *_rows(
        "aws", "us-east-1",
        ("p3.2xlarge", "V100", 1, 8, 61, 3.06, 0.918),
    ),
    *_rows(
        "v7/lambda", "us-east-1",
        ("gpu_8x_v100", "V100", 8, 92, 448, 4.4, None),
        ("gpu_1x_a6000", "A6000", 1, 14, 100, 0.8, None),
        ("gpu_2x_a6000", "A6000", 2, 28, 200, 1.6, None),
        ("gpu_4x_a6000", "A6000", 4, 56, 400, 3.2, None),
        ("gpu_8x_a100", "A100", 8, 124, 1800, 10.32, None),
        ("cpu_4x_general", "", 0, 4, 16, 0.2, None),
    ),
    *_rows(
        "v5/paperspace", "East Coast (NY2)",
        ("H100", "H100", 1, 15, 80, 5.95, None),
        ("H100x8", "H100", 8, 128, 640, 47.6, None),
        ("A100-80G", "A100-80GB", 1, 12, 80, 3.18, None),
        ("A100-80Gx8", "A100-80GB", 8, 96, 640, 25.44, None),
        ("A100", "A100", 1, 12, 80, 3.09, None),
        ("A100x4", "A100", 4, 48, 160, 12.36, None),
        ("V100-32G", "V100-32GB", 1, 8, 32, 2.3, None),
        ("V100-32Gx2", "V100-32GB", 2, 16, 64, 4.6, None),
        ("V100-32Gx4", "V100-32GB", 4, 32, 128, 9.2, None),
    ),
)  # fmt: skip
"""Some prices, to have an answer without a network; `date` is the day they were read in the catalogue."""


@dataclass(frozen=True)
class Prices:
    """What instances cost, US$ an hour of the whole instance, and where the prices are from."""

    KEYS = ("prices=where", "offers")

    offers: tuple[Offer, ...]
    where: str


def refreshed_file() -> Path:
    """The list that `lolat prices refresh` keeps; it need not exist. InputError without a home folder."""
    return paths.local_folder() / "prices" / "catalogue.csv"


def find_prices(path: str | Path | None = None) -> Prices:
    """The prices in the file at `path`; without one those downloaded last, else those built in."""
    if path is not None:
        return Prices(read_catalogue(path), plain(str(path)))
    kept = refreshed_file()
    if kept.is_file():
        offers = read_catalogue(kept)
        return Prices(offers, f"the catalogue of {max(o.date for o in offers)}")
    return Prices(BUILT_IN, f"the built-in table of {_READ}")


# ---- Downloading SkyPilot's catalogue: what LoLat reads of it in one file, the date in every row.

BASE = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8"
"""Where SkyPilot has it (the schema that is kept up to date), PROVIDER/vms.csv for each provider."""
PROVIDERS = (
    "aws", "azure", "cudo", "do", "gcp", "lambda", "nebius", "oci", "paperspace", "runpod",
)  # fmt: skip
TIMEOUT_S = 30.0

Get = Callable[[str], bytes]


@dataclass(frozen=True)
class Refreshed:
    """What was downloaded: offers by source, what had nothing (with the reason), the file and the date."""

    offers: dict[str, int]
    left_out: dict[str, str]
    path: Path
    date: str


class _Unreachable(Exception):
    """The server does not answer at all; another file of it will not come either."""


def get(url: str) -> bytes:
    """The content at a URL. OSError where there is none, _Unreachable where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # http(s) only: see `_files`
            content: bytes = answer.read(LARGEST_BYTES + 1)
            length = answer.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        raise OSError(f"the server answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _Unreachable(str(getattr(error.reason, "strerror", None) or error.reason)) from None
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"no answer of a web server: {error!r}") from None
    if len(content) > LARGEST_BYTES:
        raise OSError("more than 64 MiB")
    if length is not None and length != str(len(content)):  # reading stops there without an error
        raise ConnectionError(f"broke off after {len(content)} of {length} bytes")
    return content


def refresh(
    path: Path,
    base: str = BASE,
    providers: Sequence[str] = PROVIDERS,
    today: Callable[[], datetime.date] = datetime.date.today,
    get: Get = get,
) -> Refreshed:
    """Download and put at `path` in one step; what was there stays as it is if anything goes wrong.

    `base`: a folder with PROVIDER/vms.csv in it, or with vms.csv, or one CSV file. A provider
    that is not there, or whose file is no price list, is left out. InputError: no
    network, nothing there, or a wrong URL.
    """
    date = today().isoformat()
    files = _files(base, providers)
    kept, counts, left_out = _download(files, date, get)
    if not kept and len(files[0][1]) > len(base):
        kept, counts, _ = _download([("vms.csv", f"{base.rstrip('/')}/vms.csv")], date, get)
        left_out = {} if kept else left_out
    if not kept:
        first = next(iter(left_out.items()))
        raise InputError(
            f"{plain(base)} has no price list ({first[0]}: {first[1]}); expected the address of SkyPilot's "
            "catalogs/v8, a folder with PROVIDER/vms.csv in it, or one of its CSV files"
        )
    write_bytes(path, to_csv(kept).encode())
    return Refreshed(counts, left_out, path, date)


def _download(
    files: Sequence[tuple[str, str]], date: str, get: Get
) -> tuple[list[Offer], dict[str, int], dict[str, str]]:
    """(offers, how many by name, why none by name); InputError where nobody answers."""
    kept: list[Offer] = []
    counts: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for name, url in files:
        try:
            content = get(url)
            # Regions have zones at the same price: once is enough.
            offers = dict.fromkeys(parse(content, plain(url)))
        except (_Unreachable, TimeoutError, ConnectionError) as error:
            raise InputError(
                f"{plain(url)} cannot be reached ({_one_line(error)}); expected a network: try again, give "
                "--url, or go on with the prices that are there: `lolat prices`"
            ) from None
        except (OSError, InputError) as error:
            left_out[name] = _one_line(error)
            continue
        counts[name] = len(offers)
        kept += [replace(o, source=plain(url), date=date) for o in offers]
    return kept, counts, left_out


def _files(base: str, providers: Sequence[str]) -> list[tuple[str, str]]:
    """(name, URL) of each file to ask for."""
    parts = urllib.parse.urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(
            f"--url {plain(base)}: expected an address that starts with https:// or http://"
        )
    if parts.path.endswith(".csv"):
        return [(parts.path.rsplit("/", 1)[1], base)]
    return [(name, f"{base.rstrip('/')}/{urllib.parse.quote(name)}/vms.csv") for name in providers]


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
