"""What a page asks about, the last ones kept in memory: networks, each read by a process of its own, and
language models.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.llm.answer import find_decoder
from lolat.llm.config import read_decoder
from lolat.llm.decoder import Decoder
from lolat.readers.cache import Cache
from lolat.readers.children import read_in_child
from lolat.units import plain

UPLOAD = "upload:"
"""What NETWORK of a file that was sent begins with; the file's name follows."""
MOST_KEPT = 128

ReadNetwork = Callable[[str, tuple[int, ...]], Graph]
"""Reads NETWORK of the command line at an input size; NetworkError where it cannot."""


class Networks:
    """Keeps the last networks; reads one at a time, each once."""

    def __init__(self, read: ReadNetwork = read_in_child) -> None:
        self._read = read
        self._graphs: dict[tuple[str, tuple[int, ...]], Graph] = {}
        self._lock = threading.Lock()

    def get(self, spec: str, size: tuple[int, ...] = ()) -> Graph:
        """The network. NetworkError where it cannot be read, or a file is not known (any more)."""
        with self._lock:
            if (spec, size) not in self._graphs:
                if spec.startswith(UPLOAD):
                    raise NetworkError(
                        f"{spec} is not known (any more) at this input size; give the file again"
                    )
                graph = Cache().read(spec, size, lambda: self._read(spec, size))
                _keep(self._graphs, (spec, size), graph)
            return self._graphs[spec, size]

    def put(self, file: BinaryIO, name: str, size: tuple[int, ...] = ()) -> str:
        """Read an open file that a client sent as `name`, and keep its network, under the NETWORK returned.

        Nothing of the file is left on the disk. NetworkError where it is no network.
        """
        with self._lock, _received(file, name) as (name, path):
            graph = self._read(str(path), size)
            named = replace(graph, name=name.rpartition(".")[0])
            _keep(self._graphs, (UPLOAD + name, size), named)
        return UPLOAD + name


class Decoders:
    """Known language models, and the last configurations that were sent."""

    def __init__(self) -> None:
        self._sent: dict[str, Decoder] = {}

    def get(self, spec: str) -> Decoder:
        """The language model. InputError where it is not known (any more)."""
        if not spec.startswith(UPLOAD):
            return find_decoder(spec)
        if spec not in self._sent:
            raise InputError(f"{spec} is not known (any more); give the file again")
        return self._sent[spec]

    def put(self, file: BinaryIO, name: str) -> str:
        """As `Networks.put`, of a configuration. InputError where it is none."""
        with _received(file, name) as (name, path):
            decoder = read_decoder(path)
            stem = name.rpartition(".")[0]
            called = decoder.architecture if stem == "config" else stem
            _keep(self._sent, UPLOAD + name, changed(decoder, name=called))
        return UPLOAD + name


@contextmanager
def _received(file: BinaryIO, name: str) -> Iterator[tuple[str, Path]]:
    """(name, where it lies for a moment) of an open file that a client sent as `name`; an InputError names
    it by that.
    """
    name = plain(re.split(r"[/\\]", name)[-1])[:200]
    with tempfile.TemporaryDirectory(prefix="lolat-") as folder:
        # The name that came with the file may be anything.
        path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        try:
            yield name, path
        except InputError as error:
            raise error.reworded(error.message.replace(str(path), name)) from error


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value; the first one goes where there are too many."""
    kept[key] = value
    for first in list(kept)[:-MOST_KEPT]:
        kept.pop(first, None)
