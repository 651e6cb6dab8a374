"""What a worker does for each request, in this process; the process around it: test_process."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from microbench import backends, worker
from microbench.backends import Prepared
from microbench.worker import FIRST, Worker, go_first
from tests.microbench.fake_backend import Fake


@pytest.fixture
def called() -> list[str]:
    return []


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch, called: list[str]) -> Worker:
    """A worker that has three things prepared: two that can be touched, and a plain function."""
    monkeypatch.setattr(backends, "create", lambda backend, device: Fake(device))
    found = Worker("fake", "cpu")

    class Noted(Prepared):
        """Writes down when it is called and touched."""

        name = ""

        def touch(self) -> None:
            called.append(f"touch {self.name}")

    def make(name: str) -> Prepared:
        call = Noted(lambda: called.append(name))
        object.__setattr__(call, "name", name)
        return call

    found.calls = {n: make(n) for n in ("net", "block")}
    found.calls["layer"] = lambda: called.append("layer")
    return found


def test_a_block_runs_after_the_network_with_its_own_input_touched(
    working: Worker, called: list[str]
) -> None:
    answer = working.answer({"do": "sample", "key": "block", "before": "net", "calls": 2})
    assert called == ["net", "touch block", "block"] * 2
    assert answer["before"] == "net"
    assert (len(answer["samples_ms"]), len(answer["reference_ms"]), len(answer["at_s"])) == (
        2,
        2,
        2,
    )


def test_a_network_runs_in_a_loop(working: Worker, called: list[str]) -> None:
    answer = working.answer({"do": "sample", "key": "net", "before": "", "calls": 2})
    assert called == ["net"] * 3
    assert (len(answer["samples_ms"]), answer["reference_ms"], answer["before"]) == (2, [], "")


def test_what_has_no_input_to_touch_runs_all_the_same(working: Worker, called: list[str]) -> None:
    working.answer({"do": "sample", "key": "layer", "before": "net", "calls": 1})
    assert called == ["net", "layer"]


def test_moments_are_on_the_systems_clock(working: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.time, "time", lambda: 1.7e9 + 0.12345)
    answer = working.answer({"do": "sample", "key": "net", "before": "", "calls": 1})
    assert answer["at_s"] == [1.7e9 + 0.123]


def test_what_it_is_not_asked_for() -> None:
    with pytest.raises(ValueError, match="unknown request 'dance'"):
        Worker.answer(object.__new__(Worker), {"do": "dance"})


def test_touching_reads_the_inputs() -> None:
    """All of each: what was not read would not lie in a cache."""
    read: list[str] = []

    class Watched(np.ndarray):
        def max(self, *args: Any, **kwargs: Any) -> Any:
            read.append(str(self.shape))
            return super().max(*args, **kwargs)

    inputs = tuple(np.zeros(shape, np.float32).view(Watched) for shape in ((2, 3), (5,)))
    runs: list[int] = []
    call = Prepared(lambda: runs.append(1), inputs)
    call.touch()
    assert read == ["(2, 3)", "(5,)"]
    assert runs == []
    call()
    assert runs == [1]
    Prepared(lambda: None).touch()


def priorities(monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> list[Any]:
    asked: list[Any] = []

    def setpriority(which: int, who: int, priority: int) -> None:
        asked.append((which, who, priority))
        if error is not None:
            raise error

    monkeypatch.setattr(os, "setpriority", setpriority, raising=False)
    monkeypatch.setattr(os, "PRIO_PROCESS", 0, raising=False)
    return asked


def test_it_asks_to_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = priorities(monkeypatch)
    go_first()
    assert asked == [(os.PRIO_PROCESS, 0, FIRST)]
    assert FIRST == -20


@pytest.mark.parametrize("error", [PermissionError(13, "no"), OSError(1, "no")])
def test_without_permission_it_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    asked = priorities(monkeypatch, error)
    go_first()
    assert len(asked) == 1


def test_where_there_are_no_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "setpriority", raising=False)
    go_first()
