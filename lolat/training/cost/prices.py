"""Where prices come from: a file that is given, the list downloaded last, or the small one built in."""

from __future__ import annotations

import csv
import datetime
import http.client
import io
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lolat.errors import InputError
from lolat.io import paths as places
from lolat.model.file import write_bytes
from lolat.training.cost.catalogue import (
    CPU,
    LARGEST_BYTES,
    Offer,
    name_key,
    name_words,
    parse,
    read_catalogue,
)
from lolat.units import plain

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
    """Offers, and in `where` what they are called in front of people."""

    offers: tuple[Offer, ...]
    where: str


def refreshed_file() -> Path:
    """The list that `lolat prices refresh` keeps; it need not exist. InputError without a home folder."""
    return places.local_folder() / "prices" / "catalogue.csv"


def find_prices(path: str | Path | None = None) -> Prices:
    """The prices in the file at `path`; without one those downloaded last, else those built in."""
    if path is not None:
        from lolat.units import plain

        return Prices(read_catalogue(path), plain(str(path)))
    kept = refreshed_file()
    if kept.is_file():
        offers = read_catalogue(kept)
        return Prices(offers, f"the catalogue of {max(o.date for o in offers)}")
    return Prices(BUILT_IN, f"the built-in table of {_READ}")


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


def to_csv(offers: Iterable[Offer]) -> str:
    """Offers as text that `read_catalogue` reads back."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "Price", "SpotPrice",
         "Region", "Source", "Date")
    )  # fmt: skip
    for o in offers:
        count = o.count or ""
        row = (o.instance_type, o.accelerator, count, o.vcpus, o.memory_gib, o.price, o.spot_price)
        writer.writerow((*("" if c is None else c for c in row), o.region, o.source, o.date))
    return out.getvalue()


# ---- Downloads SkyPilot's catalogue and keeps what LoLat reads of it, in one file, the date in
# every row.

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
