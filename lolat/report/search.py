"""The lines of `lolat nas search` and `lolat nas score`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lolat.device.domain import NEGLIGIBLE_SHARE
from lolat.nas.fewshot import SAMPLES
from lolat.report.prediction import note_lines, range_word
from lolat.report.ranked import MOST_NOTES, grouped_notes
from lolat.report.tables import Column, Part, ReportTable
from lolat.units import between, byte_size, milliseconds, plain

if TYPE_CHECKING:
    from lolat.nas.ranking import BestCandidate, Ranking
    from lolat.nas.search import FrontCandidate, SearchResult


def front_lines(result: SearchResult) -> Iterator[Part]:
    """Lines that show the front."""
    yield from _heading(result)
    if not result.front:
        return
    coverage = result.front[0].coverage
    sure = "" if coverage is None else f"{100 * coverage:g} % sure of"
    columns = [
        Column("latency", lambda c: c.latency_ms, milliseconds),
        Column(sure, lambda c: c.interval_ms, lambda ends: between(*ends)),
        Column("score", lambda c: c.score, "{:.6g}".format),
        Column("measured range", _range, is_text=True),
        *[_HOST_BOUND] * any(c.host_bound for c in result.front),
        Column("memory", _memory, is_text=True),
        Column("candidate", _named, is_text=True),
    ]
    yield ReportTable(columns, result.front)
    yield from _summary(result)
    if without := sum(c.fits is False for c in result.front):
        yield (
            f"{without} of {len(result.front)} DO NOT FIT in the device's memory; those that fit and "
            "that they beat are not shown: give a smaller batch size"
        )
    named = [(f"row {n}", c.warnings, c.interval_ms) for n, c in enumerate(result.front, 1)]
    yield from grouped_notes(named)


def _summary(result: SearchResult) -> Iterator[str]:
    """The best of the front, and what may change it."""
    best, within = result.front[-1], result.budget_words()
    ends = "" if best.interval_ms is None else f" ({between(*best.interval_ms)})"
    outside = ", OUTSIDE the measured range: time it first" if best.in_domain is False else ""
    latency = f"{milliseconds(best.latency_ms)}{ends}"
    yield f"Best{within}: {_named(best)}, {latency}, score {best.score:.6g}{outside}"
    if outside and result.predictor == SAMPLES:
        yield "Add its time, and that of the fastest, to the samples, and `lolat nas fit` again"
    limit = result.max_ms or math.inf
    highs = [c.interval_ms[1] for c in result.front if c.interval_ms]
    if late := sum(high > limit for high in highs):
        remedy = "--sure leaves such out"
        if late == len(result.front):
            remedy = f"none is sure, the surest takes up to {milliseconds(min(highs))}"
        yield (
            f"{late} of {len(result.front)} may take longer than {limit:g} ms, by their intervals; {remedy}"
        )
    if result.improving:
        yield "The best score still rose in the last tenth of the candidates: more --candidates may help"


def _heading(result: SearchResult | Ranking) -> Iterator[str]:
    yield from (result.words(), f"latencies by {result.source}", "")


def _range(candidate: FrontCandidate) -> str:
    """The place of a candidate to the measured range, in words."""
    share = candidate.inside_share
    mostly = share is not None and share <= 1.0 - NEGLIGIBLE_SHARE
    inside = "mostly inside" if mostly else "inside"
    return {True: inside, False: "outside", None: "not known"}[candidate.in_domain]


_HOST_BOUND = Column("host-bound", lambda c: "yes" if c.host_bound else "no", is_text=True)


def _memory(candidate: FrontCandidate) -> str | None:
    needed = candidate.memory_bytes
    return (
        None if needed is None else byte_size(needed) + " DOES NOT FIT" * (candidate.fits is False)
    )


def _named(candidate: FrontCandidate | BestCandidate) -> str:
    """A candidate's text, or its choices if the text has only their numbers."""
    numbers, choices = candidate.arch.split("-"), candidate.choices
    if len(numbers) != len(choices) or not all(n.isdigit() for n in numbers):
        return candidate.arch
    return plain(" ".join(f"{name}={choice}" for name, choice in choices.items()))


LISTED = 20  # of the best


def best_lines(result: Ranking) -> Iterator[Part]:
    """Lines that show the best."""
    yield from _heading(result)
    columns = [
        Column("latency", lambda c: c.latency_ms, milliseconds),
        Column("candidate", _named, is_text=True),
    ]
    listed = result.best[:LISTED]
    if len(listed) < result.within:
        yield f"the {len(listed)} fastest:"
    yield ReportTable(columns, listed)
    yield ""
    if result.interval_ms is not None and result.coverage is not None:
        sure = f"{100 * result.coverage:g} % sure of {between(*result.interval_ms)}"
        outside = {
            "outside": ", extrapolating: outside the measured range",
            "host-bound": ", host-bound",
            "outside, host-bound": ", host-bound, outside the measured range",
        }
        first = milliseconds(result.best[0].latency_ms)
        yield f"the fastest: {first}, {sure}{outside.get(range_word(result), '')}"
    if result.fits is False and result.memory_bytes is not None:
        yield (
            f"memory: the slowest one DOES NOT FIT, it takes {byte_size(result.memory_bytes)}; that of the "
            "others is not looked at: nas search marks its front, predict tells that of a network"
        )
    yield from note_lines(result.warnings[:MOST_NOTES])
    if result.output is not None:
        yield f"written: {plain(result.output)}"
