"""Networks that were read, kept in memory: the last ones asked for by name, and the last files given."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from typing import Protocol

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.web.networks import NetworkAsked

MOST = 32
MOST_WAITING = 8


class Reads(Protocol):
    """What is asked of `lolat.web.reader.Reader`."""

    def start(self) -> None:
        """Be ready."""

    def read(self, network: str, size: tuple[int, ...] = ()) -> Graph:
        """A network as a Graph, or NetworkError."""

    def close(self) -> None:
        """End."""


@dataclass(frozen=True)
class Kept:
    """A network that was read; `file_name`: what an uploaded one was called."""

    graph: Graph
    file_name: str = ""


class Networks:
    """Reads in the background, one after the other, and keeps the last `most` that it read."""

    def __init__(self, reader: Reads, most: int = MOST) -> None:
        self._reader, self._most = reader, most
        self._kept: OrderedDict[NetworkAsked, Kept] = OrderedDict()
        self._jobs: dict[NetworkAsked, Future[Graph]] = {}
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, "reader")
        self.ready = False

    def start(self) -> None:
        """Have the frameworks loaded in the background, before anybody asks."""

        def load() -> None:
            self._reader.start()
            self.ready = True

        self._worker.submit(load)

    def keep(self, asked: NetworkAsked, graph: Graph, file_name: str = "") -> None:
        """Put a network among those that are known; the one that was longest not asked for goes."""
        with self._lock:
            self._kept[asked] = Kept(graph, file_name)
            self._kept.move_to_end(asked)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def get(self, asked: NetworkAsked, patience_s: float) -> Kept | None:
        """The network; None where it is still being read after `patience_s`: then ask again.

        NetworkError: what is wrong with it; a file that is not known any more has to be given again.
        """
        with self._lock:
            if asked in self._kept:
                self._kept.move_to_end(asked)
                return self._kept[asked]
            if asked.uploaded:
                raise NetworkError(
                    f"this file is not known (any more): of those given, the last {self._most} are kept, "
                    "and as long as the server runs; give it again"
                )
            job = self._jobs.get(asked)
            if job is None:
                if len(self._jobs) >= MOST_WAITING:
                    raise NetworkError(
                        f"{len(self._jobs)} networks are waiting to be read; try again in a minute"
                    )
                job = self._worker.submit(self._reader.read, asked.spec, asked.size)
                self._jobs[asked] = job
        return self._taken(asked, job, patience_s)

    def _taken(self, asked: NetworkAsked, job: Future[Graph], patience_s: float) -> Kept | None:
        """What a job gave, which is then kept; an error is told once, and the next one tries again."""
        try:
            graph = job.result(patience_s)
        except NotYet:
            return None
        except BaseException:
            with self._lock:
                self._jobs.pop(asked, None)
            raise
        self.keep(asked, graph)
        with self._lock:
            self._jobs.pop(asked, None)
        return Kept(graph)

    def read_file(self, path: str, asked: NetworkAsked, file_name: str) -> None:
        """Read a file that was given, now, and keep its network; NetworkError names it as the user does."""
        job: Callable[..., Graph] = self._reader.read
        try:
            graph = self._worker.submit(job, path, asked.size).result()
        except NetworkError as error:
            told = str(error).replace(path, file_name)
            raise NetworkError(told) from error
        stem = file_name.rpartition(".")[0] or file_name
        self.keep(asked, replace(graph, name=stem), file_name)

    def close(self) -> None:
        """Stop reading."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._reader.close()
