"""Networks that a page asks for: read in the background, cached; files that are sent, looked at first."""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import tempfile
import threading
import zipfile
import zlib
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
from lolat.readers.cache import Cache
from lolat.readers.shipped import shipped_graph
from lolat.units import plain

UPLOAD = "upload:"
MIB = 2**20


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


# ---- Whether a file that was given can be opened without harm: looked at before anything is unpacked.
#
# A `.keras` file is a zip archive, and so is a `.pt2` file. Only the JSON of the network is ever unpacked,
# into memory, but nothing is taken on trust: sizes as declared, their ratio to what is there, and what
# really comes out.

ENDINGS = (".keras", ".onnx", ".pt2", ".json")
ARCHIVES = {
    ".keras": (r"config\.json", "config.json", "Keras' model.save"),
    ".pt2": (r"(?:.*/)?models/[^/]+\.json|serialized_exported_program\.json", "network",
             "torch.export.save"),
}  # fmt: skip
"""Which file in an archive is the network's, what that is called, and what writes such archives."""

MOST_UNPACKED = 512 * MIB
MOST_CONFIG = 32 * MIB
MOST_ENTRIES = 10_000
MOST_RATIO = 200
"""Of an entry's size to what it takes in the file; weights hardly shrink, a configuration some 50 times."""
SMALL = MIB
"""Entries below that are let be, whatever their ratio."""
_CHUNK = 2**16


def check_file(path: Path, name: str) -> None:
    """NetworkError unless the file at `path`, which the user calls `name`, looks like a network's."""
    kind = Path(name).suffix.lower()
    if kind not in ENDINGS:
        given = f"a {kind} file" if kind else "without an ending"
        raise NetworkError(f"{name} is {given}; expected one of {', '.join(ENDINGS)}")
    if not path.stat().st_size:
        raise NetworkError(f"{name} is empty; expected a network's file")
    if kind == ".json" and path.stat().st_size > MOST_CONFIG:
        raise NetworkError(
            f"{name} is larger than {MOST_CONFIG // MIB} MiB; expected a read network"
        )
    if kind in ARCHIVES and (reason := _harm(path, kind)):
        raise NetworkError(f"{name}: {reason}; expected what {ARCHIVES[kind][2]} writes")


def _harm(path: Path, kind: str) -> str:
    """What is wrong with a file as an archive of a kind, "" where nothing is."""
    pattern, called, _ = ARCHIVES[kind]
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error):
        return f"no {kind} file, which is a zip archive, or not all of it is there"
    if len(entries) > MOST_ENTRIES:
        return f"{len(entries):,} files in it, more than {MOST_ENTRIES:,}"
    for entry in entries:
        if reason := _harm_of_entry(entry):
            return f"{entry.filename[:80]!a} in it {reason}"
    unpacked = sum(e.file_size for e in entries)
    if unpacked > MOST_UNPACKED:
        return (
            f"{unpacked / MIB:,.0f} MiB when unpacked, more than {MOST_UNPACKED // MIB}: a zip bomb, or too"
            " large a network"
        )
    if sum(e.compress_size for e in entries) > path.stat().st_size:
        return "its files lie over one another, as in a zip bomb"
    configs = [e.file_size for e in entries if re.fullmatch(pattern, e.filename)]
    if len(configs) != 1:
        return f"no {kind} file: a zip archive without one {called}"
    if configs[0] > MOST_CONFIG:
        return (
            f"its {called} unpacks to {configs[0] / MIB:,.0f} MiB, more than {MOST_CONFIG // MIB}: a zip"
            " bomb, or no network"
        )
    return _harm_inside(path, entries)


def _harm_of_entry(entry: zipfile.ZipInfo) -> str:
    """What is wrong with an entry as the archive declares it."""
    name = entry.filename
    if (
        name.startswith(("/", "\\"))
        or re.match(r"[A-Za-z]:", name)
        or ".." in re.split(r"[/\\]", name)
    ):
        return "leads out of the archive"
    if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is encrypted or packed in an unusual way"
    if entry.file_size > max(SMALL, MOST_RATIO * entry.compress_size):
        ratio = entry.file_size // max(entry.compress_size, 1)
        return f"is {ratio:,} times as large unpacked, more than {MOST_RATIO} times: a zip bomb"
    return ""


def _harm_inside(path: Path, entries: list[zipfile.ZipInfo]) -> str:
    """What is wrong with what really comes out of the packed entries. Nothing of it is kept."""
    with path.open("rb") as file:
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_DEFLATED:
                continue
            shown = ascii(entry.filename[:80])
            try:
                if _unpacks_to_more(file, entry):
                    size = f"the {entry.file_size:,} bytes that it declares"
                    return f"{shown} in it unpacks to more than {size}: a zip bomb"
            except (OSError, ValueError, struct.error, zlib.error):  # anywhere in a damaged file
                return f"{shown} in it is damaged"
    return ""


def _unpacks_to_more(file: BinaryIO, entry: zipfile.ZipInfo) -> bool:
    """Whether an entry holds more than it declares; unpacked piece by piece, and only until that is known.

    Python's own reader stops at the declared size, which would hide it. ValueError where no entry begins.
    """
    file.seek(entry.header_offset)
    header = file.read(30)
    if header[:4] != b"PK\x03\x04":
        raise ValueError
    file.seek(sum(struct.unpack("<HH", header[26:30])), 1)
    left, out, unpacker = entry.compress_size, 0, zlib.decompressobj(-zlib.MAX_WBITS)
    waiting = b""
    while not unpacker.eof and (left or waiting) and out <= entry.file_size:
        if not waiting:
            waiting = file.read(min(left, _CHUNK))
            left -= len(waiting) or left
        out += len(unpacker.decompress(waiting, _CHUNK))
        waiting = unpacker.unconsumed_tail
    return out > entry.file_size


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
