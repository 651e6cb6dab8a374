"""The lines of `lolat nas search` and `lolat nas score`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lolat.nas.fewshot import SAMPLES
from lolat.nas.limits import surely_best
from lolat.report.prediction import memory_cell, mostly, note_lines, range_words
from lolat.report.ranked import MOST_NOTES, grouped_notes
from lolat.report.tables import Column, Part, ReportTable, interval_head, time_columns
from lolat.units import between, byte_size, milliseconds, plain

LISTED = 20
"""A table on the terminal shows at most so many candidates."""

if TYPE_CHECKING:
    from lolat.nas.ranking import BestCandidate, Ranking
    from lolat.nas.search_result import FrontCandidate, OnDevice, SearchResult


def front_lines(result: SearchResult) -> Iterator[Part]:
    """The lines of `lolat nas search`: the table of the front, the best, notes."""
    yield result.words()
    yield from filter(None, [result.within_words()])
    if left := result.unasked:
        yield f"{left:,} of these are not scored: --candidates {result.within} scores all"
    yield f"Latencies predicted by {result.source}"
    for other in result.others:
        yield f"  on {plain(other.device)} by {other.source}"
    yield "Each row: a whole network that no scored one beats in both latency and score"
    yield ""
    columns = [*_of_device(result, 0)]
    columns.insert(2, Column("score", lambda c: c.score, "{:.6g}".format))
    for place in range(1, 1 + len(result.others)):
        columns += _of_device(result, place)
    columns.append(Column("candidate", _named, is_text=True))
    every = [
        (n, place, one) for n, c in enumerate(result.front, 1) for place, one in enumerate(_each(c))
    ]
    if any(one.warnings for *_, one in every):  # the notes name rows
        numbers = {id(candidate): n for n, candidate in enumerate(result.front, 1)}
        columns.insert(0, Column("row", lambda c: numbers[id(c)]))
    shown = _shown(result)
    yield ReportTable(columns, [result.front[n - 1] for n in shown])
    if hidden := len(result.front) - len(shown):
        yield f"{hidden} more on the front: --output FILE writes all, --json has them"
    yield from _summary(result)
    if without := len({n for n, _, one in every if one.fits is False}):
        yield (
            f"{without} of {len(result.front)} DO NOT FIT in the device's memory; those that fit and "
            "that they beat are not shown: give a smaller batch size"
        )
    yield from grouped_notes(
        [
            (f"row {n}{_on(result, place)}", one.warnings, one.interval_ms)
            for n, place, one in every
            if n in shown
        ],
        chosen=[
            f"row {len(result.front)}{_on(result, place)}"
            for place, _ in enumerate(_each(result.front[-1]))
        ],
    )


def _shown(result: SearchResult) -> Sequence[int]:
    """The numbers of the rows to print: the nearest to the limit; without a limit, spread over all
    latencies.
    """
    count = len(result.front)
    if count <= LISTED:
        return range(1, count + 1)
    if result.max_ms is not None:
        return range(count - LISTED + 1, count + 1)
    return [1 + round(n * (count - 1) / (LISTED - 1)) for n in range(LISTED)]


def _each(candidate: FrontCandidate) -> list[FrontCandidate | OnDevice]:
    """The answers for a candidate on each device, the first device first."""
    return [candidate, *candidate.others]


def _on(result: SearchResult, place: int) -> str:
    """The words " on DEVICE" for the device at a place; "" for the first device, at place 0."""
    return f" on {plain(result.others[place - 1].device)}" if place else ""


def _of_device(result: SearchResult, place: int) -> Iterator[Column]:
    """The columns of the device at a place; the first device is at place 0."""

    def of(candidate: FrontCandidate) -> FrontCandidate | OnDevice:
        return _each(candidate)[place]

    each = [of(candidate) for candidate in result.front]
    coverage = each[0].coverage
    sure = interval_head(coverage)
    head = f"latency{_on(result, place)}"
    yield from time_columns(
        head, lambda c: of(c).latency_ms, result.front, sure, lambda c: of(c).interval_ms
    )
    yield Column("measured range", lambda c: mostly(of(c)) + range_words(of(c)), is_text=True)
    yield Column("memory", lambda c: memory_cell(of(c)), is_text=True)


def _summary(result: SearchResult) -> Iterator[str]:
    """Lines on the best candidate of the front, and on how sure it is."""
    best, within = result.front[-1], result.budget_words()
    each, latencies = _each(best), []
    for place, one in enumerate(each):
        latencies.append(_time_words(one) + _on(result, place))
    devices = [result.device, *(one.device for one in result.others)]
    places = [plain(d) for d, one in zip(devices, each, strict=True) if one.in_domain is False]
    on = f" on {' and '.join(places)}" if result.others else ""
    outside = f", OUTSIDE the measured range{on}: time it first" if places else ""
    yield f"Best{within}: {_named(best)}, {', '.join(latencies)}, score {best.score:.6g}{outside}"
    if outside and result.predictor == SAMPLES:
        yield "Add its time, and that of the fastest, to the samples, and `lolat nas fit` again"
    longest = [result.max_ms, *(one.max_ms for one in result.others)]
    limits = [(place, ms) for place, ms in enumerate(longest) if ms is not None]
    late = [line for place, ms in limits for line in _late(result, place, ms)]
    yield from late
    surest = surely_best([_each(c) for c in result.front], longest) if late else None
    if surest is not None and result.front[surest] is not best:
        sure = result.front[surest]
        ends = " and ".join(
            _time_words(one) + _on(result, place)
            for place, one in enumerate(_each(sure))
            if one.interval_ms
        )
        yield f"Surely{within}: {_named(sure)}, {ends}, score {sure.score:.6g}"
    if result.improving:
        yield "The best score still rose in the last tenth of the candidates: more --candidates may help"


def _time_words(one: FrontCandidate | OnDevice) -> str:
    """A latency, and its interval in brackets: "2.91 ms (2.64 .. 3.19)"."""
    ends = f" ({between(*one.interval_ms, one.latency_ms)})" if one.interval_ms else ""
    return milliseconds(one.latency_ms) + ends


def _late(result: SearchResult, place: int, limit: float) -> Iterator[str]:
    """A line on the number of candidates that may take longer than a device's limit, with a remedy."""
    each = [_each(c)[place].interval_ms for c in result.front]
    highs = [ends[1] for ends in each if ends]
    if late := sum(high > limit for high in highs):
        remedy = "--sure leaves such out"
        if late == len(result.front):
            remedy = f"none is sure, the surest takes up to {milliseconds(min(highs))}"
        on = _on(result, place)
        yield (
            f"{late} of {len(result.front)} may take longer than {limit:g} ms{on}, by their intervals; "
            f"{remedy}"
        )


def _named(candidate: FrontCandidate | BestCandidate) -> str:
    """A candidate's text; its choices in words if the text has only their numbers."""
    numbers, choices = candidate.arch.split("-"), candidate.choices
    if len(numbers) != len(choices) or not all(n.isdigit() for n in numbers):
        return candidate.arch
    return plain(" ".join(f"{name}={choice}" for name, choice in choices.items()))


def best_lines(result: Ranking) -> Iterator[Part]:
    """The lines of `lolat nas score`: tables of the fastest candidates and of those nearest the limit,
    notes.
    """
    yield from (result.words(), f"Latencies predicted by {result.source}", "")
    listed, sure = result.best[:LISTED], interval_head(result.coverage)
    columns = [
        *time_columns("latency", lambda c: c.latency_ms, listed, sure, lambda c: c.interval_ms),
        Column("candidate", _named, is_text=True),
    ]
    if len(listed) < result.within:
        yield f"the {len(listed)} fastest:"
    yield ReportTable(columns, listed)
    yield ""
    yield from _ties(result)
    if result.nearest:
        yield f"the {len(result.nearest)} nearest to {result.max_ms:g} ms:"
        yield ReportTable(columns, result.nearest)
        yield ""
    if result.interval_ms is not None:
        yield f"Measured range of the fastest: {mostly(result)}{range_words(result)}"
    if result.fits is False and result.memory_bytes is not None:
        yield (
            f"memory: the slowest one DOES NOT FIT, it takes {byte_size(result.memory_bytes)}; the others "
            "are not checked: nas search checks its front, predict checks one network"
        )
    yield from note_lines(result.warnings[:MOST_NOTES])
    if result.output is not None:
        yield f"written: {plain(result.output)}"


def _ties(result: Ranking) -> Iterator[str]:
    """A line if the list leaves out candidates that are as fast as its last one."""
    times = [milliseconds(c.latency_ms) for c in result.best]
    if not times or (result.tied or 0) <= (listed := times.count(times[-1])):
        return
    some = f"{listed:,} that are listed are" if listed > 1 else "one that is listed is"
    why = " (their host decides the time)" if result.host_bound else ""
    yield f"{result.tied:,} candidates tie at {times[-1]}{why}: the {some} the first in the space's order"
