"""Points from a profile or a table.

A point is a block at one batch size, with its counts and times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, EXTRAS, FEATURES, behaviors, count, repacked
from lolat.io.tables import Row, Table, read_table
from lolat.tables.copies import row_key
from lolat.tables.devices import rows_of_devices

BLOCK_COLUMNS = ("acts", "inp", "flops", "latency_ms")
EXPECTED_BLOCKS = (
    "expected a CSV table of networks with a first line of network,batch_size,latency_ms; of operations "
    f"op,latency_ms and their sizes; of blocks {','.join(BLOCK_COLUMNS)} and, where known, "
    "traffic,weights,ops,batch_size,name"
)
MOST_OF_A_COUNT = 2**63 - 1  # largest count in a profile
MOST_USED_ROWS = 2_000  # rows of a table; more do not improve a fit of some forty coefficients


@dataclass(frozen=True)
class Point:
    """A measured block at one batch size.

    `counts`: the known counts, at least acts, inp and flops; `samples_ms`: raw times in the order of
    measuring, None for a point from a table; `reference_ms`: times of the network that ran before each
    sample; `spread`: relative difference between two halves of the samples; `whole`: True for a network,
    timed in its own loop, False for a block, timed after a network; `scheme`: the quantization scheme
    (`lolat.graph.quantized`), "" in float.
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
    scheme: str = ""

    @classmethod
    def from_graph(
        cls, name: str, graph: Graph, batch_size: int, latency_ms: float, **more: Any
    ) -> Point:
        """A point of a graph, with its counts and kinds of work; `more`: other fields."""
        counts = count(graph).total(batch_size)._asdict()
        kinds = tuple(sorted(behaviors(graph.operations)))
        return cls(name, batch_size, counts, latency_ms, kinds=kinds, **more)

    @property
    def key(self) -> str:
        """A key of the measurement (`lolat.tables.copies.row_key`); each size of a network has its own."""
        sizes = (self.counts.get(column, -1) for column in COLUMNS)
        return row_key(self.name, self.latency_ms, self.batch_size, *sizes)

    def to_dict(self) -> dict[str, Any]:
        """The point as a dict for a profile's JSON."""
        fields = asdict(self)
        if not self.scheme:
            del fields["scheme"]
        counts = dict.fromkeys(COLUMNS) | fields.pop("counts")
        for name in ("samples_ms", "reference_ms"):
            if fields[name] is not None:
                fields[name] = [round(ms, 4) for ms in fields[name]]
        return counts | fields | {"kinds": list(self.kinds)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Point:
        """Read a point from a profile; a count that is null or absent is unknown."""
        counts = {c: document[c] for c in COLUMNS if document.get(c) is not None}
        if not counts.keys().isdisjoint(EXTRAS):  # `repacked` follows from the others
            known = np.array([counts.get(c, 0) for c in COLUMNS])
            counts["repacked"] = int(repacked(known, document["batch_size"]))
        return msgspec.convert({**document, "counts": counts}, cls)


def points_of(document: Mapping[str, Any], key: str = "points") -> list[Point]:
    """The points in a profile's field `key`."""
    return [Point.from_dict(p) for p in document.get(key, ())]


def times(points: Sequence[Point]) -> np.ndarray:
    """(points,) latencies in ms."""
    return np.array([p.latency_ms for p in points])


def known_features(points: Sequence[Point]) -> tuple[str, ...]:
    """The counts that every point has, in the order of COLUMNS."""
    return tuple(c for c in COLUMNS if all(c in p.counts for p in points))


def family_of(name: str) -> str:
    """The family of an architecture: the letters of a network's name before the first digit or separator.

    A prefix for package, framework or weights is ignored; "grouped residual 50" and "residual 34" are one
    family.
    """
    plain = name.rpartition("/")[2].partition(":")[2] or name.rpartition("/")[2]
    plain = re.sub(r"^(?:(?:tf|legacy|gluon|test|tv|ssl|swsl|dm)_|grouped )", "", plain.lower())
    return re.split(r"[\d_.?-]", plain)[0].strip() or plain


def blocks_of(points: Sequence[Point]) -> list[str]:
    """(points,) the name of each point's block; points of one block are left out of a fit together.

    A block is the points of one name at all batch sizes; for whole networks, the points of one family. Rows
    of a table with the same counts are one block too, since otherwise the same counts would be in both the
    fit and the test. Points that LoLat measured have kinds of operations; their blocks go by name alone.
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


def lacking_counts(points: Sequence[Point]) -> str:
    """A warning if points of a table lack some of the six counts; else ""."""
    lacks = Counter(f for p in points for f in FEATURES if f not in p.counts)
    told = [f"no {name} in {n} of {len(points)} rows" for name, n in lacks.items()]
    more = "acts, inp, flops alone are used; answers get closer where every row has the others too"
    return f"{', '.join(told)}: {more}" if told else ""


def matrix(points: Sequence[Point], features: Sequence[str]) -> np.ndarray:
    """(points, features) counts as float64."""
    counts = np.array([[p.counts[f] for f in features] for p in points], float)
    return counts.reshape(len(points), len(features))


def read_points(path: str | Path, devices: Collection[str] = ()) -> list[tuple[Point, Row]]:
    """Read (point, row) pairs of a device from a CSV table with the columns acts, inp, flops, latency_ms.

    Optional columns: traffic, weights, ops, batch_size, name; an empty cell is an unknown count. Other
    columns are ignored. At most MOST_USED_ROWS rows, drawn at random, are read. InputError names the wrong
    line and column.
    """
    table = rows_of_devices(read_blocks(path), devices)
    rows = np.arange(len(table))
    if len(table) > MOST_USED_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST_USED_ROWS, replace=False))
    return [(point_of(row), row) for row in map(table.row, rows.tolist())]


def read_blocks(path: str | Path) -> Table:
    """Read a table of blocks; raises as `read_points`."""
    return read_table(path, BLOCK_COLUMNS, EXPECTED_BLOCKS, "measured block")


def point_of(row: Row) -> Point:
    """The point in a row; a row without a name is named by its counts."""
    expected = "a count from 0 to 2**63 - 1, a whole number"
    counts = {
        column: row.whole(column, 0, MOST_OF_A_COUNT, expected)
        for column in FEATURES
        if column in BLOCK_COLUMNS or row.get(column)
    }
    name = row.get("name") or " ".join(f"{n}={count}" for n, count in counts.items())
    return Point(name, row.whole("batch_size", default=1), counts, row.milliseconds())
