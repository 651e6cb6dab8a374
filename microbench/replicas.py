"""Processes that measure together: all started, all waited for, all ended when one of them dies.

Devices of a framework are set before it starts, and replicas that exchange gradients are a process each,
so every measurement of several devices is in processes of its own. `microbench.replicas` runs in them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lolat import errors
from lolat.errors import LolatError, MeasuringError
from microbench.timing import Clock, time_once

# ---- What runs in a process of `microbench.replicas`: one request, one answer; and how
# replicas take times.

WARM_CALLS = 3
ROUNDS = 6
CALLS = 3  # of each round that are counted, after one that is not


def timed(
    calls: Sequence[Callable[[], object]],
    clock: Clock,
    meet: Callable[[], object] = lambda: None,
    rounds: int = ROUNDS,
) -> list[list[float]]:
    """Wall times of each call, ms: (calls, rounds x CALLS).

    In rounds, each in an order of its own, so that a slow moment does not land on one call. The order is
    the same in all processes, because calls exchange something; `meet` waits for the others before each.
    """
    for call in calls:
        for _ in range(WARM_CALLS):
            call()
    found: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        order = list(range(len(calls)))
        random.Random(number).shuffle(order)
        for index in order:
            calls[index]()  # others have run: its tensors lie in memory rather than in a cache
            for _ in range(CALLS):
                meet()
                found[index].append(time_once(calls[index], clock))
    return found


def main() -> None:
    """Answer the request on stdin by the function that is named on the command line."""
    # What a framework prints must not mix with the answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())

    def watch() -> None:
        sys.stdin.read()
        shutil.rmtree(request["folder"], ignore_errors=True)
        os._exit(0)  # the parent is gone; a measurement may be under way

    threading.Thread(target=watch, daemon=True).start()
    module, _, attribute = sys.argv[1].partition(":")
    try:
        function: Callable[[Any, Clock], Any] = getattr(importlib.import_module(module), attribute)
        said: dict[str, Any] = {"answer": function(request, time.perf_counter)}
    except LolatError as error:
        said = {"error": str(error), "kind": type(error).__name__}
    except MemoryError:
        said = {"error": "not enough memory; try fewer replicas", "kind": "LolatError"}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        said = {"error": f"{type(error).__name__}: {lines[0][:300]}", "kind": "MeasuringError"}
    answers.write(json.dumps(said))
    answers.flush()
    # Threads of a framework may wait for replicas that are gone.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

# ---- replicas ----------------------------------------

LOOK_S = 0.05  # between looks at whether the processes still live
LAST_WORDS_BYTES = 4096

# A process imports from where its parent does; -P, so that no file of the working directory does harm.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from microbench.replicas import main; main()"
)

Together = Callable[[str, Sequence[Mapping[str, Any]], float], list[Any]]
"""How processes are run: `run_together` outside tests."""


def run_together(call: str, requests: Sequence[Mapping[str, Any]], limit_s: float) -> list[Any]:
    """What `call` answers to each of `requests`, each in a process of its own, all at the same time.

    `call`: `package.module:function`, which gets a request and a clock; requests and answers are of what
    JSON has. A request also has "folder", where all processes can leave files for one another; it is
    gone afterwards. Raises the LolatError of the first process that has one, and MeasuringError where one
    dies or `limit_s` seconds have passed; the others are ended then.
    """
    with tempfile.TemporaryDirectory(prefix="lolat-") as folder, contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(_Process(call, {**request, "folder": folder}, folder))
            for request in requests
        ]
        end = time.monotonic() + limit_s
        while running := [p for p in started if p.code() is None]:
            for process in started:
                if process not in running:
                    process.answer()  # which raises where there is none: the others wait for it
            if time.monotonic() >= end:
                raise MeasuringError(
                    f"the measuring process{'es' * (len(started) > 1)} did not end within "
                    f"{limit_s:.0f} s; on a busy machine try again, or with fewer replicas"
                )
            time.sleep(LOOK_S)
        return [process.answer() for process in started]


class _Process:
    """One process with its request; leaving the context ends it."""

    def __init__(self, call: str, request: Mapping[str, Any], folder: str) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        path = json.dumps([p for p in sys.path if isinstance(p, str)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, path, call],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._errors,
            env={**os.environ, "TMPDIR": folder},  # frameworks leave files when they are ended
            start_new_session=True,  # a signal to the terminal's group is the parent's to handle
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead already: its epitaph says how
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()  # and left open: a process ends with its parent

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._said.close()
        self._errors.close()

    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def answer(self) -> Any:
        """What an ended process said; raises what went wrong in it."""
        self._said.seek(0)
        try:
            found = json.loads(self._said.read())
        except ValueError:
            raise MeasuringError(self._epitaph()) from None
        if "error" in found:
            kind = getattr(errors, found["kind"], MeasuringError)
            known = isinstance(kind, type) and issubclass(kind, LolatError)
            raise (kind if known else MeasuringError)(found["error"])
        return found["answer"]

    def _epitaph(self) -> str:
        """How the process ended, with the last thing that it said."""
        code = self._process.wait()
        how = f"exited with code {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was ended by signal {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how = "was killed (often: the system ran out of memory)"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - LAST_WORDS_BYTES))
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"a measuring process {how}" + (f": {said[-1][:200]}" if said else "")


def meeting_file(request: Mapping[str, Any]) -> Path:
    """Where the processes of one `run_together` can find one another."""
    return Path(request["folder"]) / "meet"
