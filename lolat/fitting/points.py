"""Measured points: a block at one batch size, its counts and its raw times; from a file or a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.graph.counts import COLUMNS, FEATURES
from lolat.io.tables import Row, Table, read_table

REQUIRED = ("acts", "inp", "flops", "latency_ms")
EXPECTED = (
    f"expected a CSV table with a first line of {','.join(REQUIRED)} and, where known, "
    "traffic,weights,ops,batch_size,name; of networks network,batch_size,latency_ms; of operations "
    "op,latency_ms and their sizes"
)
MOST_OF_A_COUNT = 2**63 - 1  # what a model file holds
MOST_ROWS = 2_000  # of a table: some forty coefficients do not get better by more


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
        fields = asdict(self)
        counts = dict.fromkeys(COLUMNS) | fields.pop("counts")
        for name in ("samples_ms", "reference_ms"):
            if fields[name] is not None:
                fields[name] = [round(ms, 4) for ms in fields[name]]
        return counts | fields | {"kinds": list(self.kinds)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Point:
        """Read what `to_dict` wrote; a count that is null or absent is unknown."""
        counts = {c: document[c] for c in COLUMNS if document.get(c) is not None}
        return msgspec.convert({**document, "counts": counts}, cls)


def times(points: Sequence[Point]) -> np.ndarray:
    """(points,) latencies, ms."""
    return np.array([p.latency_ms for p in points])


def known_features(points: Sequence[Point]) -> tuple[str, ...]:
    """The counts that every point has, in the order of COLUMNS."""
    return tuple(c for c in COLUMNS if all(c in p.counts for p in points))


def family_of(name: str) -> str:
    """The architecture's family by a network's name: letters before the first digit or underscore, without
    what it is written in; a "grouped residual 50" is of the family of a "residual 34".
    """
    plain = name.rpartition("/")[2].partition(":")[2] or name.rpartition("/")[2]
    plain = re.sub(r"^(?:(?:tf|legacy|gluon|test|tv|ssl|swsl|dm)_|grouped )", "", plain.lower())
    return re.split(r"[\d_.?-]", plain)[0].strip() or plain


def blocks_of(points: Sequence[Point]) -> list[str]:
    """(points,) the block that each is of: points of one block are left out of a fit together.

    That is its name, with all its batch sizes; of a whole network its family, as sisters would tell of it.
    Rows of a table that have the same counts are one block, whatever they are called: the others would tell
    the one that is left out. What LoLat measured, of which it knows the kinds of operations, goes by its
    name alone.
    """
    block: dict[str, str] = {}

    def first_name(name: str) -> str:
        while (other := block.get(name, name)) != name:
            name = other
        return name

    named: dict[tuple[int, ...], str] = {}
    for point in points:
        is_row = point.samples_ms is None and not point.kinds and not point.whole
        if is_row:
            name = first_name(point.name)
            block[name] = first_name(named.setdefault((*point.counts.values(),), name))
    return [
        f"family {family_of(point.name)}" if point.whole else first_name(point.name)
        for point in points
    ]


def lacking_counts(points: Sequence[Point], columns: Collection[str]) -> str:
    """The warning about a table of blocks, with these columns, that lacks some of the six counts.

    "" where every point has all of them.
    """
    lacks = Counter(f for p in points for f in FEATURES if f not in p.counts)
    told = [
        f"no {name}" if name not in columns else f"no {name} in {lacks[name]} of {len(points)} rows"
        for name in FEATURES
        if lacks[name]
    ]
    if not told:
        return ""
    return (
        f"{', '.join(told)}: acts, inp, flops alone are used; answers get closer where every row has "
        "traffic, weights and ops too"
    )


def matrix(points: Sequence[Point], features: Sequence[str]) -> np.ndarray:
    """(points, features) counts as float64."""
    counts = np.array([[p.counts[f] for f in features] for p in points], float)
    return counts.reshape(len(points), len(features))


def read_points(path: str | Path, devices: Collection[str] = ()) -> list[tuple[Point, Row]]:
    """Points of a device from a CSV table with acts, inp, flops, latency_ms, each with its row.

    Where present also traffic, weights, ops, batch_size, name: an empty cell is an unknown count, and
    a count that not all rows have is not fitted. Other columns are ignored; names of columns may be
    in capitals. Of more than MOST_ROWS rows so many, drawn at random, are points. Raises InputError that
    names the line and column that is wrong.
    """
    table = read_blocks(path).of_devices(devices)
    rows = np.arange(len(table))
    if len(table) > MOST_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST_ROWS, replace=False))
    return [(point_of(row), row) for row in map(table.row, rows.tolist())]


def read_blocks(path: str | Path) -> Table:
    """The cells of a table of blocks; errors as of `read_points`."""
    return read_table(path, REQUIRED, EXPECTED, "measured block")


def point_of(row: Row) -> Point:
    """The point of a row, which is named by its counts where it has no name."""
    expected = "a count from 0 to 2**63 - 1, a whole number"
    counts = {
        column: row.whole(column, 0, MOST_OF_A_COUNT, expected)
        for column in FEATURES
        if column in REQUIRED or row.get(column)
    }
    name = row.get("name") or " ".join(f"{n}={count}" for n, count in counts.items())
    return Point(name, row.whole("batch_size", default=1), counts, row.milliseconds())
