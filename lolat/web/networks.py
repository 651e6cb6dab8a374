"""Networks that a page asks for: read in the background, cached; files that are sent, looked at first."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.types import Message

from lolat.errors import InputError, LolatError, NetworkError
from lolat.graph import Graph
from lolat.io.process import Child, ProcessDied, RequestFailed
from lolat.readers.apart import LIMIT_S, MIB, NO_GPU, START, check_file
from lolat.readers.cache import Cache, shipped_graph
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

    def named(self, file_name: str) -> list[str]:
        """NETWORK of a command; `file_name`: what one that was given as a file is called."""
        size = ["--input-size", ",".join(map(str, self.size))] if self.size else []
        return [file_name if self.uploaded else self.spec, *size]


# ---- The process that reads networks: started early, ended when it is slow, replaced when dead.
#
# Keras is loaded there and not in the server, so that the page is there at once; and a file that crashes a
# framework, or eats memory, ends that process alone.

AT_ONCE_S = 0.5


class Reader:
    """Reads one network at a time; not to be called by two threads at once."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        self._process: Child | None = None
        self._lock = threading.Lock()  # of `_process`, which `close` takes from another thread
        self._closed = False

    @property
    def folder(self) -> str:
        """The temporary folder of the process, which goes with it; NetworkError as of `start`."""
        return self.start().folder

    def read(self, network: str, size: Sequence[int] = (), again: bool = False) -> Graph:
        """The network as a Graph; `network` is NETWORK of the command line, or a file's path.

        A process that is gone at once was dying before it was asked: another one is, once (`again`), but
        not of a file in `folder`, which went with it.

        NetworkError: what the reader says, or that the process ended or took more than `limit_s`.
        """
        process, began = self.start(), time.monotonic()
        try:
            asked = {"network": network, "size": list(size)}
            return Graph.from_dict(process.request(asked, self.limit_s))
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

    def start(self) -> Child:
        """The process, ready; a new one where there is none or the last one has died. NetworkError where
        none comes up.
        """
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
            why = "the process that reads networks did not start; try again"
            raise NetworkError(why) from problem
        return process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()


# ---- The networks read last, by name or from files, in memory.

MOST_CACHED = 128
MOST_OPERATIONS = 20_000
"""Of one network; a page of a larger one would take seconds, of everybody's time."""
MOST_HELD = 10 * MOST_OPERATIONS
"""Of all networks in memory, some 2 KiB each."""
MOST_BYTES = 200 * MIB
"""Of a file; ONNX files hold the weights, which are of no use here: a larger network has to be read by
the command line."""
MOST_WAITING = 8
FAILED_S = 3.0
"""So long the same is not read again; everybody who waited for it is told meanwhile."""


class Busy(LolatError):
    """Too much is being done already; the same may be asked again in RETRY_S."""


RETRY_S = 5


class TooLarge(NetworkError):
    """A file, or a request with one, of more than `most` bytes."""

    def __init__(self, what: str, most: int, name: str) -> None:
        super().__init__(
            f"{what} is larger than {most / MIB:,.0f} MiB, which is the limit here; ask for it in a "
            f"terminal: lolat predict MODEL {name}"
        )


@dataclass(frozen=True)
class CachedNetwork:
    """A network that was read; `file_name`: what an uploaded one was called."""

    graph: Graph
    file_name: str = ""


class NetworkCache:
    """Reads in the background, one after the other, and keeps the last `most` that it read."""

    def __init__(
        self, reader: Reader, most: int = MOST_CACHED, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader, self._most, self._clock = reader, most, clock
        self._cache: OrderedDict[NetworkKey, CachedNetwork] = OrderedDict()
        self._jobs: dict[NetworkKey, Future[CachedNetwork]] = {}
        self._failed: dict[NetworkKey, float] = {}  # those of the jobs that failed, and when
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, "reader")
        self.ready = False

    def start(self) -> None:
        """Have the frameworks loaded in the background, before anybody asks."""

        def load() -> None:
            self._reader.start()
            self.ready = True

        self._worker.submit(load)

    def put(self, key: NetworkKey, network: CachedNetwork) -> CachedNetwork:
        """Cache a network; those that were longest not asked for go. NetworkError where it is too large."""
        count = len(network.graph.operations)
        if count > MOST_OPERATIONS:
            raise NetworkError(
                f"it has {count:,} operations; expected at most {MOST_OPERATIONS:,} here: ask for it in a "
                "terminal, with lolat predict"
            )
        with self._lock:
            self._jobs.pop(key, None)
            self._cache[key] = network
            self._cache.move_to_end(key)
            held = sum(len(n.graph.operations) for n in self._cache.values())
            while len(self._cache) > self._most or held > MOST_HELD:
                held -= len(self._cache.popitem(last=False)[1].graph.operations)
        return network

    def get(self, key: NetworkKey, patience_s: float = 0.0) -> CachedNetwork | None:
        """The network; None where it is still being read after `patience_s`: then ask again.

        NetworkError: what is wrong with it, told for FAILED_S, then it is tried again; a file that is not
        cached any more has to be given again. Busy: too many are being read.
        """
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            job = self._jobs.get(key)
            if key.uploaded and job is None:
                raise NetworkError(
                    f"this file is not known (any more): of those given, the last {self._most} are kept, "
                    "and as long as the server runs; give it again"
                )
        if job is None:
            # What comes with LoLat, or is kept on disk since it was read, needs no framework.
            graph = shipped_graph(key.spec, key.size) or Cache().graph(key.spec, key.size)
            if graph is not None:
                return self.put(key, CachedNetwork(graph))
        if not key.uploaded:
            job = self._begin(key, lambda: CachedNetwork(self._reader.read(key.spec, key.size)))
        assert job is not None
        try:
            return job.result(patience_s)
        except NotYet:
            return None
        except CancelledError:
            raise Busy("the server is stopping") from None

    def is_reading(self, key: NetworkKey) -> bool:
        """Whether it is being read, or waits to be."""
        with self._lock:
            return key in self._jobs and not self._jobs[key].done()

    def begin_file(
        self, file: BinaryIO, name: str, size: tuple[int, ...] = (), most: int = MOST_BYTES
    ) -> NetworkKey:
        """Have a file of at most `most` bytes that was sent, called `name`, read into the cache, also if it
        was before; its key. Until `is_reading` is False it has to stay open. TooLarge, Busy. Nothing
        of it is left on the disk.
        """
        name = plain(re.split(r"[/\\]", name)[-1])[:200]
        file.seek(0)
        digest = hashlib.sha256()
        while piece := file.read(MIB):
            digest.update(piece)
        if file.tell() > most:
            raise TooLarge(name, most, name)
        key = NetworkKey(UPLOAD + digest.hexdigest(), size)

        def read() -> CachedNetwork:
            where = self._reader.folder
            with tempfile.TemporaryDirectory(
                prefix="lolat-", dir=where, ignore_cleanup_errors=True
            ) as folder:
                # Under a name of ours: the one that came with it may be anything.
                path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
                file.seek(0)
                with path.open("wb") as copy:
                    shutil.copyfileobj(file, copy, MIB)
                check_file(path, name)
                try:
                    graph = self._reader.read(str(path), key.size)
                except NetworkError as error:
                    raise NetworkError(str(error).replace(str(path), name)) from error
            return CachedNetwork(replace(graph, name=name.rpartition(".")[0] or name), name)

        with self._lock:
            if self._failed.pop(key, None) is not None:  # perhaps under another name
                del self._jobs[key]
        self._begin(key, read)
        return key

    def close(self) -> None:
        """Stop reading."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._reader.close()

    def _begin(self, key: NetworkKey, read: Callable[[], CachedNetwork]) -> Future[CachedNetwork]:
        """The job that reads a network, a new one where there is none or it failed a while ago. Busy."""

        def work() -> CachedNetwork:
            try:
                return self.put(key, read())
            except BaseException as error:
                with self._lock:
                    self._failed[key] = self._clock()
                if isinstance(error, OSError):
                    raise Busy(
                        f"the file cannot be kept while it is read: {error.strerror}"
                    ) from error
                raise

        with self._lock:
            for old in [k for k, at in self._failed.items() if self._clock() - at >= FAILED_S]:
                del self._failed[old]
                self._jobs.pop(old, None)
            if key not in self._jobs:
                waiting = len(self._jobs) - len(self._failed)
                if waiting >= MOST_WAITING:
                    raise Busy(f"{waiting} networks are waiting to be read; try again in a minute")
                try:
                    self._jobs[key] = self._worker.submit(work)
                except RuntimeError:  # closed meanwhile
                    raise Busy("the server is stopping") from None
            return self._jobs[key]


# ---- A file that is sent to the page: taken in counted pieces, in a time and a room that are limited.

OTHER_FIELDS = MIB
MOST_THROWN_AWAY = 2**30


class TooSlow(NetworkError):
    """A request that does not arrive; a browser on this machine takes a second."""


@dataclass
class Intake:
    """What is taken in at the same time: the limits of one request and of all, and what is there now."""

    most_bytes: int = MOST_BYTES
    most_at_once: int = 4 * MOST_BYTES
    most_requests: int = 64
    grace_s: float = 10.0
    bytes_per_s: float = 4 * MIB
    """After the grace so much has to arrive, on average."""
    taken_bytes: int = 0
    requests: int = 0

    @contextlib.asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[FormData]:
        """The fields of a request with a file, which lies in a temporary file without a name as long as the
        context is open. TooLarge, TooSlow, Busy.

        What arrives is counted: Content-Length is only what somebody says. What is too much is read on and
        thrown away (to a limit), because a browser that is still sending would never see the answer.
        """
        if self.requests >= self.most_requests:
            raise Busy(f"{self.requests} files are being sent; try again in a minute")
        most, began = self.most_bytes, time.monotonic()
        total = kept = 0

        async def piece() -> Message:
            nonlocal total
            left = began + self.grace_s + total / self.bytes_per_s - time.monotonic()
            try:
                message = await asyncio.wait_for(request.receive(), max(left, 0.0))
            except TimeoutError:
                after = f"{total:,} bytes in {time.monotonic() - began:.0f} s"
                raise TooSlow(f"the file did not arrive: {after}; send it again") from None
            total += len(message.get("body", b""))
            return message

        async def counted() -> Message:
            nonlocal kept
            message = await piece()
            if total > most + OTHER_FIELDS:
                while message.get("more_body") and total <= most + MOST_THROWN_AWAY:
                    message = await piece()
                raise TooLarge("the file", most, "FILE")
            size = len(message.get("body", b""))
            if self.taken_bytes + size > self.most_at_once:
                raise Busy("other large files are being read; try again in a minute")
            self.taken_bytes, kept = self.taken_bytes + size, kept + size
            return message

        limits = {"max_files": 1, "max_fields": 400, "max_part_size": 16 * 1024}
        self.requests += 1
        try:
            try:
                form = await Request(request.scope, counted).form(**limits)
            finally:
                self.requests -= 1
            try:
                yield form
            finally:
                await form.close()
        finally:
            self.taken_bytes -= kept
