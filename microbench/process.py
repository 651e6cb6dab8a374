"""Processes that measure, as their parent sees them: one worker for a run, or replicas together.

Devices of a framework are set before it starts, and replicas that exchange gradients are a process each,
so every measurement is in processes of its own. What goes on in them: `microbench.worker`, `replica`.
"""

from __future__ import annotations

import contextlib
import pkgutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from lolat.errors import LolatError, MeasuringError
from lolat.io.process import Child, Handler, ProcessDied, RequestFailed

WORKER = "microbench.worker:start"
REPLICA = "microbench.process:replica"

Together = Callable[[str, Sequence[Mapping[str, Any]], float], list[Any]]
"""How replicas are run: `run_together` outside tests."""


class WorkerProcess(Child):
    """A worker with a backend on a device (see `microbench.worker`)."""

    def __init__(self, backend: str, device: str) -> None:
        """Start it and wait until its framework is loaded; LolatError when that is refused."""
        super().__init__(WORKER, backend, device, name="the measuring process")
        try:
            self.ready()
        except BaseException as problem:
            self.close()
            not_started = f"the measuring process did not start: {problem}"
            if isinstance(problem, RequestFailed):
                error = problem.as_error(MeasuringError)
                raise (
                    MeasuringError(not_started) if type(error) is MeasuringError else error
                ) from None
            if isinstance(problem, ProcessDied):
                raise MeasuringError(not_started) from None
            raise


def run_together(call: str, requests: Sequence[Mapping[str, Any]], limit_s: float) -> list[Any]:
    """What `call` answers to each of `requests`, each in a process of its own, all at the same time.

    `call`: `package.module:function`, which gets a request and a clock; requests and answers are of what
    JSON has. A request also has "folder", where all processes can leave files for one another; it is
    gone afterwards. Raises the LolatError of the first process that has one, and MeasuringError where one
    dies or `limit_s` seconds have passed; the others are ended then.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lolat-") as folder,
        ThreadPoolExecutor(len(requests)) as pool,
        contextlib.ExitStack() as stack,  # innermost: who waits for a process goes on when it is ended
    ):
        name = "a measuring process"
        children = [
            stack.enter_context(Child(REPLICA, call, name=name, folder=folder)) for _ in requests
        ]
        answers = [
            pool.submit(child.request, {**request, "folder": folder}, limit_s)
            for child, request in zip(children, requests, strict=True)
        ]
        try:
            for answer in as_completed(answers):
                answer.result()  # which raises where there is none: the others wait for it
        except ProcessDied as died:
            hint = (
                "; on a busy machine try again, or with fewer replicas"
                if "within" in str(died)
                else ""
            )
            raise MeasuringError(f"{died}{hint}") from None
        except RequestFailed as failed:
            if failed.kind == "MemoryError":
                raise LolatError(f"{failed}; try fewer replicas") from None
            raise failed.as_error(MeasuringError) from None
        return [answer.result() for answer in answers]


def replica(call: str) -> Handler:
    """What a process of `run_together` does: `call` of each request."""
    return lambda request: pkgutil.resolve_name(call)(request, time.perf_counter)


def meeting_file(request: Mapping[str, Any]) -> Path:
    """Where the processes of one `run_together` can find one another."""
    return Path(request["folder"]) / "meet"
