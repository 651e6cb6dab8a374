"""Measured points: a block at one batch size, its counts and its raw times; from a file or a table."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.counts import COLUMNS, FEATURES
from lolat.errors import InputError

REQUIRED = ("acts", "inp", "flops", "latency_ms")
OPTIONAL = ("traffic", "weights", "ops", "batch_size", "name")


@dataclass(frozen=True)
class Point:
    """One measured block at one batch size.

    `counts` holds those that are known (at least acts, inp, flops); `samples_ms` are the raw times in
    the order in which they were taken (None for a point from a table), `reference_ms` the time of the
    reference block beside each of them; `spread` is how far two halves of them are apart, relative.
    """

    name: str
    batch_size: int
    counts: Mapping[str, int]
    latency_ms: float
    samples_ms: tuple[float, ...] | None = None
    reference_ms: tuple[float, ...] = ()
    spread: float | None = None
    kinds: tuple[str, ...] = ()

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
            reference_ms=tuple(document.get("reference_ms", ())),
            spread=document.get("spread"),
            kinds=tuple(document.get("kinds", ())),
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


def read_csv(path: str | Path) -> list[Point]:
    """Points from a CSV table with the columns acts, inp, flops, latency_ms.

    Where present also traffic, weights, ops (all three or they are left out), batch_size, name.
    Raises InputError that names the row and column that is wrong.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [c.strip() for c in reader.fieldnames or []]
            reader.fieldnames = columns
            missing = [c for c in REQUIRED if c not in columns]
            if missing:
                raise InputError(
                    f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
                    f"expected {', '.join(REQUIRED)} and, where known, {', '.join(OPTIONAL)}"
                )
            points = [_row(row, number, path) for number, row in enumerate(reader, start=2)]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; expected a CSV table") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV table in UTF-8: {error}") from error
    if not points:
        raise InputError(f"{path} has no rows; expected one per measured block")
    return points


def _row(row: Mapping[str | None, Any], number: int, path: str | Path) -> Point:
    counts = {}
    for column in FEATURES:
        text = row.get(column)
        if column in REQUIRED or (text is not None and text.strip()):
            value = _number(text, column, number, path)
            if value < 0:
                raise InputError(f"{path}, line {number}: {column} is {text!r}, expected 0 or more")
            counts[column] = round(value)
    latency = _number(row.get("latency_ms"), "latency_ms", number, path)
    if latency <= 0:
        raise InputError(
            f"{path}, line {number}: latency_ms is {row.get('latency_ms')!r}, expected a time above "
            "0 in milliseconds"
        )
    batch = row.get("batch_size")
    batch_size = _number(batch, "batch_size", number, path) if batch else 1.0
    if batch_size < 1 or batch_size != int(batch_size):
        raise InputError(
            f"{path}, line {number}: batch_size is {batch!r}, expected a whole number from 1"
        )
    return Point(row.get("name") or f"row {number}", int(batch_size), counts, latency)


def _number(text: Any, column: str, number: int, path: str | Path) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path}, line {number}: {column} is {text!r}, expected a number")
    return value
