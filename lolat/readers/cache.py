"""Caches networks that were read before on disk; imports no framework."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lolat import __version__
from lolat.errors import LolatError
from lolat.graph import FORMAT_VERSION, Graph
from lolat.io.forms import FRAMEWORK_FILES, KERAS_FILE, PACKAGES, TRANSFORMERS, config_name, is_file
from lolat.io.paths import cache_folder
from lolat.io.writing import write_bytes
from lolat.readers.opened_files import Stamps, stamp
from lolat.readers.size import AnySize, as_size
from lolat.readers.versions import installed_version, keras_settings, torch_settings

READERS = 79
"""Version of the readers. Raise it when a reader's graphs change: cached networks are then read again."""
_VERSIONED = (*PACKAGES, "tensorflow", "tensorflow-cpu", "torch", "onnx", "onnxscript")
_GRAPH = ".json.gz"


def key_of(facts: Any) -> str:
    """A hash of JSON data `facts` and of the versions of LoLat and of the frameworks."""
    versions = {package: installed_version(package) for package in _VERSIONED}
    every = [facts, __version__, READERS, FORMAT_VERSION, versions]
    return hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """Graphs of networks, and arrays made from them, as files in `folder` (None: nothing is cached)."""

    folder: Path | None = field(default_factory=cache_folder)

    def key(self, spec: str, size: AnySize = None) -> str | None:
        """A hash of `spec`, `size`, the versions of LoLat and frameworks, and the network file's content.

        None if nothing can be cached: without a folder; for `package.module:callable`, whose code may
        change; for a file that cannot be read; and if the user registered classes with Keras, which may
        change too.
        """
        if self.folder is None:
            return None
        kind, _, name = spec.partition(":")
        path = name.partition("?")[0] if kind == TRANSFORMERS else spec
        has_file = kind == TRANSFORMERS or is_file(spec, FRAMEWORK_FILES)
        keras: Any = sys.modules.get("keras")
        if has_file and hasattr(keras, "saving") and keras.saving.get_custom_objects():
            return None
        content = ""
        if has_file:
            try:
                with open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            except (OSError, ValueError):
                return None
            spec = spec.replace(path, config_name(path))
        elif kind not in PACKAGES:
            return None
        is_keras = kind == "keras" or is_file(path, KERAS_FILE)
        settings = keras_settings() if is_keras else torch_settings()
        return key_of([spec, content, as_size(size).given, settings])

    def read(self, spec: str, size: AnySize, make: Callable[[], Graph]) -> Graph:
        """The graph of a network: cached, or the result of `make`, which is then cached."""
        key = self.key(spec, size)
        graph = self.graph(key)
        if graph is None:
            graph = make()
            if self.key(spec, size) == key:  # else the file was written meanwhile
                self.put_graph(key, graph)
        return graph

    def graph(self, key: str | None) -> Graph | None:
        """The cached graph with this key; None without one, or if a file behind it has changed."""
        found: Graph | None = self._read(key, _GRAPH, _unchanged)
        return found

    def put_graph(self, key: str | None, graph: Graph, files: Stamps | None = None) -> None:
        """Cache a graph, and the stamps of the `files` that it was made from."""
        document = {"files": files or {}, "graph": graph.to_dict()}
        text = json.dumps(document, separators=(",", ":"))
        self._write(key, _GRAPH, gzip.compress(text.encode(), mtime=0))

    def array(self, spec: str, size: AnySize, name: str) -> np.ndarray | None:
        """The cached array `name` of a network, or None. The caller puts a version into the name."""
        read = partial(np.lib.format.read_array, allow_pickle=False)
        key = self.key(spec, size)
        return self._read(key, f".{name}.npy", lambda content: read(io.BytesIO(content)))

    def put_array(self, spec: str, size: AnySize, name: str, array: np.ndarray) -> None:
        """Cache an array `name` of the network."""
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        self._write(self.key(spec, size), f".{name}.npy", content.getvalue())

    def _path(self, key: str | None, ending: str) -> Path | None:
        return self.folder / (key + ending) if self.folder and key else None

    def _read(self, key: str | None, ending: str, parse: Callable[[bytes], Any]) -> Any:
        path = self._path(key, ending)
        with contextlib.suppress(Exception):  # there is none, or it is damaged
            content = parse(path.read_bytes()) if path else None
            if path:
                os.utime(path)  # the files that were used least recently are removed first
            return content

    def _write(self, key: str | None, ending: str, content: bytes) -> None:
        """Write a file; do nothing if the folder is not writable."""
        path = self._path(key, ending)
        with contextlib.suppress(LolatError):
            if path is not None:
                write_bytes(path, content)
                _forget(path.parent)


def _unchanged(content: bytes) -> Graph:
    """The graph of a cached file; ValueError if a file that it was made from has changed."""
    document = json.loads(gzip.decompress(content))
    if any(stamp(path) != seen for path, seen in document["files"].items()):
        raise ValueError
    return Graph.from_dict(document["graph"])


MOST_BYTES = 2**28
"""Limit on the bytes of all files in the folder; above it the least recently used files are removed."""
_OWN = re.compile(r"[0-9a-f]{64}\..+")


def _forget(folder: Path) -> None:
    """Remove the least recently used files of the cache until the rest has at most MOST_BYTES."""
    with contextlib.suppress(OSError):  # another process may have removed one
        files = [(f.stat(), f.path) for f in os.scandir(folder) if _OWN.fullmatch(f.name)]
        total = sum(file.st_size for file, _ in files)
        for file, path in sorted(files, key=lambda pair: pair[0].st_mtime_ns):
            if total <= MOST_BYTES:
                return
            total -= file.st_size
            os.remove(path)
