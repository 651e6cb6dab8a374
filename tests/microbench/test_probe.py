"""The probe of the machine's speed, with a clock of its own and with machines that changed."""

from __future__ import annotations

import threading
from itertools import chain, repeat

import pytest

from lolat.microbench import probe
from lolat.microbench.probe import FORKS, ROUNDS


def test_the_fastest_and_the_median_without_the_first_round() -> None:
    calls_ms = chain(repeat(99.0, FORKS), *(repeat(float(n), FORKS) for n in range(ROUNDS)))
    now_ms = 0.0

    def part() -> None:
        nonlocal now_ms
        now_ms += next(calls_ms)

    found = probe.probe(1, lambda: now_ms / 1e3, [part])
    assert found == pytest.approx((0.0, FORKS * (ROUNDS - 1) / 2), abs=1e-6)


def test_the_parts_run_at_once() -> None:
    met = threading.Barrier(2, timeout=20)  # broken if one part waits for the end of the other
    assert probe.probe(2, parts=[met.wait, met.wait])[0] > 0
    assert not met.broken


def test_an_error_of_a_part_is_told() -> None:
    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        probe.probe(1, parts=[fail])


def test_an_operation_takes_half_of_what_a_fork_takes_longer() -> None:
    then, slower = (3.0, 4.5), (4.5, 6.75)
    assert probe.waking_ms(then, slower) == pytest.approx(0.5 * (5.625 - 3.75) / 15)
    assert probe.waking_ms(slower, then) == pytest.approx(-0.5 * (5.625 - 3.75) / 15)
