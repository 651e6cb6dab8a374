"""A training's cost and a price list as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from lolat.report.tables import table_lines
from lolat.training.cost import Cost
from lolat.training.model import TrainingPrediction
from lolat.training.prices import Offer, Prices
from lolat.units import byte_size, dollars, duration, milliseconds, percent, plain, plural


def cost_lines(cost: Cost) -> Iterator[str]:
    """The answer of `lolat cost`: its lines, its table, and the best of its rows."""
    before, (heads, rows), after = cost_parts(cost)
    yield from before
    if rows:
        yield ""
        yield from table_lines(heads, rows, left={1, 11})
    if after:
        yield ""
        yield from after


def cost_parts(cost: Cost) -> tuple[list[str], tuple[list[str], list[list[str]]], list[str]]:
    """Lines before the table; its heads and a row for each number of devices; lines on the best of them."""
    run = (
        f" · {plural(cost.epochs, 'epoch')} of {plural(cost.samples, 'sample')}"
        if cost.samples
        else ""
    )
    each = " on each device" if len(cost.options) > 1 else ""
    title = f"{plain(cost.network)} · batch {cost.batch_size:,}{each} · {cost.optimizer}{run}"
    first = cost.options[0]
    parts = [f"{name} {milliseconds(ms)}" for name, ms in first.parts_ms.items() if ms]
    iteration = f": {' · '.join(parts)}" if parts else ""
    before = [
        f"{title} · {plain(cost.model)}",
        f"{byte_size(cost.memory_bytes)} of memory on each device, {fit_words(cost)}",
        f"{milliseconds(first.iteration_ms)} an iteration{iteration}",
    ]
    if first.startup_s:
        before.append(f"the first epoch takes {duration(first.startup_s)} more to start")
    if first.evaluation_s:
        before.append(f"the evaluation takes {duration(first.evaluation_s)} of an epoch")
    before += _link_lines(cost)
    if cost.samples is None:
        before.append("Give --samples N for epochs, and with a price their cost.")
    between = f"{percent(cost.coverage)} between"
    heads = ["devices", "rented", "$/hour", "iteration", "exchange", "hidden", "epoch", "total",
             between, "$", between, ""]  # fmt: skip
    is_table = cost.samples is not None or len(cost.options) > 1
    rows = [_row(cost, option) for option in cost.options if is_table]
    after = []
    if cost.samples is not None:
        unknown = f"No price of {plain(cost.model)} is known: give --price-per-hour for the cost."
        after = [unknown] if cost.prices is None else [*_choice_lines(cost)]
    return before, (heads, rows), after


def fit_words(cost: Cost) -> str:
    """Whether an iteration fits into a device's memory."""
    if cost.available_bytes is None:
        return "estimated"
    fits = "fits" if cost.memory_bytes <= cost.available_bytes else "does not fit"
    largest = f"the largest batch that fits is {cost.largest_batch:,}"
    return f"estimated: {fits} into {byte_size(cost.available_bytes)}; {largest}"


def _link_lines(cost: Cost) -> Iterator[str]:
    """The link of each number of devices, those with the same one together."""
    links: dict[tuple[str | None, float | None], list[str]] = {}
    for option in cost.options:
        if option.devices > 1:
            links.setdefault((option.link, option.link_gbps), []).append(str(option.devices))
    for (name, gbps), devices in links.items():
        words = (
            f"{name}, {gbps:g} Gbit/s (assumed; yours: --link-gbps)" if name else f"{gbps:g} Gbit/s"
        )
        yield f"gradients of {', '.join(devices)} devices over {words}"


def _row(cost: Cost, option: TrainingPrediction) -> list[str]:
    rented, total, interval = option.rented, option.total_s, option.interval_s
    name = plain(rented.instance_type) if rented else ""
    idle = f", {rented.idle_devices} idle" if rented and rented.idle_devices else ""
    dollars_of = option.dollars_interval
    exchange = option.parts_ms["exchange"]
    marks = [
        m
        for m, k in (("cheapest", cost.cheapest), ("fastest", cost.fastest))
        if k == option.devices
    ]
    front = "*" if option.devices in cost.frontier else " "
    return [
        str(option.devices),
        f"{rented.instances} x {name}{idle}" if rented and name else "",
        _money(rented.price_per_hour) if rented else "",
        milliseconds(option.iteration_ms),
        milliseconds(exchange) if exchange else "",
        milliseconds(option.hidden_ms) if option.hidden_ms else "",
        "" if option.epoch_s is None else duration(option.epoch_s),
        "" if total is None else duration(total),
        "" if interval is None else " .. ".join(map(duration, interval)),
        "" if option.dollars is None else _money(option.dollars),
        "" if dollars_of is None else " .. ".join(map(_money, dollars_of)),
        f"{front} {', '.join(marks)}".rstrip() if len(cost.options) > 1 and total else "",
    ]


def _choice_lines(cost: Cost) -> Iterator[str]:
    """The cheapest and the fastest, the options between them, and where the price is from."""
    assert cost.cheapest is not None
    assert cost.fastest is not None
    if cost.cheapest != cost.fastest:
        yield f"Cheapest: {cost.summary(cost.cheapest)}"
        yield f"Fastest:  {cost.summary(cost.fastest)}"
        frontier = ", ".join(map(str, cost.frontier))
        yield f"Frontier: {frontier} devices (*): every other takes longer or costs more than one of them"
    elif len(cost.options) > 1:
        yield f"Cheapest and fastest: {cost.summary(cost.cheapest)}"
    dated = {
        f"{plain(r.source)}, read {r.date}" for o in cost.options if (r := o.rented) and r.date
    }
    source = f" ({'; '.join(sorted(dated))})" if dated else ""
    left_out = "storage, data transfer, setting up the machines"
    yield f"Price by the second: {plain(cost.prices or '')}{source}; without {left_out}."


def price_lines(prices: Prices) -> Iterator[str]:
    """Each instance type once per source, in the region where it is cheapest."""
    yield f"US$ an hour of a whole instance, from {prices.prices}"
    yield ""
    best: dict[tuple[str, str, str, int], Offer] = {}
    for offer in prices.offers:
        key = (offer.source, offer.instance_type, offer.accelerator, offer.count)
        best[key] = min(best.get(key, offer), offer, key=lambda o: o.price)
    rows = [
        (
            plain(o.accelerator) or "cpu", f"x{o.count}" if o.count else "", plain(o.instance_type),
            _money(o.price), plain(o.region), ", ".join(filter(None, (plain(o.source), o.date))),
        )
        for o in sorted(best.values(), key=lambda o: (not o.count, o.accelerator, o.count, o.price))
    ]  # fmt: skip
    header = ("accelerator", "", "instance type", "$/hour", "region", "source, read")
    yield from table_lines(header, rows, left={0, 1, 2, 4, 5})


def _money(value: float) -> str:
    return dollars(value).removeprefix("$")
