"""Networks that were read before, bundled or cached on disk; no framework is imported."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.metadata
import io
import json
import lzma
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from lolat import __version__
from lolat.errors import LolatError, MissingPackageError
from lolat.graph import FORMAT_VERSION, Graph
from lolat.io.forms import (
    FRAMEWORK_FILES,
    KERAS_FILE,
    PACKAGES,
    TRANSFORMERS,
    config_name,
    is_file,
)
from lolat.io.paths import cache_folder
from lolat.io.writing import write_bytes
from lolat.readers.size import as_sizes, is_of_size
from lolat.units import did_you_mean, shapes_text, shortened

READERS = 56
"""Version of the readers. Raise it when they write other graphs, so that cached networks are read again."""
_VERSIONED = (*PACKAGES, "tensorflow", "tensorflow-cpu", "torch", "onnx", "onnxscript")


@dataclass(frozen=True)
class Cache:
    """Graphs of networks, and arrays made from them, as files in `folder` (None: nothing is cached)."""

    folder: Path | None = field(default_factory=cache_folder)

    def key(self, spec: str, size: Any = None) -> str | None:
        """A hash of `spec`, `size`, the versions of LoLat and of packages, and the network file's content.

        None, so that nothing is cached, for `package.module:callable`, whose code may change; for a file
        that cannot be read; and if the user registered classes with Keras, which may change too.
        """
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
        versions = {package: installed_version(package) for package in _VERSIONED}
        settings = _keras_settings() if kind == "keras" or is_file(path, KERAS_FILE) else []
        sizes = as_sizes(size)
        facts = [spec, content, sizes, __version__, READERS, FORMAT_VERSION, versions, settings]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def read(self, spec: str, size: Any, make: Callable[[], Graph]) -> Graph:
        """The graph of a network: cached, or the result of `make`, which is then cached."""
        ending = ".json.gz"
        graph: Graph | None = self._read(
            spec, size, ending, lambda c: Graph.from_dict(json.loads(gzip.decompress(c)))
        )
        if graph is None:
            graph = make()
            text = json.dumps(graph.to_dict(), separators=(",", ":"))
            self._write(spec, size, ending, gzip.compress(text.encode(), mtime=0))
        return graph

    def array(self, spec: str, size: Any, name: str) -> np.ndarray | None:
        """The cached array `name` of a network, or None; its maker puts a version into the name."""
        read = partial(np.lib.format.read_array, allow_pickle=False)
        return self._read(spec, size, f".{name}.npy", lambda content: read(io.BytesIO(content)))

    def put_array(self, spec: str, size: Any, name: str, array: np.ndarray) -> None:
        """Cache an array `name` of the network."""
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        self._write(spec, size, f".{name}.npy", content.getvalue())

    def _path(self, spec: str, size: Any, ending: str) -> Path | None:
        key = None if self.folder is None else self.key(spec, size)
        return self.folder / (key + ending) if self.folder and key else None

    def _read(self, spec: str, size: Any, ending: str, parse: Callable[[bytes], Any]) -> Any:
        path = self._path(spec, size, ending)
        with contextlib.suppress(Exception):  # there is none, or it is damaged
            content = parse(path.read_bytes()) if path else None
            if path:
                os.utime(path)  # the files that were used least recently are removed first
            return content

    def _write(self, spec: str, size: Any, ending: str, content: bytes) -> None:
        """Write a file, if the folder can be written to."""
        path = self._path(spec, size, ending)
        with contextlib.suppress(LolatError):
            if path is not None:
                write_bytes(path, content)
                _forget(path.parent)


MOST_BYTES = 2**28
"""Most bytes of the files in the folder; beyond it the files unused for longest are removed."""
_OWN = re.compile(r"[0-9a-f]{64}\..+")


def _forget(folder: Path) -> None:
    """Remove files of the cache until the rest has at most MOST_BYTES."""
    with contextlib.suppress(OSError):  # another process may have removed one
        files = [
            (file.stat(), file.path) for file in os.scandir(folder) if _OWN.fullmatch(file.name)
        ]
        total = sum(found.st_size for found, _ in files)
        for found, path in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if total <= MOST_BYTES:
                return
            total -= found.st_size
            os.remove(path)


_USUAL = ["channels_last", "float32", "tensorflow"]


def _keras_settings() -> list[str]:
    """Keras' order of axes, data type of layers, and backend.

    If Keras is not loaded, they come from its settings file and the environment.
    """
    keras: Any = sys.modules.get("keras")
    if hasattr(keras, "config"):
        config = keras.config
        return [config.image_data_format(), config.dtype_policy().name, config.backend()]
    names, found = ("image_data_format", "floatx", "backend"), _USUAL
    with contextlib.suppress(Exception):  # Keras itself reports a damaged file of settings
        home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
        own = json.loads(Path(home, "keras.json").read_bytes())
        found = [own.get(name, usual) for name, usual in zip(names, _USUAL, strict=True)]
    return [*found[:2], os.environ.get("KERAS_BACKEND") or found[2]]


# ---- Networks that come with LoLat, such as keras:ResNet50 and timm:resnet50: no framework is needed.
#
# `networks.jsonl.xz` has lines of JSON. The first line has the names of the networks, the other names of
# timm for them, and the versions of the packages that read them. A graph for each network follows.
# `benchmarks/shipped_networks.py` writes the file.

FILE = Path(__file__).with_name("networks.jsonl.xz")


def bundled_graph(spec: str, size: Any = ()) -> Graph | None:
    """The graph of NETWORK `spec` at input size `size`, as `lolat.readers.size.as_sizes` returns it.

    None if it is not bundled or has another size, or if another version of its package is installed, whose
    network may differ.
    """
    package, _, name = spec.partition(":")
    if package == "keras" and _keras_settings() != _USUAL:
        return None
    header, lines = _bundled()
    known = f"keras:{name.lower()}" if package == "keras" else header["tags"].get(spec, spec)
    if known not in lines or installed_version(package) not in ("", header["packages"][package]):
        return None
    graph = Graph.from_dict(json.loads(lines[known]))
    return replace(graph, name=name) if is_of_size(graph, size) else None


def bundled_networks() -> list[str]:
    """The names of the bundled networks, as NETWORK takes them."""
    networks: list[str] = _bundled()[0]["networks"]
    return networks


def bundled_as(name: str) -> list[str]:
    """The bundled networks with a given name, whatever their package; upper and lower case are equal."""
    return [n for n in bundled_networks() if n.partition(":")[2].lower() == name.lower()]


@cache  # else a thousand networks would open the package's metadata a thousand times
def installed_version(package: str) -> str:
    """The installed version of a package, which is not imported; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def _bundled() -> tuple[dict[str, Any], dict[str, bytes]]:
    """The file's first line, and lookup name of a network -> its line."""
    first, *lines = lzma.decompress(FILE.read_bytes()).split(b"\n")
    header = json.loads(first)
    names = (n.lower() if n.startswith("keras") else n for n in header["networks"])
    return header, dict(zip(names, lines, strict=True))


def nearest(spec: str, missing: MissingPackageError) -> MissingPackageError:
    """The error of a missing package, behind what of the network is bundled: its size, or names near it."""
    package, _, name = spec.partition(":")
    names = (known.partition(":") for known in bundled_networks())
    near = {known.lower(): f"{of}:{known}" for of, _, known in names if of == package}
    if not near or (spec in near.values() and not bundled_graph(spec)):  # of another version
        return missing
    if graph := bundled_graph(spec):
        why = f"{spec} is bundled at {shapes_text(graph.input_sizes)} alone"
    else:
        same = {name.lower(): near[name.lower()]} if name.lower() in near else near
        hint = did_you_mean(name.lower(), same, "")
        why = f"{shortened(spec)} is not bundled" + f" ({hint})" * bool(hint)
    return MissingPackageError(f"{why}; {missing.message}", code=missing.code)
