"""What the terminal shows of a network: a prediction, a report by block."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from lolat.graph.counts import COLUMNS
from lolat.io.tables import to_csv
from lolat.io.writing import write_text
from lolat.model import Model
from lolat.model.prediction import Prediction, domain_words, interval_words, memory_words
from lolat.report.device import headline
from lolat.report.rows import (
    HEADS,
    Figures,
    View,
    bottleneck_sentence,
    bottlenecks,
    rows,
)
from lolat.units import milliseconds, plain, quantity

# ---- The table of a report in the terminal: a row for each block or module, the bottlenecks marked.

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
        if name == "most":
            table.add_column(HEADS[name], overflow="ellipsis", min_width=8)
            continue
        if name == "share":
            table.add_column(HEADS[name], no_wrap=True, min_width=BAR)
        head, least = "" if name == "share" else HEADS[name], max(len(r.cell(name)) for r in shown)
        table.add_column(head, no_wrap=True, justify="right", min_width=least)
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


# ---- The blocks of a prediction as a CSV table.


BLOCK_HEADER = ("name", "latency_ms", "share", "bound_by", *COLUMNS)


def write_csv(path: str | Path, prediction: Prediction) -> None:
    """One row per block: name, latency_ms, share, bound_by, counts. InputError if not writable.

    A name that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    write_text(path, to_csv(BLOCK_HEADER, block_rows(prediction)))


def block_rows(prediction: Prediction) -> Iterator[list[Any]]:
    """A row of BLOCK_HEADER for each block."""
    for b in prediction.blocks:
        figures = f"{b.latency_ms:.6g}", f"{b.share:.6g}", b.bound_by
        yield [csv_name(b.name), *figures, *map(b.counts.get, COLUMNS)]


def csv_name(name: str) -> str:
    """A name for a cell of a table, which a spreadsheet takes for no formula."""
    shown = plain(name)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


# ---- text ----------------------------------------

CAPITALS = {"acts": "ACTS", "inp": "INP", "flops": "FLOPs"}  # the names of the publications
WIDE = 112
USUAL_VIEW = View()


def summary(prediction: Prediction) -> Iterator[str]:
    """The latency of a network and how sure it is, in a few lines."""
    yield f"{prediction.title}: {latency(prediction)}"
    yield totals(prediction)
    yield from memory_words(prediction)
    for warning in prediction.warnings:
        yield f"note: {plain(warning)}"


def latency(prediction: Prediction) -> str:
    """The latency and its interval."""
    interval = interval_words(prediction.interval_ms, prediction.coverage)
    return milliseconds(prediction.latency_ms) + interval


def totals(prediction: Prediction) -> str:
    """The counts of the whole, and whether it is like what was measured."""
    counts = prediction.counts
    return (
        f"{quantity(counts['flops'], 'MACs')} · {quantity(counts['weights'])} weights · "
        f"{quantity(counts['acts'])} convolution activations · {domain_words(prediction)}"
    )


def wide_console() -> Any:
    """In a file or a pipe there is no width to keep to; in a narrow terminal what is too wide is cut."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def print_report(
    model: Model,
    prediction: Prediction,
    model_name: str,
    network: str,
    input_size: Sequence[int] = (),
    view: View = USUAL_VIEW,
    paths: Sequence[tuple[str, ...]] = (),
    figures: Figures | None = None,
) -> None:
    """The report: a head, a table of blocks with the bottlenecks marked, what it says.

    `model_name`, `network`, `input_size`: as the user gave them; `view`, `paths`: see `rows`; `figures`:
    those of the network as other tools print them, where wanted.
    """
    from rich.text import Text

    console = wide_console()

    def say(words: str, style: str = "", whole: bool = False) -> None:
        console.print(Text(words, style=style), soft_wrap=whole)

    say(prediction.title, "bold")
    say(headline(model), "dim", whole=True)
    say(latency(prediction))
    for line in (totals(prediction), *memory_words(prediction)):
        say(line, whole=True)
    if figures is not None:
        say(str(figures))
    console.print(block_table(prediction, view, paths))
    say(bottleneck_sentence(prediction), "bold")
    for warning in prediction.warnings:
        say(f"note: {plain(warning)}", "yellow")
    asked = f"{quote(plain(model_name))} {quote(plain(network))}"
    if prediction.batch_size != 1:
        asked += f" --batch-size {prediction.batch_size}"
    if input_size:
        asked += f" --input-size {','.join(map(str, input_size))}"
    asked += model.launch_option
    # Commands to copy: never broken into lines by us.
    say(f"Next: lolat explain {asked} · lolat report {asked} --html report.html", whole=True)
