"""The refusal of a question about served language models as lines: the answer, and the rows that help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lolat.llm.answer import ServingConfig
from lolat.llm.decoder import DTYPES
from lolat.llm.ranking import rank
from lolat.llm.refusal import NO_ROOM, SPLIT, Refusal
from lolat.report.llm_offers import a_month, likely, limited_times
from lolat.report.tables import Column, Part, ReportTable, time_columns
from lolat.units import dollars, plain, plural

MOST_WAYS, MOST_NEAR, MOST_SAID = 10, 4, 3
"""The most rows that help in the table, the most nearest ones behind them, the most in the first line."""


class Way(NamedTuple):
    """A row that keeps the limits, or the nearest one that does not, of a device."""

    device: str
    refusal: Refusal
    row: ServingConfig
    is_near: bool = False

    @property
    def is_other_dtype(self) -> bool:
        """True for weights of another data type than the answer's."""
        return not self.is_near and self.row is not self.refusal.ways.enough

    @property
    def ask(self) -> str:
        """The options with which the row is asked for; "" if those of the question ask for it."""
        row, asked, own = self.row, self.refusal.asked, self.refusal.made.served
        if self.is_near:
            return ""
        if self.is_other_dtype:
            return f"--dtype {row.dtype if row.dtype in DTYPES else row.dtype.removesuffix('_wo')}"
        words = []
        if self.refusal.code == NO_ROOM and row.split not in {one.split for one in own}:
            words = [f"--tensor-parallel {row.tensor_parallel}"]
        if asked.gpus or (asked.has_limits and not asked.request_rate):
            words.append(f"--gpus {row.gpus}")
        return " ".join(words)

    @property
    def gpus(self) -> str:
        """The GPUs in words."""
        return (
            near_gpus(self.refusal)
            if self.is_near
            else f"{self.row.gpus_words}{self.row.split_words}"
        )

    @property
    def verdict(self) -> str:
        """The chance that the row keeps the limits; the reason why the nearest one does not."""
        refusal, asked = self.refusal, self.refusal.asked
        if self.is_near:
            return f"no: {missed_words(refusal)}"
        return likely(self.row, asked) if asked.has_limits else self.row.requests_words


def near_gpus(refusal: Refusal) -> str:
    """The GPUs of the nearest row in words."""
    near = refusal.near
    if refusal.is_hopeless:
        return f"any number x {plural(near.gpus // near.replicas, 'GPU')}{near.split_words}"
    return f"{near.gpus_words}{near.split_words}"


def missed_words(refusal: Refusal) -> str:
    """Why the nearest row does not keep the limits, without its GPUs."""
    near, asked = refusal.near, refusal.asked
    if near.tpot_ms is None:
        return "does not fit"
    if near.shortage:
        return near.shortage
    unsure = ", less than the error of these times" if near.may_keep(asked) else ""
    return near.over_words(asked) + unsure


def ways_of(refusals: Mapping[str, Refusal]) -> list[Way]:
    """The rows that keep the limits, the cheapest first; of equal prices the best by `rank`."""
    every = [
        Way(name, one, row)
        for name, one in refusals.items()
        for row in (one.ways.enough, *one.ways.in_other_dtypes)
        if row is not None
    ]
    return sorted(every, key=_worth)


def _worth(way: Way) -> tuple[object, ...]:
    row = way.row
    usd = row.dollars_per_month
    return usd is None, usd or row.gpus, rank(row, way.refusal.asked)[1:]


def first_line(refusals: Mapping[str, Refusal], ways: Sequence[Way]) -> str:
    """The nearest row, and the cheapest ways that keep the limits, in one line."""
    name, refusal = next(iter(refusals.items()))
    near, asked = refusal.near, refusal.asked
    gpus = near_gpus(refusal) + (f" ({plain(name)})" if len(refusals) > 1 else "")
    if refusal.code == NO_ROOM:
        words = f"{plain(near.model)} does not fit on {near.gpus_words}"
    elif refusal.code == SPLIT:
        words = f"a replica takes {gpus}, more than {plural(asked.gpus or 0, 'GPU')}"
    elif near.saturated:
        most = near.shortage.removeprefix("overloaded, serves ")
        words = f"{gpus} serve{'s' if near.gpus == 1 else ''} {most}"
    elif near.shortage:
        words = f"{gpus}: {near.shortage}"
    else:
        words = f"{gpus}: {limited_times(near, asked)}, {missed_words(refusal)}"
    return "; ".join([words, *help_words(refusals, ways)])


def help_words(refusals: Mapping[str, Refusal], ways: Sequence[Way]) -> list[str]:
    """The cheapest ways that keep the limits, in words; without any, what may help."""
    refusal = next(iter(refusals.values()))
    asked, told = refusal.asked, dict[tuple[int, str], str]()
    for way in ways:
        row = way.row
        at = f" in {row.dtype}" if way.is_other_dtype else ""
        surely = "likely " if asked.has_limits and likely(row, asked) != "surely" else ""
        price = f" for {a_month(row)}" if row.dollars_per_month is not None else ""
        do = f"{surely}do{'es' if row.gpus == 1 else ''}"
        told.setdefault((row.gpus, at), f"{row.gpus_words}{at} {do}{price}")
    helps = [*told.values()][:MOST_SAID]
    if not helps and refusal.near.tpot_ms is not None:
        helps = [refusal.hint or "try higher limits, shorter prompts, or a faster GPU"]
    return helps


def refusal_lines(refusals: Mapping[str, Refusal]) -> Iterator[Part]:
    """The answer in a line, a table of the rows that help and the nearest ones, and remarks."""
    ways, several = ways_of(refusals), len(refusals) > 1
    yield f"No: {first_line(refusals, ways).rstrip('?')}."
    near = [
        Way(name, one, one.near, True)
        for name, one in [*refusals.items()][:MOST_NEAR]
        if one.near.tpot_ms is not None and one.code != SPLIT
    ]
    rows = [*ways[:MOST_WAYS], *near]
    if rows:
        yield from ("", ReportTable([*_columns(rows, several)], rows), "")
    if any(way.is_other_dtype for way in ways):
        yield "Weights of another data type are another checkpoint."
    further, more = len(refusals) - MOST_NEAR, len(ways) - MOST_WAYS
    if further > 0:
        yield f"{plural(further, 'device')} further off: --json has why."
    if more > 0:
        yield f"Left out: {plural(more, 'dearer row')}."
    # The rows say how many GPUs hold the language model.
    first = next(iter(refusals.values()))
    remarks = first.remarks if first.code != NO_ROOM or not ways else ()
    yield from (f"{words[0].upper()}{words[1:]}." for words in remarks)


def _columns(rows: Sequence[Way], several: bool) -> Iterator[Column]:
    asked = rows[0].refusal.asked
    at = "" if asked.percentile is None else f" P{asked.percentile}"

    def ms(way: Way, which: int) -> float | None:
        return None if way.row.saturated else way.row.token_times(asked.percentile)[which].ms

    first, _ = time_columns(f"first token{at}", lambda way: ms(way, 1), rows)
    token, _ = time_columns(f"per token{at}", lambda way: ms(way, 0), rows)
    yield Column("device", lambda way: plain(way.device) if several else None, is_text=True)
    yield Column("GPUs", lambda way: way.gpus, is_text=True)
    yield Column("data type", lambda way: way.row.dtype, is_text=True)
    yield from (first, token)
    yield Column(
        "$ a month", lambda way: None if way.is_near else way.row.dollars_per_month, dollars
    )
    head = "within the limits" if asked.has_time_limits else "serves"
    yield Column(head, lambda way: way.verdict, is_text=True)
    yield Column("ask with", lambda way: way.ask or None, is_text=True)


def error_words(refusals: Mapping[str, Refusal]) -> str:
    """The limits that no row keeps, and the ways that help, in a line for programs."""
    first, ways = next(iter(refusals.values())), ways_of(refusals)
    told = help_words(refusals, ways)
    if first.code != NO_ROOM:
        told = [first_line(refusals, ways)]
    return "; ".join([refused_words(refusals), *told])


def refused_words(refusals: Mapping[str, Refusal]) -> str:
    """The limits that no row keeps, in a line."""
    first, *others = refusals.values()
    if not others:
        return first.refused
    near, names = first.near, dict.fromkeys(plain(one.made.model) for one in refusals.values())
    models = ", ".join(names)
    where = f"none of {plural(len(refusals), 'answer' if len(names) > 1 else 'device')}"
    if near.tpot_ms is None:
        return f"{models} fits on {where}"
    most = f" on up to {plural(first.asked.gpus, 'GPU')}" if first.asked.gpus else ""
    return f"{models}, {near.requests_words}: {where} {first.keeps}{most}"
