"""Measured points: a block at one batch size, its counts and its raw times; from a file or a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.graph.counts import COLUMNS, FEATURES
from lolat.io.tables import LONGEST_MS, MOST_WHOLE, SHORTEST_MS, Row, Table, read_table

REQUIRED = ("acts", "inp", "flops", "latency_ms")
OPTIONAL = ("traffic", "weights", "ops", "batch_size", "name")
MOST_OF_A_COUNT = 2**63 - 1  # what a model file holds
# Of a table: seven coefficients do not get better by more, and a file has room for them.
MOST_ROWS = 10_000


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


def read_csv(path: str | Path, warn: Callable[[str], object] = lambda text: None) -> list[Point]:
    """Points from a CSV table with the columns acts, inp, flops, latency_ms.

    Where present also traffic, weights, ops, batch_size, name: an empty cell is an unknown count, and
    a count that not all rows have is not fitted. Other columns are ignored; names of columns may be
    in capitals. Of more than MOST_ROWS rows all are checked and so many, drawn at random, are points;
    `warn` is told. Raises InputError that names the line and column that is wrong.
    """
    expected = (
        f"expected a CSV table with a first line of {','.join(REQUIRED)} and, where known, "
        f"{','.join(OPTIONAL)}"
    )
    lines: dict[tuple[int, ...], str] = {}
    table = read_table(path, REQUIRED, expected, "measured block")
    rows = np.arange(len(table))
    if len(table) > MOST_ROWS:
        for row in _doubtful(table):
            _point(table.row(row), lines)
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST_ROWS, replace=False))
        warn(
            f"{table.source}: {len(table):,} rows were read and {MOST_ROWS:,} of them, drawn at random "
            "(each time the same), are fitted"
        )
    return [_point(table.row(row), lines) for row in rows.tolist()]


def _doubtful(table: Table) -> list[int]:
    """The rows that `_point` may refuse, in order: all that it does, and next to none besides."""
    doubtful = np.zeros(len(table), bool)
    ends = dict.fromkeys(FEATURES, (0.0, 0.999 * MOST_OF_A_COUNT))
    ends |= {"batch_size": (1.0, float(MOST_WHOLE)), "latency_ms": (SHORTEST_MS, LONGEST_MS)}
    for column, (least, most) in ends.items():
        if column in table.names:
            values, empty = table.numbers(column)
            good = (least <= values) & (values <= most)
            if column != "latency_ms":
                good &= values == np.floor(values)
            doubtful |= ~(good if column in REQUIRED else good | empty)
    return np.flatnonzero(doubtful).tolist()


def _point(row: Row, lines: dict[tuple[int, ...], str]) -> Point:
    # Rows without a name that say the same of a block are one block, `lines`: left out together.
    counts = {
        column: _count(row, column) for column in FEATURES if column in REQUIRED or row.get(column)
    }
    return Point(
        row.get("name") or lines.setdefault(tuple(counts.values()), f"line {row.line}"),
        row.whole("batch_size", default=1),
        counts,
        row.milliseconds(),
    )


def _count(row: Row, column: str) -> int:
    """A whole number, as 12 or 1.2e1: 0.4 is of another unit, and would be rounded away."""
    expected = "a count from 0 to 2**63 - 1, a whole number"
    count = row.number(column, 0, MOST_OF_A_COUNT, expected)
    if count != round(count):
        raise row.wrong(column, expected)
    return round(count)
