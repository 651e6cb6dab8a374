"""The reading process as the server sees it: started early, ended when it is slow, replaced when dead."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from lolat.errors import InputError, NetworkError
from lolat.graph import Graph

LIMIT_S = 60.0
"""For one network; the largest of keras.applications takes about ten."""
START_LIMIT_S = 180.0

# It imports from where the server does; -P, so that no file of the working directory does harm.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from lolat.web.reader_process import main; main()"
)


class Reader:
    """Reads one network at a time; not to be called by two threads at once."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()  # of `_process`, which `close` takes from another thread
        self._closed = False

    def start(self) -> None:
        """Have a process that is ready; NetworkError where none comes up."""
        if self._process is not None and self._process.poll() is not None:
            self._end()
        with self._lock:
            if self._closed:
                raise NetworkError("the server is stopping")
            if self._process is not None:
                return
            path = json.dumps([p for p in sys.path if isinstance(p, str)])
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                # No GPU is needed, and one would take its memory from whoever is training on it.
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
                start_new_session=True,  # Ctrl-C in the terminal is the server's to handle
            )
        if self._next(START_LIMIT_S) is None:
            self._end()
            raise NetworkError("the process that reads networks did not start; try again")

    def read(self, network: str, size: Sequence[int] = ()) -> Graph:
        """The network as a Graph; `network` is NETWORK of the command line, or a file's path.

        NetworkError: what the reader says, or that the process ended or took more than `limit_s`.
        """
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"network": network, "size": list(size)}) + "\n")
            process.stdin.flush()
            found = self._next(self.limit_s)
        except OSError:
            found = None
        if found is None:
            self._end()
            raise NetworkError(
                f"reading it was given up: it took more than {self.limit_s:g} s or too much memory; "
                "expected a network that can be read in that time"
            )
        if "error" in found:
            raise NetworkError(found["error"])
        try:
            return Graph.from_dict(found["graph"])
        except InputError as error:
            raise NetworkError(str(error)) from error

    def close(self) -> None:
        """End the process, and what is being read with it."""
        with self._lock:
            self._closed = True
        self._end()

    def _next(self, limit_s: float) -> dict[str, Any] | None:
        """The next answer; None where the process ends, or does not give one in time."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        timer = threading.Timer(limit_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            line = process.stdout.readline()
            return json.loads(line) if line.endswith("\n") else None
        except ValueError:
            return None
        finally:
            timer.cancel()

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()
