"""JSON documents: read whole or refused with one line, checked by their shape, written for any editor.

A `msgspec.Struct` is the one schema of its kind of document; fields that it does not name may be there (a
later minor version adds some). Model files stay plain dicts: the shape only checks them.
"""

from __future__ import annotations

import codecs
import json
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lolat.errors import ModelFileError
from lolat.io.writing import reason_of, shown_path
from lolat.units import one_line

_LINE = 100

LEAST, MOST = 1e-30, 1e30
"""Beyond them is no time, size or rate of any device; results from numbers between them stay finite."""
Number = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=MOST)]
Positive = Annotated[float, msgspec.Meta(ge=LEAST, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Range = tuple[Number, Number]


class NotJsonError(ModelFileError):
    """A file that is something else than JSON, a table maybe."""


def read_json(path: str | PathLike[str], expected: str, hint: str = "") -> Any:
    """The document in the file at `path`, unchecked.

    ModelFileError, one line that names the file and ends in `expected`: the file cannot be read (`hint`
    says how to get one), or is no whole JSON. NotJsonError where it does not even begin as an object.
    """
    source = shown_path(path)
    try:
        # Some editors put a byte order mark in front of UTF-8; it does no harm.
        content = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError) as error:
        hint = f" ({hint})" if hint and isinstance(error, FileNotFoundError) else ""
        raise ModelFileError(f"{source}: {reason_of(error)}; {expected}{hint}") from None
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refused = ModelFileError if content.lstrip().startswith(b"{") else NotJsonError
        raise refused(f"{source}: not JSON ({one_line(error)}); {expected}") from None


def converted(document: Any, shape: Any, source: str, place: str = "$") -> Any:
    """`document`, as parsed from JSON, as `shape`, a type of msgspec's; `place`: where it stands in a file.

    ModelFileError begins with `source`, and says what is expected and where, as msgspec does.
    """
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        message = one_line(error)
    at = message.replace("`$", f"`{place}") if "`$" in message else f"{message} - at `{place}`"
    raise ModelFileError(f"{source}: {at}")


# ---- Writing


def to_json(document: dict[str, Any], source: str = "document") -> str:
    """`document` as text: keys sorted, one point a line, ASCII, for any editor; `json.loads` reverses it.

    ModelFileError for values that JSON cannot hold, NaN and infinities too.
    """
    try:
        return _formatted(document, "\n", in_list=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{source}: cannot be written as JSON ({one_line(error)}); expected text keys, lists, text, "
            "finite numbers, true, false and null"
        ) from None


def _formatted(value: Any, newline: str, in_list: bool) -> str:
    """`value` as JSON, indented by one; `newline` is the line break and indent of its place.

    On one line go: a list of plain values, an entry of a list whose values are plain or lists of
    plain values (a point), and a short object of plain values.
    """
    if not isinstance(value, dict | list) or not value:
        return _compact(value)
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise TypeError("a key that is not text")
    items = value.values() if isinstance(value, dict) else value
    if all(_plain(item) for item in items):
        flat = isinstance(value, list) or in_list or len(_compact(value)) + len(newline) <= _LINE
    else:
        flat = isinstance(value, dict) and in_list and all(_plain_list(item) for item in items)
    if flat:
        return _compact(value)
    inner = newline + " "
    if isinstance(value, list):
        parts = [_formatted(item, inner, in_list=True) for item in value]
        return "[" + inner + ("," + inner).join(parts) + newline + "]"
    parts = [
        f"{_compact(key)}: {_formatted(value[key], inner, in_list=False)}" for key in sorted(value)
    ]
    return "{" + inner + ("," + inner).join(parts) + newline + "}"


def _plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _plain_list(value: Any) -> bool:
    """True for a plain value and for a list of plain values."""
    return all(map(_plain, value)) if isinstance(value, list) else _plain(value)


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
