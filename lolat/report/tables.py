"""The one printer of tables: rows of cells as lines for a screen; rows of an answer as a CSV file.

for line in table_lines(["network", "ms"], [["ResNet50", "29.1"]]):
    click.echo(line)
write_csv(path, prediction.rows())

"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lolat.io.tables import to_csv
from lolat.io.writing import write_text
from lolat.units import plain

UNLIMITED = 100_000
"""Characters of a line in a file or a pipe."""
LEAST_WIDTH = 12
"""Characters of a column of words that are shown on the narrowest screen."""


def screen_width() -> int:
    """How many characters a line of stdout has."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def table_lines(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[int] = (0,),
    *,
    marked: Collection[int] = (),
) -> list[str]:
    """A table as lines, with two blanks between its columns.

    `heads`: above the columns; where all are empty there is no line of heads. `left`: the columns of words,
    which are aligned to the left; numbers are to the right. `marked`: rows in bold red, on a terminal. A
    column whose cells are all empty is left out. Where a line is too long for the screen, words are cut
    and end in an ellipsis, numbers never are.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(heads))
    least = 0  # characters of a line whose words are cut as far as they can be
    for i in shown:
        longest = max(len(plain(row[i])) for row in (heads, *rows))
        width = min(longest, LEAST_WIDTH) if i in left else longest
        table.add_column(
            Text(plain(heads[i])),
            justify="left" if i in left else "right",
            min_width=width,
            no_wrap=i not in left,  # Rich makes only columns narrower that it may wrap
        )
        least += width + 2
    for number, row in enumerate(rows):
        cells = [Text(plain(row[i]), no_wrap=True, overflow="ellipsis") for i in shown]
        table.add_row(*cells, style="bold red" if number in marked else None)
    styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = max(least, screen_width())
    console = Console(file=io.StringIO(), width=width, force_terminal=styled, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    return [line.rstrip() for line in drawn.get().splitlines()]


def write_csv(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of an answer, all of the same keys, as a CSV file with a line of heads.

    InputError where the file cannot be written.
    """
    heads = list(rows[0]) if rows else []
    write_text(os.fspath(path), to_csv(heads, [[cell(row[h]) for h in heads] for row in rows]))


def cell(value: Any) -> Any:
    """A value as a cell of a CSV file: a float in six digits, nothing for None, no text that is a formula.

    A spreadsheet takes a text that begins with =, +, - or @ for a formula: it gets an apostrophe.
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        shown = plain(value)
        return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown
    return "" if value is None else value
