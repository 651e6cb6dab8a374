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

    def lines(self, marked: Collection[int] = ()) -> list[str]:
        """The table for a screen, with two blanks between its columns.

        `marked`: rows in bold red, on a terminal. A column whose cells are all empty is left out, and so is
        the line of heads where all are empty. If a line is too long for the screen, texts are cut and end
        in an ellipsis; numbers and whole columns never are.
        """
        of = list(enumerate(self.columns))
        shown = [(i, column) for i, column in of if any(row[i] for row in self.cells)]
        heads = [column.head for column in self.columns]
        widths = {i: max(len(plain(row[i])) for row in (heads, *self.cells)) for i, _ in shown}
        too_long = sum(widths.values()) + 2 * (len(shown) - 1) - screen_width()
        cut = [i for i, column in shown if column.is_text and not column.is_whole]
        for i in sorted(cut, key=lambda i: -widths[i]):
            less = min(too_long, widths[i] - LEAST_WIDTH)
            if less > 0:
                widths[i] -= less
                too_long -= less

        def line(row: Sequence[str]) -> str:
            cells = []
            for i, column in shown:
                text, width = plain(row[i]), widths[i]
                text = text if len(text) <= width else f"{text[: width - 1]}…"
                cells.append(text.ljust(width) if column.is_text else text.rjust(width))
            return "  ".join(cells).rstrip()

        is_styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        bold, usual = ("\x1b[1;31m", "\x1b[0m") if is_styled else ("", "")
        lines = map(line, self.cells)
        body = [f"{bold}{one}{usual}" if n in marked else one for n, one in enumerate(lines)]
        return [line(heads), *body] if any(heads) else body


def ends_of(form: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    """Writes the ends of an interval, each by `form`."""
    return lambda ends: " .. ".join(map(form, ends))


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
