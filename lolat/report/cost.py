"""A training's cost and a price list as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from lolat.graph.modes import EAGER
from lolat.report.prediction import grouped_notes, left_out_lines
from lolat.report.tables import table_lines
from lolat.training.compare import Choice, Costs, choice_words
from lolat.training.cost import Cost, no_room
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
    room = [no_room(cost)] if cost.fits is False else []
    before = [
        *room,
        f"{title} · {plain(cost.model)}" + (f" · {cost.precision}" if cost.precision else ""),
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
             between, "$", "$ between", ""]  # fmt: skip
    is_table = cost.fits is not False and (cost.samples is not None or len(cost.options) > 1)
    rows = [_row(cost, option) for option in cost.options if is_table]
    after = []
    if cost.samples is not None and cost.fits is not False:
        unknown = f"No price of {plain(cost.model)} is known: give --price-per-hour or --prices."
        after = [unknown] if cost.prices is None else [*_choice_lines(cost)]
    return before, (heads, rows), after


def fit_words(cost: Cost) -> str:
    """Whether an iteration fits into a device's memory."""
    if cost.available_bytes is None:
        return "estimated; that of the device is not known (--memory-gib)"
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
    if rented and rented.accelerator.casefold() not in name.casefold():
        name += f" ({plain(rented.accelerator)})"
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


def within_words(max_hours: float | None) -> str:
    """A longest time, after a word."""
    return "" if max_hours is None else f" within {max_hours:g} h"


LEFT_OUT = "without loading data, storage, data transfer, setting up the machines"


def _choice_lines(cost: Cost) -> Iterator[str]:
    """The cheapest and the fastest, the options between them, and where the price is from."""
    assert cost.fastest is not None
    if cost.cheapest != cost.fastest:
        if cost.cheapest is not None:
            yield f"Cheapest{within_words(cost.max_hours)}: {cost.summary(cost.cheapest)}"
        yield f"Fastest:  {cost.summary(cost.fastest)}"
    if cost.cheapest != cost.fastest and len(cost.options) > 1:
        frontier = ", ".join(map(str, cost.frontier))
        yield f"Frontier: {frontier} devices (*): every other takes longer or costs more than one of them"
    elif len(cost.options) > 1:
        yield f"Cheapest and fastest: {cost.summary(cost.fastest)}"
    dated = {
        f"{plain(r.source)}, read {r.date}" for o in cost.options if (r := o.rented) and r.date
    }
    source = f" ({'; '.join(sorted(dated))})" if dated else ""
    yield f"Price by the second: {plain(cost.prices or '')}{source}; {LEFT_OUT}."


# ---- Several devices


def costs_lines(costs: Costs) -> Iterator[str]:
    """Several devices as one table, the cheapest first; then the best, and who is not compared."""
    run = ""
    if costs.samples:
        run = f" · {plural(costs.epochs, 'epoch')} of {plural(costs.samples, 'sample')}"
    yield f"Training {plain(costs.network)} · {costs.optimizer}{run}"
    between = f"{percent(costs.coverage)} between"
    heads = ["device", "of it", "precision", "batch", "rented", "$/hour", "total", between, "$",
             "$ between", ""]  # fmt: skip
    listed = sorted(
        ((c, o) for c in costs.answers for o in c.options if c.fits is not False),
        key=lambda pair: (pair[1].dollars is None, pair[1].dollars or 0.0, pair[1].total_s or 0.0),
    )
    yield ""
    yield from table_lines(
        heads, [_costs_row(costs, *pair) for pair in listed], left={0, 2, 4, 10}, whole={0}
    )
    yield ""
    within = within_words(costs.max_hours)
    for name, choice in ((f"Cheapest{within}", costs.cheapest), ("Fastest", costs.fastest)):
        if choice is not None:
            yield f"{name}: {choice_words(choice)}"
    for cost in costs.answers:
        if cost.fits is False:
            yield f"{plain(cost.device)}: {no_room(cost)}"
    if unpriced := [
        plain(c.device) for c in costs.answers if c.prices is None and c.fits is not False
    ]:
        yield f"No price of {', '.join(unpriced)} is known: --prices FILE has them, or --price-per-hour."
    yield from left_out_lines(costs.left_out)
    yield from grouped_notes(
        [(plain(c.device), c.warnings) for c in sorted(costs.answers, key=_width)]
    )
    dated = {f"{plain(r.source)}, read {r.date}" for _, o in listed if (r := o.rented) and r.date}
    links = {f"{o.link} ({o.link_gbps:g} Gbit/s)" for _, o in listed if o.link}
    yield from (
        [f"Links assumed: {', '.join(sorted(links))} (yours: --link-gbps)"] if links else []
    )
    if dated:
        yield f"Prices by the second ({plural(len(dated), 'list')}; --json names each row's): {LEFT_OUT}."


def _way(cost: Cost) -> str:
    """The precision, and the launch where it is not the usual one."""
    launch = cost.launch if cost.launch not in (None, EAGER) else None
    return ", ".join(filter(None, (cost.precision, launch)))


def _width(cost: Cost) -> float:
    """The widest interval comes first, and what has none."""
    low, high = cost.options[0].interval_s or (1e-9, 1.0)
    return -high / max(low, 1e-9)


def _costs_row(costs: Costs, cost: Cost, option: TrainingPrediction) -> list[str]:
    choice = Choice(
        cost.device, cost.precision, option.devices, option.total_s or 0.0, option.dollars
    )
    marks = [
        n for n, c in (("cheapest", costs.cheapest), ("fastest", costs.fastest)) if c == choice
    ]
    front = "*" if choice in costs.frontier else " "
    cells = _row(cost, option)
    return [
        plain(cost.device), cells[0], _way(cost), f"{cost.batch_size:,}", *cells[1:3],
        *cells[7:11], f"{front} {', '.join(marks)}".rstrip(),
    ]  # fmt: skip


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
