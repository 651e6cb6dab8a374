"""Machines, billing, the frontier and the table of a plan, by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.report.cost import plan_lines
from lolat.training.cost import (
    HOUR,
    SECOND,
    Duration,
    Machines,
    Plan,
    billed_hours,
    frontier,
    machines_for,
    plan,
)
from lolat.training.cost.prices import Offer

ONE = Offer("one", "G", 1, 3.0)
DEARER = Offer("dear", "G", 1, 3.5)
FOUR = Offer("four", "G", 4, 11.0)
EIGHT = Offer("eight", "G", 8, 40.0)


@pytest.mark.parametrize(
    ("offers", "devices", "name", "instances", "price", "idle"),
    [
        ([ONE, DEARER], 1, "one", 1, 3.0, 0),  # the cheapest
        ([ONE, FOUR, EIGHT], 4, "four", 1, 11.0, 0),  # one instance with as many
        ([ONE, FOUR, EIGHT], 8, "eight", 1, 40.0, 0),  # even where several would be cheaper
        ([ONE, FOUR], 8, "four", 2, 22.0, 0),  # else the cheapest way
        ([ONE, FOUR, EIGHT], 3, "one", 3, 9.0, 0),
        ([ONE, FOUR, EIGHT], 5, "one", 5, 15.0, 0),
        ([EIGHT], 1, "eight", 1, 40.0, 7),  # paid for and idle
        ([EIGHT], 9, "eight", 2, 80.0, 7),
        ([ONE, Offer("two", "G", 2, 6.0)], 4, "two", 2, 12.0, 0),  # as dear: fewer instances
        ([Offer("box", "", 0, 0.2)], 3, "box", 3, 0.6, 0),  # without an accelerator: itself
    ],
)
def test_what_is_rented(
    offers: list[Offer], devices: int, name: str, instances: int, price: float, idle: int
) -> None:
    found = machines_for(offers, devices)
    assert (found.offer.instance_type, found.instances, found.idle) == (name, instances, idle)
    assert found.price_per_hour == pytest.approx(price)


def test_no_device_is_refused() -> None:
    with pytest.raises(InputError, match="0 devices; expected 1 or more"):
        machines_for([ONE], 0)


@pytest.mark.parametrize(
    ("seconds", "by_second", "by_hour"),
    [(0, 0, 0), (1, 1 / 3600, 1), (3600, 1, 1), (3600.001, 3600.001 / 3600, 2), (9000, 2.5, 3)],
)
def test_hours_that_are_paid_for(seconds: float, by_second: float, by_hour: float) -> None:
    assert billed_hours(seconds, SECOND) == pytest.approx(by_second)
    assert billed_hours(seconds, HOUR) == by_hour


def test_an_hour_added_up_from_parts_is_one() -> None:
    assert billed_hours(3 * (0.1 + 0.2) * 4000, HOUR) == 1  # 3600, but for rounding


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_the_frontier_is_what_a_sweep_finds(points: list[tuple[int, int]]) -> None:
    """Oracle: in order of time, whatever costs less than all before it; and its equals."""
    kept, least = set(), math.inf
    for time, money in sorted(points):
        if money < least:
            kept.add((time, money))
            least = money
    assert [p for p, on in zip(points, frontier(points), strict=True) if on] == [
        p for p in points if p in kept
    ]


def halves(devices: int) -> Duration:
    """Two hours of work shared out, and 20 minutes that are not; 10 % either way."""
    total = 7200 / devices + 1200
    return Duration(total, (0.9 * total, 1.1 * total))


def rent(devices: int) -> Machines:
    return machines_for([ONE, FOUR, EIGHT], devices)


def test_a_plan_by_hand() -> None:
    found = plan(halves, rent, (1, 2, 4, 8), epochs=10)
    assert [o.total_s for o in found.options] == [8400, 4800, 3000, 2100]
    hours_prices = ((8400, 3), (4800, 6), (3000, 11), (2100, 40))  # 7.00, 8.00, 9.17 and 23.33
    expected = [seconds / 3600 * price for seconds, price in hours_prices]
    assert [o.dollars for o in found.options] == pytest.approx(expected)
    two = found.options[1]
    assert two.dollars_per_epoch == pytest.approx(0.8)
    assert two.epoch_s == 480
    assert two.interval_s == pytest.approx((4320, 5280))
    assert two.hours_interval == pytest.approx((1.2, 4.4 / 3))
    assert two.dollars_interval == pytest.approx((7.2, 8.8))
    assert (two.instances, two.instance_type, two.price_per_hour) == (2, "one", 6.0)
    assert (found.cheapest.devices, found.fastest.devices) == (1, 8)
    assert [o.devices for o in found.frontier] == [1, 2, 4, 8]


def test_by_the_hour_another_one_is_cheapest() -> None:
    found = plan(halves, rent, (1, 2, 4, 8), 10, HOUR)
    assert [o.dollars for o in found.options] == [9, 12, 11, 40]
    assert [o.billed_hours for o in found.options] == [3, 2, 1, 1]
    intervals = [o.dollars_interval for o in found.options[:3]]
    assert intervals == [(9, 9), (12, 12), (11, 11)]
    assert [o.devices for o in found.frontier] == [1, 4, 8]  # 2 is slower and dearer than 4


def test_no_interval_stays_none() -> None:
    found = plan(lambda k: Duration(3600.0 / k, None), rent, (1, 2), 1)
    assert {o.interval_s or o.dollars_interval for o in found.options} == {None}
    assert found.to_dict()["options"][0]["hours_interval"] is None
    assert " ? " in "\n".join(plan_lines(found))


@pytest.mark.parametrize(
    ("devices", "epochs", "said"),
    [((), 1, "no number of devices"), ((0,), 1, "0 devices; expected"), ((1,), 0, "0 epochs")],
)
def test_impossible_plans(devices: tuple[int, ...], epochs: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(halves, rent, devices, epochs)


@pytest.mark.parametrize("time", [math.nan, math.inf, -1.0])
def test_a_time_that_cannot_be_is_refused(time: float) -> None:
    for impossible in (Duration(time, None), Duration(5, (6, 7))):
        with pytest.raises(InputError, match=r"is .* s in .* s; expected finite times in order"):
            plan(lambda _, told=impossible: told, rent, (1,), 1)


def shown(found: Plan) -> list[str]:
    lines = list(plan_lines(found))
    assert max(map(len, lines)) <= 110
    return lines


def test_what_a_terminal_shows() -> None:
    lines = shown(plan(halves, rent, (1, 2, 4, 8), 10))
    sure = ("90", "%", "between")
    assert lines[0].split() == ["devices", "rented", "$/hour", "min", *sure, "$", *sure, "$/epoch"]
    row = "2 2 x one 6.00 80.0 72.0 .. 88.0 8.00 7.20 .. 8.80 0.80 *"
    assert " ".join(lines[2].split()) == row
    assert lines[1].endswith("* cheapest")
    assert "Cheapest: 1 device, 2 h 20 min, $7.00" in lines
    assert "Fastest:  8 devices, 35 min 00 s, $23.33" in lines
    assert any(line.startswith("Frontier: 1, 2, 4, 8 devices (*)") for line in lines)
    assert "storage, data transfer, setting up the machines left out" in "\n".join(lines)


def test_one_that_is_both_is_said_once() -> None:
    idle = plan(halves, lambda k: machines_for([EIGHT], k), (1, 8), 1)
    text = "\n".join(shown(idle))
    assert "Cheapest and fastest: 8 devices" in text
    assert "1 x eight, 7 idle" in text
