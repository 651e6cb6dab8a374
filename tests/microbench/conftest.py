"""What the tests of measuring share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from microbench import doctor, evaluate, learn
from microbench.runner import Runner
from tests.microbench.fakes import FakeDevice


@pytest.fixture(autouse=True)
def small_numbers_stay() -> Iterator[None]:
    """Backends let the processor take the smallest numbers for 0, which other tests must not inherit."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """What every run measures, in place of this machine."""
    found = FakeDevice()
    measured_by(monkeypatch, found)
    return found


def measured_by(monkeypatch: pytest.MonkeyPatch, found: FakeDevice) -> None:
    """Let every run have the workers and the clock of a fake device."""

    def runner(backend: str, device: str, progress: Any, clock: Any = found.clock) -> Runner:
        return Runner(backend, device, progress, found.start, clock)

    for module in (doctor, evaluate, learn):
        monkeypatch.setattr(module, "Runner", runner)
