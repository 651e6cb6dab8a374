"""A backend without a framework, and a worker process that has it."""

from __future__ import annotations

import os
from typing import Any

import microbench.worker
from lolat.errors import DeviceError, MeasuringError
from lolat.io.process import Handler
from microbench import backends
from microbench.backends import Prepared

START = "tests.microbench.fake_backend:start"


class Fake:
    name = "fake"

    def __init__(self, device: str) -> None:
        if device == "gpu":
            raise DeviceError("no gpu here: looked under the table")
        if device == "broken":
            raise RuntimeError("import broken")
        # As it was when threads of a framework would have been started.
        self.nice = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0

    def environment(self) -> dict[str, Any]:
        return {"framework": "fake", "nice": self.nice}

    def available_bytes(self) -> int | None:
        return 12345

    def prepare_graph(self, graph: Any, batch_size: int) -> Prepared:
        return Prepared(lambda: None)

    def prepare_network(self, spec: str, input_size: tuple[int, ...], batch_size: int) -> Prepared:
        if spec == "kill":
            os.kill(os.getpid(), 9)
        if spec == "unknown":
            raise MeasuringError("operation 'foo' is not built here")
        return Prepared(lambda: None)


def start(backend: str, device: str) -> Handler:
    """What `microbench.worker` does, with the fake among the backends."""
    backends.BACKENDS["fake"] = "tests.microbench.fake_backend:Fake"
    # What else runs on the machine of the tests is none of theirs.
    microbench.worker.others_s = lambda pids: None  # type: ignore[assignment]
    return microbench.worker.start(backend, device)
