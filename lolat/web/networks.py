"""Keeps the networks and language models of the page's last questions, and uploaded files, in memory.

A child process reads each network.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.llm.config import read_decoder
from lolat.llm.decoder import Decoder
from lolat.llm.load import Trace, read_trace
from lolat.llm.names import named
from lolat.readers.bundled import bundled_graph
from lolat.readers.cache import Cache
from lolat.readers.children import read_in_child
from lolat.readers.size import OWN_SIZE, Size
from lolat.units import plain

UPLOAD = "upload:"
"""The prefix of NETWORK for an uploaded file, before its name and digits of its content's hash."""
MOST_KEPT = 128
MOST_BYTES = 256 * 2**20
"""Limit on the bytes of all uploaded files in memory."""


def sent_name(spec: str) -> str:
    """The name of an uploaded file, from its NETWORK; any other NETWORK unchanged."""
    sent = spec.removeprefix(UPLOAD)
    return spec if sent == spec else re.sub(r"@[0-9a-f]{6}$", "", sent)


ReadNetwork = Callable[[str, Size], Graph]
"""A function that reads NETWORK at an input size; raises NetworkError if it cannot be read."""
Key = tuple[str, Size]
"""(NETWORK, input size)."""


class NetworkCache:
    """Caches the last networks and uploaded files. It reads one network at a time, and each only once."""

    def __init__(self, read: ReadNetwork = read_in_child) -> None:
        self._read = read
        self._graphs: dict[Key, Graph] = {}
        self._files: dict[str, bytes] = {}
        self._turn = threading.Lock()

    def get(self, spec: str, size: Size = OWN_SIZE) -> Graph:
        """The graph of a network; NetworkError if it cannot be read, or its file is no longer in memory."""
        key = spec, size
        graph = self._graphs.get(key)
        if graph is None and spec.startswith(UPLOAD):
            content = self._files.get(spec)
            if content is None:
                raise _unknown(NetworkError, spec)
            graph = self._in_turn(key, partial(self._of_file, content, *key))
        elif graph is None:  # a bundled or cached network need not wait for its turn
            graph = bundled_graph(*key) or Cache().read(
                *key, lambda: self._in_turn(key, partial(self._read, *key))
            )
        _keep(self._graphs, key, graph)
        return graph

    def put(self, file: BinaryIO, name: str, size: Size = OWN_SIZE) -> str:
        """Keep an open file that a client uploaded as `name`; return its NETWORK.

        NetworkError if it is not a network. A file that needs an input size is kept; `get` then asks for
        it.
        """
        name, content, spec = _received(file, name)
        self._files.pop(spec, None)
        self._files[spec] = content
        while len(self._files) > 1 and sum(map(len, self._files.values())) > MOST_BYTES:
            del self._files[next(iter(self._files))]
        try:
            self.get(spec, size)
        except NetworkError as error:
            if error.code != "input-size":
                self._files.pop(spec, None)
                raise
        return spec

    def _of_file(self, content: bytes, spec: str, size: Size) -> Graph:
        """Read the network in an uploaded file."""
        name = sent_name(spec)
        with _written(content, name) as path:
            graph = self._read(str(path), size)
        stem, _, ending = name.rpartition(".")
        return graph if ending == "json" else replace(graph, name=stem)

    def _in_turn(self, key: Key, read: Callable[[], Graph]) -> Graph:
        """Read a network, or return it if another request has read it meanwhile."""
        with self._turn:
            if key not in self._graphs:
                _keep(self._graphs, key, read())
            return self._graphs[key]


class Decoders:
    """Known language models, and the last uploaded configurations and tables of arrivals."""

    def __init__(self) -> None:
        self._sent: dict[str, Decoder] = {}
        self._traces: dict[str, Trace] = {}

    def get(self, spec: str, _size: Size = OWN_SIZE) -> Decoder:
        """The language model; InputError if it is unknown or no longer in memory."""
        if not spec.startswith(UPLOAD):
            return named(spec)
        if spec not in self._sent:
            raise _unknown(InputError, spec)
        return self._sent[spec]

    def put(self, file: BinaryIO, name: str, _size: Size = OWN_SIZE) -> str:
        """Keep a configuration that a client uploaded; return its CONFIG. InputError for another file."""
        name, content, spec = _received(file, name)
        with _written(content, name) as path:
            decoder = read_decoder(path)
        stem = name.rpartition(".")[0]
        called = decoder.architecture if stem == "config" else stem
        _keep(self._sent, spec, changed(decoder, name=called))
        return spec

    def trace(self, spec: str) -> Trace:
        """The uploaded arrivals; InputError if they are no longer in memory."""
        if spec not in self._traces:
            raise _unknown(InputError, spec)
        return self._traces[spec]

    def put_trace(self, file: BinaryIO, name: str) -> str:
        """Keep a table of arrivals that a client uploaded; return its name. InputError for another file."""
        name, content, spec = _received(file, name)
        with _written(content, name) as path:
            _keep(self._traces, spec, changed(read_trace(path), source=name))
        return spec


def _unknown(kind: type[InputError], spec: str) -> InputError:
    """The error for an uploaded file that is no longer in memory."""
    return kind(f"{sent_name(spec)} is not known (any more); give the file again")


def _received(file: BinaryIO, name: str) -> tuple[str, bytes, str]:
    """(name, content, NETWORK) of an open file that a client uploaded as `name`."""
    name, content = plain(re.split(r"[/\\]", name)[-1])[:200], file.read()
    return name, content, f"{UPLOAD}{name}@{hashlib.sha256(content).hexdigest()[:6]}"


@contextmanager
def _written(content: bytes, name: str) -> Iterator[Path]:
    """A temporary file with this content; an InputError inside this context calls the file `name`."""
    with tempfile.TemporaryDirectory(prefix="lolat-") as folder:
        # The name that came with the file may be anything.
        path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
        path.write_bytes(content)
        try:
            yield path
        except InputError as error:
            words = error.message.replace(str(path), name).replace(f"'{path.stem}'", repr(name))
            raise error.reworded(words) from error


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value as the newest; above MOST_KEPT values the oldest is dropped."""
    kept.pop(key, None)
    kept[key] = value
    for first in list(kept)[:-MOST_KEPT]:
        kept.pop(first, None)
