"""The one reader of tables: a CSV file, gzipped or not, read whole or refused with one line.

Every row has as many cells as the first line has names, quotes are closed, text is UTF-8 without zero
bytes, columns have different names: nothing is dropped or cut. What a cell must hold is asked for cell by
cell (`Row.number`, `Row.whole`); a message names file, line, column, what is there and what is expected.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lolat.errors import InputError
from lolat.io.documents import LEAST, MOST
from lolat.units import as_number, plain, shortened

if TYPE_CHECKING:
    import numpy as np

MOST_WHOLE = 2**53
"""The largest whole number that a cell may hold: the last one that a float still holds exactly."""
ABOVE_ZERO = LEAST
"""`least` of a number that must be above 0."""
SHORTEST_MS, LONGEST_MS = 1e-6, 1e12
"""A nanosecond to thirty years: nothing that runs takes less or more."""
EXPECTED_MS = f"a time above 0, in milliseconds ({SHORTEST_MS:g} to {LONGEST_MS:g})"
LARGEST_BYTES = 512 * 2**20
"""Of a table, also after unpacking: a hundred million cells; reading takes several times as much memory."""
_GZIP = b"\x1f\x8b"
_ENDS = re.compile(r"\r\n?|\n")


@dataclass(frozen=True)
class Table:
    """Cells as they stand in a file: by row in `content`, by column in `columns`.

    `header`: the first line's cells; `names`: the same without spaces around them and in lower case,
    which is
    how columns are found; `expected`: what messages ask for.
    """

    source: str
    header: tuple[str, ...]
    names: tuple[str, ...]
    columns: Sequence[Sequence[str]]
    content: str
    expected: str

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Row]:
        for index, cells in enumerate(zip(*self.columns, strict=True)):
            yield Row(self, index, dict(zip(self.names, map(str.strip, cells), strict=True)))

    def row(self, index: int) -> Row:
        """One row, from 0."""
        cells = (column[index].strip() for column in self.columns)
        return Row(self, index, dict(zip(self.names, cells, strict=True)))

    def numbers(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """((rows,) the numbers in a column, NaN where there is none; (rows,) which cells are empty).

        Of a million rows in a second, which asking row by row does not; a number is as of `Row.number`.
        """
        import numpy as np

        cells = [*map(str.strip, self.columns[self.names.index(column)])]
        values = np.fromiter(map(as_number, cells), float, len(cells))
        return values, ~np.fromiter(map(bool, cells), bool, len(cells))

    def line(self, row: int) -> int:
        """The line of the file in which a row (from 0) ends; empty lines are no rows."""
        return self._lines[row + 1]

    @cached_property
    def _lines(self) -> list[int]:
        reader = csv.reader(io.StringIO(self.content, newline=""))
        return [reader.line_num for cells in reader if cells]

    def with_column(self, name: str, values: Iterable[str]) -> str:
        """The table as CSV text with one column more, the last one; one of that name is replaced."""
        kept = [i for i, n in enumerate(self.names) if n != name]
        header = [*(self.header[i] for i in kept), name]
        return to_csv(header, zip(*(self.columns[i] for i in kept), values, strict=True))


class Row(Mapping[str, str]):
    """A row of a table: its cells by the column's name, without spaces around them."""

    def __init__(self, table: Table, index: int, cells: dict[str, str]) -> None:
        self._table, self._index, self._cells = table, index, cells

    def __getitem__(self, column: str) -> str:
        return self._cells[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def line(self) -> int:
        """The line of the file that the row ends in."""
        return self._table.line(self._index)

    @property
    def where(self) -> str:
        """The row in a message: its file and line."""
        return f"{self._table.source}, line {self.line}"

    def number(
        self,
        column: str,
        least: float = -MOST,
        most: float = MOST,
        expected: str = "a number",
        default: float | None = None,
    ) -> float:
        """The number in a cell, within `least` and `most`; `default` for an empty or absent one.

        InputError that names the place and `expected`, also for one of no size that anything has. A number
        has a point, digits and an exponent alone.
        """
        text = self._cells.get(column, "")
        if not text and default is not None:
            return default
        value = as_number(text)
        if not least <= value <= most:
            raise self.wrong(column, expected)
        if value and not LEAST <= abs(value) <= MOST:
            raise self.wrong(column, f"{expected}, of a size from {LEAST:g} to {MOST:g}")
        return value

    def whole(
        self,
        column: str,
        least: int = 1,
        most: int = MOST_WHOLE,
        expected: str = "",
        default: int | None = None,
    ) -> int:
        """The same for a whole number, which may be written as 1e6."""
        expected = expected or f"a whole number from {least}"
        if not self._cells.get(column) and default is not None:
            return default
        value = self.number(column, least, most, expected)
        if value != int(value):
            raise self.wrong(column, expected)
        return int(value)

    def milliseconds(self, column: str = "latency_ms") -> float:
        """A time in a cell; InputError for one that nothing takes."""
        return self.number(column, SHORTEST_MS, LONGEST_MS, EXPECTED_MS)

    def wrong(self, column: str, expected: str) -> InputError:
        """The error for a cell that is not as `expected`."""
        text = self._cells.get(column)
        given = f"is {shortened(text)!r}" if text else "is empty"
        return self.refused(f"{column} {given}; expected {expected}")

    def refused(self, why: str) -> InputError:
        """The error for a row that cannot be used; its data says `why` without the place."""
        return InputError(f"{self.where}: {why}", why=why)


def read_table(
    path: str | Path, required: Sequence[str] = (), expected: str = "", rows: str | None = None
) -> Table:
    """The cells of a CSV file whose columns include `required` (in lower case; others are no fault).

    `expected`: what a message asks for, "expected a CSV table with the columns ..." if not given;
    `rows`: what
    a row is of, where at least one is needed ("measured block"). InputError: not there, not readable,
    empty,
    not a table, a row with other than the first line's number of cells, a column twice, one missing.
    """
    source = plain(str(path))
    named = f" with the columns {','.join(required)}" if required else ""
    expected = expected or f"expected a CSV table{named}"
    return parse_table(_content(path, source, expected), source, required, expected, rows)


def parse_table(
    content: str, source: str, required: Sequence[str] = (), expected: str = "expected a CSV table",
    rows: str | None = None,
) -> Table:  # fmt: skip
    """The same of a text that messages call `source`."""
    # Without quotes a line is a row and a comma ends a cell: split at once, ten times as fast.
    header, columns = (_quoted if '"' in content else _unquoted)(content, source, expected)
    names = tuple(name.strip().lower() for name in header)
    _check_header(names, source, required, expected)
    if rows is not None and not columns[0]:
        raise InputError(f"{source} has no rows; expected one per {rows}")
    return Table(source, tuple(header), names, columns, content, expected)


def to_csv(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """CSV text with a first line of names; lines end in a line feed."""
    lines = _Lines()
    writer = csv.writer(lines)  # lines end in "\r\n", so that either is quoted within a cell
    writer.writerow(header)
    writer.writerows(rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def is_table(path: str | Path) -> bool:
    """Whether a file's name says that it is a table."""
    return str(path).lower().endswith((".csv", ".csv.gz"))


class _Lines(list[str]):
    """A file to csv.writer, which writes a row at a time."""

    write = list.append


def _unquoted(
    content: str, source: str, expected: str
) -> tuple[Sequence[str], list[Sequence[str]]]:
    text = content.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line for line in text.split("\n") if line]
    if not lines:
        raise InputError(f"{source} is empty; {expected}")
    limit = csv.field_size_limit()  # of the reader that tells a row's line
    if max(map(len, lines)) > limit and any(len(c) > limit for x in lines for c in x.split(",")):
        raise InputError(f"{source} has a cell of more than {limit:,} characters; {expected}")
    header = lines.pop(0).split(",")
    width = len(header)
    if {line.count(",") for line in lines} - {width - 1}:
        _check_width(csv.reader(io.StringIO(content, newline="")), width, source)
    cells = ",".join(lines).split(",") if lines else []
    return header, [cells[i::width] for i in range(width)]


def _quoted(content: str, source: str, expected: str) -> tuple[Sequence[str], list[Sequence[str]]]:
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    rows, begins = [], 1  # begins: the line in which the row under way does
    try:
        for row in reader:
            rows += [row] if row else []
            begins = reader.line_num + 1
    except csv.Error as error:
        opened = f", in the row that begins in line {begins}" if begins < reader.line_num else ""
        raise InputError(
            f"{source}, line {reader.line_num}: not a CSV table: {error}{opened}; {expected}, each "
            "quote closed in its cell"
        ) from None
    header = rows.pop(0)
    _check_width(csv.reader(io.StringIO(content, newline="")), len(header), source)
    return header, [[row[i] for row in rows] for i in range(len(header))]


def _check_width(reader: Iterator[list[str]], width: int, source: str) -> None:
    before = 0
    for cells in reader:
        number = reader.line_num  # type: ignore[attr-defined]
        # A quote that is closed some rows further down hides them and leaves the right number of cells.
        for cell in cells if width > 2 and number > before + 1 else ():
            if 0 < len(_ENDS.findall(cell)) * (width - 1) == cell.count(","):
                raise InputError(
                    f"{source}, line {number}: a cell of whole rows ({shortened(cell)!r}); expected each "
                    "quote closed in its cell"
                )
        if cells and len(cells) != width:
            raise InputError(
                f"{source}, line {number}: {len(cells)} cell{'s' * (len(cells) != 1)}; expected "
                f"{width}, as in the first line"
            )
        before = number


def _check_header(
    names: Sequence[str], source: str, required: Sequence[str], expected: str
) -> None:
    if len(names) == 1:
        for separator, word in ((";", "semicolons"), ("\t", "tabs")):
            if separator in names[0]:
                raise InputError(f"{source}: columns separated by {word}; expected commas")
    if len(set(names)) < len(names):
        double = [name for name, times in Counter(names).items() if times > 1]
        raise InputError(f"{source} has two columns {plain(double[0])!r}; expected one of each")
    missing = [name for name in required if name.lower() not in names]
    if missing:
        raise InputError(
            f"{source} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; {expected}"
        )


def _content(path: str | Path, source: str, expected: str) -> str:
    try:
        if stat.S_ISCHR(os.stat(path).st_mode):  # /dev/zero has no end; a pipe is welcome
            raise InputError(f"{source} is a device; {expected}")
        with open(path, "rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        if content.startswith(_GZIP):
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            most = f"{LARGEST_BYTES // 2**20} MiB"
            raise InputError(
                f"{source} is larger than {most}; {expected} of at most that, or in parts"
            )
    except FileNotFoundError:
        raise InputError(f"{source}: no such file; {expected}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{source}: damaged gzip ({error}); {expected}: copy it again") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"cannot read {source}: {reason}; {expected}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 text (at byte {error.start}); {expected}"
        ) from None
    if "\0" in text:
        raise InputError(f"{source} is not text (it has zero bytes); {expected}")
    return text
