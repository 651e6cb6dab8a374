"""Reads CSV tables, gzipped or not; a table with a fault is refused with one line.

Cells are separated by commas, or by tabs if the first line is. Every row must have as many cells as the
first line, quotes must be closed, text must be UTF-8, and names of columns must differ. A message on a cell
names file, line, column, the cell and the expected value.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lolat.errors import InputError
from lolat.io.documents import LEAST, MOST
from lolat.io.paths import reason_of
from lolat.io.progress import Warn
from lolat.units import as_number, did_you_mean, plain, shortened

MOST_WHOLE = 2**53
"""The largest whole number in a cell: above it a float is not exact."""
ABOVE_ZERO = LEAST
"""The lower limit for a cell that must be above 0."""
SHORTEST_MS, LONGEST_MS = 1e-6, 1e12
"""Limits of a time in ms: a nanosecond and thirty years."""
EXPECTED_MS = f"a time above 0, in milliseconds ({SHORTEST_MS:g} to {LONGEST_MS:g})"
OTHER_NAMES = {"gpu": "device", "fp16_tflops": "half_tflops"}
"""Column name in other tables -> our name, for hints."""
_GZIP = b"\x1f\x8b"
_FIRST_LINE = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?[\r\n]+)*([^\r\n]*)")
"""Matches the first line, with the names, after empty lines and comments."""


@dataclass
class Table:
    """The cells of a table by column; it records which columns are read.

    `content`: the text of the file; `header`: the cells of the first line; `names`: the columns' normalized
    names (`column_name`); `lines`: the line number at which each row ends; `expected`: the expected table,
    for messages; `used`: the columns read so far, in this table and in tables made from it.
    """

    source: str
    header: tuple[str, ...]
    names: tuple[str, ...]
    columns: Sequence[Sequence[str]]
    lines: Sequence[int]
    content: str
    expected: str
    used: set[str] = field(default_factory=set, compare=False)

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def row(self, index: int) -> Row:
        """The row with an index from 0."""
        cells = (column[index].strip() for column in self.columns)
        return Row(self, index, dict(zip(self.names, cells, strict=True)))

    def cells(self, column: str) -> list[str]:
        """The cells of a column without surrounding spaces; [] if there is no such column."""
        self.mark_read(column)
        at = self.names.index(column) if column in self.names else len(self.names)
        return [cell.strip() for cells in self.columns[at : at + 1] for cell in cells]

    def by(self, column: str) -> dict[str, Row]:
        """Cell in a column -> row; InputError if two rows have the same cell."""
        rows: dict[str, Row] = {}
        for row in self:
            if (first := rows.setdefault(row[column], row)) is not row:
                raise row.refused(
                    f"{column} {row[column]!r} stands in line {first.line} already; expected one row of it"
                )
        return rows

    def require(self, columns: Sequence[str], rows: str | None = None) -> None:
        """Raise InputError for a missing column and, if `rows` names the content of a row, for no rows."""
        if missing := [name for name in columns if column_name(name) not in self.names]:
            noun = "columns" if missing[1:] else "column"
            raise InputError(
                f"{self.source} lacks the {noun} {', '.join(missing)}; {self.expected}"
            )
        if rows is not None and not len(self):
            raise InputError(f"{self.source} has no rows; expected one per {rows}")

    def mark_read(self, *columns: str) -> None:
        """Mark columns as read without reading their cells."""
        self.used.update(columns)

    @property
    def unread(self) -> tuple[str, ...]:
        """The columns that have not been read yet."""
        return tuple(name for name in self.names if name and name not in self.used)

    def say_unread(self, warn: Warn) -> None:
        """Warn of columns that were not read, which change nothing, and suggest similar names."""
        lacks = {name: name for name in sorted(self.used.difference(["", *self.names]))}
        other = {n: {n: name} for n, name in OTHER_NAMES.items() if name in lacks}
        hints = ((n, did_you_mean(n, other.get(n, lacks), "")) for n in self.unread)
        near = (f"{n} ({hint})".removesuffix(" ()") for n, hint in hints)
        if unread := ", ".join(near):
            warn(f"{self.source}: columns that are not read: {shortened(unread)}")

    def with_column(self, name: str, values: Iterable[str]) -> str:
        """The table as CSV text with a new last column, in place of any column of the same name."""
        others = [i for i, n in enumerate(self.names) if n != name]
        header = [*(self.header[i] for i in others), name]
        return to_csv(header, zip(*(self.columns[i] for i in others), values, strict=True))


def say_unread(rows: Iterable[Row], warn: Warn) -> None:
    """Warn of the columns in the rows' tables that have not been read."""
    for table in {row.table.source: row.table for row in rows}.values():
        table.say_unread(warn)


class Row(Mapping[str, str]):
    """A row of a table: column name -> cell without surrounding spaces."""

    def __init__(self, table: Table, index: int, cells: dict[str, str]) -> None:
        self.table, self._index, self._cells = table, index, cells

    def __getitem__(self, column: str) -> str:
        self.table.mark_read(column)
        return self._cells[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def line(self) -> int:
        """The line number at which the row ends in the file."""
        return self.table.lines[self._index]

    @property
    def source(self) -> str:
        """The name of the file in messages."""
        return self.table.source

    @property
    def where(self) -> str:
        """The place of the row in messages: file and line."""
        return f"{self.source}, line {self.line}"

    def number(
        self, column: str, least: float = -MOST, most: float = MOST, expected: str = "a number",
        default: float | None = None,
    ) -> float:  # fmt: skip
        """The number in a cell, from `least` to `most`; `default` for an empty or missing cell.

        A number may have digits, a sign, a point and an exponent. InputError for any other text, and for a
        number outside the limits.
        """
        text = self.get(column, "")
        if not text and default is not None:
            return default
        value = as_number(text)
        if not least <= value <= most:
            raise self.wrong(column, expected)
        if value and not LEAST <= abs(value) <= MOST:
            raise self.wrong(column, f"{expected}, of a size from {LEAST:g} to {MOST:g}")
        return value

    def whole(
        self, column: str, least: int = 1, most: int = MOST_WHOLE, expected: str = "",
        default: int | None = None,
    ) -> int:  # fmt: skip
        """The whole number in a cell; 1e6 is one too. Errors: see `number`."""
        expected = expected or f"a whole number from {least}"
        if not self.get(column) and default is not None:
            return default
        value = self.number(column, least, most, expected)
        if value != int(value):
            raise self.wrong(column, expected)
        return int(value)

    def milliseconds(self, column: str = "latency_ms") -> float:
        """The time in a cell; InputError outside SHORTEST_MS to LONGEST_MS."""
        return self.number(column, SHORTEST_MS, LONGEST_MS, EXPECTED_MS)

    def choice(self, column: str, choices: Collection[str]) -> str:
        """The word in a cell, in lower case; InputError unless it is among `choices`."""
        if (word := self.get(column, "").lower()) not in choices:
            raise self.wrong(column, f"one of {', '.join(choices)}")
        return word

    def wrong(self, column: str, expected: str) -> InputError:
        """The error for a wrong cell; `expected`: the expected value, in words."""
        given = "no column of the table"
        if column in self._cells:
            given = repr(shortened(self._cells[column])) if self._cells[column] else "empty"
        return self.refused(f"{column} is {given}; expected {expected}", column)

    def refused(self, why: str, column: str = "") -> InputError:
        """The error for a row that cannot be used, with the data `where`, `why` and `column`."""
        where = self.where
        return InputError(f"{where}: {why}", where=where, why=why, column=column)


def read_table(
    path: str | Path, required: Sequence[str] = (), expected: str = "", rows: str | None = None
) -> Table:
    """Read a CSV file whose columns must include `required` (in lower case).

    `expected`: the expected file, for messages, by default "expected a CSV table with the columns ...";
    `rows`: the content of a row ("measured block") if at least one row is required. InputError if the file
    cannot be read, is empty or not a table, a row has another number of cells, or a column is missing or
    there twice.
    """
    source = plain(str(path))
    named = f" with the columns {','.join(required)}" if required else ""
    expected = expected or f"expected a CSV table{named}"
    try:
        content = Path(path).read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{source}: {reason_of(error)}; {expected}") from None
    return parse_table(text, source, required, expected, rows)


def parse_table(
    content: str, source: str, required: Sequence[str] = (), expected: str = "expected a CSV table",
    rows: str | None = None,
) -> Table:  # fmt: skip
    """Parse the text of a table; `source`: its name in messages. See `read_table`.

    Comment lines, which begin with #, may precede the first line.
    """
    first = _FIRST_LINE.match(content)
    assert first is not None
    above = content.count("\n", 0, first.start(1)) or content.count("\r", 0, first.start(1))
    text = io.StringIO(content[first.start(1) :], newline="")
    between = "\t" if "\t" in first[1] and "," not in first[1] else ","
    reader = csv.reader(text, delimiter=between, strict=True)
    cells: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in filter(None, reader):
            if not cells and len(row) == 1 and ";" in row[0]:
                raise csv.Error("semicolons between cells; expected commas, and decimal points")
            if cells and len(row) != len(cells[0]):
                raise csv.Error(f"{len(row)} cells; expected {len(cells[0])}, as in the first line")
            cells.append(row)
            lines.append(above + reader.line_num)
    except csv.Error as error:
        line = above + reader.line_num
        raise InputError(f"{source}, line {line}: {error}; {expected}") from None
    if not cells:
        raise InputError(f"{source} is empty; {expected}")
    header = cells.pop(0)
    names = tuple(map(column_name, header))
    if len(set(names)) < len(names):
        raise InputError(f"{source} has two columns of one name; {expected}")
    columns = [*zip(*cells, strict=True)] or [()] * len(header)
    table = Table(source, tuple(header), names, columns, lines[1:], content, expected)
    table.require(required, rows)
    return table


def column_name(text: str) -> str:
    """A column's name in lower case, with _ for spaces, brackets and /: latency_ms for Latency (ms)."""
    return "_".join(re.findall(r"[^\s()\[\]/]+", text.lower()))


def to_csv(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """CSV text with a first line of names; lines end in a line feed."""
    lines = _Lines()
    writer = csv.writer(lines)  # lines end in "\r\n", so that either is quoted within a cell
    writer.writerow(header)
    writer.writerows(rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def is_table(path: str | Path) -> bool:
    """True if a file's name is that of a table."""
    return str(path).lower().endswith((".csv", ".csv.gz", ".tsv"))


class _Lines(list[str]):
    """A list of lines that csv.writer can write to as a file."""

    write = list.append
