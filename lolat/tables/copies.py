"""Copies of a row in tables, which count once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from hashlib import sha256
from typing import TypeVar

from lolat.io.progress import Warn

T = TypeVar("T")


def row_key(name: str, ms: float, *sizes: float) -> str:
    """A short key of a measurement, the same in any unit and in any table.

    `name`: the network's name; a library, publisher or folder in front of it does not change the key.
    """
    told = re.split(r"[:/\\]", name)[-1].casefold(), f"{ms:.4g}", *map(float, sizes)
    return sha256(repr(told).encode()).hexdigest()[:16]


def copies_words(copies: int, rows: int) -> str:
    """The remark that `copies` of the `rows` rows are left out."""
    return f"{copies} of {rows} rows are copies of others, and count once"


def unique(keyed: Sequence[tuple[Hashable, T]], warn: Warn) -> list[T]:
    """The last value of each key, in the order of keys; `warn` is called with the number left out."""
    found = dict(keyed)
    if copies := len(keyed) - len(found):
        warn(copies_words(copies, len(keyed)))
    return [*found.values()]
