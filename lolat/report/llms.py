"""Lines and the table of `lolat llm` for several devices, on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from lolat.llm.answer import ServingConfig
from lolat.llm.compare import MOST_TOLD, ComparedModels
from lolat.llm.frameworks import CHECKED_RATES
from lolat.llm.ranking import cost_of
from lolat.report.llm import (
    A_MONTH,
    DOLLARS,
    HOLD,
    IN_ALL,
    MEAN_MEMORY,
    MEMORY,
    MONTH,
    OF_GPU,
    OWN_PRICE,
    PRICE,
    ROOM_FOR,
    SPEED,
    arrival_lines,
    cache_legend,
    columns,
    load_line,
    row_words,
    shared_out,
    start_words,
    subject,
    table_legend,
    tokens,
    types_words,
)
from lolat.report.llm_best import cheapest_word, holds_words, price_of, priced_gpus
from lolat.report.llm_offers import (
    EXTRAPOLATED,
    a_month,
    at_load,
    chance_words,
    headline_words,
    more_words,
    near_lines,
    offer,
    other_dtype_lines,
    room,
    surer_lines,
)
from lolat.report.ranked import Rated, apart_words, few, left_out_lines, scaled
from lolat.report.tables import Column, Page, Part, ReportTable, Screen
from lolat.units import by_text, dollars, milliseconds, percent, plain

UNCHECKED = "rate unchecked"
MOST_DTYPES = 2
"""The most other data types in the remark on a row."""
EACH_LOAD = "The best row of each under each load:"


def compared_lines(found: ComparedModels) -> Iterator[Part]:
    """The cheapest and the fastest device, the question, the table, remarks, and the devices left out."""
    first, *_ = found.full.values()
    several = len({of.model for of in found.full.values()}) > 1
    rows = [row for some in found.loads.values() for row in some.values()]
    types = {types_words(row) for row in found.best_rows.values()}
    of = tokens(first) if several else subject(first, *types if len(types) == 1 else ())
    yield from verdict_lines(found)
    yield f"{of} · {load_line(rows)}"
    yield from arrival_lines(found.asked)
    yield from ["", EACH_LOAD] if found.by_load else [""]
    yield from (compared_table(found), "")
    yield from after_lines(found)


def after_lines(found: ComparedModels) -> Iterator[str]:
    """Lines after the table: words explained, prices, and the devices left out."""
    rows = compared_table(found).rows if found.full else ()
    for some in found.loads.values():
        if dear := expensive_rows(found, some):
            each = ", ".join(f"{plain(name)} ({a_month(row)})" for name, row in dear.items())
            of = at_load(next(iter(dear.values())), not found.by_load)
            yield f"Left out{of}, at over {DEAR:g} times the price of the cheapest: {each}."
    yield from table_legend(rows, found.asked)
    if any(row.headroom_rate for row in rows):
        by = "the predicted times" if found.asked.sure is None else "the ends of the intervals"
        yield f"hold to: the most requests/s within the limits, by {by}."
    if any(row.is_idle for row in rows):
        yield (
            "busy: limits are kept only on nearly idle GPUs, which is no sensible number; looser limits "
            "need far fewer GPUs."
        )
    if any(of.is_rate_unchecked for of in found.full.values()):
        yield f"{UNCHECKED}: {CHECKED_RATES}."
    told = (
        (plain(n), words)
        for n, of in found.full.items()
        for words in cache_legend(of.served, of.framework, found.asked)
    )
    yield from (f"{', '.join(names)}: {words}" for words, names in by_text(told).items())
    yield from start_words(rows)
    if any(row.in_domain is False for row in rows):
        yield (
            "extrapolated: such a load was not served, or an operation not timed on this GPU, so a wider "
            "interval; a device that is asked alone says which."
        )
    yield from shared_out(rows, found.asked)
    yield from price_lines(found)
    yield from unpriced_lines(found)
    yield from left_out_lines(found.left_out, None)
    yield from (f"{words}." for words in found.slow_links)


def price_lines(found: ComparedModels) -> Iterator[str]:
    """A line on the price lists."""
    rented = (name for name, row in found.best_rows.items() if row.rented)
    lists = dict.fromkeys(plain(found.full[name].price_list) for name in rented)
    # The assumptions about a list are told once.
    told = [one for one in lists if not any(n != one and n.startswith(one) for n in lists)]
    if told:
        yield f"Prices: {', '.join(told)}; {MONTH if found.asked.request_rate else DOLLARS}."


def headlines(found: ComparedModels) -> Iterator[tuple[str, str]]:
    """(GPUs and price, device and chance) of the best row under each load, in words; with the load if there
    are several.
    """
    for rows in found.loads.values():
        leaders = found.leaders(rows)
        name = leaders["cheapest"] or leaders["fastest"]
        if name is not None:
            row = rows[name]
            device = plain(name) + at_load(row, not found.by_load)
            yield priced_gpus(row), headline_words(row, found.asked, device)


def verdict_lines(found: ComparedModels) -> Iterator[str]:
    """Lines on the cheapest row under each load and its chance, without limits on the fastest; then near
    misses.
    """
    for rows in found.loads.values():
        if len(found.best_rows) > 1 or found.asked.has_limits:
            first, *_ = rows.values()
            yield from _verdict(found, rows, at_load(first, not found.by_load))
    yield from compared_near(found)


def _verdict(found: ComparedModels, rows: Mapping[str, ServingConfig], under: str) -> Iterator[str]:
    priced, leaders, asked = found.priced(rows), found.leaders(rows), found.asked
    known = "" if len(priced) == len(rows) else " with a known price"
    name = leaders["cheapest"]
    if name is not None:
        row, tied = rows[name], ""
        if row.request_rate is None:
            prices = {
                plain(n): Rated(usd, scaled(r.tpot_interval_ms, usd / (r.tpot_ms or 1.0)))
                for n, r in priced.items()
                if (usd := r.dollars_per_million) is not None
            }
            tied = apart_words(plain(name), prices, "; ")
        else:  # so many GPUs serve the rate whatever a token takes
            tied = _same_price(name, priced)
        called = cheapest_word(row).capitalize()
        outside = ", extrapolated" if row.in_domain is False else ""
        what = f"{plain(name)}, {row.gpus_words}, {price_of(row)}{outside}{tied}"
        yield f"{called}{known}{under}: {what}{chance_words(row, asked)}."
        if asked.has_limits and asked.sure is None and not row.is_sure(asked):
            yield from _probably_cheapest(found, rows, row)
            yield _surely_cheapest(found, rows)
        yield from _less_likely(found, priced, row)
        yield from surer_lines(found.full[name].surer_at_price, row, asked, f"{plain(name)}, ")
        if row.request_rate is None:
            yield from _least_a_month(found, priced, row, under)
        yield from holds_words(row, asked)
        if roomy := found.roomier(rows):
            yield _roomier_words(roomy, rows[roomy], row)
    if asked.has_limits:
        return
    times = {plain(n): Rated(*r.token_times(found.asked.percentile).token) for n, r in rows.items()}
    fastest = leaders["fastest"]
    leading = {fastest: "", found.leaders(priced)["fastest"]: known}
    for one, of in {**leading, fastest: ""}.items():  # of all rows, then of those with a price
        if one is not None:
            row = rows[one]
            facts = f"{milliseconds(times[plain(one)].value)} a token, {row.gpus_words}"
            price = "" if row.dollars_per_hour is None else f", {a_month(row)}"
            apart = "" if of else apart_words(plain(one), times, "; ")
            yield f"Fastest of these{of}{under}: {plain(one)}, {facts}{price}{apart}."


def _less_likely(
    found: ComparedModels, priced: Mapping[str, ServingConfig], best: ServingConfig
) -> Iterator[str]:
    """A line on the row that costs less than the `best`, and only likely keeps the limits; see `LITTLE`."""
    name = min(priced, key=lambda name: found.order(name, priced[name]))
    if cost_of(row := priced[name]) < cost_of(best):
        less = percent(1.0 - cost_of(row) / cost_of(best))
        what = f"{plain(name)}, {offer(row)}"
        yield f"For {less} less, less surely: {what}{chance_words(row, found.asked)}."


def _roomier_words(name: str, row: ServingConfig, best: ServingConfig) -> str:
    """A line on a device that serves many more requests than the cheapest, for a little more money."""
    more = percent((row.dollars_per_hour or 0.0) / (best.dollars_per_hour or 1.0) - 1.0)
    rate = more_words((row.headroom_rate or 0.0) / (best.headroom_rate or 1.0))
    price = "the same price" if more == percent(0.0) else f"{more} more"
    where = f"{plain(name)}, {row.gpus_words}, {a_month(row)}"
    return f"For {price}: {where}, up to {room(row)} requests/s ({rate})."


def _least_a_month(
    found: ComparedModels, rows: Mapping[str, ServingConfig], cheapest: ServingConfig, under: str
) -> Iterator[str]:
    """A line on the row with the lowest price a month, if that is not the row with the cheapest tokens."""
    name = found.least_a_month(rows)
    if (rows[name].dollars_per_hour or 0.0) < (cheapest.dollars_per_hour or 0.0):
        yield f"Least a month{under}: {plain(name)}, {rows[name].gpus_words}, {a_month(rows[name])}."


def _same_price(best: str, rows: Mapping[str, ServingConfig]) -> str:
    """A clause on the devices that cost as much as the best; "" if there are none."""
    usd = dollars(rows[best].dollars_per_million or 0.0)
    same = [
        plain(name)
        for name, row in rows.items()
        if name != best and dollars(row.dollars_per_million or 0.0) == usd
    ]
    return f"; the same price: {few(same, MOST_TOLD)}" if same else ""


def _surest(
    found: ComparedModels, rows: Mapping[str, ServingConfig]
) -> tuple[str, ServingConfig] | None:
    """(name, row) of the cheapest device that surely keeps the limits, under one load; None if there is
    none, and without limits or with `sure`.
    """
    if not found.asked.has_limits or found.asked.sure is not None:
        return None
    sure = found.sure_rows(rows)
    name = found.leaders(sure)["cheapest"]
    return None if name is None else (name, sure[name])


def _probably_cheapest(
    found: ComparedModels, rows: Mapping[str, ServingConfig], best: ServingConfig
) -> Iterator[str]:
    """A line on the cheapest probable device, if `best` is not probable; none if a device
    that surely keeps the limits costs no more.
    """
    probable = {name: row for name, row in rows.items() if row.is_probable}
    name, surest = found.leaders(probable)["cheapest"], _surest(found, rows)
    if best.is_probable or name is None or (row := probable[name]).is_sure(found.asked):
        return
    if surest is None or (row.dollars_per_million or 0.0) < (surest[1].dollars_per_million or 0.0):
        outside = ", extrapolated" if row.in_domain is False else ""
        what = f"{plain(name)}, {row.gpus_words}, {price_of(row)}{outside}"
        yield f"Probably: {what}{chance_words(row, found.asked)}."


def _surely_cheapest(found: ComparedModels, rows: Mapping[str, ServingConfig]) -> str:
    """A line on the cheapest device that surely keeps the limits, under one load."""
    if (surest := _surest(found, rows)) is None:
        return "Surely: no row."
    name, row = surest
    outside = EXTRAPOLATED * (row.in_domain is False)
    same = _same_price(name, found.sure_rows(rows))
    return f"Surely: {plain(name)}, {row.gpus_words}, {price_of(row)}{outside}{same}."


FEW_ROWS = 6
"""A table of at most so many devices shows all of them."""
DEAR = 5.0
"""A longer table hides rows that cost more than this factor times the cheapest."""


def expensive_rows(
    found: ComparedModels, rows: Mapping[str, ServingConfig]
) -> dict[str, ServingConfig]:
    """The rows to hide, by device: rows under one rate that cost more than DEAR times the cheapest, if
    there are more than FEW_ROWS. Under concurrent requests none: an expensive GPU is then faster.
    """
    best = rows.get(found.leaders(rows)["cheapest"] or "")
    if best is None or best.request_rate is None or len(rows) <= FEW_ROWS:
        return {}
    most = DEAR * (best.dollars_per_hour or math.inf)
    return {n: row for n, row in rows.items() if (row.dollars_per_hour or 0.0) > most}


def unpriced_lines(found: ComparedModels) -> Iterator[str]:
    """Lines on devices without a price, with the reason."""
    bare = [n for n, row in found.best_rows.items() if row.dollars_per_hour is None]
    known = [n for n in bare if found.full[n].prices]
    for why, names in (
        ("No price is known", [n for n in bare if n not in known]),
        ("No machine with so many GPUs has a price", known),
    ):
        if names:
            yield f"{why}: {', '.join(map(plain, names))}; {OWN_PRICE} if it is asked for alone."


def compared_near(found: ComparedModels) -> Iterator[str]:
    """Lines on rows that are cheaper than the cheapest device: near misses, and other data types."""
    is_only = not found.by_load
    for load, rows in found.loads.items():
        best = rows.get(found.leaders(rows)["cheapest"] or "")
        most = (best and best.dollars_per_hour) or 0.0
        for _, name, row in _cheaper(found.near, load, most * (1.0 + 1e-9)):
            yield from near_lines([row], found.asked, is_only, f"{plain(name)}, ")
        others = _cheaper(found.other_dtypes, load, most)
        # Among equal prices, surely kept limits come first, then a timed load and timed operations.
        others.sort(
            key=lambda one: (
                float(f"{one[0]:.9g}"),
                not one[2].is_sure(found.asked),
                one[2].in_domain is False,
                one[2].tpot_ms,
            )
        )
        sure = [one for one in others if one[2].is_sure(found.asked) and one[2].in_domain]
        for _, name, row in others[:1] + [one for one in sure[:1] if one is not others[0]]:
            yield from other_dtype_lines([row], found.asked, is_only, f"{plain(name)}, ")


def _cheaper(
    of: Mapping[str, Sequence[ServingConfig]], load: float, most: float
) -> list[tuple[float, str, ServingConfig]]:
    """(US$ an hour, device, row) of each row of a load that costs less than `most`, the cheapest first."""
    some = (
        (row.dollars_per_hour or math.inf, name, row) for name, rows in of.items() for row in rows
    )
    return sorted((one for one in some if one[0] < most and one[2].load == load), key=itemgetter(0))


def by_price(found: ComparedModels, rows: Mapping[str, ServingConfig]) -> list[str]:
    """The devices of rows under one load, the cheapest first, devices without a price last."""
    return sorted(rows, key=lambda name: found.order(name, rows[name]))


def leads(found: ComparedModels, rows: Mapping[str, ServingConfig], name: str) -> str:
    """The remark on a device among rows under one load: "cheapest", "fastest", `row_words`, UNCHECKED, and
    its two cheapest other data types.

    With limits no row is called "fastest", because all rows were chosen by price.
    """
    fastest = "" if found.asked.has_limits else "fastest"
    called = {"cheapest": cheapest_word(rows[name]), "fastest": fastest}
    words = (called[key] for key, best in found.leaders(rows).items() if best == name)
    mark = row_words(rows[name], ", ".join(filter(None, words)))
    mark = ", ".join(filter(None, [mark, UNCHECKED * found.full[name].is_rate_unchecked]))
    others = [one for one in found.other_dtypes.get(name, ()) if one.load == rows[name].load]
    listed = {row.dtype for row in rows.values() if row.device == rows[name].device}
    priced = [
        (a_month(one), one)
        for one in others
        if one.dollars_per_hour and one.dtype not in listed  # it has a row of its own
    ]
    cheaper = [
        f"with {' or '.join(n.dtype for n in same)} weights {usd} at {_token_ms(same, found)} a token"
        for usd, same in by_text((n, usd) for usd, n in priced[:MOST_DTYPES]).items()
    ]
    return "; ".join(filter(None, [mark, "; ".join(cheaper)]))


def _token_ms(rows: Sequence[ServingConfig], found: ComparedModels) -> str:
    """The times per output token of rows in words."""
    times = (row.token_times(found.asked.percentile).token.ms for row in rows)
    return " or ".join(map(milliseconds, times))


def compared_table(found: ComparedModels) -> ReportTable:
    """The table of each device's best row, by load and price, with remarks, without `expensive_rows`, and
    with the cheapest sure row of each load.
    """
    rows, names, told = list[ServingConfig](), dict[int, str](), dict[int, str]()
    for best in found.loads.values():
        dear, sure = expensive_rows(found, best), _surest(found, best)
        shown = [n for n in by_price(found, best) if n not in dear]
        names |= {id(best[name]): name for name in shown}
        told |= {id(best[name]): leads(found, best, name) for name in shown}
        listed = [best[name] for name in shown]
        if sure and id(sure[1]) not in names:
            name, row = sure
            names[id(row)], told[id(row)] = name, row_words(row, "surely")
            listed.append(row)
        rows += sorted(listed, key=lambda row: found.order(names[id(row)], row))
    remark = Column("remark", lambda row: told[id(row)], is_text=True, page="front")
    return ReportTable([*_columns_of(found, names, rows), remark], rows, stacked=True)


def of_one_type(table: ReportTable, caption: str) -> str:
    """A table as HTML; a data type that all rows share moves to its caption."""
    if len(types := {types_words(row) for row in table.rows}) > 1:
        return table.html(caption)
    columns = [column for column in table.columns if column.value is not types_words]
    return replace(table, columns=columns).html(", ".join([caption, *types]))


def _columns_of(
    found: ComparedModels, names: Mapping[int, str], rows: Sequence[ServingConfig]
) -> list[Column]:
    first, *_ = found.full.values()

    def asked_type(name: str) -> str:
        return found.full[name].asked.dtype

    at = "" if found.asked.percentile is None else f" P{found.asked.percentile}"
    pages: dict[str, Page] = {"GPUs": "front"}
    if not found.asked.max_latency_ms:
        pages[f"whole request{at}"] = "hidden"
    pages |= {
        OF_GPU: "hidden",
        IN_ALL: "hidden",
        A_MONTH: "front",
        MEMORY: "hidden",
        MEAN_MEMORY: "hidden",
    }
    screens: dict[str, Screen] = {HOLD: "shown", ROOM_FOR: "hidden"}
    if first.chosen.request_rate is not None:  # prices of tokens have the ratios of prices a month
        pages[PRICE] = screens[PRICE] = "hidden"
    if found.asked.max_tpot_ms and found.asked.min_tokens_per_s is None:
        screens[SPEED] = "hidden"
    several = len({of.model for of in found.full.values()}) > 1
    screens["data type"] = "shown" if len({*map(types_words, rows)}) > 1 or several else "hidden"
    return [
        Column(
            "model" if several else "device",
            # The data type has a column of its own.
            lambda row: plain(names[id(row)].removesuffix(f" in {asked_type(names[id(row)])}")),
            is_text=True,
            is_whole=True,
        ),
        Column("data type", types_words, is_text=True, page="below", screen=screens["data type"]),
        *(
            replace(
                one, page=pages.get(one.head, one.page), screen=screens.get(one.head, one.screen)
            )
            for one in columns(first, rows)
        ),
    ]
