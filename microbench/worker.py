"""The process that measures: takes jobs as JSON lines on stdin, answers on a pipe of its own.

It may die (out of memory, a crash in a kernel) without taking the run along, and ends itself when its
parent does. Started by `microbench.process`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

from lolat.errors import LolatError
from lolat.graph import Graph
from microbench import backends
from microbench.environment import others_s
from microbench.timing import sample, settle, visit, wait_for_calm

FIRST = -20  # the highest priority that there is, as a nice value


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
                estimate = settle(call, time.perf_counter)
                self.calls[request["key"]] = (
                    call  # not of one that failed: its memory is free again
                )
                return {"estimate_ms": estimate}
            case "time":
                call, reference = self.calls[request["key"]], self.calls[request["reference"]]
                clock, patience_s = time.perf_counter, request.get("patience_s", 0.0)
                if patience_s > 0.0:
                    wait_for_calm(reference, request["calm_ms"], patience_s, clock, time.sleep)
                taken = visit(call, reference, request["calls"], clock)
                return {"samples_ms": taken.samples, "reference_ms": taken.reference}
            case "sample":
                call, name = self.calls[request["key"]], request["before"]
                before = self.calls[name] if name else None
                touch = getattr(call, "touch", lambda: None)
                taken_ms, before_ms, moments = sample(
                    call, before, touch, request["calls"], time.perf_counter, time.time
                )
                return {
                    "samples_ms": taken_ms, "reference_ms": before_ms,
                    "at_s": [round(t, 3) for t in moments], "before": name,
                    "others_s": others_s((os.getpid(), os.getppid())),
                }  # fmt: skip
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
            return backends.layer_step(self.backend, job["layer"])
        if "graph" in job:
            return self.backend.prepare_graph(Graph.from_dict(job["graph"]), job["batch_size"])
        size = tuple(job["input_size"])
        return self.backend.prepare_network(job["network"], size, job["batch_size"])


def go_first() -> None:
    """Let this process and the threads that it starts go before other programs, where that is allowed.

    What is measured is the machine; other programs are a state of it, and one that shares processors with
    them would measure the scheduler. Without the permission (it takes root, or CAP_SYS_NICE) it stays
    as it is.
    """
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, FIRST)


def main() -> None:
    """Serve requests until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # What a network's code prints or reads must not mix with answers and requests.
    incoming = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    # TensorFlow leaves files in the temporary folder when it does not end by itself.
    scratch = tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="lolat-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)

    requests: Queue[dict[str, Any]] = Queue()

    def listen() -> None:
        try:
            for line in incoming:
                requests.put(json.loads(line))
        finally:  # the parent is gone, or done with us; a measurement may be under way
            shutil.rmtree(scratch, ignore_errors=True)
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()

    def reply(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    go_first()
    try:
        worker = Worker(sys.argv[1], sys.argv[2])
        reply({"scratch": scratch})
    except LolatError as error:
        reply({"error": str(error), "kind": type(error).__name__})
        return
    while True:
        request = requests.get()
        try:
            reply(worker.answer(request))
        except MemoryError:
            reply({"error": "not enough memory", "kind": "MemoryError"})
        except LolatError as error:
            reply({"error": str(error), "kind": type(error).__name__})
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            reply({"error": f"{type(error).__name__}: {lines[0][:300]}", "kind": "Exception"})


if __name__ == "__main__":
    main()
