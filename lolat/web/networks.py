"""Networks that a page asks for: read in the background, cached; files that are sent, looked at first."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.types import Message

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.readers.archives import MIB, check_file
from lolat.readers.cache import Cache
from lolat.readers.shipped import shipped_graph
from lolat.units import plain

UPLOAD = "upload:"


@dataclass(frozen=True)
class NetworkKey:
    """`spec` is NETWORK of the command line, or upload:SHA256; `size` what goes with it as --input-size.

    A file's path and `package.module:callable` cannot be had here: whoever may open the page, or make a
    browser open it, could otherwise have any file of the user read, or any code run.
    """

    spec: str
    size: tuple[int, ...] = ()

    @property
    def uploaded(self) -> bool:
        """Whether it is a file that was given to the page."""
        return self.spec.startswith(UPLOAD)


# ---- The networks read last, by name or from files, in memory.

MOST_CACHED = 128
MOST_WAITING = 8


class Reads(Protocol):
    """What is needed of `lolat.web.reading.Reader`."""

    def start(self) -> None:
        """Be ready."""

    def read(self, network: str, size: tuple[int, ...] = ()) -> Graph:
        """A network as a Graph, or NetworkError."""

    def close(self) -> None:
        """End."""


@dataclass(frozen=True)
class CachedNetwork:
    """A network that was read; `file_name`: what an uploaded one was called."""

    graph: Graph
    file_name: str = ""


def read_before(network: str, size: tuple[int, ...]) -> Graph | None:
    """A network that comes with LoLat, or is kept on disk since it was read: no framework is needed."""
    return shipped_graph(network, size) or Cache().graph(network, size)


class NetworkCache:
    """Reads in the background, one after the other, and keeps the last `most` that it read."""

    def __init__(self, reader: Reads, most: int = MOST_CACHED) -> None:
        self._reader, self._most = reader, most
        self._cache: OrderedDict[NetworkKey, CachedNetwork] = OrderedDict()
        self._jobs: dict[NetworkKey, Future[Graph]] = {}
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, "reader")
        self.ready = False

    def start(self) -> None:
        """Have the frameworks loaded in the background, before anybody asks."""

        def load() -> None:
            self._reader.start()
            self.ready = True

        self._worker.submit(load)

    def put(self, key: NetworkKey, graph: Graph, file_name: str = "") -> CachedNetwork:
        """Cache a network; the one that was longest not asked for goes."""
        with self._lock:
            self._jobs.pop(key, None)
            network = self._cache[key] = CachedNetwork(graph, file_name)
            self._cache.move_to_end(key)
            while len(self._cache) > self._most:
                self._cache.popitem(last=False)
        return network

    def get(self, key: NetworkKey, patience_s: float) -> CachedNetwork | None:
        """The network; None where it is still being read after `patience_s`: then ask again.

        NetworkError: what is wrong with it, told once, the next call tries again; a file that is not cached
        any more has to be given again.
        """
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            if key.uploaded:
                raise NetworkError(
                    f"this file is not known (any more): of those given, the last {self._most} are kept, "
                    "and as long as the server runs; give it again"
                )
        graph = read_before(key.spec, key.size)
        if graph is not None:
            return self.put(key, graph)
        with self._lock:
            if key not in self._jobs:
                if len(self._jobs) >= MOST_WAITING:
                    raise NetworkError(
                        f"{len(self._jobs)} networks are waiting to be read; try again in a minute"
                    )
                self._jobs[key] = self._worker.submit(self._reader.read, key.spec, key.size)
            job = self._jobs[key]
        try:
            return self.put(key, job.result(patience_s))
        except NotYet:
            return None
        except BaseException:
            with self._lock:
                self._jobs.pop(key, None)
            raise

    def read_file(self, path: str, key: NetworkKey, file_name: str) -> None:
        """Read a file that was given, now, and cache it; NetworkError names it as the user does."""
        read: Callable[..., Graph] = self._reader.read
        try:
            graph = self._worker.submit(read, path, key.size).result()
        except NetworkError as error:
            raise NetworkError(str(error).replace(path, file_name)) from error
        self.put(key, replace(graph, name=file_name.rpartition(".")[0] or file_name), file_name)

    def close(self) -> None:
        """Stop reading."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._reader.close()


# ---- A file that is sent to the page: taken in counted pieces, looked at, read, and deleted at
# once.

MOST_BYTES = 200 * MIB
"""Of a file; ONNX files hold the weights, which are of no use here: a larger network has to be read by
the command line."""
OTHER_FIELDS = MIB
MOST_THROWN_AWAY = 2**30


class TooLarge(NetworkError):
    """A file, or a request with one, of more than `most` bytes."""

    def __init__(self, what: str, most: int, name: str) -> None:
        super().__init__(
            f"{what} is larger than {most / MIB:,.0f} MiB, which is the limit here; ask for it in a "
            f"terminal: lolat predict MODEL {name}"
        )


async def received(request: Request, most: int = MOST_BYTES) -> FormData:
    """The fields of a request with a file, which lies in a temporary file; TooLarge.

    What arrives is counted: Content-Length is only what somebody says. What is too much is read on and
    thrown away (to a limit), because a browser that is still sending would never see the answer.
    """
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await request.receive()
        total += len(message.get("body", b""))
        if total > most + OTHER_FIELDS:
            while message.get("more_body") and total <= most + MOST_THROWN_AWAY:
                message = await request.receive()
                total += len(message.get("body", b""))
            raise TooLarge("the file", most, "FILE")
        return message

    return await Request(request.scope, counted).form(
        max_files=1, max_fields=400, max_part_size=64 * 1024
    )


def read_upload(
    file: BinaryIO, name: str, size: tuple[int, ...], networks: NetworkCache, most: int = MOST_BYTES
) -> NetworkKey:
    """Read the network in a file that was sent, called `name`, into the cache; its key there.

    NetworkError: too large, no network, harmful. Nothing of the file is left on the disk.
    """
    name = plain(re.split(r"[/\\]", name)[-1])[:200]
    with tempfile.TemporaryDirectory(prefix="lolat-") as folder:
        # Under a name of ours: the one that came with it may be anything.
        path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
        file.seek(0)
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy, MIB)
        if path.stat().st_size > most:
            raise TooLarge(name, most, name)
        check_file(path, name)
        with path.open("rb") as copy_read:
            digest = hashlib.file_digest(copy_read, "sha256").hexdigest()
        key = NetworkKey(UPLOAD + digest, size)
        networks.read_file(str(path), key, name)
    return key
