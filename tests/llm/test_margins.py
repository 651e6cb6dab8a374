"""The search for a rate within limits: against every number looked at, and a queue's own formula."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.llm.margins import Margins, rate_at, step_of

TIMES = {
    "a queue": lambda rate: 1.0 / (1.0 - rate) if rate < 1.0 else math.inf,
    "late": lambda rate: 1.0 + rate**8 if rate < 1.0 else math.inf,
    "early": lambda rate: 1.0 + rate**0.3 if rate < 1.0 else math.inf,
    "no limit": lambda rate: 0.0 if rate < 1.0 else math.inf,
}


def searched(kind: str, limit: float, low: int, high: int) -> tuple[int, int, list[int]]:
    """The number found, the right one, and the numbers looked at; a number's rate is 3 / number."""

    def off(row: Any) -> float:
        time = TIMES[kind](row.rate)
        return math.log(time / limit) if time else -math.inf

    asked: Any = SimpleNamespace(off=off, within=lambda row: off(row) <= 0.0)
    margins, looked = Margins(asked, 1.0, limit - 1.0), list[int]()

    def row_of(number: int) -> Any:
        looked.append(number)
        row = SimpleNamespace(rate=3.0 / number)
        margins.add(row.rate, row)
        return row

    right = next(n for n in range(low + 1, high + 1) if asked.within(SimpleNamespace(rate=3.0 / n)))
    return margins.least(low, high, lambda rate: 3.0 / rate, row_of), right, looked


@given(kind=st.sampled_from([*TIMES]), limit=st.floats(1.2, 50.0))
def test_it_finds_what_looking_at_every_number_finds(kind: str, limit: float) -> None:
    found, right, looked = searched(kind, limit, 2, 5000)
    assert found == right
    assert len(looked) <= 26  # twice those of halving


@pytest.mark.parametrize("limit", [1.1, 1.7, 4.0, 30.0])
def test_a_queue_takes_two_looks(limit: float) -> None:
    """1 / (1 - rate) = limit, solved by hand, is looked at first, then the number below it."""
    found, _, looked = searched("a queue", limit, 2, 400)
    assert found == math.ceil(3.0 / (1.0 - 1.0 / limit) - 1e-9)
    assert len(looked) <= 2


def test_rates_of_two_and_a_half_digits_are_steps_of_at_most_two_percent() -> None:
    """Each is counted by hand from 0.1 to 100, and its number leads back to it."""
    digits = (*range(100, 250, 2), *range(250, 500, 5), *range(500, 1000, 10))
    rates = [float(f"{n}e{power - 2}") for power in (-1, 0, 1) for n in digits]
    assert [rate_at(n) for n in range(-175, 350)] == rates
    assert [round(step_of(rate), 6) for rate in rates] == [*range(-175, 350)]
    assert max(b / a for a, b in itertools.pairwise(rates)) <= 1.02
    assert step_of(2.51) == pytest.approx(75.2)
