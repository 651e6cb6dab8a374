"""A plan and a price list as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lolat.report.rows import table_lines
from lolat.training.cost import HOUR, LEFT_OUT, Option, Plan
from lolat.training.cost.prices import Offer
from lolat.units import TIME_UNITS, digits, dollars, duration, percent, plain

_LEAST_DAYS = 3
"""Fewer are said in hours."""


def plan_lines(plan: Plan) -> Iterator[str]:
    """The table, the cheapest and the fastest, and what is between them."""
    unit, seconds = _unit(plan.options)
    between = f"{percent(plan.coverage)} between" if plan.options[0].interval_s else "between"
    header = ("devices", "rented", "$/hour", unit, between, "$", between, "$/epoch", "")
    rows = [_row(o, seconds, _mark(o, plan)) for o in plan.options]
    yield from table_lines(header, rows, left={1, 8})
    yield ""
    if plan.cheapest == plan.fastest:
        yield f"Cheapest and fastest: {_said(plan.cheapest)}"
    else:
        yield f"Cheapest: {_said(plan.cheapest)}"
        yield f"Fastest:  {_said(plan.fastest)}"
        frontier = ", ".join(str(o.devices) for o in plan.frontier)
        yield f"Frontier: {frontier} devices (*): every other takes longer or costs more than one of them"
    yield ""
    yield from _notes(plan)


def price_lines(offers: Sequence[Offer]) -> Iterator[str]:
    """Each instance type once per source, where it is cheapest, with the price's source and date."""
    best: dict[tuple[str, str, str, int], Offer] = {}
    for offer in offers:
        key = (offer.source, offer.instance_type, offer.accelerator, offer.count)
        best[key] = min(best.get(key, offer), offer, key=lambda o: o.price)
    header = ("accelerator", "", "instance type", "$/hour", "region", "source, read")
    rows = [
        (
            plain(o.accelerator) or "cpu", f"x{o.count}" if o.count else "", plain(o.instance_type),
            _money(o.price), plain(o.region),
            ", ".join(filter(None, (plain(o.source), o.date))),
        )
        for o in sorted(best.values(), key=lambda o: (not o.count, o.accelerator, o.count, o.price))
    ]  # fmt: skip
    yield from table_lines(header, rows, left={0, 1, 2, 4, 5})


def _unit(options: Sequence[Option]) -> tuple[str, float]:
    """The unit of the column of times: the largest in which the shortest is 1 or more."""
    shortest = max(min(o.total_s for o in options), 1.0)
    least = (size * (_LEAST_DAYS if unit == "days" else 1) for unit, size in TIME_UNITS)
    return [u for u, n in zip(TIME_UNITS, least, strict=True) if n <= shortest][-1]


def _row(option: Option, seconds: float, mark: str) -> tuple[str, ...]:
    name = plain(option.instance_type)
    rented = (f"{option.instances} x {name}" if name else "") + f", {option.idle_devices} idle" * (
        option.idle_devices > 0
    )
    times, sums = option.interval_s, option.dollars_interval
    return (
        str(option.devices),
        rented,
        _money(option.price_per_hour),
        digits(option.total_s / seconds),
        "?" if times is None else " .. ".join(digits(t / seconds) for t in times),
        _money(option.dollars),
        "?" if sums is None else " .. ".join(map(_money, sums)),
        _money(option.dollars_per_epoch),
        mark,
    )


def _mark(option: Option, plan: Plan) -> str:
    words = [w for w, o in (("cheapest", plan.cheapest), ("fastest", plan.fastest)) if o == option]
    return " ".join(["*" if option.on_frontier else " ", ", ".join(words)]).rstrip()


def _said(option: Option) -> str:
    devices = f"{option.devices} device{'s' * (option.devices != 1)}"
    return f"{devices}, {duration(option.total_s)}, {dollars(option.dollars)}"


def _notes(plan: Plan) -> Iterator[str]:
    by = "by the hour, a begun one whole" if plan.billing == HOUR else "by the second"
    yield f"Billed {by}; {', '.join(LEFT_OUT)} left out."
    for source, date in dict.fromkeys((o.source, o.date) for o in plan.options):
        yield f"Price: {plain(source)}" + (f", read {date}" if date else "")


def _money(value: float) -> str:
    return dollars(value).removeprefix("$")
