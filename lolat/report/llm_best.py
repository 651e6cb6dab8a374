"""Lines on the best row of a served language model: price, how surely it keeps the limits, other rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lolat.hardware.rental import GIVEN
from lolat.llm.answer import ServingAnswer, ServingConfig
from lolat.llm.load import Trace
from lolat.llm.question import ServingQuestion
from lolat.llm.ranking import best_of
from lolat.report.llm_offers import (
    a_month,
    at_load,
    chance_words,
    has_more,
    more_words,
    near_lines,
    offer,
    other_dtype_lines,
    room,
    rounded_down,
    surer_lines,
)
from lolat.units import digits, dollars, milliseconds, percent, plain, plural


def cheapest_word(row: ServingConfig) -> str:
    """The word for the best of several rows: "cheapest", "cheapest tokens" or "most a GPU"."""
    if row.dollars_per_hour is None:
        return "most a GPU"
    return "cheapest" if row.request_rate is not None else "cheapest tokens"


def best_lines(answer: ServingAnswer) -> Iterator[str]:
    """Lines on the best row of each load, the largest rate within the limits, and cheaper or surer rows."""
    asked, loads = answer.asked, {row.load: row for row in answer.served}
    if not asked.has_limits:
        yield from _served_lines(answer)
        return
    bests = {row.load: row for row in (answer.served[n] for n in answer.bests)}
    sure = {row.load: row for row in answer.surer}
    cheaper = {row.load: row for row in reversed(answer.surer_other_dtypes)}
    for load, row in loads.items():
        of = at_load(row, len(loads) == 1)
        if best := bests.get(load):
            yield _best_words(best, asked, of)
            yield from _probably_words(
                best, [*answer.served, *answer.surer, *answer.probable], asked
            )
            yield from _surely_words(best, sure.get(load), cheaper.get(load), asked)
            told = cheaper.get(load)
            if told is None or not any(_is_same(told, row) for row in answer.surer_at_price):
                yield from surer_lines(answer.surer_at_price, best, asked)
            yield from holds_words(best, asked)
        elif row.request_rate is not None:
            yield f"No row {'keeps the limits' if asked.has_time_limits else 'serves all requests'}{of}."
    yield from near_lines(answer.near, asked, len(loads) == 1)
    yield from _fuller_words(answer.fuller)
    yield from other_dtype_lines(answer.other_dtypes, asked, len(loads) == 1)


def _served_lines(answer: ServingAnswer) -> Iterator[str]:
    """Lines on the best rows without limits: the requests that they serve, their speed, their price."""
    asked, best = answer.asked, answer.chosen
    bests = [answer.served[n] for n in answer.bests] if asked.request_rate else [best]
    for row in bests:
        called = f"{cheapest_word(row).capitalize()}: " if len(answer.served) > len(bests) else ""
        ms, price = milliseconds(row.token_times(asked.percentile).token.ms), ""
        if row.dollars_per_hour is not None:
            price = f", {price_of(row)}"
        most = row.largest_rate and f"; it serves up to {rounded_down(row.largest_rate)} requests/s"
        done = f" ({digits(row.requests_per_s or 0.0)} requests/s)" if most is None else ""
        yield f"{called}{row.load_words}{done}: {ms} a token{price}{most or ''}."
    yield from _fuller_words(answer.fuller)
    yield from other_dtype_lines(answer.other_dtypes, asked, len(bests) == 1)


def _fuller_words(row: ServingConfig | None) -> Iterator[str]:
    """A line on the row with cheaper tokens for fewer requests at once; none without such a row."""
    if row is not None:
        at_once = plural(int(row.concurrency), "request")
        price = f"{dollars(row.dollars_per_million or 0.0)} a million output tokens, {a_month(row)}"
        yield f"Cheaper with up to {at_once} at once: {row.gpus_words}{row.split_words}, {price}."


def _is_same(row: ServingConfig, other: ServingConfig) -> bool:
    """True if two rows have the same load, GPUs and data type of the weights."""
    return (row.load_words, row.dtype) == (other.load_words, other.dtype)


def _best_words(row: ServingConfig, asked: ServingQuestion, load: str) -> str:
    """A line on the best row of a load: its GPUs, price, rented machines, and chance to keep the limits."""
    sure = " surely" if asked.sure else ""
    which, price = "Most tokens/s a GPU", ""
    if row.dollars_per_hour is not None:
        which, price = "Cheapest", f", {price_of(row)}"
    what = f"{row.gpus_words}{row.split_words}{price}{chance_words(row, asked)}"
    return f"{which}{sure} within the limits{load}: {what}."


def price_of(row: ServingConfig) -> str:
    """The prices of a row and its rented machines, in words; the price to choose by comes first."""
    hour = f"{dollars(row.dollars_per_hour or 0.0)} an hour"
    million = f"{dollars(row.dollars_per_million or 0.0)} a million output tokens"
    on = f" on {plain(row.rented)}" if row.rented not in (None, GIVEN) else ""
    if row.request_rate is None:
        return f"{million} ({hour}, {a_month(row)}){on}"
    return f"{a_month(row)} ({hour}, {million}){on}"


def holds_words(best: ServingConfig, asked: ServingQuestion) -> Iterator[str]:
    """A line on the largest rate at which the best row keeps the limits; none if unknown."""
    if best.headroom_rate is not None:
        words = room_words(best, asked)
        yield f"{words[0].upper()}{words[1:]}."


def _probably_words(
    best: ServingConfig, rows: Sequence[ServingConfig], asked: ServingQuestion
) -> Iterator[str]:
    """A line on the best probable row of the load of `best`, if `best` is not probable."""
    if asked.sure is None and not best.is_probable:
        same = [row for row in rows if row.load == best.load and row.is_probable]
        if (row := best_of(same, asked)) and not row.is_sure(asked):
            yield f"Probably: {offer(row)}{chance_words(row, asked)}."


def _surely_words(
    best: ServingConfig, surer: ServingConfig | None, cheaper: ServingConfig | None, asked: ServingQuestion
) -> Iterator[str]:  # fmt: skip
    """A line on the `surer` row and, in another data type, the `cheaper` row that surely keep the limits,
    if `best` does not.
    """
    if asked.sure is not None or best.is_sure(asked):
        return
    if surer is not None:
        price = ""
        if surer.dollars_per_hour and best.dollars_per_hour:
            factor = surer.dollars_per_hour / best.dollars_per_hour
            more = "twice as much" if factor == 2.0 else f"{factor:.2g} times as much"
            price = f", {percent(factor - 1.0)} more" if factor < 2.0 else f", {more}"
        other = cheaper and f"; in {cheaper.dtype}, another checkpoint, {offer(cheaper)}"
        yield f"Surely: {offer(surer)}{price}{other or ''} (ask with --sure)."
    elif asked.gpus:
        yield f"Surely: no number of GPUs up to {asked.gpus}; --sure without --gpus tries more."
    else:
        yield "Surely: no number of these GPUs."


def room_words(row: ServingConfig, asked: ServingQuestion) -> str:
    """Words on the most requests a second within the limits, and on how surely the limits are kept."""
    is_sure = asked.sure is not None or row.is_sure(asked)
    what = ("the limits", "hold") if asked.has_time_limits else ("the queue", "stays finite")
    holds = f"{what[0]}{'' if is_sure else ' likely'} {what[1]}"
    if not has_more(row):
        words = f"{holds} at {room(row)} requests/s, with less than 2 % to spare"
        words += " in the bursts of these arrivals" if isinstance(asked.arrivals, Trace) else ""
    else:
        words = f"{holds} up to {room(row)} requests/s ({more_words(1.0 + (row.headroom or 0.0))})"
    if asked.sure is not None:
        return words
    surely = f", surely up to {rounded_down(row.sure_rate)}" if row.sure_rate else ""
    return words + surely * (has_more(row) or not is_sure)


def priced_gpus(row: ServingConfig) -> str:
    """The number of GPUs of a row and its price, in words: a month under a rate, else a million tokens."""
    price = ""
    if row.dollars_per_hour is not None:
        of_tokens = row.request_rate is None and row.dollars_per_million is not None
        million = f"{dollars(row.dollars_per_million or 0.0)} a million output tokens"
        price = f", {million if of_tokens else a_month(row)}"
    return plural(row.gpus, "GPU") + price
