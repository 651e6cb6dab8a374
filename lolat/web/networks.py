"""Networks that a page asks for: read by a process of their own each, the last ones kept in memory."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from lolat.errors import LolatError, NetworkError
from lolat.graph import Graph
from lolat.readers.cache import Cache
from lolat.readers.children import MIB, check_file, read_in_child
from lolat.units import plain

UPLOAD = "upload:"
MOST_KEPT = 128
MOST_OPERATIONS = 20_000
"""Of one network: a page of a larger one takes seconds."""
MOST_BYTES = 200 * MIB
"""Of a file; ONNX files hold the weights, which are of no use here."""

ReadNetwork = Callable[[str, tuple[int, ...]], Graph]
"""Reads NETWORK of the command line at an input size; LolatError where it cannot."""


@dataclass(frozen=True)
class NetworkKey:
    """`spec` is NETWORK of the command line, or upload:SHA256; `size` its --input-size.

    A file's path and `package.module:callable` are no keys: whoever may open the page, or make a
    browser open it, could otherwise have any file of the user read, or any code run.
    """

    spec: str
    size: tuple[int, ...] = ()

    @property
    def uploaded(self) -> bool:
        """Whether it is a file that was sent to the page."""
        return self.spec.startswith(UPLOAD)

    def named(self, file_name: str) -> list[str]:
        """NETWORK of a command, with its options; `file_name`: of a file that was sent."""
        size = ["--input-size", ",".join(map(str, self.size))] if self.size else []
        return [file_name if self.uploaded else self.spec, *size]


@dataclass(frozen=True)
class CachedNetwork:
    """A network that was read; `file_name`: the name of an uploaded one."""

    graph: Graph
    file_name: str = ""


class NetworkCache:
    """Keeps the last `most` networks; reads one at a time, each once."""

    def __init__(self, read: ReadNetwork = read_in_child, most: int = MOST_KEPT) -> None:
        self._read, self._most = read, most
        self._networks: dict[NetworkKey, CachedNetwork] = {}  # the one asked for last is the last
        self._lock = threading.RLock()

    def get(self, key: NetworkKey) -> CachedNetwork:
        """The network. NetworkError where it cannot be read, or a file is not known (any more)."""
        with self._lock:
            network = self._networks.pop(key, None)
            if network is None and key.uploaded:
                raise NetworkError(
                    f"this file is not known (any more): the last {self._most} networks are kept, and as "
                    "long as the server runs; give it again"
                )
            if network is None:
                spec, size = key.spec, key.size
                network = CachedNetwork(Cache().read(spec, size, lambda: self._graph(spec, size)))
            return self._keep(key, network)

    def put_file(self, file: BinaryIO, name: str, size: tuple[int, ...] = ()) -> NetworkKey:
        """Read an open file that a client sent as `name` and keep its network, under the key returned.

        Nothing of the file is left on the disk. NetworkError where it is no network; OSError where it
        cannot be written to the disk.
        """
        name = plain(re.split(r"[/\\]", name)[-1])[:200]
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
        key = NetworkKey(UPLOAD + digest.hexdigest(), size)
        file.seek(0)
        with self._lock, tempfile.TemporaryDirectory(prefix="lolat-") as folder:
            # The name that came with the file may be anything.
            path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
            with path.open("wb") as copy:
                shutil.copyfileobj(file, copy, MIB)
            check_file(path, name)
            try:
                graph = self._graph(str(path), size)
            except NetworkError as error:
                raise error.reworded(error.message.replace(str(path), name)) from error
            graph = replace(graph, name=name.rpartition(".")[0] or name)
            self._keep(key, CachedNetwork(graph, name))
        return key

    def _graph(self, spec: str, size: tuple[int, ...]) -> Graph:
        """The network, read. NetworkError for all that goes wrong, and for one that is too large."""
        try:
            graph = self._read(spec, size)
        except LolatError as error:
            raise NetworkError(error.message, code=error.code, **error.data) from error
        count = len(graph.operations)
        if count > MOST_OPERATIONS:
            raise NetworkError(
                f"it has {count:,} operations; expected at most {MOST_OPERATIONS:,} here: ask for it in a "
                "terminal, with lolat predict"
            )
        return graph

    def _keep(self, key: NetworkKey, network: CachedNetwork) -> CachedNetwork:
        """Make a network the last one; the one that was not asked for the longest time goes."""
        self._networks.pop(key, None)
        self._networks[key] = network
        while len(self._networks) > self._most:
            del self._networks[next(iter(self._networks))]
        return network
