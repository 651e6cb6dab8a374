"""The probe of the machine's speed, with a clock of its own and with machines that changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain, repeat

import pytest

from lolat.microbench import probe
from lolat.microbench.probe import Kernel


class Clock:
    """A clock that goes on when a kernel runs, in ms."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms / 1e3

    def kernel(self, *times_ms: float) -> Callable[[], None]:
        """Takes these times, then the last one for ever."""
        left = chain(times_ms, repeat(times_ms[-1]))

        def run() -> None:
            self.now_ms += next(left)

        return run


def test_the_fastest_and_the_median_of_a_kernel() -> None:
    clock = Clock()
    made = {
        "steady": Kernel([clock.kernel(2.0)]),
        "disturbed": Kernel([clock.kernel(99.0, 5.0, 3.0, 9.0, 4.0)]),  # the first is not counted
        "thrice": Kernel([clock.kernel(1.0)], forks=3),
    }
    found = probe.probe(1, clock, made, rounds=4)
    expected = {"steady": (2.0, 2.0), "disturbed": (3.0, 4.5), "thrice": (3.0, 3.0)}
    assert {n: pytest.approx(ms) for n, ms in found.items()} == expected


def test_the_parts_of_a_kernel_run_at_once() -> None:
    met = threading.Barrier(
        2, timeout=20
    )  # broken, an error, if one part waits for the end of the other
    found = probe.probe(2, made={"met": Kernel([met.wait, met.wait], forks=2)}, rounds=1)
    assert met.n_waiting == 0
    assert not met.broken
    assert found["met"][0] > 0


def test_an_error_of_a_kernel_is_told() -> None:
    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        probe.probe(1, made={"large": Kernel([fail])}, rounds=1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_kernel_runs_in_as_many_threads(threads: int) -> None:
    """All but the interpreter's."""
    for name, kernel in probe.kernels(threads).items():
        assert len(kernel.parts) == (1 if name == "calls" else threads)
        kernel.parts[0]()


def test_an_operation_takes_half_of_what_a_fork_takes_longer() -> None:
    then = dict.fromkeys(probe.kernels(2), (3.0, 4.5))
    slower = dict.fromkeys(then, (4.5, 6.75))
    assert probe.waking_ms(then, slower) == pytest.approx(0.5 * (5.625 - 3.75) / 15)
    assert probe.waking_ms(slower, then) == pytest.approx(-0.5 * (5.625 - 3.75) / 15)
    assert probe.waking_ms(then, slower | {"forks": (3.0, 4.5)}) == 0.0, "memory alone is slower"


def test_the_median_of_several_probes() -> None:
    several = [{"a": (1.0, 9.0)}, {"a": (4.0, 5.0)}, {"a": (2.0, 6.0)}]
    assert probe.middle(several) == {"a": [2.0, 6.0]}
