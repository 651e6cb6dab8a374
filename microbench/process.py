"""The worker as its parent sees it: requests with a time limit, and a plain word when it dies."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from lolat import errors
from lolat.errors import LolatError, MeasuringError

START_LIMIT_S = 180.0


class WorkerDied(Exception):
    """The worker ended in the middle of a request; the message says how."""


class JobFailed(Exception):
    """The worker lives, but could not do this job; the message says why."""


class WorkerProcess:
    """One worker process. Use as a context manager."""

    def __init__(self, backend: str, device: str) -> None:
        """Start it and wait until its framework is loaded; LolatError when that is refused."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        root = Path(__file__).resolve().parent.parent
        path = os.pathsep.join(p for p in (str(root), os.environ.get("PYTHONPATH")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "microbench.worker", backend, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path},
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            answer = self._next(START_LIMIT_S)
        except WorkerDied as died:
            self.close()
            raise MeasuringError(f"the measuring process did not start: {died}") from died
        if "error" in answer:
            self.close()
            kind = getattr(errors, answer["kind"], LolatError)
            raise kind(answer["error"])

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
        """End the process, whatever it is doing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # what was still buffered for a dead process
                    continue
        self._errors.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._answers.put(line)
        except ValueError:  # closed while reading
            pass
        self._answers.put(None)

    def _next(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            self._process.kill()
            self._process.wait()
            raise WorkerDied(f"no answer within {limit_s:.0f} s") from None
        if line is None:
            raise WorkerDied(self._epitaph())
        return json.loads(line)

    def _epitaph(self) -> str:
        """How the process ended, with the last thing that it said."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            how = "killed (often: the system ran out of memory)"
        elif code < 0:
            how = f"ended by signal {signal.Signals(-code).name}"
        else:
            how = f"exited with code {code}"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"the measuring process was {how}" + (f": {said[-1][:200]}" if said else "")
