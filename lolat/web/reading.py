"""The process that reads networks for the pages: started early, ended when it is slow, replaced when dead.

Keras is loaded there and not in the server, so that the page is there at once; and a file that crashes a
framework, or eats memory, ends that process alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.io.process import Child, ProcessDied, RequestFailed
from lolat.readers.apart import LIMIT_S, NO_GPU, START

AT_ONCE_S = 0.5


class Reader:
    """Reads one network at a time; not to be called by two threads at once."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        self._process: Child | None = None
        self._lock = threading.Lock()  # of `_process`, which `close` takes from another thread
        self._closed = False

    def start(self) -> None:
        """Have a process that is ready; NetworkError where none comes up."""
        self._ready()

    @property
    def pid(self) -> int | None:
        """The process that reads, if there is one."""
        return None if self._process is None else self._process.pid

    @property
    def folder(self) -> str:
        """The temporary folder of the process, which goes with it; NetworkError as of `start`."""
        return self._ready().folder

    def read(self, network: str, size: Sequence[int] = (), again: bool = False) -> Graph:
        """The network as a Graph; `network` is NETWORK of the command line, or a file's path.

        A process that is gone at once was dying before it was asked: another one is, once (`again`), but
        not of a file in `folder`, which went with it.

        NetworkError: what the reader says, or that the process ended or took more than `limit_s`.
        """
        process, began = self._ready(), time.monotonic()
        try:
            return Graph.from_dict(
                process.request({"network": network, "size": list(size)}, self.limit_s)
            )
        except ProcessDied as died:
            self._end()
            here = network.startswith(process.folder)
            if not again and not here and time.monotonic() - began < min(AT_ONCE_S, self.limit_s):
                return self.read(network, size, again=True)
            raise NetworkError(
                f"reading it was given up: it took more than {self.limit_s:g} s or too much memory; "
                "expected a network that can be read in that time"
            ) from died
        except (RequestFailed, InputError) as error:
            raise NetworkError(str(error)) from error

    def close(self) -> None:
        """End the process, and what is being read with it."""
        with self._lock:
            self._closed = True
        self._end()

    def _ready(self) -> Child:
        """The process, a new one where there is none or the last one has died."""
        if self._process is not None and not self._process.is_running():
            self._end()
        with self._lock:
            if self._closed:
                raise NetworkError("the server is stopping")
            if self._process is None:
                self._process = Child(START, ".keras", environment=NO_GPU)
            process = self._process
        try:
            process.ready()
        except (ProcessDied, RequestFailed) as problem:
            self._end()
            raise NetworkError(
                "the process that reads networks did not start; try again"
            ) from problem
        return process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()
