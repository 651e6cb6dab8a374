"""Interruptions: the formulas against a run that is played through second by second of chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.training.cost.plan import Duration, Spot


def play(work: float, rate: float, restart: float, rng: np.random.Generator) -> float:
    """One run, in hours: work until an interruption, then restart until one goes through."""
    clock, left, lost = 0.0, work, 0.0
    while True:
        gap = rng.exponential(1 / rate)
        if gap >= lost + left:
            return clock + lost + left
        clock += gap
        left -= max(gap - lost, 0.0)  # what was done is kept
        lost = restart


@pytest.mark.parametrize(
    ("per_hour", "instances", "restart_s"), [(0.05, 1, 600), (0.3, 4, 900), (2.0, 1, 1800)]
)
def test_mean_and_spread_are_those_of_a_simulation(
    per_hour: float, instances: int, restart_s: float
) -> None:
    rng = np.random.default_rng(7)
    spot, work = Spot(per_hour, restart_s), 10.0
    runs = np.array(
        [play(work, per_hour * instances, restart_s / 3600, rng) for _ in range(20_000)]
    )
    error = runs.std() / math.sqrt(len(runs))
    assert work * spot.factor(instances) == pytest.approx(runs.mean(), abs=4 * error)
    assert spot.spread_s(work * 3600, instances) / 3600 == pytest.approx(runs.std(), rel=0.05)


def test_the_interval_holds_as_many_runs_as_it_says() -> None:
    """The work itself is uncertain too, normally by 5 %."""
    rng = np.random.default_rng(8)
    spot, hours = Spot(0.5, 900), 20.0
    z = 1.6449
    work = Duration(hours * 3600, tuple(hours * 3600 * (1 + s * z * 0.05) for s in (-1, 1)))
    found = spot.lengthen(work, 2, 0.9)
    assert found.interval_s is not None
    low, high = (t / 3600 for t in found.interval_s)
    runs = [play(hours * rng.normal(1, 0.05), 1.0, 0.25, rng) for _ in range(8_000)]
    assert np.mean([low <= t <= high for t in runs]) == pytest.approx(0.9, abs=0.02)


def test_without_interruptions_nothing_changes() -> None:
    work = Duration(100.0, (90.0, 120.0))
    for spot in (Spot(0, 600), Spot(3, 0), Spot(0, 0)):
        found = spot.lengthen(work, 8)
        assert found.total_s == 100.0
        assert found.interval_s == pytest.approx((90.0, 120.0))
    assert Spot(1, 600).lengthen(Duration(100.0, None), 1).interval_s is None


def test_it_is_never_shorter_than_without() -> None:
    work = Duration(3600.0, (3500.0, 3700.0))
    found = Spot(1.0, 600).lengthen(work, 1)
    assert found.interval_s is not None
    assert found.interval_s[0] == 3500.0
    assert found.interval_s[1] > 3700 * math.exp(1 / 6)


def test_rare_interruptions_by_the_first_order() -> None:
    """Work times (1 + rate * restart); and the series for small numbers meets the formula."""
    assert Spot(1e-3, 60).factor(1) == pytest.approx(1 + 1e-3 / 60, rel=1e-9)
    below, above = (Spot(1.0, 3600 * x).spread_s(3600, 1) for x in (0.99999e-4, 1.00001e-4))
    assert below == pytest.approx(above, rel=1e-4)


def test_a_run_that_never_ends_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"4 interruptions an hour of each of 8 instances and 3600 s"
    ):
        Spot(4, 3600).factor(8)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_numbers(value: float) -> None:
    with pytest.raises(
        InputError, match=r"--interruptions-per-hour .*: expected a number of at least 0"
    ):
        Spot(value, 1)
    with pytest.raises(InputError, match=r"--restart-cost-s .*: expected a number of at least 0"):
        Spot(1, value)
