"""Networks that a page asks for: read by a process of their own, the last ones kept in memory."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import BinaryIO

from msgspec.structs import replace

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.readers.apart import MIB
from lolat.readers.apart import Reader as Reader
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


# ---- The networks read last, by name or from files, in memory.

MOST_KEPT = 128
MOST_OPERATIONS = 20_000
"""Of one network: a page of a larger one takes seconds."""
MOST_BYTES = 200 * MIB
"""Of a file; ONNX files hold the weights, which are of no use here."""


@dataclass(frozen=True)
class CachedNetwork:
    """A network that was read; `file_name`: the name of an uploaded one."""

    graph: Graph
    file_name: str = ""


class NetworkCache:
    """Keeps the last `most` networks; reads each once, one after the other."""

    def __init__(self, reader: Reader, most: int = MOST_KEPT) -> None:
        self.reader, self._most = reader, most
        self._kept: OrderedDict[NetworkKey, CachedNetwork] = OrderedDict()
        self._lock, self._reading = threading.Lock(), threading.Lock()

    def get(self, key: NetworkKey) -> CachedNetwork:
        """The network, read where it is not kept. NetworkError: what is wrong with it."""
        if found := self._known(key):
            return found
        if key.uploaded:
            raise NetworkError(
                f"this file is not known (any more): the last {self._most} networks are kept, and as "
                "long as the server runs; give it again"
            )
        with self._reading:  # by another request meanwhile, perhaps
            if found := self._known(key):
                return found
            graph = shipped_graph(key.spec, key.size) or Cache().graph(key.spec, key.size)
            graph = graph or self.reader.read(key.spec, key.size)
            return self.put(key, CachedNetwork(graph))

    def put(self, key: NetworkKey, network: CachedNetwork) -> CachedNetwork:
        """Keep a network; the one that was longest not asked for goes. NetworkError: it is too large."""
        count = len(network.graph.operations)
        if count > MOST_OPERATIONS:
            raise NetworkError(
                f"it has {count:,} operations; expected at most {MOST_OPERATIONS:,} here: ask for it in a "
                "terminal, with lolat predict"
            )
        with self._lock:
            self._kept[key] = network
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return network

    def put_file(self, file: BinaryIO, name: str, size: tuple[int, ...] = ()) -> NetworkKey:
        """Read an open file that a client sent as `name` and keep its network, under the key returned.

        NetworkError: what is wrong with it; OSError: it cannot be written to the disk.
        """
        name = plain(re.split(r"[/\\]", name)[-1])[:200]
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
        key = NetworkKey(UPLOAD + digest.hexdigest(), size)
        file.seek(0)
        with self._reading:
            graph = self.reader.read_file(file, name, size)
        graph = replace(graph, name=name.rpartition(".")[0] or name)
        self.put(key, CachedNetwork(graph, name))
        return key

    def _known(self, key: NetworkKey) -> CachedNetwork | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)
