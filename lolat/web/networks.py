"""Which network a page asks for, as what the reader is given, what a link keeps and what a command says."""

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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.types import Message

from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.readers import generated
from lolat.readers.generated import keys, wrong
from lolat.units import plain, shortened

_TYPED = re.compile(r"[\w.,]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class NetworkAsked:
    """`spec` is NETWORK of the command line, or upload:HASH; `size` what goes with it as --input-size.

    A file's path and `package.module:callable` cannot be had here: whoever may open the page, or make a
    browser open it, could otherwise have any file of the user read, or any code run.
    """

    spec: str
    size: tuple[int, ...] = ()

    @property
    def uploaded(self) -> bool:
        """Whether it is a file that was given to the page."""
        return self.spec.startswith("upload:")


class GeneratedError(NetworkError):
    """A generated network's key that is wrong; `key` says which."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def named_network(name: str, size: tuple[int, ...]) -> NetworkAsked:
    """A network of keras.applications; whether there is one of that name is for Keras to say."""
    name = name.removeprefix("keras:")
    if not _NAME.fullmatch(name):
        given = f"{shortened(name)!r} is no name of a network" if name else "no name is given"
        raise NetworkError(
            f"{given}; expected one of keras.applications, such as ResNet50; a file is given under "
            '"From a file"'
        )
    return NetworkAsked(f"keras:{name}", size)


def uploaded_network(digest: str, size: tuple[int, ...]) -> NetworkAsked:
    """A file that was given to the page, by its SHA-256."""
    digest = digest.removeprefix("upload:")
    if not _HASH.fullmatch(digest):
        raise InputError("no file has been given yet; choose a .keras or .onnx file and send it")
    return NetworkAsked(f"upload:{digest}", size)


def generated_network(family: str, given: Mapping[str, str]) -> NetworkAsked:
    """A generated network from what is typed for its keys; GeneratedError."""
    typed = {key: re.sub(r"\s+", "", text) for key, text in given.items()}
    try:
        for key, text in typed.items():
            if not _TYPED.fullmatch(text):  # `&` and `=` would be other keys
                raise wrong(family, key, given[key])
        options = "&".join(f"{key}={text}" for key, text in typed.items() if text)
        config = generated.parse(f"{generated.PREFIX}{family}?{options}")
    except NetworkError as error:
        said = str(error).partition(": ")[2] or str(error)
        named = re.search(rf"\b({'|'.join(sorted(keys(family), key=len, reverse=True))})\b", said)
        raise GeneratedError(said, named[1] if named else keys(family)[0]) from error
    return NetworkAsked(generated.text(config))


# ---- Networks that were read, kept in memory: the last ones asked for by name, and the last
# files given.

MOST = 32
MOST_WAITING = 8


class Reads(Protocol):
    """What is asked of `lolat.web.reading.Reader`."""

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


# ---- Whether a file that was given can be opened without harm: looked at before anything is
# unpacked.
#
# A `.keras` file is a zip archive. Only its configuration is ever unpacked, into memory, but nothing is
# taken on trust: sizes as declared, their ratio to what is there, and what really comes out.

MOST_UNPACKED = 512 * 2**20
MOST_CONFIG = 32 * 2**20
MOST_ENTRIES = 10_000
MOST_RATIO = 200
"""Of an entry's size to what it takes in the file; weights hardly shrink, a configuration some 50 times."""
SMALL = 2**20
"""Entries below that are let be, whatever their ratio."""
_CHUNK = 2**16
_MIB = 2**20


def check_file(path: Path, name: str) -> None:
    """NetworkError unless the file at `path`, which the user calls `name`, looks like a network's."""
    kind = Path(name).suffix.lower()
    if kind not in (".keras", ".onnx"):
        given = f"a {kind} file" if kind else "without an ending"
        raise NetworkError(f"{name} is {given}; expected a .keras or an .onnx file")
    size = path.stat().st_size
    if not size:
        raise NetworkError(f"{name} is empty; expected a network's file")
    if kind == ".keras":
        _check_keras(path, name, size)


def _check_keras(path: Path, name: str, size: int) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error):
        raise NetworkError(
            f"{name} is no .keras file, or not all of it is there; expected a zip archive written by "
            "model.save"
        ) from None
    if len(entries) > MOST_ENTRIES:
        raise NetworkError(
            f"{name} holds {len(entries):,} files; expected at most {MOST_ENTRIES:,}: save the model again"
        )
    for entry in entries:
        _check_name(entry.filename, name)
        if entry.flag_bits & 1 or entry.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise NetworkError(
                f"{name}: {_shown(entry)} is encrypted or packed in an unusual way; expected what "
                "model.save writes"
            )
    _check_sizes(entries, name, size)
    config = [e for e in entries if e.filename == "config.json"]
    if len(config) != 1:
        raise NetworkError(
            f"{name} is a zip archive, but no .keras file: it has no config.json; expected a file written "
            "by model.save"
        )
    if config[0].file_size > MOST_CONFIG:
        raise NetworkError(
            f"{name}: its config.json unpacks to {config[0].file_size / _MIB:,.0f} MiB; expected at most "
            f"{MOST_CONFIG // _MIB}: a zip bomb, or no network"
        )
    _check_contents(path, name, entries)


def _check_name(entry: str, name: str) -> None:
    """A name that could lead out of the folder that an archive is unpacked in."""
    parts = re.split(r"[/\\]", entry)
    if ".." in parts or entry.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", entry):
        raise NetworkError(
            f"{name} holds a file called {entry[:80]!r}, which leads out of the archive; expected what "
            "model.save writes"
        )


def _check_sizes(entries: list[zipfile.ZipInfo], name: str, size: int) -> None:
    """Sizes as the archive declares them."""
    unpacked = sum(e.file_size for e in entries)
    if unpacked > MOST_UNPACKED:
        raise NetworkError(
            f"{name} unpacks to {unpacked / _MIB:,.0f} MiB; expected at most {MOST_UNPACKED // _MIB}: a "
            "zip bomb, or too large a network"
        )
    if sum(e.compress_size for e in entries) > size:
        raise NetworkError(
            f"{name}: its files lie over one another, as in a zip bomb; expected what model.save writes"
        )
    for entry in entries:
        if entry.file_size > max(SMALL, MOST_RATIO * entry.compress_size):
            raise NetworkError(
                f"{name}: {_shown(entry)} is {entry.file_size // max(entry.compress_size, 1):,} times as "
                f"large unpacked; expected at most {MOST_RATIO} times: a zip bomb"
            )


def _check_contents(path: Path, name: str, entries: list[zipfile.ZipInfo]) -> None:
    """What really comes out of the packed entries: no more than is declared. Nothing of it is kept."""
    with path.open("rb") as file:
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_DEFLATED:
                continue
            try:
                more = _unpacks_to_more(file, entry)
            except (OSError, ValueError, struct.error, zlib.error):  # anywhere in a damaged file
                raise NetworkError(
                    f"{name}: {_shown(entry)} in it is damaged; save the model again"
                ) from None
            if more:
                raise NetworkError(
                    f"{name}: {_shown(entry)} unpacks to more than the {entry.file_size:,} bytes that it "
                    "declares: a zip bomb; expected what model.save writes"
                )


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


def _shown(entry: zipfile.ZipInfo) -> str:
    return ascii(entry.filename[:80])[1:-1]


# ---- A file that is sent to the page: taken in counted pieces, looked at, read, and deleted at
# once.

MOST_BYTES = 200 * 2**20
"""Of a file; ONNX files hold the weights, which are of no use here: a larger network has to be read by
the command line."""
OTHER_FIELDS = 2**20
MOST_THROWN_AWAY = 2**30


class TooLarge(NetworkError):
    """A request that holds more than a file of MOST_BYTES."""


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
            raise TooLarge(
                f"the file is larger than {most / 2**20:,.0f} MiB, which is the limit here; ask for it in "
                "a terminal: lolat training predict MODEL FILE"
            )
        return message

    return await Request(request.scope, counted).form(
        max_files=1, max_fields=400, max_part_size=64 * 1024
    )


def keep(
    file: BinaryIO, name: str, size: tuple[int, ...], networks: Networks, most: int = MOST_BYTES
) -> NetworkAsked:
    """Read the network in a file that was sent, called `name`; it is then known as what is returned.

    NetworkError: too large, no network, harmful. Nothing of the file is left on the disk.
    """
    name = plain(re.split(r"[/\\]", name)[-1])[:200]
    with tempfile.TemporaryDirectory(prefix="lolat-") as folder:
        # Under a name of ours: the one that came with it may be anything.
        path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
        file.seek(0)
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy, 2**20)
        if path.stat().st_size > most:
            raise TooLarge(
                f"{name} is larger than {most / 2**20:,.0f} MiB, which is the limit here; ask for it in a "
                f"terminal: lolat training predict MODEL {name}"
            )
        check_file(path, name)
        with path.open("rb") as copy_read:
            digest = hashlib.file_digest(copy_read, "sha256").hexdigest()
        asked = NetworkAsked(f"upload:{digest}", size)
        networks.read_file(str(path), asked, name)
    return asked
