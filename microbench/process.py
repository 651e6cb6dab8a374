"""The worker as its parent sees it: requests with a time limit, and a plain word when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from lolat import errors
from lolat.errors import LolatError, MeasuringError

START_LIMIT_S = 180.0
LOOK_S = 1.0  # between looks at whether the process still lives
LAST_WORDS_BYTES = 4096

# The worker imports from where its parent does; -P, so that no file of the working directory does harm.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from microbench.worker import main; main()"
)


class WorkerDied(Exception):
    """The worker ended in the middle of a request; the message says how."""


class JobFailed(Exception):
    """The worker lives, but could not do this job; the message says why."""


class WorkerProcess:
    """One worker process. Use as a context manager."""

    def __init__(self, backend: str, device: str) -> None:
        """Start it and wait until its framework is loaded; LolatError when that is refused."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._scratch = ""
        path = json.dumps([p for p in sys.path if isinstance(p, str)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, path, backend, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # a signal to the terminal's group is the parent's to handle
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            answer = self._next(START_LIMIT_S)
            self._scratch = answer.get("scratch", "")
            if "error" in answer:
                raise getattr(errors, answer["kind"], LolatError)(answer["error"])
        except WorkerDied as died:
            self.close()
            raise MeasuringError(f"the measuring process did not start: {died}") from died
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def request(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a request, return the answer. Raises WorkerDied or JobFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(document) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerDied(self._epitaph()) from None
        answer = self._next(limit_s)
        if "error" in answer:
            raise JobFailed(answer["error"])
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing: it ends itself, and tidies up, when its input ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # what was still buffered for a dead process
            self._process.stdin.close()
        try:
            self._process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._listener.join(LOOK_S)
        if not self._listener.is_alive():  # else a heir has the pipe, and closing would wait for it
            self._process.stdout.close()
        self._errors.close()
        if self._scratch:  # it had no time to tidy up
            shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _next(self, limit_s: float) -> dict[str, Any]:
        end = time.monotonic() + limit_s
        dead = False
        while True:
            try:
                line = self._answers.get(timeout=min(LOOK_S, max(0.0, end - time.monotonic())))
                break
            except queue.Empty:
                if dead:  # its pipe is still open in something that it started
                    raise WorkerDied(self._epitaph()) from None
                dead = self._process.poll() is not None
                if not dead and time.monotonic() >= end:
                    self._kill()
                    raise WorkerDied(f"no answer within {limit_s:.0f} s") from None
        try:
            return json.loads(line or "")
        except ValueError:  # nothing, or what a dying process got out
            raise WorkerDied(self._epitaph()) from None

    def _epitaph(self) -> str:
        """How the process ended, with the last thing that it said."""
        try:
            code = self._process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return "the measuring process stopped answering"
        how = f"exited with code {code}"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = str(-code)
            how = f"was ended by signal {name}"
            if name == "SIGKILL":
                how = "was killed (often: the system ran out of memory)"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - LAST_WORDS_BYTES))
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"the measuring process {how}" + (f": {said[-1][:200]}" if said else "")
