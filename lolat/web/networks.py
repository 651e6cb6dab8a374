"""Networks that a page asks for: read by a process of their own each, the last ones kept in memory."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from lolat.errors import NetworkError
from lolat.graph import Graph
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
                self._keep(spec, size, graph)
            return self._graphs[spec, size]

    def put(self, file: BinaryIO, name: str, size: tuple[int, ...] = ()) -> str:
        """Read an open file that a client sent as `name`, and keep its network, under the NETWORK returned.

        Nothing of the file is left on the disk. NetworkError where it is no network.
        """
        name = plain(re.split(r"[/\\]", name)[-1])[:200]
        with self._lock, tempfile.TemporaryDirectory(prefix="lolat-") as folder:
            # The name that came with the file may be anything.
            path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
            with path.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            try:
                graph = self._read(str(path), size)
            except NetworkError as error:
                raise error.reworded(error.message.replace(str(path), name)) from error
            self._keep(UPLOAD + name, size, replace(graph, name=name.rpartition(".")[0]))
        return UPLOAD + name

    def _keep(self, spec: str, size: tuple[int, ...], graph: Graph) -> None:
        """Keep a network; the first one goes where there are too many."""
        self._graphs[spec, size] = graph
        if len(self._graphs) > MOST_KEPT:
            del self._graphs[next(iter(self._graphs))]
