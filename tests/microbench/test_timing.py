"""Timing with a clock of our own, and the latencies behind samples: every number is worked out by hand."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from lolat.microbench.timing import Latencies, Visit, latencies, loops, sample, unrest, warm_up


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


def times(*moments: float) -> Callable[[], float]:
    left = list(moments)
    return lambda: left.pop(0)


def test_a_block_runs_after_a_network_with_its_input_read() -> None:
    clock = FakeClock()
    call, before = clock.taking("block", 2, 3), clock.taking("network", 40, 41)
    touch = clock.taking("touch", 1000, 1000)
    taken = sample(call, before, touch, 2, clock, times(7.0, 8.0))
    assert clock.called == ["network", "touch", "block"] * 2
    assert taken.samples_ms == pytest.approx([2, 3]), "without reading the input"
    assert taken.reference_ms == pytest.approx([40, 41])
    assert taken.at_s == (7.0, 8.0)


def test_a_network_runs_in_a_loop_whose_first_call_does_not_count() -> None:
    clock = FakeClock()
    call, touch = clock.taking("network", 900, 40, 41, 42), clock.taking("touch")
    taken = sample(call, None, touch, 3, clock, times(5, 6, 7))
    assert clock.called == ["network"] * 4
    assert taken == Visit(pytest.approx((40, 41, 42)), (), (5, 6, 7))


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
    durations: tuple[float, ...], limits: dict[str, Any], answer: float, calls: int
) -> None:
    clock = FakeClock()
    assert warm_up(clock.taking("job", *durations), clock, **limits) == pytest.approx(answer)
    assert len(clock.called) == calls


@pytest.mark.parametrize(
    ("estimate_ms", "calls"), [(1e-3, 3), (0, 3), (33.3, 3), (33.4, 2), (50, 2), (51, 1), (500, 1)]
)
def test_calls_that_fit_into_a_tenth_of_a_second(estimate_ms: float, calls: int) -> None:
    assert loops(estimate_ms) == calls


# ---- The latencies behind samples of a machine whose speed changes; it is made up, so both are known


Drift = Callable[[float], float]  # from 0 (the run's begin) to 1 (its end)


def usual(at: float) -> float:
    return 1.0


def measured(
    jobs: Mapping[str, float], rounds: int, drift: Drift, noise: float = 0.0, seed: int = 1
) -> dict[str, list[Visit]]:
    """Every job once a round in random order; a sample is the job's ms times the moment's drift."""
    draw = random.Random(seed)
    order = [k for _ in range(rounds) for k in draw.sample(list(jobs), len(jobs))]
    found: dict[str, list[Visit]] = {k: [] for k in jobs}
    for i, key in enumerate(order):
        factor = drift(i / len(order)) * math.exp(noise * draw.gauss(0, 1))
        found[key].append(Visit((jobs[key] * factor,), (), (1e9 + 0.1 * i,)))
    return found


def ms_of(found: Latencies) -> dict[str, float]:
    return {k: job.latency_ms for k, job in found.jobs.items()}


JOBS = {f"job {i}": 0.5 * 1.2**i for i in range(30)}  # 0.5 to 100 ms


def test_what_is_measured_in_slow_times_alone_comes_out_as_the_others() -> None:
    """The point of it: a plain median of its samples would be twice the latency."""
    visits = measured(JOBS, 8, lambda at: 1.0 if at < 0.75 else 2.0)
    begin = 1e9 + 0.1 * 0.75 * 8 * len(JOBS)
    visits["job 3"] = [v for v in visits["job 3"] if v.at_s[0] >= begin]
    assert len(visits["job 3"]) == 2
    assert {v.samples_ms[0] for v in visits["job 3"]} == {2 * JOBS["job 3"]}
    found = latencies(visits)
    assert ms_of(found) == pytest.approx(JOBS, rel=0.02)
    assert found.jobs["job 3"].spread is None, "two samples have no halves"


@pytest.mark.parametrize("calls", [1, 3])
def test_the_spread_is_between_every_other_visit(calls: int) -> None:
    """The visits of one job take 10 and 12 in turns, among many that are steady."""
    visits = measured(JOBS, 8, usual)
    jumping = sorted(visits["job 9"], key=lambda v: v.at_s)
    visits["job 9"] = [
        Visit((12.0 - i % 2 * 2,) * calls, (), tuple(v.at_s[0] + 0.01 * c for c in range(calls)))
        for i, v in enumerate(jumping)
    ]
    visits["once"] = [Visit((10.0, 12.0) * 2, (), (1e9, 1e9 + 1, 1e9 + 2, 1e9 + 3))]
    found = latencies(visits)
    assert found.jobs["once"].spread is None, "one visit has no other"
    assert found.jobs["job 9"].spread == pytest.approx(0.2)
    assert found.jobs["job 9"].latency_ms == pytest.approx(math.sqrt(10.0 * 12.0))
    assert found.floor == pytest.approx(0.0), "the median of thirty"


def test_the_network_before_a_block_tells_of_the_moment_alone() -> None:
    """Two blocks, each measured in another half of the run; only the network before both connects them."""

    def visit(ms: float, i: int, slow: float) -> Visit:
        return Visit((ms * slow,), (50.0 * slow,), (1e9 + i,), "net")

    visits = {
        "early": [visit(4.0, i, 1.0) for i in range(20)],
        "late": [visit(6.0, i, 2.0) for i in range(20, 40)],
        "net": [Visit((40.0,), (), (1e9 + 0.5,))],
    }
    found = latencies(visits)
    ratio = found.jobs["late"].latency_ms / found.jobs["early"].latency_ms
    assert ratio == pytest.approx(1.5, rel=0.02), "not 3"
    assert set(found.jobs) == {"early", "late", "net"}
    # In a loop of its own the network takes 40, not the 50 of a loop that is broken up.
    ratio = found.jobs["net"].latency_ms / found.jobs["early"].latency_ms
    assert ratio == pytest.approx(10, rel=0.02)
    del visits["net"]
    assert set(latencies(visits).jobs) == {"early", "late"}


def test_quiet_and_busy_are_tenths_of_the_run() -> None:
    """A fifth of the run at half the time, a fifth at three times: the tenths lie inside of them."""

    def drift(at: float) -> float:
        return 0.5 if at < 0.2 else 1.0 if at < 0.8 else 3.0

    found = latencies(measured(JOBS, 10, drift))
    assert (found.quiet, found.busy) == pytest.approx((0.5, 3.0), rel=0.02)
    assert ms_of(found) == pytest.approx(JOBS, rel=0.02)
    assert found.floor < 0.01, "what the machine did is no noise of the points"


def test_noise_of_the_samples_averages_out() -> None:
    """Against numbers of statistics: a median of 20 of deviation s scatters by about 1.25 s / sqrt(20)."""
    found = latencies(measured(JOBS, 20, lambda at: 1.0 + 0.5 * math.sin(12 * at), noise=0.04))
    scale = statistics.median(found.jobs[k].latency_ms / ms for k, ms in JOBS.items())
    off = [math.log(found.jobs[k].latency_ms / ms / scale) for k, ms in JOBS.items()]
    expected = 1.25 * 0.04 / math.sqrt(20)
    assert 0.5 * expected < statistics.pstdev(off) < 2 * expected
    # Two halves of ten each: the median of |N(0, s)| is 0.67 s, s of the difference of two medians.
    halves = 0.67 * math.sqrt(2) * 1.25 * 0.04 / math.sqrt(10)
    assert 0.5 * halves < found.floor < 2 * halves


# ---- Other programs, and a machine that becomes slower


def shared(share: float) -> dict[str, list[Visit]]:
    """Visits beside other programs that use `share` processors all the time."""

    def beside(v: Visit) -> Visit:
        return replace(v, others_s=500.0 + share * (v.at_s[0] + v.samples_ms[0] / 1e3 - 1e9))

    return {k: [*map(beside, vs)] for k, vs in measured(JOBS, 8, usual).items()}


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_other_programs_are_told_and_correct_nothing(share: float) -> None:
    found = latencies(shared(share))
    assert found.others == pytest.approx(share, abs=1e-6)
    assert found.jobs == latencies(measured(JOBS, 8, usual)).jobs


def test_a_worker_that_died_is_no_other_program() -> None:
    """From then on its own time is among the times of others."""
    visits = shared(0.4)
    middle = 1e9 + 0.05 * 8 * len(JOBS)
    for v in (v for taken in visits.values() for v in taken if v.at_s[0] > middle):
        assert v.others_s is not None
        object.__setattr__(v, "others_s", v.others_s + 90.0)
    assert latencies(visits).others == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize("factor", [1.0, 1.5, 0.7])
def test_how_the_machine_went_from_the_first_quarter_to_the_last(factor: float) -> None:
    """The speed changes in the middle, so that the quarters at the ends are whole."""
    found = latencies(measured(JOBS, 20, lambda at: factor if at > 0.5 else 1.0))
    assert found.trend == pytest.approx(factor, rel=0.02)


def test_the_unrest_of_a_network_is_its_usual_round_over_its_fastest() -> None:
    """A stopwatch on a calm machine says 17.4 ms; load of other programs came in five of six rounds."""
    clock, taken = FakeClock(), []
    for load in (2.0, 2.1, 1.0, 2.0, 2.2, 2.1):
        call = clock.taking("network", *(17.4 * load,) * 4)
        taken.append(sample(call, None, lambda: None, 3, clock, clock))
    assert unrest(taken) == pytest.approx(2.05)
    assert unrest(taken[:1]) == 1.0
