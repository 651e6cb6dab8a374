"""A served language model as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lolat.device.question import several
from lolat.llm.answer import NEAR, ServingAnswer, ServingConfig, requests_words
from lolat.llm.question import ServingQuestion
from lolat.report.ranked import within_limit
from lolat.report.tables import Column, Part, ReportTable
from lolat.units import (
    between,
    digits,
    dollars,
    milliseconds,
    percent,
    plain,
    plural,
    quantity,
)

CALLED = {
    "weights": "reading weights", "products": "matrix products beyond that", "attention": "attention",
    "experts": "experts", "all_reduce": "all-reduces", "small": "small operations",
    "launches": "launch overhead", "scheduling": "scheduling", "prompts": "prompts of other requests",
    "waiting": "waiting for memory (preempted)",
}  # fmt: skip
DOLLARS = "$/M tokens: for a million output tokens with their prompts; a month has 730 hours"
PRICE = "$/M tokens"
A_MONTH = "$ a month"
"""The heads of columns of prices; a page has the second one behind the names in a comparison."""
LEGEND = "yes, NO: so for the whole 90 % interval; likely, unlikely: for the predicted time alone."
LEAST_SHARE = 0.02
HOURS = 730.0  # of a month
OWN_PRICE = "a price an hour can be given"


def llm_lines(answer: ServingAnswer) -> Iterator[Part]:
    """The title, the table, what the time of the chosen row goes to, and what else there is to say."""
    before, table, after = llm_parts(answer)
    yield from before
    yield from ("", table, "")
    parts = [f"{words} {percent(share)}" for _, words, share in breakdown(answer.chosen)]
    if parts:
        yield f"An output token with {answer.chosen.load_words}: {', '.join(parts)}."
    yield from after


def llm_parts(answer: ServingAnswer) -> tuple[list[str], ReportTable, list[str]]:
    """Lines before the table; the table, a row for each configuration; advice and prices."""
    device = [plain(answer.device), answer.framework, load_line(answer.served)]
    before = [subject(answer, types_words(answer.chosen)), " · ".join(device)]
    before += arrival_lines(answer.asked)
    limited = answer.asked.has_limits
    bests = {id(answer.served[n]) for n in answer.bests if limited or answer.served[1:]}
    is_priced = answer.chosen.dollars_per_hour
    called = "best" if limited else "cheapest" if is_priced else "most a GPU"
    said = {id(row): row_words(row, called * (id(row) in bests)) for row in answer.served}
    remark = Column("", lambda row: said[id(row)], is_text=True, page="front")
    table = ReportTable([*columns(answer, answer.served), remark], answer.served, stacked=True)
    return before, table, [*_advice(answer)]


def row_words(row: ServingConfig, best: str = "") -> str:
    """Why a configuration does not serve its load within the limits, else `best`; if requests wait; if its
    times are out of the domain.
    """
    if row.tpot_ms is None:
        return "does not fit"
    if row.saturated:
        return row.shortage
    words = "beyond the limits" if row.fits and row.within is False else best
    outside = "extrapolated" if row.in_domain is False else ""
    return ", ".join(
        filter(None, [words, "waits for memory" if row.waits_for_memory else "", outside])
    )


def load_line(rows: Sequence[ServingConfig]) -> str:
    """The load of rows, in words; without its number if it differs."""
    row = rows[0]
    is_one = len({row.request_rate or row.concurrency for row in rows}) == 1
    if row.request_rate is None:
        number = plural(int(row.concurrency), "request") if is_one else "requests"
        return f"steady load: {number} always in progress"
    rate = row.requests_words if is_one else "requests at a rate"
    return f"{rate}, which wait where the GPUs are busy"


def arrival_lines(asked: ServingQuestion) -> Iterator[str]:
    """The requests of a trace, and how much faster than recorded they are replayed."""
    if isinstance(asked.arrivals, str):
        return
    faster = (rate / asked.arrivals.rate for rate in several(asked.request_rate))
    times = ", ".join(f"{factor:.2f}" for factor in faster if abs(factor - 1.0) > 5e-3)
    replayed = f"; replayed {times} times as fast, with bursts that are shorter and no larger"
    replayed *= bool(times)
    yield f"{plain(asked.arrivals.source)}: {asked.arrivals.words()}{replayed}"


def subject(answer: ServingAnswer, *more: str) -> str:
    """The language model, its size, what `more` says, its tokens."""
    size = f"{quantity(answer.parameters)} parameters"
    if answer.active < answer.parameters:
        size += f", {quantity(answer.active)} active"
    return " · ".join([plain(answer.model), size, *more, tokens(answer)])


def tokens(answer: ServingAnswer) -> str:
    """The tokens of a request, and what is unusual in the question."""
    tokens = f"{answer.chosen.input_tokens:,} tokens in, {answer.chosen.output_tokens:,} out"
    return " · ".join([tokens, *answer.asked.unusual])


def types_words(row: ServingConfig) -> str:
    """The data types of the weights and the cache."""
    return f"{row.dtype}, cache {row.kv_dtype}"


def breakdown(row: ServingConfig) -> list[tuple[str, str, float]]:
    """(name, words, share) of what an output token's time goes to, the largest first, without trifles."""
    total = row.tpot_ms or 1.0
    shares = [(name, CALLED[name], ms / total) for name, ms in (row.breakdown or {}).items()]
    return sorted((s for s in shares if s[2] >= LEAST_SHARE), key=lambda share: -share[2])


def columns(answer: ServingAnswer, rows: Sequence[ServingConfig]) -> list[Column]:
    """The columns of a configuration, with `within_limit` for each limit; without times if it does not fit
    or is overloaded. The tokens/s in all are those of the load if that is a rate.
    """
    asked = answer.asked
    first, token, at = asked.max_ttft_ms, asked.max_tpot_ms, asked.percentile
    experts, groups = (any(row.split[n] > 1 for row in rows) for n in (1, 2))
    arrives, of = answer.chosen.request_rate is not None, "" if at is None else f" P{at}"
    differ = len({row.request_rate or row.concurrency for row in rows}) > 1
    has_room = any(row.headroom_rate for row in rows)  # which says more of a purchase than the most

    def judged(row: ServingConfig, index: int) -> float | None:
        return None if row.tpot_ms is None or row.saturated else row.judged(at)[index]

    def kept(row: ServingConfig, index: int, limit: float | None) -> str | None:
        ms = judged(row, index)
        if limit is None or ms is None:
            return None
        return within_limit(ms, row.judged_ends(at)[index], limit, asked.sure is not None)

    def token_limit() -> str:
        if asked.min_tokens_per_s is not None:
            return f"tokens/s{of} >= {asked.min_tokens_per_s:g}"
        return "" if token is None else f"token{of} <= {round(token, 2):g} ms"

    def ends(index: int) -> Column:
        name = f"{percent(asked.coverage)} between"

        def value(row: ServingConfig) -> tuple[float, float] | None:
            return None if row.saturated else row.judged_ends(at)[index]

        return Column(name, value, lambda e: between(*e), page="below")

    return [
        Column("requests a second", lambda r: r.request_rate if differ else None, "{:g}".format),
        Column("requests", lambda r: r.concurrency if differ and not arrives else None, "{:,.0f}".format),
        Column("GPUs", lambda r: f"{r.replicas} x {r.gpus // r.replicas}" if r.replicas > 1 else r.gpus),
        Column("expert parallel", lambda r: r.expert_parallel if experts else None),
        Column("attention groups", lambda r: r.attention_data_parallel if groups else None),
        Column(f"first token{of}", lambda r: judged(r, 1), milliseconds),
        ends(1), Column(f"per token{of}", lambda r: judged(r, 0), milliseconds), ends(0),
        Column(f"whole request{of}" if arrives else "",
               lambda r: r.time("e2e", at) if arrives and not r.saturated else None, milliseconds,
               page="spare"),
        Column(f"tokens/s a request{of}", lambda r: 1e3 / ms if (ms := judged(r, 0)) else None, digits),
        Column("a GPU", lambda r: None if arrives else r.tokens_per_s_gpu, digits, page="spare"),
        Column("in all", lambda r: None if arrives else r.tokens_per_s, digits, page="below"),
        Column(A_MONTH, lambda r: r.dollars_per_hour and HOURS * r.dollars_per_hour, dollars),
        Column("$ an hour", lambda r: r.dollars_per_hour, dollars, page="below"),
        Column(PRICE, lambda r: r.dollars_per_million, dollars),
        Column("limits hold up to, a second", lambda r: room(r) or ("-" if has_room else None)),
        Column("most a second", lambda r: None if has_room else r.request_rate and r.largest_rate, digits),
        Column("largest load", lambda r: None if arrives else r.tpot_ms and r.largest_concurrency,
               "{:,}".format),
        Column("mean memory a GPU" if arrives else "memory a GPU", lambda r: r.memory_gib,
               "{:.1f} GiB".format, page="below"),
        Column("" if first is None else f"first{of} <= {round(first, 2):g} ms", lambda r: kept(r, 1, first),
               page="front"),
        Column(token_limit(), lambda r: kept(r, 0, token), page="front"),
    ]  # fmt: skip


def facts(row: ServingConfig, answer: ServingAnswer) -> Iterator[tuple[str, str]]:
    """(name, words) of what a configuration is, gives and costs; nothing if the model does not fit."""
    if row.tpot_ms is None:
        return
    asked = answer.asked
    at = "" if asked.percentile is None else f" P{asked.percentile}"
    splits = {"tensor": row.tensor_parallel, "expert": row.expert_parallel,
              "attention data": row.attention_data_parallel}  # fmt: skip
    split = ", ".join(f"{name} parallel {n}" for name, n in splits.items() if n > 1)
    replicas = f"{row.replicas} replicas of {row.gpus // row.replicas}" if row.replicas > 1 else ""
    how = ", ".join(filter(None, [replicas, split]))
    yield "GPUs", f"{row.gpus} x {plain(row.device)}{f' ({how})' if how else ''}"
    if row.rented is not None and row.dollars_per_hour is not None:
        usd, million = row.dollars_per_hour, dollars(row.dollars_per_million or 0.0)
        yield "Rented", plain(row.rented)
        yield (
            "Price",
            f"{dollars(usd)} an hour, {dollars(HOURS * usd)} a month, {million} a million output tokens",
        )
    (token, first), both = row.judged(asked.percentile), row.judged_ends(asked.percentile)
    ends = [f", {percent(asked.coverage)} between {between(*e)}" if e else "" for e in both]
    yield f"First token{at}", milliseconds(first) + ends[1]
    yield f"Tokens/s a request{at}", f"{digits(1e3 / token)} ({milliseconds(token)} each{ends[0]})"
    if row.headroom_rate is not None:
        yield "Headroom", _room_words(row, asked)


def _advice(answer: ServingAnswer) -> Iterator[str]:
    """The best row, and prices."""
    asked = answer.asked
    if answer.chosen.tpot_ms is None:
        return
    if asked.has_limits and answer.best is not None:
        most = "most tokens a second from each GPU"
        how = "cheapest output tokens" if answer.chosen.dollars_per_hour else most
        sure = f", as the ends of {asked.sure:g} % intervals keep them" if asked.sure else ""
        bests = {row.request_rate: row for row in (answer.served[n] for n in answer.bests)}
        rates = dict.fromkeys(row.request_rate for row in answer.served)
        yield f"The best row{' of each rate' * (len(rates) > 1)} has the {how} within the limits{sure}."
        for rate in rates:
            if rate is not None and rate not in bests:
                yield f"{requests_words(rate, True)}: no row keeps the limits."
            else:
                yield from headroom(bests[rate], asked, len(rates) == 1)
        yield from surer_lines([answer.served[n] for n in answer.bests], answer)
        yield from near_lines(answer.near, asked, len(rates) == 1)
        yield from other_fp8_lines(answer)
        yield from limit_legend(asked)
        yield from shared_out([*bests.values()], asked)
    yield _price_words(answer)


def limit_legend(asked: ServingQuestion) -> Iterator[str]:
    """The words of the columns of limits explained."""
    if asked.max_tpot_ms or asked.max_ttft_ms:
        is_sure = f"yes: the whole {asked.sure or 0.0:g} % interval keeps the limit."
        yield LEGEND if asked.sure is None else is_sure


def shared_out(rows: Sequence[ServingConfig], asked: ServingQuestion) -> Iterator[str]:
    """A remark on the requests that each of several replicas gets."""
    if any(row.replicas > 1 and row.request_rate is not None for row in rows):
        share = "its share of the requests at random"
        if not isinstance(asked.arrivals, str):
            share = "the requests of the trace in turn"
        yield f"Each replica gets {share}: a router that picks the least busy one makes them wait less."


def headroom(row: ServingConfig, asked: ServingQuestion, is_only: bool) -> Iterator[str]:
    """The most requests a second within the limits; nothing without a rate."""
    if row.headroom_rate is not None:
        yield f"{_where(row, is_only)}: {_room_words(row, asked)}."


def _where(row: ServingConfig, is_only: bool) -> str:
    """The load and the GPUs of a row; of an only load the GPUs alone."""
    return f"{row.gpus_words}{row.split_words}" if is_only else row.load_words


def surer_lines(bests: Sequence[ServingConfig], answer: ServingAnswer) -> Iterator[str]:
    """Rows that surely keep the limits, for best rows that do so by their times alone, and their price."""
    asked = answer.asked
    if asked.sure is not None:
        return
    sure = {row.request_rate or row.concurrency: row for row in answer.surer}
    is_only = len({row.request_rate or row.concurrency for row in answer.served}) == 1
    for best in (row for row in bests if not row.is_sure(asked)):
        row = sure.get(best.request_rate or best.concurrency)
        if row is None:
            words = "no number of these GPUs keeps them surely"
            if asked.gpus:
                words = f"none of up to {plural(asked.gpus, 'GPU')} does surely; without --gpus, --sure "
                words += "asks for more"
        else:
            words = f"on {row.gpus_words}{row.split_words} they do"
            if row.dollars_per_hour and best.dollars_per_hour:
                more = percent(row.dollars_per_hour / best.dollars_per_hour - 1.0)
                words += f", for {more} more: {a_month(row)}"
            words += " (ask with --sure)"
        yield f"{_where(best, is_only)}: the limits hold likely, not surely; {words}."


def other_fp8_lines(answer: ServingAnswer) -> Iterator[str]:
    """The GPUs of best rows in another FP8, and their price."""
    bests = {row.request_rate: row for row in (answer.served[n] for n in answer.bests)}
    for row in (one for one in answer.other_fp8 if one.request_rate in bests):
        here, there = (
            one.gpus_words + one.split_words + f", {a_month(one)}" * bool(one.dollars_per_hour)
            for one in (bests[row.request_rate], row)
        )
        load = f"{row.requests_words}: " * (len(bests) > 1)
        this = "as much" if here == there else here
        yield f"{load}dtype {row.dtype}, another checkpoint, needs {there}, and this one {this}."


def near_lines(
    near: Sequence[ServingConfig], asked: ServingQuestion, is_only: bool
) -> Iterator[str]:
    """Fewer GPUs that miss the limits by less than the error, and their dollars an hour."""
    for row in near:
        price = "" if row.dollars_per_hour is None else f", {a_month(row)}"
        over = f"{row.over_words(asked)}, less than the error of these times"
        yield f"{_where(row, is_only)}{price}: {over}."


def _room_words(row: ServingConfig, asked: ServingQuestion) -> str:
    """The most requests a second within the limits, in words."""
    is_limited = bool(asked.max_tpot_ms or asked.max_ttft_ms)
    holds = "the limits hold" if is_limited else "the queue stays finite"
    if not has_more(row):
        return f"{holds} at {room(row)} requests/s, with no room for more"
    (ms, _), (ends, _) = row.judged(asked.percentile), row.judged_ends(asked.percentile)
    is_in_error = ends and (row.headroom or 0.0) < ends[1] / ms - 1.0
    doubt = ", within the error of these times" if is_limited or is_in_error else ""
    doubt = (
        f", surely up to {rounded_down(row.sure_rate)}" if row.sure_rate and is_limited else doubt
    )
    doubt = doubt if asked.sure is None else ""
    return f"{holds} up to {room(row)} requests/s ({percent(row.headroom or 0.0)} more){doubt}"


def has_more(row: ServingConfig) -> bool:
    """True if the rate can rise by more than the step of its search."""
    return (row.headroom or 0.0) >= NEAR


def room(row: ServingConfig) -> str | None:
    """The most requests a second within the limits, rounded down; None of a row without."""
    if row.headroom_rate is None:
        return None
    return rounded_down(row.headroom_rate) if has_more(row) else f"{row.request_rate:g}"


def rounded_down(rate: float) -> str:
    """A rate with three digits."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return digits(unit * math.floor(rate / unit + 1e-9))


def a_month(row: ServingConfig) -> str:
    """The price of a row in US$ a month."""
    return f"{dollars(HOURS * (row.dollars_per_hour or 0.0))} a month"


def _price_words(answer: ServingAnswer) -> str:
    """A sentence on the dollars of one device's rows, and on what is rented for them."""
    machines = {row.gpus_words: plain(row.rented) for row in answer.served if row.rented}
    if answer.prices is None:
        return f"No price of {plain(answer.device)} is known; {OWN_PRICE}."
    if not machines:
        most = plural(answer.largest_machine, "GPU")
        needs = min(row.gpus // row.replicas for row in answer.served)
        where = f"{plain(answer.prices)} is in machines of at most {most}"
        return f"{where}, and a replica needs {needs}; {OWN_PRICE}."
    words = f"Prices: {plain(answer.price_list)}; {DOLLARS}"
    if {*machines.values()} == {answer.prices}:
        return f"{words}."
    rented = "; ".join(f"{gpus} in {name}" for gpus, name in machines.items())
    return f"{words}. Machines: {rented}."
