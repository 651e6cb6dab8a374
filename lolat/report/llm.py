"""A served language model as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lolat.llm.answer import ServingAnswer, ServingConfig, requests_words
from lolat.llm.compare import FAR, ComparedModels
from lolat.llm.question import ServingQuestion
from lolat.report.ranked import apart_words, left_out_lines, scaled, within_limit
from lolat.report.tables import Column, Page, Part, ReportTable
from lolat.units import between, digits, dollars, milliseconds, percent, plain, quantity

CALLED = {
    "weights": "reading weights", "products": "matrix products beyond that", "attention": "attention",
    "experts": "experts", "all_reduce": "all-reduces", "small": "small operations",
    "launches": "launch overhead", "scheduling": "scheduling", "prompts": "prompts of other requests",
    "waiting": "waiting for memory (preempted)",
}  # fmt: skip
DOLLARS = (
    "Prices are for a million output tokens and their prompts, all GPUs in machines of one kind"
)
PRICE = "$/M tokens"
"""The head of the column of prices, which a page has behind the names in a comparison."""
EACH_LOAD = "The best row of each under each load:"
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
    device = [plain(answer.device), answer.framework, _load_words(answer.chosen)]
    before = [_subject(answer, _types(answer.chosen)), " · ".join(device)]
    limited = answer.asked.has_limits
    bests = {id(answer.served[n]) for n in answer.bests if limited or answer.served[1:]}
    called = "best" if limited else "cheapest" if answer.chosen.rented else "most a GPU"
    said = {id(row): row_words(row, called * (id(row) in bests)) for row in answer.served}
    remark = Column("", lambda row: said[id(row)], is_text=True, page="front")
    table = ReportTable([*_columns(answer, answer.served), remark], answer.served, stacked=True)
    return before, table, [*_advice(answer)]


def row_words(row: ServingConfig, best: str = "") -> str:
    """Why a configuration does not serve its load within the limits, else `best`; if requests wait; if its
    times are out of the domain.
    """
    if row.tpot_ms is None:
        return "does not fit"
    if row.saturated:
        return "saturated"
    waits = not row.fits or (row.request_rate and (row.breakdown or {}).get("waiting"))
    words = "beyond the limits" if row.fits and row.within is False else best
    outside = "extrapolated" if row.in_domain is False else ""
    return ", ".join(filter(None, [words, "waits for memory" if waits else "", outside]))


def _load_words(row: ServingConfig) -> str:
    if row.request_rate is None:
        return "steady load: this many requests are always in progress"
    return "requests that arrive at a rate, and wait where the GPUs are busy"


def _subject(answer: ServingAnswer, *more: str) -> str:
    """The language model, its size, what `more` says, its tokens."""
    size = f"{quantity(answer.parameters)} parameters"
    if answer.active < answer.parameters:
        size += f", {quantity(answer.active)} active"
    return " · ".join([plain(answer.model), size, *more, _tokens(answer)])


def _tokens(answer: ServingAnswer) -> str:
    """The tokens of a request, and what is unusual in the question."""
    tokens = f"{answer.chosen.input_tokens:,} tokens in, {answer.chosen.output_tokens:,} out"
    return " · ".join([tokens, *answer.asked.unusual])


def _types(row: ServingConfig) -> str:
    return f"{row.dtype}, cache {row.kv_dtype}"


def compared_lines(found: ComparedModels) -> Iterator[Part]:
    """The question, a row a model, the cheapest and the fastest, and who cannot answer."""
    first, *_ = found.of.values()
    several = len({of.model for of in found.of.values()}) > 1
    yield f"{_tokens(first) if several else _subject(first)} · {_load_words(first.chosen)}"
    table = (EACH_LOAD, loads_table(found)) if found.by_load else (compared_table(found),)
    yield from ("", *table, "")
    yield from far_lines(found)
    yield from verdict_lines(found)
    far = found.far
    rented = {n: plain(r.rented) for n, r in found.answers.items() if r.rented and n not in far}
    if rented:
        tables = dict.fromkeys(plain(found.of[name].prices or "") for name in rented)
        prices = (f"{plain(name)} in {machines}" for name, machines in rented.items())
        yield f"{DOLLARS}, by {', '.join(tables)}: {'; '.join(prices)}."
    yield from unpriced_lines(found)
    for name in found.leading:
        for row in found.by_load.get(name) or [found.answers[name]]:
            yield from (f"{plain(name)}: {line}" for line in _headroom(row, found.asked))
    yield from compared_near(found)
    yield from limit_legend(found.asked)
    yield from _shared_out([*found.answers.values()])
    yield from left_out_lines(found.left_out)


def far_lines(found: ComparedModels) -> Iterator[str]:
    """The devices that are too far from the cheapest for the table, with their GPUs and prices."""
    each = list[str]()
    for name, row in found.far.items():
        usd = row.dollars_per_million
        each.append(f"{plain(name)} ({row.gpus_words}{'' if usd is None else f', {dollars(usd)}'})")
    if each:
        yield (
            f"Not in the table, as they cost more than {FAR:g} times the cheapest, or without a price take "
            f"more GPUs than those with one: {', '.join(each)}."
        )


def compared_near(found: ComparedModels) -> Iterator[str]:
    """Fewer GPUs that nearly keep the limits, where they cost no more than the cheapest, and on leading
    devices.
    """
    for name, rows in found.near.items():
        for row in rows:
            best = found.loads.get(row.request_rate or 0.0, {})
            of = best.get(found.leaders(best)["cheapest"] or "") if best else None
            most = (of and of.dollars_per_hour) or 0.0
            if name in found.leading or (row.dollars_per_hour or math.inf) <= most:
                yield from (f"{plain(name)}: {line}" for line in near_lines([row], found.asked))


def verdict_lines(found: ComparedModels) -> Iterator[str]:
    """The cheapest and the fastest model: GPUs, dollars, and those too close to call against it."""
    at = found.percentile
    times = {plain(n): (r.judged(at)[0], r.judged_ends(at)[0]) for n, r in found.answers.items()}
    prices = {
        plain(name): (usd, _price_ends(row, usd, found))
        for name, row in found.answers.items()
        if (usd := row.dollars_per_million) is not None
    }
    for word, best, values in (
        ("Cheapest", found.cheapest, prices),
        ("Fastest", found.fastest, times),
    ):
        if best is not None and len(found.answers) > 1:
            row = found.answers[best]
            facts = [row.gpus_words]
            if row.dollars_per_hour is not None:
                usd, million = row.dollars_per_hour, dollars(row.dollars_per_million or 0.0)
                facts += [f"{dollars(usd)} an hour", f"{million} a million output tokens"]
            if word == "Fastest":
                facts.insert(0, f"{milliseconds(values[plain(best)][0])} a token")
            under = f" under {row.requests_words}" if found.by_load else ""
            why = ""
            may_need = row.request_rate is not None and not row.is_sure(found.asked)
            if word == "Cheapest" and may_need:  # see `_price_ends`
                more = f"{row.replicas + 1} x {row.gpus // row.replicas} GPUs"
                usd = (row.dollars_per_hour or 0.0) * (1.0 + 1.0 / row.replicas)
                why = f"{plain(best)} may need {more}, about {dollars(usd)} an hour, "
                why += "to keep the limits surely"
            apart = apart_words(plain(best), values, "; ", why)
            of_these = " of these" * (word == "Fastest")
            yield f"{word}{of_these}{under}: {plain(best)}, {', '.join(facts)}{apart}."


def unpriced_lines(found: ComparedModels) -> Iterator[str]:
    """Models without a price, and why."""
    bare = [n for n, row in found.answers.items() if row.dollars_per_hour is None]
    known = [n for n in bare if found.of[n].prices]
    for why, names in (
        ("No price is known", [n for n in bare if n not in known]),
        ("No machine with so many GPUs has a price", known),
    ):
        if names:
            yield f"{why}: {', '.join(map(plain, names))}; {OWN_PRICE}."


def _price_ends(
    row: ServingConfig, usd: float, found: ComparedModels
) -> tuple[float, float] | None:
    """The interval of a price: that of a token's time; under a rate, which so many replicas serve whatever
    a token takes, another replica of the cheapest if its times may be beyond the limits.
    """
    if row.request_rate is None:
        return scaled(row.tpot_interval_ms, usd / (row.tpot_ms or 1.0))
    is_known = row.is_sure(found.asked) or row is not found.answers[found.cheapest or ""]
    factor = 1.0 + (1e-9 if is_known else 1.0 / row.replicas)
    return usd / factor, usd * factor


def compared_table(found: ComparedModels) -> ReportTable:
    """The best row of each model, the cheapest first, and which is the cheapest, and the fastest."""
    names = {id(row): name for name, row in found.answers.items()}
    leaders = found.leaders(found.answers)

    def price(row: ServingConfig) -> tuple[float, bool]:
        return row.dollars_per_million or math.inf, names[id(row)] != leaders["cheapest"]

    far = found.far
    rows = sorted((row for n, row in found.answers.items() if n not in far), key=price)
    remark = Column("", lambda row: leads(leaders, names[id(row)], row), is_text=True, page="front")
    return ReportTable([*_columns_of(found, names, rows), remark], rows, stacked=True)


def leads(leaders: Mapping[str, str | None], name: str, row: ServingConfig) -> str:
    """Return "cheapest", "fastest" or both for a device that is, with `row_words`. See `leaders`."""
    return row_words(row, ", ".join(word for word, best in leaders.items() if best == name))


def loads_table(found: ComparedModels) -> ReportTable:
    """The best row of each model under each load, by load."""
    rows, names, told, far = list[ServingConfig](), dict[int, str](), dict[int, str](), found.far
    for best in found.loads.values():
        leaders = found.leaders(best)
        for name, row in ((n, r) for n, r in best.items() if n not in far):
            rows.append(row)
            names[id(row)], told[id(row)] = name, leads(leaders, name, row)
    remark = Column("", lambda row: told[id(row)], is_text=True, page="front")
    return ReportTable([*_columns_of(found, names, rows), remark], rows, stacked=True)


def _columns_of(
    found: ComparedModels, names: Mapping[int, str], rows: Sequence[ServingConfig]
) -> list[Column]:
    first, *_ = found.of.values()
    at = "" if found.percentile is None else f" P{found.percentile}"
    pages: dict[str, Page] = {"GPUs": "front", PRICE: "front", f"whole request{at}": "hidden"}
    pages |= {"a GPU": "hidden", "in all": "hidden"}
    several = len({of.model for of in found.of.values()}) > 1
    others = dict[str, Column]()
    if any(row.headroom_rate for row in rows):  # in place of what says less of a purchase
        others = {
            "most a second": Column("holds up to, a second", lambda r: r.headroom_rate, _rounded_down),
            "memory a GPU": Column("$ a month", lambda r: r.dollars_per_hour and HOURS * r.dollars_per_hour,
                                   dollars, page="below"),
        }  # fmt: skip
    return [
        Column(
            "model" if several else "device",
            lambda row: plain(names[id(row)]),
            is_text=True,
            is_whole=True,
        ),
        Column("data type", _types, is_text=True, page="below"),
        *(
            others.get(one.head, replace(one, page=pages.get(one.head, one.page)))
            for one in _columns(first, rows)
        ),
    ]


def breakdown(row: ServingConfig) -> list[tuple[str, str, float]]:
    """(name, words, share) of what an output token's time goes to, the largest first, without trifles."""
    total = row.tpot_ms or 1.0
    shares = [(name, CALLED[name], ms / total) for name, ms in (row.breakdown or {}).items()]
    return sorted((s for s in shares if s[2] >= LEAST_SHARE), key=lambda share: -share[2])


def _columns(answer: ServingAnswer, rows: Sequence[ServingConfig]) -> list[Column]:
    """The columns of a configuration, with `within_limit` for each limit.

    A configuration whose weights do not fit has no times.
    """

    asked = answer.asked
    first, token, at = asked.max_ttft_ms, asked.max_tpot_ms, asked.percentile
    fewest = asked.min_tokens_per_s
    experts, groups = (any(row.split[n] > 1 for row in rows) for n in (1, 2))
    arrives, of = answer.chosen.request_rate is not None, "" if at is None else f" P{at}"

    def judged(row: ServingConfig, index: int) -> float | None:
        return None if row.tpot_ms is None else row.judged(at)[index]

    def kept(row: ServingConfig, index: int, limit: float | None) -> str | None:
        ms = judged(row, index)
        if limit is None or ms is None or row.saturated:
            return None
        return within_limit(ms, row.judged_ends(at)[index], limit, asked.sure is not None)

    def token_limit() -> str:
        if fewest is not None:
            return f"tokens/s{of} >= {fewest:g}"
        return "" if token is None else f"token{of} <= {round(token, 2):g} ms"

    def ends(index: int) -> Column:
        name = f"{percent(asked.coverage)} between"
        return Column(name, lambda r: r.judged_ends(at)[index], lambda e: between(*e), page="below")

    return [
        Column("requests a second", lambda r: r.request_rate, "{:g}".format, page="varied"),
        Column("at once" if arrives else "requests", lambda r: (r.tpot_ms and r.concurrency) or None
               if arrives else r.concurrency, lambda n: f"{n:,.{arrives:d}f}",
               page="below" if arrives else "varied"),
        Column("GPUs", lambda r: f"{r.replicas} x {r.gpus // r.replicas}" if r.replicas > 1 else r.gpus),
        Column("expert parallel", lambda r: r.expert_parallel if experts else None),
        Column("attention groups", lambda r: r.attention_data_parallel if groups else None),
        Column(f"first token{of}", lambda r: judged(r, 1), milliseconds),
        ends(1), Column(f"per token{of}", lambda r: judged(r, 0), milliseconds), ends(0),
        Column(f"whole request{of}" if arrives else "", lambda r: r.time("e2e", at) if arrives else None,
               milliseconds, page="spare"),
        Column(f"tokens/s a request{of}", lambda r: 1e3 / ms if (ms := judged(r, 0)) else None, digits),
        Column("a GPU", lambda r: r.tokens_per_s_gpu, digits, page="spare"),
        Column("in all", lambda r: r.tokens_per_s, digits, page="below"),
        Column(PRICE, lambda r: r.dollars_per_million, dollars),
        Column("$ an hour", lambda r: r.dollars_per_hour, dollars, page="below"),
        Column("most a second" if arrives else "largest load",
               lambda r: r.largest_rate if arrives else r.tpot_ms and r.largest_concurrency,
               digits if arrives else "{:,}".format),
        Column("memory a GPU", lambda r: r.memory_gib, "{:.1f} GiB".format, page="below"),
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
        how = "cheapest output tokens" if answer.chosen.rented else most
        sure = f", as the ends of {asked.sure:g} % intervals keep them" if asked.sure else ""
        bests = {row.request_rate: row for row in (answer.served[n] for n in answer.bests)}
        rates = dict.fromkeys(row.request_rate for row in answer.served)
        yield f"The best row{' of each rate' * (len(rates) > 1)} has the {how} within the limits{sure}."
        for rate in rates:
            if rate is not None and rate not in bests:
                yield f"{requests_words(rate, True)}: no row keeps the limits."
            else:
                yield from _headroom(bests[rate], asked)
        yield from near_lines(answer.near, asked)
        yield from limit_legend(asked)
        yield from _shared_out([*bests.values()])
    yield _price_words(answer.device, answer.prices, answer.served)


def limit_legend(asked: ServingQuestion) -> Iterator[str]:
    """The words of the columns of limits explained."""
    if asked.max_tpot_ms or asked.max_ttft_ms:
        is_sure = f"yes: the whole {asked.sure or 0.0:g} % interval keeps the limit."
        yield LEGEND if asked.sure is None else is_sure


def _shared_out(rows: Sequence[ServingConfig]) -> Iterator[str]:
    """A remark on replicas, which are assumed to get their requests at random."""
    if any(row.replicas > 1 and row.request_rate is not None for row in rows):
        yield (
            "Each replica gets its share of the requests at random: a router that picks the least busy one "
            "makes them wait less."
        )


def _headroom(row: ServingConfig, asked: ServingQuestion) -> Iterator[str]:
    """The most requests a second within the limits, and dollars a month; nothing without a rate."""
    if row.headroom_rate is not None:
        usd, cost = row.dollars_per_hour, ""
        if usd is not None:
            cost = f", for {dollars(usd)} an hour, {dollars(HOURS * usd)} a month"
        yield f"{row.load_words}: {_room_words(row, asked)}{cost}."


def near_lines(near: Sequence[ServingConfig], asked: ServingQuestion) -> Iterator[str]:
    """Fewer GPUs that miss the limits by less than the error, and their dollars an hour."""
    for row in near:
        usd = row.dollars_per_hour
        price = "" if usd is None else f", {dollars(usd)} an hour"
        yield f"{row.load_words}{price}: {missing_words(row, asked)}, less than the error of these times."


def missing_words(row: ServingConfig, asked: ServingQuestion) -> str:
    """The excess of a row over its limits, in words."""
    return f"over the limits by {percent(math.expm1(row.off(asked)))}"


def _room_words(row: ServingConfig, asked: ServingQuestion) -> str:
    """The most requests a second within the limits, in words."""
    rate = _rounded_down(row.headroom_rate or 0.0)
    is_limited = bool(asked.max_tpot_ms or asked.max_ttft_ms)
    holds = "the limits hold" if is_limited else "the queue stays finite"
    (ms, _), (ends, _) = row.judged(asked.percentile), row.judged_ends(asked.percentile)
    is_in_error = ends and (row.headroom or 0.0) < ends[1] / ms - 1.0
    doubt = " (within the error of these times)" if is_limited or is_in_error else ""
    doubt = (
        f", surely up to {_rounded_down(row.sure_rate)}" if row.sure_rate and is_limited else doubt
    )
    doubt = doubt if asked.sure is None else ""
    return f"{holds} up to {rate} requests/s, {percent(row.headroom or 0.0)} more{doubt}"


def _rounded_down(rate: float) -> str:
    """A rate with three digits."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return digits(unit * math.floor(rate / unit + 1e-9))


def _price_words(device: str, prices: str | None, rows: Sequence[ServingConfig]) -> str:
    """A sentence on the dollars of one device's rows, and on what is rented for them."""
    machines = {row.gpus_words: plain(row.rented) for row in rows if row.rented}
    if prices is None:
        return f"No price of {plain(device)} is known; {OWN_PRICE}."
    if not machines:
        return f"No machine in {plain(prices)} holds so many GPUs; {OWN_PRICE}."
    if {*machines.values()} == {prices}:
        return f"{DOLLARS}, by {plain(prices)}."
    rented = "; ".join(f"{gpus} in {name}" for gpus, name in machines.items())
    return f"{DOLLARS}, by {plain(prices)}: {rented}."
