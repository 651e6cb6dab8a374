"""Reads, validates and writes JSON documents.

Each kind of document has one schema, a `msgspec.Struct`. A document may have unknown fields, because later
minor versions add some. A profile stays a plain dict after validation.
"""

from __future__ import annotations

import codecs
import json
import threading
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lolat.errors import ModelFileError
from lolat.io.paths import reason_of, shown_path
from lolat.units import one_line

_LINE = 100
_CONVERTING = threading.RLock()
"""Two threads that use a type for the first time at once crash msgspec 0.22."""

LEAST, MOST = 1e-30, 1e30
"""Limits for a device's times, sizes and rates, within which all results are finite."""
Number = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=MOST)]
Positive = Annotated[float, msgspec.Meta(ge=LEAST, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Range = tuple[Number, Number]


def read_json(
    path: str | PathLike[str],
    expected: str,
    hint: str = "",
    decode: Callable[[bytes], Any] = msgspec.json.decode,
) -> Any:
    """Parse the JSON file at `path` without validating its content.

    `decode`: `json.loads` for a file of transformers, which may contain Infinity and NaN. ModelFileError
    for a file that cannot be read or is not JSON; its message ends in `expected`, and for a missing file in
    `hint`, which says how to get one.
    """
    try:
        # Some editors put a byte order mark in front of UTF-8; it does no harm.
        content = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError) as error:
        hint = f" ({hint})" if hint and isinstance(error, FileNotFoundError) else ""
        raise ModelFileError(f"{shown_path(path)}: {reason_of(error)}; {expected}{hint}") from None
    try:
        return decode(content)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{shown_path(path)}: not JSON ({one_line(error)}); {expected}"
        ) from None


def converted(document: Any, shape: Any, source: str, place: str = "$") -> Any:
    """Convert parsed JSON to `shape`, a type that msgspec knows; `place`: its JSON path in the file.

    ModelFileError if it does not fit; the message has `source`, msgspec's error and the path of the value.
    """
    try:
        with _CONVERTING:
            return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        message = one_line(error)
    at = message.replace("`$", f"`{place}") if "`$" in message else f"{message} - at `{place}`"
    raise ModelFileError(f"{source}: {at}")


# ---- Writing


def to_json(document: Mapping[str, Any], source: str = "document") -> str:
    """The JSON text of `document`, in ASCII: keys are sorted, each entry of a list is on one line.

    ModelFileError for values that JSON cannot represent, such as NaN and infinities.
    """
    try:
        return _formatted(document, "\n") + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{source}: cannot be written as JSON ({one_line(error)}); expected text keys, lists, text, "
            "finite numbers, true, false and null"
        ) from None


def _formatted(value: Any, newline: str) -> str:
    """`value` as JSON, indented by one space; short values and entries of a list are on one line.

    `newline`: a line break and the indentation at this depth.
    """
    text, inner = _compact(value), newline + " "
    if len(text) + len(newline) <= _LINE or not isinstance(value, dict | list):
        return text
    if isinstance(value, list):
        return "[" + inner + ("," + inner).join(map(_compact, value)) + newline + "]"
    parts = [f"{_compact(key)}: {_formatted(value[key], inner)}" for key in sorted(value)]
    return "{" + inner + ("," + inner).join(parts) + newline + "}"


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
