"""Timing with a clock of our own: every number here is worked out by hand."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.timing import (
    ENOUGH_QUIET,
    QUIET_NAP_S,
    Visit,
    calls_per_visit,
    center,
    final_limit,
    quiet_limit,
    quiet_samples,
    sample,
    spread,
    states,
    time_once,
    visit,
    wait_until_quiet,
    warm_up,
)

milliseconds = st.floats(0.01, 1e4)


class FakeClock:
    """Seconds that pass only inside the calls made with `taking`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.called: list[str] = []

    def __call__(self) -> float:
        return self.now

    def taking(self, name: str, *durations_ms: float) -> Callable[[], None]:
        """A call that takes these times, one after the other."""
        left = list(durations_ms)

        def call() -> None:
            self.called.append(name)
            self.now += left.pop(0) / 1e3

        return call


def test_a_time_is_around_the_call_in_milliseconds() -> None:
    clock = FakeClock()
    assert time_once(clock.taking("job", 12.5), clock) == pytest.approx(12.5)


def test_a_visit_times_each_sample_between_two_of_the_reference() -> None:
    clock = FakeClock()
    taken = visit(clock.taking("job", 40, 20, 21, 22), clock.taking("ref", 5, 9, 6, 7), 3, clock)
    assert clock.called == ["job", "ref"] * 4  # the first: cold
    assert taken.samples == pytest.approx((20, 21, 22))
    assert taken.reference == pytest.approx((5, 9, 6, 7))
    assert taken.beside() == pytest.approx([9, 9, 7])


class TestSample:
    """Calls as they are in use, on a clock that only they move; `now` is another clock."""

    def now(self, *moments: float) -> Callable[[], float]:
        left = list(moments)
        return lambda: left.pop(0)

    def test_a_block_runs_after_a_network_with_its_input_read(self) -> None:
        clock = FakeClock()
        call, before = clock.taking("block", 2, 3), clock.taking("network", 40, 41)
        touch = clock.taking("touch", 1000, 1000)
        taken = sample(call, before, touch, 2, clock, self.now(7.0, 8.0))
        assert clock.called == ["network", "touch", "block"] * 2
        assert taken.samples == pytest.approx([2, 3]), "reading the input is no part of it"
        assert taken.reference == pytest.approx([40, 41])
        assert taken.at_s == (7.0, 8.0)

    def test_the_moment_is_when_the_sample_begins(self) -> None:
        clock = FakeClock()
        call, before, touch = (clock.taking(n, 500, 500) for n in ("block", "network", "touch"))
        # The same clock: a network and a touch, half a second each, are over when the block begins.
        assert sample(call, before, touch, 2, clock, clock).at_s == pytest.approx([101.0, 102.5])

    def test_a_network_runs_in_a_loop_of_its_own_and_its_first_call_does_not_count(self) -> None:
        clock = FakeClock()
        touch = clock.taking("touch")
        taken = sample(
            clock.taking("network", 900, 40, 41, 42), None, touch, 3, clock, self.now(5, 6, 7)
        )
        assert clock.called == ["network"] * 4
        assert taken == Visit(pytest.approx((40, 41, 42)), (), (5, 6, 7))


@pytest.mark.parametrize(
    ("durations", "patience_s", "quiet", "calls"),
    [
        ((9, 8, 5, 99), 10, True, 3),
        ((400,) * 9, 1, False, 3),  # looks end at 0.4, 0.8 and 1.2 s
    ],
)
def test_waiting_until_the_reference_is_fast_enough(
    durations: tuple[float, ...], patience_s: float, quiet: bool, calls: int
) -> None:
    clock, naps = FakeClock(), list[float]()
    reference = clock.taking("ref", *durations)
    assert wait_until_quiet(reference, 5.5, patience_s, clock, naps.append) == quiet
    assert len(clock.called) == calls
    assert naps == [QUIET_NAP_S] * 2


@pytest.mark.parametrize(
    ("durations", "limits", "answer", "calls"),
    [
        # the first call is not compared; 20 to 15 is more than a tenth, 15 to 14 is not
        ((900, 20, 15, 14, 99), {"limit_s": 10}, 14, 4),
        # the first call alone takes longer than the limit: one more says what a call costs
        ((2000, 50, 99), {"limit_s": 1}, 50, 2),
        # never agrees: two and `most` calls
        ((1, 10, 20, 10, 20, 99), {"most": 3}, 20, 5),
        # within a tolerance of a quarter, upwards
        ((1, 8, 9.9, 99), {"tolerance": 0.25}, 9.9, 3),
    ],
)
def test_warming_up(
    durations: tuple[float, ...], limits: dict[str, float], answer: float, calls: int
) -> None:
    clock = FakeClock()
    assert warm_up(clock.taking("job", *durations), clock, **limits) == pytest.approx(answer)  # type: ignore[arg-type]
    assert len(clock.called) == calls


def test_quiet_is_up_to_30_percent_above_the_fastest() -> None:
    # The fastest fiftieth of 11 times lies a fifth of the way from the first to the second: 10 + 0.2 * 10.
    times = [50, 10, 20, 100, 90, 80, 70, 60, 55, 40, 30]
    assert quiet_limit(times) == pytest.approx(1.3 * 12)
    # What is slower starts at 20: a fiftieth of ten times is 0.18 of the way to 30.
    assert list(states(times))[1] == pytest.approx(1.3 * 21.8)


@pytest.mark.parametrize(("quiet", "limit"), [(50, 4.0), (25, 7.5)])
def test_a_run_that_was_quiet_for_a_moment_is_judged_by_the_rest(quiet: int, limit: float) -> None:
    assert quiet_limit([4.0] * quiet + [7.5] * (1000 - quiet)) == pytest.approx(1.3 * limit)


@pytest.mark.parametrize(("seen", "limit"), [(7, 4.0), (6, 7.5)])
def test_a_run_is_judged_by_the_fastest_state_that_most_jobs_were_seen_in(
    seen: int, limit: float
) -> None:
    quiet, slow = Visit((1.0,) * 3, (4.0,) * 4), Visit((2.0,) * 3, (7.5,) * 4)
    jobs = [[quiet, slow]] * seen + [[slow]] * (10 - seen)
    assert final_limit(jobs) == pytest.approx(1.3 * limit)


def test_a_sample_counts_when_the_reference_on_both_sides_is_quiet() -> None:
    visits = [Visit((1, 2, 3), (10, 10, 14, 10)), Visit((4,), (13, 13))]
    assert quiet_samples(visits, 13) == [1, 4]
    assert quiet_samples(visits, 14) == [1, 2, 3, 4]
    assert quiet_samples(visits, 9) == []


def test_the_center_is_the_median_of_the_quiet_samples() -> None:
    visits = [Visit((1, 2, 3, 90), (10, 10, 10, 10, 50)), Visit((4, 5), (10, 10, 10))]
    assert center(visits, 13) == 3  # of 1 2 3 4 5


def test_with_too_few_quiet_samples_the_center_is_the_fast_tenth_of_all() -> None:
    few = [Visit((20 + i,), (10, 10)) for i in range(ENOUGH_QUIET - 1)]
    fast = [Visit((i,), (10, 50)) for i in range(10, 20 - len(few))]
    assert (
        len(few) + len(fast) == 10
    )  # numbered from 0: the tenth lies at 0.9 between the first two
    assert center([*few, *fast], 13) == pytest.approx(10.9)
    enough = [*few, Visit((30,), (10, 10))]
    assert center([*enough, *fast], 13) == statistics.median(v.samples[0] for v in enough)


def test_no_samples_no_center() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        center([], 10)


@given(
    st.lists(milliseconds, min_size=5, max_size=20),
    st.lists(st.tuples(milliseconds, st.floats(1.31, 50), st.booleans()), max_size=20),
)
def test_a_disturbed_half_does_not_move_the_center(
    calm: list[float], disturbed: list[tuple[float, float, bool]]
) -> None:
    visits = [Visit((t,), (8.0, 8.0)) for t in calm]
    for time_ms, factor, before in disturbed[: len(calm)]:
        slow = 8.0 * factor
        reference = (slow, 8.0) if before else (8.0, slow)
        visits.append(Visit((time_ms * factor,), reference))
    limit = quiet_limit([t for v in visits for t in v.reference])
    assert limit == pytest.approx(1.3 * 8)
    assert center(visits, limit) == statistics.median(calm)


def test_the_spread_is_between_every_other_visit() -> None:
    fast, slow = Visit((10,) * 5, (1,) * 6), Visit((12,) * 5, (1,) * 6)
    assert spread([fast, slow, fast, slow], 2) == pytest.approx(2 / 11)
    assert spread([fast, fast, slow, slow], 2) == 0  # each half has one of both: median 11


def test_halves_are_comparable_only_where_both_saw_calm_moments() -> None:
    calm, disturbed = Visit((10,) * ENOUGH_QUIET, (1,) * 4), Visit((20,) * 5, (9,) * 6)
    few = Visit((10,) * (ENOUGH_QUIET - 1), (1,) * 3)
    assert spread([calm, calm], 2) == 0
    assert spread([calm, disturbed, calm, disturbed], 2) is None
    assert spread([few, calm], 2) is None
    assert spread([disturbed, disturbed], 2) is None
    assert spread([calm], 2) is None


@pytest.mark.parametrize(
    ("estimate_ms", "calls"), [(7.5, 4), (1e-3, 4), (0, 4), (10, 3), (15, 2), (29, 1), (500, 1)]
)
def test_calls_that_fit_into_a_visit_of_30_ms(estimate_ms: float, calls: int) -> None:
    assert calls_per_visit(estimate_ms, 0.03) == calls
