"""The one printer of tables: rows of cells as lines for a screen; rows of an answer as a CSV file.

for line in table_lines(["network", "ms"], [["ResNet50", "29.1"]]):
    click.echo(line)
write_csv(path, prediction.rows())

"""

from __future__ import annotations

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
