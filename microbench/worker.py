"""The process that measures: what a worker does for each request, how it is started, and who is asked.

Devices of a framework are set before it starts, so every run has a worker process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from lolat.errors import DeviceError, InputError, LolatError, MeasuringError, MissingPackageError
from lolat.graph import Graph
from lolat.io.process import Child, Handler, ProcessDied, RequestFailed
from microbench import backends
from microbench.backends import OPTIONS, has, joined, named
from microbench.environment import others_s
from microbench.timing import sample, warm_up

WORKER = "microbench.worker:start"
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
                # Not of one that failed: its memory is free again.
                self.calls[request["key"]] = call
                return {"estimate_ms": estimate}
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
        """A job is a part of training, or a Graph or the NETWORK of a user and a batch size."""
        if "training" in job:
            ((part, arguments),) = job["training"].items()  # a method of it, and its arguments
            if "graph" in arguments:
                arguments = {**arguments, "graph": Graph.from_dict(arguments["graph"])}
            return getattr(backends.training_of(self.backend), part)(**arguments)
        if "graph" in job:
            return self.backend.prepare_graph(Graph.from_dict(job["graph"]), job["batch_size"])
        size = tuple(job["input_size"])
        return self.backend.prepare_network(job["network"], size, job["batch_size"])

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


# ---- As their parent sees them


class WorkerProcess(Child):
    """A worker with a backend on a device (see `microbench.worker`)."""

    def __init__(self, backend: str, device: str) -> None:
        """Start it and wait until its framework is loaded; LolatError when that is refused."""
        super().__init__(WORKER, backend, device, name="the measuring process")
        try:
            self.ready()
        except BaseException as problem:
            self.close()
            if not isinstance(problem, (ProcessDied, RequestFailed)):
                raise
            error = problem.as_error(MeasuringError) if isinstance(problem, RequestFailed) else None
            if error is None or type(error) is MeasuringError:
                error = MeasuringError(f"the measuring process did not start: {problem}")
            raise error from None


# ---- Which backend measures when none is given: what is installed and, for a GPU, what finds one

PACKAGES = {
    "tensorflow": ("keras", "tensorflow"),
    "torch": ("torch",),
    "onnxruntime": ("torch", "onnx", "onnxruntime"),
}
"""Backend -> what must be installed."""
ORDER = {
    "cpu": ("tensorflow", "torch"),  # onnxruntime needs torch
    "gpu": ("torch", "tensorflow", "onnxruntime"),
}
"""Device -> backends, the one that is preferred first."""
ASK_LIMIT_S = 60.0


def lacking(name: str) -> list[str]:
    """Packages of a backend that are not installed; whether they work is not tried."""
    return [package for package in PACKAGES[name] if not _is_installed(package)]


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a module that hides where it is from
        return False


def pick(
    device: str,
    options: Sequence[str],
    start_worker: Callable[[str, str], WorkerProcess] = WorkerProcess,
) -> tuple[str, str]:
    """(backend with `options`, what to say about the choice; "" where it is the usual one).

    For a CPU the first that is installed; for a GPU the first that finds one, which is tried in a
    process of its own. Raises InputError when no backend has these options, MissingPackageError or
    DeviceError, with what was looked for, when there is none.
    """
    able = [n for n in ORDER[device] if all(has(n, o) for o in options)]
    if not able:
        each = "; ".join(f"{n} has {', '.join(map(named, own))}" for n, own in OPTIONS.items())
        raise InputError(f"no backend has {' and '.join(map(named, options))} together; {each}")
    return _for_gpu(able, options, start_worker) if device == "gpu" else _for_cpu(able, options)


def _for_cpu(able: Sequence[str], options: Sequence[str]) -> tuple[str, str]:
    name = next((n for n in able if not lacking(n)), None)
    if name is None:
        needs = "; ".join(f"{n} needs {' and '.join(lacking(n))}" for n in able)
        raise MissingPackageError(
            f"nothing is installed to measure with ({needs}), for example {able[0]}", able[0]
        )
    usual = ORDER["cpu"][0]
    if name == usual:
        return joined(name, options), ""
    why = f"as {usual} is not installed"
    if usual not in able:
        why = "which has that" + (f", as {able[0]} is not installed" if name != able[0] else "")
    return joined(name, options), f"measuring with {name}, {why}"


def _for_gpu(
    able: Sequence[str], options: Sequence[str], start_worker: Callable[[str, str], WorkerProcess]
) -> tuple[str, str]:
    passed_over = []
    for name in able:
        missing = lacking(name)
        if missing:
            passed_over.append(f"{name}: {' and '.join(missing)} not installed")
            continue
        backend = joined(name, options)
        try:
            with start_worker(backend, "gpu") as worker:
                answer = worker.request({"do": "environment"}, ASK_LIMIT_S)["environment"]
        except (LolatError, ProcessDied, RequestFailed) as problem:
            # What a backend says of a device that is not there, without its advice.
            error = problem.as_error(LolatError) if isinstance(problem, RequestFailed) else problem
            reason = error.data.get("why", error) if isinstance(error, LolatError) else error
            passed_over.append(f"{name}: {reason}")
            continue
        version = f"{name} {answer.get('framework_version', '')}".strip()
        place = f" on {answer['device_name']}" if answer.get("device_name") else ""
        others = f" ({'; '.join(passed_over)})" if passed_over else ""
        another = "`lolat learn gpu --backend NAME` takes another framework"
        return backend, f"measuring with {version}{place}{others}; {another}"
    raise DeviceError(
        f"no gpu here: {'; '.join(passed_over)}; use `lolat learn cpu`, or install one of these for "
        "your GPU, and its driver"
    )
