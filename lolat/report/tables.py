"""Tables of typed columns: lines for a screen, a table of the page, a CSV file.

A column has a function that returns the value for a row, and a function that writes a value. Nothing is
computed or chosen here.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal

from lolat.device.intervals import is_usable
from lolat.io.results import answers_of
from lolat.io.tables import to_csv
from lolat.io.writing import write_text
from lolat.units import between, milliseconds, plain

UNLIMITED = 100_000
"""Number of characters in a line of a file or a pipe."""
LEAST_WIDTH = 12
"""A column of words is not cut below so many characters."""


def screen_width() -> int:
    """The number of characters in a line of stdout."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


Page = Literal["shown", "hidden", "below", "front", "varied"]
"""The place of a column on a page. "below": a second line in the cells of the column to its left. "front":
right after the first column. "varied": if all rows have the same text, the text moves to the caption (on a
screen: to a line before the table), and the `below` column is left out."""
Screen = Literal["shown", "hidden", "brackets"]
"""The place of a column in a terminal. "brackets": in brackets after the cells of the column to its
left."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `value`: a function of a row; None is an empty cell. `form`: a function that writes a value. `is_text`:
    aligned to the left. `is_whole`: never cut. `page`: see Page. `screen`: see Screen. `short`: the head in
    a terminal, if another than `head`. `color`: a function of a row that returns a CSS class, shown as a
    color before the text.
    """

    head: str
    value: Callable[[Any], Any]
    form: Callable[[Any], str] = str
    is_text: bool = False
    is_whole: bool = False
    page: Page = "shown"
    screen: Screen = "shown"
    short: str = ""
    color: Callable[[Any], str] | None = None

    def cell(self, row: Any) -> str:
        """The text of a row's cell."""
        value = self.value(row)
        return "" if value is None else self.form(value)


@dataclass(frozen=True)
class ReportTable:
    """A table: its columns, and the rows that their values come from.

    `has_total`: the last row is a sum. `marked`: positions of highlighted rows. `indent`: blanks before
    each line on a screen. `stacked`: a narrow page shows the cells of a row below each other.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    has_total: bool = False
    marked: Collection[int] = ()
    indent: int = 0
    stacked: bool = False

    @cached_property
    def cells(self) -> list[list[str]]:
        """The texts of each row, in the order of the columns."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    @cached_property
    def shown(self) -> list[tuple[int, Column]]:
        """(position, column) of the columns in a terminal, without empty columns and those in `same`."""
        return [
            (i, column)
            for i, column in enumerate(self.columns)
            if column.screen == "shown"
            and any(row[i] for row in self.cells)
            and (i, column) not in self.same
        ]

    @cached_property
    def on_screen(self) -> list[list[str]]:
        """The heads, then the texts of each row, for a terminal; "brackets" columns are already added."""
        rows = [[column.short or column.head for column in self.columns]]
        for cells in self.cells:
            texts = [*map(plain, cells)]
            for i, column in enumerate(self.columns):
                if column.screen == "brackets" and texts[i]:
                    texts[i - 1] += f" ({texts[i]})"
            rows.append(texts)
        return rows

    @cached_property
    def on_page(self) -> list[tuple[int, Column]]:
        """(position, column) of the columns on a page, in the page's order, without empty columns."""
        groups: list[list[tuple[int, Column]]] = []  # a column, and those below it
        for i, column in enumerate(self.columns):
            if column.page != "hidden" and any(row[i] for row in self.cells):
                if column.page != "below" or not groups:
                    groups.append([])
                groups[-1].append((i, column))
        first, *others = [group for group in groups if group[0] not in self.same] or [[]]
        return sum(sorted(others, key=lambda group: group[0][1].page != "front"), first)

    @cached_property
    def same(self) -> list[tuple[int, Column]]:
        """(position, column) of "varied" columns that have the same text in all of several rows."""
        varied = [(i, c) for i, c in enumerate(self.columns) if c.page == "varied"]
        return [
            (i, c) for i, c in varied if self.cells[1:] and len({r[i] for r in self.cells}) == 1
        ]

    @property
    def shared_texts(self) -> list[str]:
        """Head and text of each column in `same`: "batch: 64"."""
        return [f"{column.head}: {text}" for i, column in self.same if (text := self.cells[0][i])]

    def lines(self) -> list[str]:
        """The table for a screen, with two blanks between its columns; marked rows are bold red.

        A line before the table has the texts that all rows share. The line of heads is left out if all
        heads are empty. If lines are too long for the screen, texts lose the words with which all rows of
        their column begin, then they are cut and end in an ellipsis; numbers and `is_whole` columns are
        never cut.
        """
        shown, (heads, *rows) = self.shown, [[*row] for row in self.on_screen]
        cut = [i for i, column in shown if column.is_text and not column.is_whole]

        def widest(i: int) -> int:
            return max(len(row[i]) for row in (heads, *rows))

        def too_many() -> int:
            """Number of characters beyond the screen's width."""
            between = 2 * (len(shown) - 1) + self.indent
            return sum(widest(i) for i, _ in shown) + between - screen_width()

        for i in sorted(cut, key=lambda i: -widest(i)):
            words = [row[i].split(", ") for row in rows]
            same = sum(
                1 for _ in takewhile(lambda each: len({*each}) == 1, zip(*words, strict=False))
            )
            same = min(same, *(len(each) - 1 for each in words)) if len(rows) > 1 else 0
            if same and too_many() > 0:
                for row, each in zip(rows, words, strict=True):
                    row[i] = "…" + ", ".join(each[same:])
        widths, too_long = {i: widest(i) for i, _ in shown}, too_many()
        for i in sorted(cut, key=lambda i: -widths[i]):
            less = min(too_long, widths[i] - LEAST_WIDTH)
            if less > 0:
                widths[i] -= less
                too_long -= less

        def line(row: Sequence[str]) -> str:
            cells = []
            for i, column in shown:
                text, width = row[i], widths[i]
                text = text if len(text) <= width else f"{text[: width - 1]}…"
                cells.append(text.ljust(width) if column.is_text else text.rjust(width))
            return (self.indent * " " + "  ".join(cells)).rstrip()

        is_styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        bold, usual = ("\x1b[1;31m", "\x1b[0m") if is_styled else ("", "")
        lines = map(line, rows)
        body = [f"{bold}{one}{usual}" if n in self.marked else one for n, one in enumerate(lines)]
        told = ["; ".join(map(plain, self.shared_texts))] if self.shared_texts else []
        return [*told, line(heads), *body] if any(heads) else body

    def html(self, caption: str) -> str:
        """The table as HTML, in a box that scrolls; a column whose cells are all empty is left out."""
        caption = "; ".join([caption, *self.shared_texts])
        heads = _html_row(self._html_cells([column.head for column in self.columns]), "col")
        shown = [column.head for _, column in self.on_page if column.page != "below"]
        heads_of = shown if self.stacked else ()
        rows = [
            _html_row(self._html_cells(texts, row), "row", heads_of)
            for texts, row in zip(self.cells, self.rows, strict=True)
        ]
        total = f"<tfoot>{rows.pop()}</tfoot>" if self.has_total else ""
        return (
            f'<div class="wide{" stacked" * self.stacked}" tabindex="0" role="region" '
            f'aria-label="{escape(caption)}"><table>'
            f"{element('caption', caption)}<thead>{heads}</thead><tbody>{''.join(rows)}</tbody>{total}"
            "</table></div>"
        )

    def _html_cells(self, texts: Sequence[str], row: Any = None) -> list[tuple[str, str]]:
        """(CSS classes, HTML content) of each cell of a row; of the heads if `row` is None."""
        found: list[tuple[str, str]] = []
        for i, column in self.on_page:
            classes, text = "left" if column.is_text else "", escape(texts[i])
            # A limit stays in one line; a long name may break between its words.
            text = LIMIT.sub(lambda m: m[1].replace(" ", "&nbsp;"), text).replace("_", "_<wbr>")
            if column.page == "below":
                classes, above = found.pop()
                named = (
                    f' data-head="{escape(column.head)}"'
                    if self.stacked and row is not None
                    else ""
                )
                text = f"{above}<small{named}>{text}</small>" if text else above
            if row is not None and column.color is not None and (color := column.color(row)):
                text = f'<i class="swatch {color}" aria-hidden="true"></i>{text}'
            found.append((classes, text))
        return found


LIMIT = re.compile("(&[lg]t;= .*)")
"""Matches a limit in the head of a column."""
SCREEN_WIDTH = 96
"""The least number of characters in a line that every screen shows."""


@dataclass(frozen=True)
class Paragraph:
    """A text that a screen breaks into lines; `first`, `others`: blanks before the first line, before
    others.
    """

    text: str
    first: int = 0
    others: int = 2

    def lines(self) -> list[str]:
        """The lines of a screen."""
        return textwrap.wrap(
            self.text, SCREEN_WIDTH, initial_indent=" " * self.first, subsequent_indent=" " * self.others,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


Part = str | Paragraph | ReportTable
"""A part of a printed answer: a line, a paragraph, or a table."""


def one_by_one(found: Any, parts: Callable[[Any], Iterable[Part]]) -> Iterator[Part]:
    """The parts of an answer; several answers are separated by empty lines."""
    for number, answer in enumerate(answers_of(found)):
        if number:
            yield ""
        yield from parts(answer)


def lines_of(parts: Iterable[Part]) -> Iterator[str]:
    """Turn lines, paragraphs and tables into the lines of a screen."""
    for part in parts:
        yield from (part,) if isinstance(part, str) else part.lines()


def _html_row(cells: Sequence[tuple[str, str]], scope: str, heads: Sequence[str] = ()) -> str:
    """A row as HTML, from (classes, content) of its cells: heads if `scope` is "col", else cells after a
    row's head.

    `heads`: the heads of the columns, which a narrow page shows in each cell.
    """
    others = "td" if scope == "row" else 'th scope="col"'
    tags = [f'th scope="{scope}"', *[others] * (len(cells) - 1)]
    named = [f' data-head="{escape(head)}"' for head in heads] or [""] * len(cells)
    written = (
        f'<{tag} class="{classes}"{head}>{content}</{tag[:2]}>'
        for tag, head, (classes, content) in zip(tags, named, cells, strict=True)
    )
    return f"<tr>{''.join(written)}</tr>"


LEAST_IN_SECONDS = 100.0
"""The shortest time, in ms, that keeps three digits when it is written in seconds."""


def time_columns(
    head: str,
    time: Callable[[Any], float | None],
    rows: Iterable[Any],
    interval: str = "",
    ends: Callable[[Any], Sequence[float] | None] = lambda row: None,
    **about: Any,
) -> Iterator[Column]:
    """Two columns: times of rows, and their intervals. `time`, `ends`: functions of a row, in ms;
    `interval`: the head of the second column.

    All times and intervals have the unit of the longest time, unless the shortest would lose digits.
    `about`: other fields of the second column.
    """
    times = [ms for row in rows if (ms := time(row)) is not None]
    longest = max(times, default=0.0) if min(times, default=0.0) >= LEAST_IN_SECONDS else 0.0

    def both(row: Any) -> tuple[float, float, float] | None:
        its, ms = ends(row), time(row)
        return None if its is None or ms is None else (its[0], its[1], ms)

    yield Column(head, time, lambda ms: milliseconds(ms, longest))
    yield Column(interval, both, lambda its: between(its[0], its[1], its[2], longest), **about)


def interval_head(coverage: float | None) -> str:
    """The head of a column of intervals: "90 % interval"; "" without a coverage."""
    return "" if coverage is None else f"{100 * coverage:g} % interval"


def ends_of(form: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    """Make a function that writes the ends of an interval, each by `form`; or that it is not usable."""
    return lambda ends: " .. ".join(map(form, ends)) if is_usable(ends) else "not usable"


def write_csv(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of an answer, which have the same keys, as a CSV file with a line of heads.

    A float has six digits, None is an empty cell. InputError if the file cannot be written.
    """
    heads = list(rows[0]) if rows else []
    write_text(os.fspath(path), to_csv(heads, [[_cell(row[h]) for h in heads] for row in rows]))


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain(value) if isinstance(value, str) else "" if value is None else value


# ---- Elements of HTML; text is escaped.


def escape(text: str) -> str:
    """Escape text for HTML, also in attributes; control characters are shown as escapes."""
    return html.escape(plain(text), quote=True)


HINTS = (
    re.compile(r"; [^;()<>]*--[a-z][^;()<>]*(?=[;)])"),
    re.compile(r" \([^;()<>]*--[a-z][^()<>]*\)"),
)
"""Patterns that match hints at options in brackets: a last clause that names an option, a whole bracket
that begins with one."""


def for_readers(text: str) -> str:
    """A page's text without hints at options in brackets, as its readers may not have LoLat."""
    for hint in HINTS:
        text = hint.sub("", text)
    return text


def element(tag: str, text: str = "", **attributes: str) -> str:
    """An HTML element; in attributes `class_` is `class`, and any other `_` is a hyphen."""
    written = [f' {n.strip("_").replace("_", "-")}="{escape(t)}"' for n, t in attributes.items()]
    return f"<{tag}{''.join(written)}>{escape(text)}</{tag}>"
