"""Fixtures of the tests of measuring."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.microbench.fakes import FakeDevice


@pytest.fixture(autouse=True)
def small_numbers_stay() -> Iterator[None]:
    """Backends let the processor take the smallest numbers for 0, which other tests must not inherit."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A fake device that every run measures, in place of this machine."""
    fake = FakeDevice()
    monkeypatch.setattr("lolat.microbench.runner.WorkerProcess", fake.start)
    monkeypatch.setattr("lolat.microbench.environment.other_programs", lambda: 0.0)
    monkeypatch.setattr("lolat.microbench.learn.probe", fake.probe)
    return fake
