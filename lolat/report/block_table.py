"""The table of a report in the terminal: a row for each block or module, the bottlenecks marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lolat.prediction import Prediction
from lolat.report.rows import HEADS, View, rows
from lolat.report.words import bottlenecks

BAR = 12
LABEL = 24
EIGHTHS = " ▏▎▍▌▋▊▉"


def block_table(prediction: Prediction, view: View, paths: Sequence[tuple[str, ...]] = ()) -> Any:
    """A rich table; `paths`: see `rows`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def text(words: str) -> Text:
        return Text(words, no_wrap=True, overflow="ellipsis")

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    marked = {b.name for b in bottlenecks(prediction)}
    shown = rows(prediction, paths, view)
    largest = max((row.share for row in shown), default=0.0)
    # Where there is no room, the summaries are cut, and what most of it is; never a number. Rich makes only
    # columns narrower whose text it may wrap; the texts themselves forbid that.
    label = min(LABEL, max(len(row.label) for row in shown))
    table.add_column("block", no_wrap=True, overflow="ellipsis", min_width=label)
    table.add_column("", overflow="ellipsis", ratio=1, min_width=1)
    for name in view.columns:
        least = max(len(row.cell(name)) for row in shown)
        if name == "share":
            table.add_column(HEADS[name], no_wrap=True, min_width=BAR)
            table.add_column("", no_wrap=True, justify="right", min_width=least)
        elif name == "most":
            table.add_column(HEADS[name], overflow="ellipsis", min_width=8)
        else:
            table.add_column(HEADS[name], no_wrap=True, justify="right", min_width=least)
    for row in shown:
        cells = [Text(row.label), text(row.summary)]
        for name in view.columns:
            if name == "share":
                cells.append(Text(bar(row.share, largest)))
            cells.append(text(row.cell(name)))
        only = len(row.blocks) == 1 and prediction.blocks[row.blocks[0]].name
        table.add_row(*cells, style="bold red" if only in marked else None)
    return table


def bar(share: float, largest: float) -> str:
    """A bar of at most BAR cells, in eighths of a cell."""
    eighths = round(8 * BAR * share / largest) if largest > 0 else 0
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
