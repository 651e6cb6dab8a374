"""The page of several predictions as one file, which loads nothing: a chart, the table and its notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from lolat import __version__
from lolat.device.prediction import Prediction
from lolat.parameters import in_python
from lolat.report.bottlenecks import page_file
from lolat.report.prediction import table_of_predictions
from lolat.report.ranked import device_words, left_out_lines
from lolat.report.tables import ReportTable, element
from lolat.units import digits, percent, plain

if TYPE_CHECKING:
    from lolat.api.predicting import Predictions

MARGIN = 0.04
"""The share of the chart that is free on each side."""


def page(
    found: Predictions, max_ms: float | None = None, sure: bool = False, command: str = ""
) -> str:
    """The page of predictions as HTML; `max_ms`, `sure`: as in `table_of_predictions`.

    `command`: the one that makes the page again; "": Python made it, and the page speaks so.
    """
    answers, made = found.answers, f"Made on {date.today():%Y-%m-%d} by LoLat {__version__}"
    table, *lines = table_of_predictions(answers, max_ms, sure, math.inf)
    assert isinstance(table, ReportTable)
    lines += left_out_lines({**found.left_out, **found.failures}, None)
    networks = _each(answers, lambda p: plain(p.query.network))
    sizes = ", ".join(_each(answers, lambda p: str(p.batch_size)))
    on = f"on {', '.join(_each(answers, device_words))} · batch {sizes}"
    said = plain if command else in_python
    drawn = [p for p in answers if p.fits is not False] or answers
    place, ticks = _axis(drawn)
    template = files("lolat.report").joinpath("comparison.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=element(
            "title", f"{', '.join(networks)}: time on {len({*map(device_words, answers)})}"
        ),
        heading=element("h1", ", ".join(networks)),
        place=element("p", on, class_="place"),
        caption=element("caption", _caption(drawn, len(answers))),
        ticks="".join(element("span", f"{t:g}", style=f"left:{place(t):.2f}%") for t in ticks),
        spots="\n".join(_spots(drawn, place, ticks)),
        table=table.html("Times and prices"),
        notes="".join(element("p", said(str(line))) for line in lines),
        made=element("footer", made + (command and f": {command}"), class_="dim"),
        style=page_file("page.css"),
    )


def _each(answers: Sequence[Prediction], of: Callable[[Prediction], str]) -> Collection[str]:
    """The different words of answers, in their order."""
    return dict.fromkeys(map(of, answers))


def _caption(drawn: Sequence[Prediction], count: int) -> str:
    """The meaning of the marks of the chart."""
    coverages = {p.coverage for p in drawn if p.interval_ms}
    sure = "".join(f"; line: {percent(c)} interval" for c in coverages if c and len(coverages) == 1)
    waits = "; hollow: host-bound" * any(p.host_bound for p in drawn)
    lost = f"; {count - len(drawn)} without room in memory" * (count > len(drawn))
    return f"Time of a batch, ms, on a logarithmic scale. Dot: predicted{sure}{waits}{lost}"


def _axis(drawn: Sequence[Prediction]) -> tuple[Callable[[float], float], list[float]]:
    """(a time's place on the logarithmic axis, percent; the times of its ticks)."""
    times = [t for p in drawn for t in (p.latency_ms, *(p.interval_ms or ())) if t > 0.0] or [1.0]
    low, high = math.log10(min(times)), math.log10(max(times))
    width = max(high - low, 0.1) / (1.0 - 2.0 * MARGIN)
    decades = range(math.floor(low), math.ceil(high) + 1)
    parts = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [m * 10.0**d for d in decades for m in parts]

    def place(ms: float) -> float:
        return 100.0 * (MARGIN + (math.log10(max(ms, min(times))) - low) / width)

    return place, [t for t in ticks if low <= math.log10(t) <= high]


def _spots(
    drawn: Sequence[Prediction], place: Callable[[float], float], ticks: Sequence[float]
) -> Iterator[str]:
    """A row of the chart for each prediction: what tells it from the others, its time and interval."""
    parts = [lambda p: plain(p.query.network), device_words, lambda p: f"batch {p.batch_size}",
             lambda p: p.precision]  # fmt: skip
    told = [of for of in parts if len(_each(drawn, of)) > 1] or parts[1:2]
    lines = "".join(f'<i style="left:{place(t):.2f}%"></i>' for t in ticks)
    for p in drawn:
        ends = ""
        if p.interval_ms:
            low, high = map(place, p.interval_ms)
            ends = f'<b style="left:{low:.2f}%;width:{high - low:.2f}%"></b>'
        dot = f'<u class="{"waits" * bool(p.host_bound)}" style="left:{place(p.latency_ms):.2f}%"></u>'
        yield (
            f"<tr>{element('th', ' · '.join(of(p) for of in told), scope='row')}"
            f'<td class="place"><div class="spot" aria-hidden="true">{lines}{ends}{dot}</div></td>'
            f"{element('td', digits(p.latency_ms))}</tr>"
        )
