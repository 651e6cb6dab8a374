"""A worker that needs no framework and no time, and does what a test tells it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from microbench.process import JobFailed, WorkerDied


class FakeDevice:
    """Starts workers; all of them write what they are asked into `asked`: (worker, verb, key).

    `dies` and `refuses`: (verb, key) -> how many times (a large number: always). Every request takes
    `request_s` seconds of the fake `clock`; a visit's reference is `reference_ms(key, number)`.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, str]] = []
        self.requests: list[dict[str, Any]] = []
        self.workers: list[FakeWorker] = []
        self.dies: Counter[tuple[str, str]] = Counter()
        self.refuses: Counter[tuple[str, str]] = Counter()
        self.estimate_ms: dict[str, float] = {}
        self.restless: set[str] = set()
        self.environment: dict[str, Any] = {"framework": "fake"}
        self.free_bytes: int | None = None
        self.now = 0.0
        self.request_s = 0.0

    def start(self, backend: str, device: str) -> Any:
        """What Runner starts a worker with."""
        assert all(w.closed for w in self.workers), "two workers at a time"
        self.workers.append(FakeWorker(self, len(self.workers)))
        return self.workers[-1]

    def clock(self) -> float:
        return self.now

    def keys(self, verb: str) -> list[str]:
        """The jobs that were asked for with `verb`, in order."""
        return [key for _, do, key in self.asked if do == verb]


class FakeWorker:
    def __init__(self, device: FakeDevice, number: int) -> None:
        self.device, self.number = device, number
        self.prepared: set[str] = set()
        self.closed = self.dead = False

    def request(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert not self.dead, "asked a dead worker"
        assert not self.closed, "asked a closed worker"
        assert limit_s > 0
        device = self.device
        device.now += device.request_s
        verb, key = document["do"], document.get("key", "")
        device.requests.append(document)
        device.asked.append((self.number, verb, key))
        if device.dies[verb, key] > 0:
            device.dies[verb, key] -= 1
            self.dead = True
            raise WorkerDied("the measuring process was killed")
        if device.refuses[verb, key] > 0:
            device.refuses[verb, key] -= 1
            raise JobFailed("ResourceExhausted: no")
        if verb == "environment":
            return {"environment": device.environment}
        if verb == "memory":
            return {"available_bytes": device.free_bytes}
        if verb == "prepare":
            self.prepared.add(key)
            return {"estimate_ms": device.estimate_ms.get(key, 1.0)}
        if verb == "forget":
            assert set(document["keys"]) <= self.prepared
            self.prepared -= set(document["keys"])
            return {}
        assert {key, document["reference"]} <= self.prepared, "timed what is not prepared"
        calls = document["calls"]
        reference = 50.0 if key in device.restless else 5.0
        return {"samples_ms": [2.0] * calls, "reference_ms": [reference] * (calls + 1)}

    def close(self) -> None:
        self.closed = True
