"""The process that measures.

Each run has its own, because a framework's devices must be set before the framework starts.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from lolat.errors import MeasuringError
from lolat.graph import Graph
from lolat.io.process import START_LIMIT_S, Child, Handler, ProcessDied, RequestFailed
from lolat.readers.size import as_size

from . import backends, environment
from .timing import sample, warm_up

WORKER = f"{__name__}:start"


class Worker:
    """Answers requests; keeps prepared calls by the key of their job."""

    def __init__(self, backend: str, device: str) -> None:
        self.backend = backends.create(backend, device)
        self.calls: dict[str, Callable[[], object]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        match request["do"]:
            case "environment":
                own = self.backend.available_bytes()
                free = environment.available_bytes() if own is None else own
                return {"environment": self.backend.environment(), "available_bytes": free}
            case "prepare":
                call = self.prepare(request["job"])
                estimate = warm_up(call, time.perf_counter)
                self.calls[request["key"]] = call  # a call that failed has freed its memory
                gc.collect()
                gc.freeze()  # later collections skip prepared objects, which stay
                return {"estimate_ms": estimate}
            case "sample":
                return self.sample(request)
            case "start":
                graph = Graph.from_dict(request["graph"])
                trained = backends.training_of(self.backend)
                time_ms = trained.start(graph, request["batch_size"], request["optimizer"])
                return {"once_ms": time_ms}
            case other:
                raise ValueError(f"unknown request {other!r}")

    def prepare(self, job: dict[str, Any]) -> Callable[[], object]:
        """Prepare the call of a job: a part of training, a Graph, or a user's NETWORK at a batch size."""
        if "training" in job:
            ((part, arguments),) = job["training"].items()  # a method of `Training`
            if "graph" in arguments:
                arguments = {**arguments, "graph": Graph.from_dict(arguments["graph"])}
            return getattr(backends.training_of(self.backend), part)(**arguments)
        if "graph" in job:
            return self.backend.prepare_graph(Graph.from_dict(job["graph"]), job["batch_size"])
        size = as_size(job["input_size"])
        return self.backend.prepare_network(job["network"], size, job["batch_size"])

    def sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time a job again, after a network or in its own loop, without garbage collection."""
        call, before = self.calls[request["key"]], request["before"]
        network = self.calls[before] if before else None
        touch = getattr(call, "touch", lambda: None)
        gc.disable()
        try:
            visit = sample(call, network, touch, request["calls"], time.perf_counter, time.time)
        finally:
            gc.enable()
        others = environment.other_programs_s((os.getpid(), os.getppid()))
        return {**asdict(visit), "before": before, "others_s": others}


def start(backend: str, device: str) -> Handler:
    """The handler of a worker's requests; LolatError if the backend or device is not available."""
    return Worker(backend, device).answer


# ---- The worker as its parent sees it


class WorkerProcess(Child):
    """A worker with a backend on a device."""

    def __init__(self, backend: str, device: str) -> None:
        """Start the process and wait until its framework is loaded; LolatError if that is refused."""
        super().__init__(WORKER, backend, device, name="the measuring process")
        try:
            self.ready()
        except BaseException as problem:
            self.close()
            if isinstance(problem, RequestFailed):
                raise problem.as_error(MeasuringError) from None
            if isinstance(problem, ProcessDied):
                raise MeasuringError(f"the measuring process did not start: {problem}") from None
            raise


def ask_environment(worker: Child) -> dict[str, Any]:
    """A worker's `environment` and `available_bytes`; MeasuringError if it does not answer."""
    try:
        answer: dict[str, Any] = worker.request({"do": "environment"}, START_LIMIT_S)
    except (ProcessDied, RequestFailed) as problem:
        raise MeasuringError(f"no answer from the backend: {problem}") from None
    return answer
