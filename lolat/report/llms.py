"""Language models served on several devices as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lolat.llm.answer import ServingConfig
from lolat.llm.compare import FAR, ComparedModels
from lolat.report.llm import (
    A_MONTH,
    DOLLARS,
    OWN_PRICE,
    PRICE,
    a_month,
    arrival_lines,
    columns,
    headroom,
    limit_legend,
    load_line,
    near_lines,
    other_fp8_lines,
    row_words,
    shared_out,
    subject,
    tokens,
    types_words,
)
from lolat.report.ranked import apart_words, left_out_lines, scaled
from lolat.report.tables import Column, Page, Part, ReportTable
from lolat.units import by_text, dollars, milliseconds, plain

EACH_LOAD = "The best row of each under each load:"


def compared_lines(found: ComparedModels) -> Iterator[Part]:
    """The question, a row a model, the cheapest and the fastest, and who cannot answer."""
    first, *_ = found.of.values()
    several = len({of.model for of in found.of.values()}) > 1
    rows = [row for some in found.loads.values() for row in some.values()]
    yield f"{tokens(first) if several else subject(first)} · {load_line(rows)}"
    yield from arrival_lines(found.asked)
    table = (EACH_LOAD, loads_table(found)) if found.by_load else (compared_table(found),)
    yield from ("", *table, "")
    yield from verdict_lines(found)
    for name in found.leading:
        for row in found.by_load.get(name) or [found.answers[name]]:
            line = headroom(row, found.asked, not found.by_load)
            yield from (f"{_named(name, found)}{words}" for words in line)
    yield from after_lines(found)


def after_lines(found: ComparedModels) -> Iterator[str]:
    """Near misses, the words of limits and the prices explained, and the devices left out."""
    yield from compared_near(found)
    for name in found.leading:
        yield from (f"{plain(name)}: {words}" for words in other_fp8_lines(found.of[name]))
    yield from limit_legend(found.asked)
    yield from word_legend(found)
    yield from shared_out([*found.answers.values()], found.asked)
    yield from price_lines(found)
    yield from unpriced_lines(found)
    yield from far_lines(found)
    yield from left_out_lines(found.left_out, None)


def word_legend(found: ComparedModels) -> Iterator[str]:
    """The words behind rows, and a data type, explained."""
    rows = [row for n, row in found.answers.items() if n not in found.far]
    if any(row.in_domain is False for row in rows):
        yield (
            "extrapolated: such a load was not served, or an operation not timed on this GPU: a wider "
            "interval (--json, or that device alone, has why)."
        )
    if any("fp8_wo" in row.dtype for row in rows):
        yield "fp8_wo: weights in FP8 that are computed in bfloat16, as the GPU computes no FP8."


def _named(name: str, found: ComparedModels) -> str:
    """The name of a device before what is said of its row; a row of several loads begins with its load."""
    return f"{plain(name)}{': ' if found.by_load else ' on '}"


def far_lines(found: ComparedModels) -> Iterator[str]:
    """The devices that are too far from the cheapest for the table, with their GPUs and prices."""
    dear, bare = list[str](), list[str]()
    for name, row in found.far.items():
        if row.dollars_per_hour is None:
            bare.append(f"{plain(name)} ({row.gpus_words})")
        else:
            dear.append(f"{plain(name)} ({row.gpus_words}, {a_month(row)})")
    if dear:
        yield f"Left out as more than {FAR:g} times as dear as the cheapest: {', '.join(dear)}."
    if bare:
        yield f"Left out as without a price and on more GPUs than any with one: {', '.join(bare)}."


def price_lines(found: ComparedModels) -> Iterator[str]:
    """The list of the prices, and the machines that are rented by them."""
    rented, lists = list[tuple[str, str]](), dict[str, None]()
    for name, row in found.answers.items():
        if row.rented and name not in found.far:
            lists[plain(found.of[name].price_list)] = None
            if row.rented not in lists:
                rented.append((plain(name), plain(row.rented)))
    if lists:  # what is taken for granted of a list is said once
        told = (one for one in lists if not any(n != one and n.startswith(one) for n in lists))
        yield f"Prices: {', '.join(told)}; {DOLLARS}."
    if rented:
        each = (f"{', '.join(names)} in {machine}" for machine, names in by_text(rented).items())
        yield f"Machines: {'; '.join(each)}."


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
                line = near_lines([row], found.asked, not found.by_load)
                yield from (f"{_named(name, found)}{words}" for words in line)


def verdict_lines(found: ComparedModels) -> Iterator[str]:
    """The cheapest and the fastest model, those too close to call against it, and the cheapest that surely
    keeps the limits.
    """
    at, answers = found.percentile, found.answers
    if len(answers) < 2:
        return
    under = f" under {answers[found.fastest or ''].requests_words}" if found.by_load else ""
    priced = found.priced(answers)
    known = "" if len(priced) == len(answers) else " with a known price"
    if found.cheapest is not None:
        name, row = found.cheapest, answers[found.cheapest]
        prices = {
            plain(n): (usd, scaled(r.tpot_interval_ms, usd / (r.tpot_ms or 1.0)))
            for n, r in priced.items()
            if (usd := r.dollars_per_million) is not None
        }
        apart = apart_words(plain(name), prices, "; ")
        if row.request_rate is not None:  # so many GPUs serve the rate whatever a token takes
            same = [
                n
                for n, (usd, _) in prices.items()
                if n != plain(name) and dollars(usd) == dollars(row.dollars_per_million or 0.0)
            ]
            apart = f"; the same price: {', '.join(same)}" * bool(same)
        yield f"Cheapest{known}{under}: {plain(name)}, {row.gpus_words}, {_price_of(row)}{apart}."
        yield from _surely_cheapest(found, row)
    times = {plain(n): (r.judged(at)[0], r.judged_ends(at)[0]) for n, r in answers.items()}
    leading = {found.fastest: "", found.leaders(priced)["fastest"]: known}
    for fastest, of in {**leading, found.fastest: ""}.items():  # of all, then of those with a price
        if fastest is not None:
            name, row = fastest, answers[fastest]
            facts = f"{milliseconds(times[plain(name)][0])} a token, {row.gpus_words}"
            price = "" if row.dollars_per_hour is None else f", {a_month(row)}"
            apart = "" if of else apart_words(plain(name), times, "; ")
            yield f"Fastest of these{of}{under}: {plain(name)}, {facts}{price}{apart}."


def _surely_cheapest(found: ComparedModels, cheapest: ServingConfig) -> Iterator[str]:
    """The cheapest device that surely keeps the limits, if the cheapest does by its times alone."""
    if found.asked.sure is not None or cheapest.is_sure(found.asked):
        return
    load = cheapest.request_rate or cheapest.concurrency
    sure = {n: r for n, r in found.answers.items() if r.is_sure(found.asked)}
    sure |= {
        n: row
        for n, rows in found.surer.items()
        for row in rows
        if (row.request_rate or row.concurrency) == load
    }
    best = found.leaders(sure)["cheapest"]
    if best is None:
        yield "No row keeps the limits surely."
    else:
        words = f"{plain(best)}, {sure[best].gpus_words}, {_price_of(sure[best])}"
        yield f"Cheapest of these that keeps the limits surely: {words}."


def _price_of(row: ServingConfig) -> str:
    """The price of a row with one: first what tells the cheapest, a month at a rate, else tokens."""
    hour = f"{dollars(row.dollars_per_hour or 0.0)} an hour"
    million = f"{dollars(row.dollars_per_million or 0.0)} a million output tokens"
    if row.request_rate is None:
        return f"{million} ({hour}, {a_month(row)})"
    return f"{a_month(row)} ({hour}, {million})"


def unpriced_lines(found: ComparedModels) -> Iterator[str]:
    """Models without a price, and why."""
    bare = [n for n, row in found.answers.items() if row.dollars_per_hour is None]
    known = [n for n in bare if found.of[n].prices]
    for why, names in (
        ("No price is known", [n for n in bare if n not in known]),
        ("No machine with so many GPUs has a price", known),
    ):
        if names:
            yield f"{why}: {', '.join(map(plain, names))}; {OWN_PRICE} if it is asked for alone."


def compared_table(found: ComparedModels) -> ReportTable:
    """The best row of each model, the cheapest first, and which is the cheapest, and the fastest."""
    names = {id(row): name for name, row in found.answers.items()}
    leaders, far = found.leaders(found.answers), found.far
    rows = [row for n, row in by_price(found.answers, leaders["cheapest"]) if n not in far]
    remark = Column("", lambda row: leads(leaders, names[id(row)], row), is_text=True, page="front")
    return ReportTable([*_columns_of(found, names, rows), remark], rows, stacked=True)


def by_price(
    rows: Mapping[str, ServingConfig], cheapest: str | None
) -> list[tuple[str, ServingConfig]]:
    """Return devices and rows, the `cheapest` first and those without a price last."""
    usd = {n: row.dollars_per_million or math.inf for n, row in rows.items()}
    return sorted(rows.items(), key=lambda one: (usd[one[0]], one[0] != cheapest))


def leads(leaders: Mapping[str, str | None], name: str, row: ServingConfig) -> str:
    """Return "cheapest", "fastest" or both for a device that is, with `row_words`. See `leaders`."""
    return row_words(row, ", ".join(word for word, best in leaders.items() if best == name))


def loads_table(found: ComparedModels) -> ReportTable:
    """The best row of each model under each load, by load and price."""
    rows, names, told, far = list[ServingConfig](), dict[int, str](), dict[int, str](), found.far
    for best in found.loads.values():
        leaders = found.leaders(best)
        for name, row in by_price(best, leaders["cheapest"]):
            if name in far:
                continue
            rows.append(row)
            names[id(row)], told[id(row)] = name, leads(leaders, name, row)
    remark = Column("", lambda row: told[id(row)], is_text=True, page="front")
    return ReportTable([*_columns_of(found, names, rows), remark], rows, stacked=True)


def _columns_of(
    found: ComparedModels, names: Mapping[int, str], rows: Sequence[ServingConfig]
) -> list[Column]:
    first, *_ = found.of.values()
    at = "" if found.percentile is None else f" P{found.percentile}"
    pages: dict[str, Page] = {"GPUs": "front", f"whole request{at}": "hidden"}
    pages |= {"a GPU": "hidden", "in all": "hidden", A_MONTH: "front"}
    if first.chosen.request_rate is not None:  # prices of tokens differ as those of a month
        pages[PRICE] = "hidden"
    several = len({of.model for of in found.of.values()}) > 1
    return [
        Column(
            "model" if several else "device",
            lambda row: plain(names[id(row)]),
            is_text=True,
            is_whole=True,
        ),
        Column("data type", types_words, is_text=True, page="below"),
        *(replace(one, page=pages.get(one.head, one.page)) for one in columns(first, rows)),
    ]
