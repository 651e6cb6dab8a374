"""The process that measures, and the choice of its backend.

Devices of a framework are set before it starts, so every run has a worker process of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from lolat.errors import InputError, LolatError, MeasuringError, MissingPackageError
from lolat.graph import Graph
from lolat.io.process import Child, Handler, ProcessDied, RequestFailed
from microbench import backends, environment
from microbench.backends import has, joined, with_dashes
from microbench.timing import sample, warm_up

HIGHEST_PRIORITY = -20  # as a nice value
WORKER = "microbench.worker:start"


class Worker:
    """Answers requests; keeps the prepared calls by their job's key."""

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
        """A job is a part of training, a Graph at a batch size, or a user's NETWORK at a batch size."""
        if "training" in job:
            ((part, arguments),) = job["training"].items()  # a method of `Training`
            if "graph" in arguments:
                arguments = {**arguments, "graph": Graph.from_dict(arguments["graph"])}
            return getattr(backends.training_of(self.backend), part)(**arguments)
        if "graph" in job:
            return self.backend.prepare_graph(Graph.from_dict(job["graph"]), job["batch_size"])
        size = tuple(job["input_size"])
        return self.backend.prepare_network(job["network"], size, job["batch_size"])

    def sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """A `timing.Visit` of a job, after a network or in a loop of its own."""
        call, before = self.calls[request["key"]], request["before"]
        visit = sample(
            call,
            self.calls[before] if before else None,
            getattr(call, "touch", lambda: None),
            request["calls"],
            time.perf_counter,
            time.time,
        )
        others = environment.others_s((os.getpid(), os.getppid()))
        return {**asdict(visit), "before": before, "others_s": others}


def start(backend: str, device: str) -> Handler:
    """The handler of a worker's requests; LolatError where there is no such backend or device."""
    raise_priority()
    return Worker(backend, device).answer


def raise_priority() -> None:
    """Let this process and the threads that it starts go before other programs, where that is allowed.

    The machine is measured, not its scheduler. Without the permission (root, or CAP_SYS_NICE) the
    priority stays as it is.
    """
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, HIGHEST_PRIORITY)


# ---- The worker as its parent sees it


class WorkerProcess(Child):
    """A worker with a backend on a device."""

    def __init__(self, backend: str, device: str) -> None:
        """Start it and wait until its framework is loaded; LolatError when that is refused."""
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


# ---- The choice of a backend: the first that is installed and, for a GPU, finds one

PACKAGES = {"tensorflow": ("keras", "tensorflow"), "torch": ("torch",)}
"""Backend -> packages that must be installed."""
ORDER = {"cpu": ("tensorflow", "torch"), "gpu": ("torch", "tensorflow")}
"""Device -> backends, the preferred one first."""


def pick(device: str, options: Sequence[str]) -> tuple[str, str]:
    """(backend with `options`, a remark on the choice; "" for the usual one).

    A GPU is looked for in a process of its own. Raises InputError when no backend has these options,
    MissingPackageError where none is installed, DeviceError or MeasuringError where none finds a GPU.
    """
    able = [n for n in ORDER[device] if all(has(n, o) for o in options)]
    if not able:
        wanted = " and ".join(map(with_dashes, options))
        raise InputError(f"no backend has {wanted} together; expected options of one --backend")
    problems: list[LolatError] = []
    for name in able:
        if any(importlib.util.find_spec(package) is None for package in PACKAGES[name]):
            continue
        backend = joined(name, options)
        try:
            if device == "gpu":
                WorkerProcess(backend, device).close()
        except LolatError as problem:
            problems.append(problem)
            continue
        return backend, "" if name == ORDER["cpu"][0] else f"measuring with {name}"
    if problems:
        raise problems[0]
    raise MissingPackageError(
        f"nothing is installed to measure with, for example {able[0]}", able[0]
    )
