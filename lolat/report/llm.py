"""Lines and the table of `lolat llm` for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from lolat.device.question import several
from lolat.llm.answer import ServingAnswer, ServingConfig
from lolat.llm.frameworks import FRAMEWORKS
from lolat.llm.load import Trace
from lolat.llm.question import ServingQuestion
from lolat.llm.row_parts import Time, TokenTimes
from lolat.report.llm_best import best_lines, cheapest_word, room_words
from lolat.report.llm_offers import (
    a_month,
    chance_cell,
    room,
    sure_chance,
)
from lolat.report.tables import Column, Part, ReportTable, time_columns
from lolat.units import between, digits, dollars, milliseconds, percent, plain, plural, quantity

CALLED = {
    "weights": "reading weights", "products": "matrix products beyond their weights",
    "attention": "attention", "experts": "experts", "all_reduce": "all-reduces",
    "small": "small operations", "launches": "launch overhead", "scheduling": "scheduling",
    "prompts": "prompts of other requests", "waiting": "waiting for memory (preempted)",
}  # fmt: skip
MONTH = "a month has 730 hours"
DOLLARS = f"$/M tokens: for a million output tokens with their prompts; {MONTH}"
PRICE = "$/M tokens"
A_MONTH = "$ a month"
HOLD = "limits hold to requests/s"
ROOM_FOR = "room for"
MEMORY, MEAN_MEMORY = "memory a GPU", "mean memory a GPU"
SPEED, OF_GPU, IN_ALL = "tokens/s a request", "tokens/s a GPU", "tokens/s in all"
"""Heads of columns that a comparison shows in other places."""
LEGEND = (
    "yes / no: the whole interval keeps / misses the limit; likely / unlikely: only the predicted time "
    "keeps / misses it."
)
QUEUE = "a queue may stay"
SURE_LEGEND = "yes / no: the whole interval keeps the limit / does not."
LEAST_SHARE = 0.02
UNSURE_FACTOR = 5.0
"""An interval gets a remark if its upper end is more than this factor times the lower end."""
OWN_PRICE = "a price an hour can be given"


def llm_lines(answer: ServingAnswer) -> Iterator[Part]:
    """The best rows, the question, the table, the parts of the chosen row's time, and remarks."""
    before, table, notes, best = llm_parts(answer)
    yield from (*best, *before)
    yield from ("", table, "")
    parts = [f"{words} {percent(share)}" for _, words, share in breakdown(answer.chosen)]
    if parts:
        yield f"An output token with {answer.chosen.load_words}: {', '.join(parts)}."
    yield from notes


class LlmParts(NamedTuple):
    """The parts of a report: lines on the question `before` the table; the `table`, with the best row
    of each load first; `notes` on its words and prices; lines on the `best` row of each load.
    """

    before: list[str]
    table: ReportTable
    notes: list[str]
    best: list[str]


def llm_parts(answer: ServingAnswer) -> LlmParts:
    """Make the parts of the report on an answer."""
    device = [plain(answer.gpu), answer.framework, load_line(answer.served)]
    before = [subject(answer, types_words(answer.chosen)), " · ".join(device)]
    before += arrival_lines(answer.asked)
    limited, is_served = answer.asked.has_limits, answer.chosen.tpot_ms is not None
    best = {
        id(row): best_word(answer, row) for row in answer.served if limited or answer.served[1:]
    }
    said = {id(row): row_words(row, best.get(id(row), "")) for row in answer.served}
    remark = Column("remark", lambda row: said[id(row)], is_text=True, page="front")
    rows = sorted(
        answer.served, key=lambda row: (row.load, not best[id(row)] if limited else row.gpus)
    )
    table = ReportTable([*columns(answer, rows), remark], rows, stacked=True)
    has_best = answer.best is not None and is_served
    notes = [*_notes(answer)] if is_served else []
    return LlmParts(before, table, notes, [*best_lines(answer)] if has_best else [])


def best_word(answer: ServingAnswer, row: ServingConfig) -> str:
    """The word for the best row of each load, another for the chosen one of steady loads; else ""."""
    if not any(row is answer.served[n] for n in answer.bests):
        return ""
    if answer.asked.has_limits:
        return "best"
    word = cheapest_word(row)
    return word if row is answer.chosen else word.removesuffix(" tokens")


def row_words(row: ServingConfig, best: str = "") -> str:
    """The remark on a row: the reason why it cannot be chosen, else `best`; then remarks on queues, memory,
    idle GPUs and extrapolated times.
    """
    if row.tpot_ms is None:
        return "does not fit"
    if row.request_rate and row.shortage:
        return row.shortage
    words = "beyond the limits" if row.fits and row.within is False else best
    words = "may be overloaded" if row.may_pile_up else words
    outside = "extrapolated" if row.in_domain is False else ""
    waits = "waits for memory" if row.waits_for_memory else ""
    queue = QUEUE if _may_queue(row) else ""
    idle = (row.rented_gpus or row.gpus) - row.gpus
    paid = f"{plural(idle, 'GPU')} idle" if idle else ""
    busy = f"{percent(row.utilization or 0.0)} busy" if row.is_idle else ""
    return ", ".join(filter(None, [words, busy, queue, waits, paid, outside]))


def _may_queue(row: ServingConfig) -> bool:
    """True if a row may miss its limits only because a queue lasts at the slow end of the error."""
    return row.verdict in ("likely", "unlikely") and row.may_queue


def load_line(rows: Sequence[ServingConfig]) -> str:
    """The load of rows in words; without a number if the loads differ."""
    row = rows[0]
    is_one = len({row.load for row in rows}) == 1
    if row.request_rate is None:
        number = plural(int(row.concurrency), "request") if is_one else "requests"
        return f"steady load: {number} always in progress"
    rate = row.requests_words if is_one else "requests at a rate"
    return f"{rate}, which queue while the GPUs are busy"


def arrival_lines(asked: ServingQuestion) -> Iterator[str]:
    """A line on the requests of a trace, and on how often each is repeated."""
    if not isinstance(asked.arrivals, Trace):
        return
    faster = (rate / asked.arrivals.rate for rate in several(asked.request_rate))
    times = ", ".join(f"{factor:.2f}" for factor in faster if abs(factor - 1.0) > 5e-3)
    more = f"; here each request {times} times, so that bursts grow too" if times else ""
    yield f"{plain(asked.arrivals.source)}: {asked.arrivals.words()}{more}"


def subject(answer: ServingAnswer, *more: str) -> str:
    """A line on the language model: name, number of parameters, `more` words, tokens of a request."""
    size = f"{quantity(answer.parameters)} parameters"
    if answer.active < answer.parameters:
        size += f", {quantity(answer.active)} active"
    return " · ".join([plain(answer.model), size, *more, tokens(answer)])


def tokens(answer: ServingAnswer) -> str:
    """The tokens of a request, and the unusual arguments of the question, in words."""
    asked, row = answer.asked, answer.chosen
    is_usual = (asked.input_tokens, asked.output_tokens) == (None, None) and not isinstance(
        asked.arrivals, Trace
    )
    usual = " (defaults)" if is_usual else ""
    tokens = f"{row.input_tokens:,} tokens in, {row.output_tokens:,} out{usual}"
    return " · ".join([tokens, *answer.asked.unusual])


def types_words(row: ServingConfig) -> str:
    """The data types of the weights and the cache."""
    return f"{row.dtype}, cache {row.kv_dtype}"


def breakdown(row: ServingConfig) -> list[tuple[str, str, float]]:
    """(name, words, share) of the larger parts of an output token's time, the largest first."""
    total = row.tpot_ms or 1.0
    shares = [(name, CALLED[name], ms / total) for name, ms in (row.breakdown or {}).items()]
    return sorted((s for s in shares if s[2] >= LEAST_SHARE), key=lambda share: -share[2])


def columns(answer: ServingAnswer, rows: Sequence[ServingConfig]) -> list[Column]:
    """The columns of the table; a row that does not fit or is overloaded has no times.

    The columns of tokens/s are left out under a rate.
    """
    at = answer.asked.percentile
    experts = any(row.expert_parallel > 1 for row in rows)
    groups = any(row.attention_data_parallel > 1 for row in rows)
    arrives = answer.chosen.request_rate is not None
    differ = len({row.load for row in rows}) > 1
    has_room = any(row.headroom_rate for row in rows)  # which says more of a purchase than the most
    is_judged = answer.asked.max_latency_ms is not None  # then it has a column with its limit
    head = f"whole request{'' if at is None else f' P{at}'}"
    whole, _ = time_columns(
        head, lambda r: None if is_judged or not arrives or r.saturated else r.time("e2e", at), rows
    )
    return [
        Column("requests a second", lambda r: r.request_rate if differ else None, "{:g}".format,
               page="front", short="requests/s"),
        Column("requests", lambda r: r.concurrency if differ and not arrives else None, "{:,.0f}".format,
               page="front"),
        Column("GPUs", lambda r: f"{r.replicas} x {r.gpus // r.replicas}" if r.replicas > 1 else r.gpus),
        Column(MEAN_MEMORY if arrives else MEMORY, lambda r: r.memory_gib,
               "{:.1f} GiB".format, page="below", screen="hidden"),
        Column("expert parallel", lambda r: r.expert_parallel if experts else None, short="EP"),
        Column("attention groups", lambda r: r.attention_data_parallel if groups else None, short="DP"),
        *_judged_columns(answer.asked, rows),
        Column("chance", lambda r: chance_cell(r, answer.asked), page="below"),
        replace(whole, screen="hidden"),
        Column(OF_GPU, lambda r: None if arrives else r.tokens_per_s_gpu, digits,
               short="tokens/s/GPU"),
        Column(IN_ALL, lambda r: None if arrives else r.tokens_per_s, digits, page="below",
               screen="hidden"),
        Column(A_MONTH, lambda r: r.dollars_per_month, dollars),
        Column("$ an hour", lambda r: r.dollars_per_hour, dollars, page="below", screen="hidden"),
        # Hidden under one rate: the best line has it, and its ratios are those of the monthly prices.
        Column(PRICE, lambda r: r.dollars_per_million, dollars,
               screen="hidden" if arrives and not differ and answer.asked.has_limits else "shown"),
        Column(HOLD, lambda r: room(r) or ("-" if has_room else None), screen="hidden",
               short="hold to"),
        Column("most a second", lambda r: None if has_room else r.request_rate and r.largest_rate, digits,
               short="most requests/s"),
        Column(ROOM_FOR, lambda r: None if arrives else r.tpot_ms and r.largest_concurrency,
               "{:,}".format),
    ]  # fmt: skip


def _judged_columns(asked: ServingQuestion, rows: Sequence[ServingConfig]) -> Iterator[Column]:
    """The columns of times and speeds that can have limits, each with its interval and its verdict."""
    at, least = asked.percentile, asked.min_tokens_per_s
    of = "" if at is None else f" P{at}"

    def times(row: ServingConfig) -> TokenTimes | None:
        return None if row.tpot_ms is None or row.saturated else row.token_times(at)

    def token_ms(row: ServingConfig) -> float | None:
        return (its := times(row)) and its.token.ms

    def columns_of(head: str, time: Callable[[TokenTimes], Time]) -> Iterator[Column]:
        return time_columns(
            f"{head}{of}", lambda r: (its := times(r)) and time(its).ms, rows,
            f"{percent(asked.coverage)} between",
            lambda r: (its := times(r)) and time(its).ends, page="below", screen="brackets",
        )  # fmt: skip

    def limit_column(time: str, limit: float | None, name: str, words: str = "") -> Column:
        if limit is not None and not words:
            words = f"<= {limit / 1e3:.4g} s" if limit >= 1e3 else f"<= {limit:.4g} ms"
        return Column(
            f"{name} {words}", lambda row: (row.verdicts or {}).get(time), page="front", short=words
        )

    yield from columns_of("first token", attrgetter("first"))
    yield limit_column("ttft", asked.max_ttft_ms, f"first token{of}")
    yield from columns_of("per token", attrgetter("token"))
    if least is None:
        yield limit_column("tpot", asked.max_tpot_ms, f"token{of}")
    yield Column(
        SPEED, lambda r: 1e3 / ms if (ms := token_ms(r)) else None, digits, short="tokens/s"
    )
    if least is not None:
        yield limit_column("tpot", asked.max_tpot_ms, "tokens/s", f">= {least:g}")
    if asked.max_latency_ms is not None:
        yield from time_columns(
            f"whole request{of}", lambda r: times(r) and r.whole_request(at).ms, rows,
            f"{percent(asked.coverage)} between", lambda r: times(r) and r.whole_request(at).ends,
            page="below", screen="brackets",
        )  # fmt: skip
        yield limit_column("e2e", asked.max_latency_ms, f"whole request{of}")


def facts(row: ServingConfig, answer: ServingAnswer) -> Iterator[tuple[str, str]]:
    """(name, words) pairs on a row's GPUs, speed and price; none if the language model does not fit."""
    if row.tpot_ms is None:
        return
    asked = answer.asked
    at = "" if asked.percentile is None else f" P{asked.percentile}"
    splits = {"tensor": row.tensor_parallel, "expert": row.expert_parallel,
              "attention data": row.attention_data_parallel}  # fmt: skip
    split = ", ".join(f"{name} parallel {n}" for name, n in splits.items() if n > 1)
    replicas = f"{row.replicas} replicas of {row.gpus // row.replicas}" if row.replicas > 1 else ""
    how = ", ".join(filter(None, [replicas, split]))
    yield "GPUs", f"{row.gpus} x {plain(row.gpu)}{f' ({how})' if how else ''}"
    if row.rented is not None and row.dollars_per_hour is not None:
        usd, million = row.dollars_per_hour, dollars(row.dollars_per_million or 0.0)
        yield "Rented", plain(row.rented)
        yield (
            "Price",
            f"{dollars(usd)} an hour, {a_month(row)}, {million} a million output tokens",
        )

    def interval(time: Time) -> str:
        ends = time.ends and between(*time.ends, time.ms)
        return f", {percent(asked.coverage)} between {ends}" if ends else ""

    token, first = row.token_times(asked.percentile)
    yield f"First token{at}", milliseconds(first.ms) + interval(first)
    words = f"{milliseconds(token.ms)} each{interval(token)}"
    yield f"Tokens/s a request{at}", f"{digits(1e3 / token.ms)} ({words})"
    if row.headroom_rate is not None:
        yield "Headroom", room_words(row, asked)


def _notes(answer: ServingAnswer) -> Iterator[str]:
    """Lines that explain the words of the table, and the line on prices."""
    asked = answer.asked
    yield from table_legend(answer.served, asked)
    if row := next((r for r in (answer.chosen, *answer.served) if r.in_domain is False), None):
        where = f" ({row.load_words})" if len(answer.served) > 1 else ""
        yield f"extrapolated{where}, so a wider interval: {'; '.join(row.extrapolated)}."
    yield from cache_legend(answer.served, answer.framework, asked)
    yield from start_words(answer.served)
    yield from shared_out(answer.served, asked)
    yield _price_words(answer)


def table_legend(rows: Sequence[ServingConfig], asked: ServingQuestion) -> Iterator[str]:
    """Lines that explain the words of a table."""
    if any(row.tpot_interval_ms for row in rows):
        at = asked.percentile
        fast = "" if at is None else f"P{at}: {at} % of the requests are as fast or faster. "
        if at is None and any(row.request_rate for row in rows):
            fast = "Times are means over requests; --percentile 95 judges slow ones. "
        yield f"{fast}Ranges (..): the {percent(asked.coverage)} interval of the prediction."
    if asked.has_time_limits:
        words = LEGEND if asked.sure is None else SURE_LEGEND
        chance = percent(sure_chance(asked))
        of = "by these intervals (docs/results/index.md: how many times lay inside)"
        yield f"{words} Surely: the upper end keeps the limit, a chance of {chance} {of}."
    if any(chance_cell(row, asked) for row in rows):
        kept = "keeps its least sure limit" if asked.has_time_limits else "serves all requests"
        yield f"chance: that a row {kept}."
    if any(map(_may_queue, rows)):
        yield f"{QUEUE}: requests pile up if the server is as slow as its error allows; times then grow."
    if any(high == math.inf for row in rows for _, (_, high) in _ends(row, asked)):
        yield "unbounded: requests pile up if the server is as slow as the interval allows."
    splits = (
        ("EP: expert parallel", any(row.expert_parallel > 1 for row in rows)),
        ("DP: attention data parallel, in groups", any(row.groups > row.replicas for row in rows)),
    )
    if told := [words for words, is_so in splits if is_so]:
        yield f"{'; '.join(told)}."
    if row := next((row for row in rows if row.waits_for_memory), None):
        at_once = f"{row.largest_concurrency:,} of the {row.concurrency:,.0f} requests"
        why = f"room for {at_once} at full length, else some queue; such a row is never the best"
        if row.fits:
            why = "the cache is full at times, and some requests are computed again"
        yield f"waits for memory: {why}."
    firsts = [ends for row in rows for time, ends in _ends(row, asked) if time == "ttft"]
    experts = any((row.breakdown or {}).get("experts") for row in rows)
    if (
        asked.percentile
        and experts
        and any(UNSURE_FACTOR * low < high < math.inf for low, high in firsts)
    ):
        yield (
            "The first token is unsure: servers of experts take several times as long in their first "
            "seconds, and no table says how warm a server was."
        )
    if any("fp8_wo" in row.dtype for row in rows):
        yield "fp8_wo: weights in FP8 that are computed in bfloat16, as the GPU computes no FP8."


def _ends(row: ServingConfig, asked: ServingQuestion) -> Iterator[tuple[str, tuple[float, float]]]:
    """(name, interval in ms) of each time of a row that a table shows."""
    if row.tpot_ms is not None and not row.saturated:
        token, first = row.token_times(asked.percentile)
        yield from ((n, time.ends) for n, time in (("tpot", token), ("ttft", first)) if time.ends)


def shared_out(rows: Sequence[ServingConfig], asked: ServingQuestion) -> Iterator[str]:
    """A remark on how requests are divided among replicas."""
    if any(row.replicas > 1 and row.request_rate is not None for row in rows):
        share = "its share of the requests at random"
        if isinstance(asked.arrivals, Trace):
            share = "the requests of the trace in turn"
        yield f"Each replica gets {share}: a router that picks the least busy one makes them wait less."


def cache_legend(
    rows: Sequence[ServingConfig], framework: str, asked: ServingQuestion
) -> Iterator[str]:
    """A remark on the option that the framework needs for a cache in FP8."""
    used = FRAMEWORKS[framework]
    is_other = not asked.kv_dtype and any(row.kv_dtype != "bfloat16" for row in rows)
    if is_other and (option := used.asks_for_fp8_cache):
        without = "without it: ask with --kv-dtype bfloat16"
        yield f"cache fp8: start {used.title} with {option} ({without})."


def start_words(rows: Sequence[ServingConfig]) -> Iterator[str]:
    """A remark on the first token of benchmarks whose requests start together."""
    if any(row.request_rate is None and row.concurrency > 1 for row in rows):
        yield (
            "A steady load, without its start: requests that all start together, as in a benchmark, get a "
            "later first token; to compare one: lolat evaluate MODEL --table RESULT.json."
        )


def _price_words(answer: ServingAnswer) -> str:
    """A sentence on the prices of a device's rows."""
    if answer.prices is None:
        return f"No price of {plain(answer.device)} is known; {OWN_PRICE}."
    if not any(row.rented for row in answer.served):
        most = plural(answer.largest_machine, "GPU")
        needs = min(row.gpus // row.replicas for row in answer.served)
        where = f"{plain(answer.prices)} is in machines of at most {most}"
        return f"{where}, and a replica needs {needs}; {OWN_PRICE}."
    return f"Prices: {plain(answer.price_list)}; {MONTH if answer.asked.request_rate else DOLLARS}."
