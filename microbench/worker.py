"""The process that measures: what it does for each request; it is started by `microbench.process`."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from typing import Any

from lolat.graph import Graph
from lolat.io.process import Handler
from microbench import backends
from microbench.environment import others_s
from microbench.timing import sample, visit, wait_until_quiet, warm_up

HIGHEST_PRIORITY = -20  # as a nice value


class Worker:
    """Keeps what was prepared, by the job's key."""

    def __init__(self, backend: str, device: str) -> None:
        self.backend = backends.create(backend, device)
        self.calls: dict[str, Callable[[], object]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what one request asks for."""
        match request["do"]:
            case "environment":
                return {"environment": self.backend.environment()}
            case "memory":
                return {"available_bytes": self.backend.available_bytes()}
            case "prepare":
                call = self.prepare(request["job"])
                estimate = warm_up(call, time.perf_counter)
                self.calls[request["key"]] = (
                    call  # not of one that failed: its memory is free again
                )
                return {"estimate_ms": estimate}
            case "time":
                return self.time(request)
            case "sample":
                return self.sample(request)
            case "start":
                job = request["job"]
                graph = Graph.from_dict(job["graph"])
                trained = backends.training_of(self.backend)
                return {"start_ms": trained.start(graph, job["batch_size"], job["optimizer"])}
            case "forget":
                for key in request["keys"]:
                    self.calls.pop(key, None)
                gc.collect()  # a network holds itself in cycles
                return {}
            case other:
                raise ValueError(f"unknown request {other!r}")

    def prepare(self, job: dict[str, Any]) -> Callable[[], object]:
        """A job is a layer, a part of training, or a Graph or the NETWORK of a user and a batch size."""
        if "training" in job:
            return backends.prepare_training(backends.training_of(self.backend), job["training"])
        if "layer" in job:
            return backends.training_of(self.backend).layer(job["layer"])
        if "graph" in job:
            return self.backend.prepare_graph(Graph.from_dict(job["graph"]), job["batch_size"])
        size = tuple(job["input_size"])
        return self.backend.prepare_network(job["network"], size, job["batch_size"])

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Samples of a job between samples of the reference block."""
        call, reference = self.calls[request["key"]], self.calls[request["reference"]]
        clock, patience_s = time.perf_counter, request.get("patience_s", 0.0)
        if patience_s > 0.0:
            wait_until_quiet(reference, request["quiet_ms"], patience_s, clock, time.sleep)
        taken = visit(call, reference, request["calls"], clock)
        return {"samples_ms": taken.samples, "reference_ms": taken.reference}

    def sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """Samples of a job as it is in use, after a network or in a loop of its own."""
        call, name = self.calls[request["key"]], request["before"]
        taken = sample(
            call,
            self.calls[name] if name else None,
            getattr(call, "touch", lambda: None),
            request["calls"],
            time.perf_counter,
            time.time,
        )
        return {
            "samples_ms": taken.samples,
            "reference_ms": taken.reference,
            "at_s": [round(t, 3) for t in taken.at_s],
            "before": name,
            "others_s": others_s((os.getpid(), os.getppid())),
        }


def start(backend: str, device: str) -> Handler:
    """What a worker process does with requests; LolatError where backend or device are not there."""
    raise_priority()
    return Worker(backend, device).answer


def raise_priority() -> None:
    """Let this process and the threads that it starts go before other programs, where that is allowed.

    What is measured is the machine; other programs are a state of it, and one that shares processors with
    them would measure the scheduler. Without the permission (it takes root, or CAP_SYS_NICE) it stays
    as it is.
    """
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, HIGHEST_PRIORITY)
