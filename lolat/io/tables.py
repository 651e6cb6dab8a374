"""A CSV file as text, gzipped or not: read whole, or refused with one line; written with a column more."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lolat.errors import InputError
from lolat.units import plain

_GZIP = b"\x1f\x8b"
_EXPECTED = "expected a CSV table of layers, gzipped or not"


@dataclass(frozen=True)
class TextTable:
    """Cells as they stand in a file: by row in `lines` and `content`, by column in `columns`.

    `header`: the first line's cells, `names`: the same in lower case, which is how columns are found.
    """

    source: str
    header: tuple[str, ...]
    names: tuple[str, ...]
    columns: Sequence[Sequence[str]]
    content: str

    def __len__(self) -> int:
        return len(self.columns[0])

    def line(self, row: int) -> int:
        """The line of the file in which a row (from 0) ends; empty lines are no rows."""
        reader = csv.reader(io.StringIO(self.content, newline=""))
        filled = (reader.line_num for cells in reader if cells)
        return next(itertools.islice(filled, row + 1, None))

    def with_column(self, name: str, values: Iterable[str]) -> str:
        """The table as CSV text with one column more, the last one; one of that name is replaced.

        `values` need no quotes. Where the file has no quotes either, its lines stay as they are.
        """
        if name in self.names or '"' in self.content:
            return self._rewritten(name, values)
        lines = _lines(self.content)
        rows = (f"{line},{value}" for line, value in zip(lines, [name, *values], strict=True))
        return "\n".join(rows) + "\n"

    def _rewritten(self, name: str, values: Iterable[str]) -> str:
        kept = [i for i, n in enumerate(self.names) if n != name]
        columns = [self.columns[i] for i in kept]
        lines = _Lines()
        writer = csv.writer(lines, lineterminator="\r\n")  # which has both quoted within a cell
        writer.writerow([*(self.header[i] for i in kept), name])
        writer.writerows(zip(*columns, values, strict=True))
        return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


class _Lines(list[str]):
    """A file to csv.writer, which writes a row at a time."""

    write = list.append


def read_text(path: str | Path) -> TextTable:
    """The cells of a CSV file. InputError: not there, not readable, empty, or not a table."""
    source = plain(str(path))
    content = _content(path, source)
    # Without quotes a line is a row and a comma ends a cell: split at once, ten times as fast.
    header, columns = (_quoted if '"' in content else _unquoted)(content, source)
    names = tuple(name.strip().lower() for name in header)
    _check_header(names, source)
    return TextTable(source, tuple(header), names, columns, content)


def _lines(content: str) -> list[str]:
    """The lines that are not empty, ended by any of the three ways."""
    text = content.replace("\r\n", "\n").replace("\r", "\n")
    return [line for line in text.split("\n") if line]


def _unquoted(content: str, source: str) -> tuple[Sequence[str], list[Sequence[str]]]:
    lines = _lines(content)
    if not lines:
        raise InputError(f"{source} is empty; {_EXPECTED}")
    header = lines.pop(0).split(",")
    width = len(header)
    if {line.count(",") for line in lines} - {width - 1}:
        _check_width(csv.reader(io.StringIO(content, newline="")), width, source)
    cells = ",".join(lines).split(",") if lines else []
    return header, [cells[i::width] for i in range(width)]


def _quoted(content: str, source: str) -> tuple[Sequence[str], list[Sequence[str]]]:
    try:
        rows = [r for r in csv.reader(io.StringIO(content, newline=""), strict=True) if r]
    except csv.Error as error:
        raise InputError(f"{source} is not a CSV table: {error}; {_EXPECTED}") from None
    header = rows.pop(0)
    _check_width(csv.reader(io.StringIO(content, newline="")), len(header), source)
    return header, list(zip(*rows, strict=True)) if rows else [() for _ in header]


def _check_width(reader: Iterator[list[str]], width: int, source: str) -> None:
    for cells in reader:
        if cells and len(cells) != width:
            number = reader.line_num  # type: ignore[attr-defined]
            raise InputError(
                f"{source}, line {number}: {len(cells)} cell{'s' * (len(cells) != 1)}; expected "
                f"{width}, as in the first line"
            )


def _check_header(names: Sequence[str], source: str) -> None:
    if len(names) == 1:
        for separator, word in ((";", "semicolons"), ("\t", "tabs")):
            if separator in names[0]:
                raise InputError(f"{source}: columns separated by {word}; expected commas")
    double = [n for i, n in enumerate(names) if n in names[:i]]
    if double:
        raise InputError(f"{source} has two columns {plain(double[0])!r}; expected one of each")


def _content(path: str | Path, source: str) -> str:
    try:
        content = Path(path).read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise InputError(f"{source}: no such file; {_EXPECTED}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{source}: damaged gzip ({error}); {_EXPECTED}: copy it again") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"cannot read {source}: {reason}; {_EXPECTED}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 text (at byte {error.start}); {_EXPECTED}"
        ) from None
    if "\0" in text:
        raise InputError(f"{source} is not text (it has zero bytes); {_EXPECTED}")
    return text
