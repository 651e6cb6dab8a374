"""The JSON model file: read whole or refused with one plain error, written whole or not at all.

`lolat.model.schema` says what a document must hold.
"""

from __future__ import annotations

from typing import Any

from lolat.io.documents import LARGEST_BYTES, NotJsonError, read_json, to_json
from lolat.io.writing import AnyPath, shown_path, write_bytes
from lolat.model.schema import FORMAT_VERSION, SCHEMA, validate

__all__ = [
    "FORMAT_VERSION",
    "LARGEST_BYTES",
    "SCHEMA",
    "NotJsonError",
    "read",
    "to_json",
    "validate",
    "write",
    "write_bytes",
]

_EXPECTED = "expected a LoLat model file"


def read(path: AnyPath) -> dict[str, Any]:
    """The document in the model file at `path`, parsed and checked by `validate`.

    Raises ModelFileError, one line that names the path: no such file, a folder, no permission,
    too large, not UTF-8, not JSON, cut off, something else than a LoLat model, or a wrong field.
    """
    hint = "`python learn_model.py cpu` makes one, `lolat models` lists those there are"
    document: dict[str, Any] = read_json(path, _EXPECTED, hint=hint)
    validate(document, shown_path(path))
    return document


def write(path: AnyPath, document: dict[str, Any]) -> None:
    """Check `document` and put it at `path` in one step; errors as of `validate` and `write_bytes`."""
    source = shown_path(path)
    validate(document, source)
    write_bytes(path, to_json(document, source).encode("ascii"))
