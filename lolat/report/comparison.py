"""The page of several predictions, a single HTML file: the best, a chart, the table, notes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from lolat import __version__
from lolat.device.limits import NO_LIMITS, Limits
from lolat.device.prediction import Prediction
from lolat.device.summary import known_by, not_alike
from lolat.hardware.prices import price_list
from lolat.parameters import COVERAGE, in_python
from lolat.report.best_devices import best_lines
from lolat.report.bottlenecks.page import style
from lolat.report.prediction import table_of_predictions
from lolat.report.ranked import (
    assumed_hosts,
    device_words,
    groups_of,
    left_out_lines,
    network_words,
    not_compared,
)
from lolat.report.rows import GLOSSARY
from lolat.report.tables import ReportTable, element, for_readers, interval_head
from lolat.units import digits, percent, plain, plural

if TYPE_CHECKING:
    from lolat.api.predicting import Predictions

WORDS = {
    interval_head(COVERAGE): GLOSSARY[f"{percent(COVERAGE)} sure"],
    "measured range": GLOSSARY["measured range"]
    + " Outside it a time is extrapolated; small: the network "
    "is smaller than nearly all timed ones; large: the batch is larger.",
    "host-bound": "The computer launches operations more slowly than its GPU runs them; a faster GPU does "
    "not help.",
    "vs. first": "The time of a sample, as a multiple of that of the network's first device at the same "
    "batch size; empty where an assumed host decides one of the two times.",
    "$ a million": "US$ for a million samples on a device that is always busy.",
    "amp": "Automatic mixed precision: matrix products and convolutions in half precision, the rest in "
    "float32.",
    "eager": "The framework launches one operation after the other, as they are written.",
    "compiled": "torch.compile joins operations before they run.",
}
"""Word -> its meaning. The page explains the words that its table has."""
MARGIN = 0.04
"""The share of the chart's width that is empty on each side."""


def page(found: Predictions, limits: Limits = NO_LIMITS, command: str = "") -> str:
    """The page of several predictions as HTML; `limits`: see `table_of_predictions`.

    `command`: the command that makes the page again; "" from Python: the page then names arguments, not
    options.
    """
    answers, made = found.answers, f"Made on {date.today():%Y-%m-%d} by LoLat {__version__}"
    table, *lines = table_of_predictions(answers, limits, math.inf)
    assert isinstance(table, ReportTable)
    lines += left_out_lines({**found.left_out, **found.failures}, None)
    # Without a best, as precisions differ, the reason comes first.
    differ = filter(None, [not_alike(p.query.device for p in answers), not_compared(answers)])
    best = [*differ, *best_lines(answers, limits), *filter(None, [assumed_hosts(answers)])]
    if any(p.price_per_hour for p in answers):
        listed = {(p.prices or price_list()).prices: None for p in answers}
        lines.append(f"Prices: {', '.join(map(plain, listed))}")
    known = {device_words(p): p.query.device.file for p in answers}
    lines[:0] = [known_by(name, file, "profile fitted to") for name, file in known.items()]
    networks, devices = _each(answers, network_words), _each(answers, device_words)
    where = next(iter(devices)) if len(devices) == 1 else plural(len(devices), "device")
    sizes = ", ".join(_each(answers, lambda p: str(p.batch_size)))
    on = f"on {', '.join(devices)} · batch {sizes}"
    if found.in_fastest:
        on += " · each device in its fastest precision"

    def said(line: str) -> str:
        return (plain if command else in_python)(for_readers(line))

    shown = table.html("Times and prices")
    drawn = [p for p in answers if p.fits is not False] or answers
    place, ticks = _axis(drawn)
    template = files("lolat.report").joinpath("comparison.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=element("title", f"{', '.join(networks)}: time on {where}"),
        heading=element("h1", ", ".join(networks)),
        place=element("p", on, class_="place"),
        best="".join(element("p", said(str(line))) for line in best),
        caption=element("caption", _caption(drawn, len(answers))),
        ticks="".join(element("span", f"{t:g}", style=f"left:{place(t):.2f}%") for t in ticks),
        spots="\n".join(_spots(drawn, place, ticks)),
        table=shown,
        notes="".join(
            element("p", said(str(line).removeprefix("note: ")))
            for line in lines
            if line not in best
        ),
        words="".join(
            element("dt", word) + element("dd", meaning)
            for word, meaning in WORDS.items()
            if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", shown)
        ),
        made=element("footer", made + (command and f": {command}"), class_="dim"),
        style=style(),
    )


def _each(answers: Sequence[Prediction], of: Callable[[Prediction], str]) -> Collection[str]:
    """The distinct words that `of` returns for the answers, in order."""
    return dict.fromkeys(map(of, answers))


def _caption(drawn: Sequence[Prediction], count: int) -> str:
    """The caption of the chart: the meaning of its marks."""
    coverages = {p.coverage for p in drawn if p.interval_ms}
    sure = "".join(f"; line: {percent(c)} interval" for c in coverages if c and len(coverages) == 1)
    waits = "; hollow: host-bound" if any(p.host_bound for p in drawn) else ""
    waits += (
        "; light: outside the measured range" if any(p.in_domain is False for p in drawn) else ""
    )
    lost = f"; {count - len(drawn)} without room in memory" if count > len(drawn) else ""
    return f"Time of a batch, ms, on a logarithmic scale. Dot: predicted{sure}{waits}{lost}"


def _axis(drawn: Sequence[Prediction]) -> tuple[Callable[[float], float], list[float]]:
    """(function from ms to percent of the logarithmic axis, the ms of its ticks)."""
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
    """The rows of the chart; a network and batch size with several rows has a heading."""
    groups, common = groups_of(drawn), [network_words, lambda p: f"batch {p.batch_size}"]
    own = [device_words, lambda p: p.precision]
    headed = [of for of in common if len(_each(drawn, of)) > 1 and len(drawn) > len(groups)]
    told = [of for of in (*common, *own) if len(_each(drawn, of)) > 1 and of not in headed]
    for its in groups.values():
        heading = element(
            "th", " · ".join(of(its[0]) for of in headed), colspan="3", scope="rowgroup"
        )
        yield f"<tbody>{f'<tr>{heading}</tr>' if headed else ''}"
        yield from _rows(its, told or own[:1], place, ticks)
        yield "</tbody>"


def _rows(
    drawn: Sequence[Prediction], told: Sequence[Callable[[Prediction], str]],
    place: Callable[[float], float], ticks: Sequence[float],
) -> Iterator[str]:  # fmt: skip
    """A row of the chart for each prediction: the words that `told` returns, the time and its interval."""
    lines = "".join(f'<i style="left:{place(t):.2f}%"></i>' for t in ticks)
    for p in drawn:
        ends = ""
        if p.interval_ms:
            low, high = map(place, p.interval_ms)
            ends = f'<b style="left:{low:.2f}%;width:{high - low:.2f}%"></b>'
        marks = (["waits"] if p.host_bound else []) + (["far"] if p.in_domain is False else [])
        dot = f'<u class="{" ".join(marks)}" style="left:{place(p.latency_ms):.2f}%"></u>'
        yield (
            f"<tr>{element('th', ' · '.join(of(p) for of in told), scope='row')}"
            f'<td class="place"><div class="spot" aria-hidden="true">{lines}{ends}{dot}</div></td>'
            f"{element('td', digits(p.latency_ms))}</tr>"
        )
