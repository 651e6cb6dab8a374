"""Tables of typed columns: lines for a screen, a table of the page, a CSV file.

A column says its value of a row and how that is written; who prints a table decides nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from lolat.io.tables import to_csv
from lolat.io.writing import write_text
from lolat.units import plain

UNLIMITED = 100_000
"""Characters of a line in a file or a pipe."""
LEAST_WIDTH = 12
"""Characters of a column of words that are shown on the narrowest screen."""


def screen_width() -> int:
    """The number of characters in a line of stdout."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


Page = Literal["shown", "hidden", "spare", "below"]
"""A column on the page: shown; hidden, as a page has less room than a terminal; spare, which a narrow card
leaves out; below, as the second line of the cells of the column before it."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `value`: of a row; None is an empty cell. `form`: writes a value. `is_text`: aligned to the left.
    `is_whole`: never cut. `page`: see Page.
    """

    head: str
    value: Callable[[Any], Any]
    form: Callable[[Any], str] = str
    is_text: bool = False
    is_whole: bool = False
    page: Page = "shown"

    def cell(self, row: Any) -> str:
        """The text of a row's cell."""
        value = self.value(row)
        return "" if value is None else self.form(value)


@dataclass(frozen=True)
class Table:
    """Columns, and the rows that they take their values from."""

    columns: Sequence[Column]
    rows: Sequence[Any]

    @cached_property
    def cells(self) -> list[list[str]]:
        """The texts of each row, in the order of the columns."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def lines(self) -> list[str]:
        """The table for a screen; see `table_lines`."""
        of = list(enumerate(self.columns))
        left, whole = {i for i, c in of if c.is_text}, {i for i, c in of if c.is_whole}
        return table_lines([c.head for c in self.columns], self.cells, left, whole=whole)


def ends_of(form: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    """Writes the ends of an interval, each by `form`."""
    return lambda ends: " .. ".join(map(form, ends))


def table_lines(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[int] = (0,),
    *,
    marked: Collection[int] = (),
    whole: Collection[int] = (),
) -> list[str]:
    """A table as lines, with two blanks between its columns.

    `heads`: above the columns; where all are empty there is no line of heads. `left`: the columns of words,
    which are aligned to the left; numbers are to the right. `marked`: rows in bold red, on a terminal. A
    column whose cells are all empty is left out. Where a line is too long for the screen, words are cut
    and end in an ellipsis, numbers and columns in `whole` never are.
    """
    shown = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    widths = {i: max(len(plain(row[i])) for row in (heads, *rows)) for i in shown}
    too_long = sum(widths.values()) + 2 * (len(shown) - 1) - screen_width()
    for i in sorted(set(left) & set(shown) - set(whole), key=lambda i: -widths[i]):
        less = min(too_long, widths[i] - LEAST_WIDTH)
        if less > 0:
            widths[i] -= less
            too_long -= less

    def line(row: Sequence[str]) -> str:
        cells = []
        for i, width in widths.items():
            text = plain(row[i])
            text = text if len(text) <= width else f"{text[: width - 1]}…"
            cells.append(text.ljust(width) if i in left else text.rjust(width))
        return "  ".join(cells).rstrip()

    is_styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    bold, usual = ("\x1b[1;31m", "\x1b[0m") if is_styled else ("", "")
    body = [f"{bold}{line(r)}{usual}" if n in marked else line(r) for n, r in enumerate(rows)]
    return [line(heads), *body] if any(heads) else body


def write_csv(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of an answer, all of the same keys, as a CSV file with a line of heads.

    A float has six digits, None is an empty cell. InputError where the file cannot be written.
    """
    heads = list(rows[0]) if rows else []
    write_text(os.fspath(path), to_csv(heads, [[_cell(row[h]) for h in heads] for row in rows]))


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain(value) if isinstance(value, str) else "" if value is None else value
