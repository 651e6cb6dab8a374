"""Downloads SkyPilot's catalogue and keeps what LoLat reads of it, in one file, the date in every row."""

from __future__ import annotations

import datetime
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lolat.errors import InputError
from lolat.model_file import write_bytes
from lolat.training.cost.catalogue import LARGEST_BYTES, Offer, parse
from lolat.training.cost.prices import to_csv
from lolat.units import plain

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
