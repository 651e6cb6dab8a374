"""The answers of a worker to each request, here and in its own process."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from lolat.errors import DeviceError, InputError, MeasuringError
from lolat.microbench import backends, worker
from lolat.microbench.backends import Prepared
from lolat.microbench.worker import Worker, WorkerProcess
from tests.microbench import fakes


@pytest.fixture
def called() -> list[str]:
    return []


class Noted(Prepared):
    """Writes down when it is called and touched."""

    def touch(self) -> None:
        self.run("touch ")  # type: ignore[call-arg]


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch, called: list[str]) -> Worker:
    """A worker that has three things prepared: two that can be touched, and a plain function."""
    monkeypatch.setattr(backends, "create", lambda backend, device: fakes.Fake(device))
    found = Worker("fake", "cpu")

    def make(name: str) -> Prepared:
        return Noted(
            lambda how="": called.append(how + name + " while collecting" * gc.isenabled())
        )

    found.calls = {n: make(n) for n in ("net", "block")}
    found.calls["layer"] = lambda: called.append("layer")
    return found


@pytest.mark.parametrize(
    ("key", "before", "calls"),
    [
        ("block", "net", ["net", "touch block", "block"] * 2),
        ("net", "", ["net"] * 3),  # a loop of its own
        ("layer", "net", ["net", "layer"] * 2),  # which has no input to touch
    ],
)
def test_samples_of_a_job_in_use(
    working: Worker, called: list[str], monkeypatch: pytest.MonkeyPatch,
    key: str, before: str, calls: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(worker.time, "time", lambda: 1.7e9)
    answer = working.answer({"do": "sample", "key": key, "before": before, "calls": 2})
    assert called == calls
    assert gc.isenabled(), "between samples"
    assert answer["before"] == before
    assert (len(answer["samples_ms"]), len(answer["reference_ms"])) == (2, 2 * bool(before))
    assert answer["at_s"] == (1.7e9, 1.7e9), "of the system's clock"


# ---- In a process of its own


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WORKER", fakes.START)


def prepare(key: str = "job", network: str = "good") -> dict[str, Any]:
    job = {"network": network, "input_size": [], "batch_size": 1}
    return {"do": "prepare", "key": key, "job": job}


@pytest.mark.parametrize(
    ("backend", "device", "error", "words"),
    [
        ("fake", "gpu", DeviceError, "looked under the table"),
        ("none", "cpu", InputError, "no backend 'none'"),
        ("fake", "broken", MeasuringError, "import broken"),
    ],
)
def test_what_cannot_start(backend: str, device: str, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        WorkerProcess(backend, device)
