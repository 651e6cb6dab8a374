"""Measured points: a block at one batch size, its counts and its raw times; from a file or a table."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph.counts import COLUMNS, FEATURES

REQUIRED = ("acts", "inp", "flops", "latency_ms")
OPTIONAL = ("traffic", "weights", "ops", "batch_size", "name")
_MOST = 2**63 - 1  # what a model file holds


@dataclass(frozen=True)
class Point:
    """One measured block at one batch size.

    `counts` holds those that are known (at least acts, inp, flops); `samples_ms` are the raw times in
    the order in which they were taken (None for a point from a table), `reference_ms` the time of what ran
    beside or before each of them; `spread` is how far two halves of them are apart, relative. `whole`:
    a whole network, timed in a loop of its own; anything else was measured alone, after a network.
    """

    name: str
    batch_size: int
    counts: Mapping[str, int]
    latency_ms: float
    samples_ms: tuple[float, ...] | None = None
    reference_ms: tuple[float, ...] = ()
    spread: float | None = None
    kinds: tuple[str, ...] = ()
    whole: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The point as it stands in a model file."""
        samples = self.samples_ms
        return {
            "name": self.name,
            "batch_size": self.batch_size,
            **{c: self.counts.get(c) for c in COLUMNS},
            "latency_ms": self.latency_ms,
            "samples_ms": None if samples is None else [round(t, 4) for t in samples],
            "reference_ms": [round(t, 4) for t in self.reference_ms],
            "spread": self.spread,
            "kinds": list(self.kinds),
            **({"whole": True} if self.whole else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Point:
        """Read what `to_dict` wrote; a count that is null or absent is unknown."""
        samples = document.get("samples_ms")
        return cls(
            name=document["name"],
            batch_size=document["batch_size"],
            counts={c: document[c] for c in COLUMNS if document.get(c) is not None},
            latency_ms=document["latency_ms"],
            samples_ms=None if samples is None else tuple(samples),
            reference_ms=tuple(document.get("reference_ms") or ()),
            spread=document.get("spread"),
            kinds=tuple(document.get("kinds") or ()),
            whole=document.get("whole") is True,
        )


def times(points: Sequence[Point]) -> np.ndarray:
    """(points,) latencies, ms."""
    return np.array([p.latency_ms for p in points])


def known_features(points: Sequence[Point]) -> tuple[str, ...]:
    """The counts that every point has, in the order of COLUMNS."""
    return tuple(c for c in COLUMNS if all(c in p.counts for p in points))


def matrix(points: Sequence[Point], features: Sequence[str]) -> np.ndarray:
    """(points, features) counts as float64."""
    return np.array([[p.counts[f] for f in features] for p in points], float).reshape(
        len(points), len(features)
    )


def is_table(path: str) -> bool:
    """Whether a file's name says that it is a table."""
    return path.lower().endswith((".csv", ".csv.gz"))


def open_text(path: str | Path) -> io.StringIO:
    """The text of a table, .csv or .csv.gz; InputError where it cannot be read."""
    try:
        content = Path(path).read_bytes()
        if str(path).lower().endswith(".gz"):
            content = gzip.decompress(content)
        return io.StringIO(content.decode("utf-8-sig"), newline="")
    except OSError as error:
        reason = error.strerror or "it is no gzip file"
        raise InputError(f"cannot read {path}: {reason}; expected a CSV table") from error
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} is cut off or no gzip file; expected a CSV table") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a CSV table in UTF-8: {error}") from error


def read_csv(path: str | Path) -> list[Point]:
    """Points from a CSV table with the columns acts, inp, flops, latency_ms.

    Where present also traffic, weights, ops, batch_size, name: an empty cell is an unknown count, and
    a count that not all rows have is not fitted. Other columns are ignored; names of columns may be
    in capitals. Raises InputError that names the line and column that is wrong.
    """
    try:
        with open_text(path) as file:
            reader = csv.DictReader(file)
            columns = [c.strip().lower() for c in reader.fieldnames or []]
            reader.fieldnames = columns
            missing = [c for c in REQUIRED if c not in columns]
            if missing:
                raise InputError(
                    f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
                    f"expected a first line with {','.join(REQUIRED)} and, where known, "
                    f"{','.join(OPTIONAL)}"
                )
            points = [_row(row, reader.line_num, path) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV table in UTF-8: {error}") from error
    if not points:
        raise InputError(f"{path} has no rows; expected one per measured block")
    return points


def _row(row: Mapping[str | None, Any], number: int, path: str | Path) -> Point:
    counts = {}
    for column in FEATURES:
        text = row.get(column)
        if column in REQUIRED or _filled(text):
            value = _number(text, column, number, path)
            if not 0 <= value <= _MOST:
                raise _wrong(text, column, number, path, "a count from 0 to 2**63 - 1")
            counts[column] = round(value)
    text = row.get("latency_ms")
    latency = _number(text, "latency_ms", number, path)
    if latency <= 0:
        raise _wrong(text, "latency_ms", number, path, "a time above 0, in milliseconds")
    text = row.get("batch_size")
    batch_size = _number(text, "batch_size", number, path) if _filled(text) else 1.0
    if not 1 <= batch_size <= _MOST or batch_size != int(batch_size):
        raise _wrong(text, "batch_size", number, path, "a whole number from 1")
    name = str(row["name"]) if _filled(row.get("name")) else f"line {number}"
    return Point(name, int(batch_size), counts, latency)


def _filled(text: Any) -> bool:
    return text is not None and bool(text.strip())


def _number(text: Any, column: str, number: int, path: str | Path) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise _wrong(text, column, number, path, "a number")
    return value


def _wrong(text: Any, column: str, number: int, path: str | Path, expected: str) -> InputError:
    given = f"is {text!r}" if _filled(text) else "is empty"
    return InputError(f"{path}, line {number}: {column} {given}; expected {expected}")
