"""Networks that were read once, kept on disk: their graphs, and arrays that were made from them.

Reading takes seconds, most of them a framework's; a file of the cache, a millisecond. Its name holds a
hash of everything that the graph depends on, so a file that is out of date is not found, and goes when it
was not used for longest. No framework is imported here.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import importlib.metadata
import io
import json
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from lolat import __version__
from lolat.errors import LolatError
from lolat.graph import FORMAT_VERSION, Graph
from lolat.io.paths import cache_folder
from lolat.io.writing import write_bytes
from lolat.readers.size import as_sizes, is_of_size

READERS = 7
"""Raise it when readers write other graphs: networks of an older cache are then read again."""
MOST_BYTES = 2 * 2**30
_KERAS = ("keras", "tensorflow", "tensorflow-cpu")
_PREFIXES = {
    "keras": _KERAS, "generate": _KERAS, "timm": ("timm", "torch"),
    "torchvision": ("torchvision", "torch"), "transformers": ("transformers", "torch"),
}  # fmt: skip
_ENDINGS = {".keras": _KERAS, ".onnx": ("onnx", "onnxscript")}
_OURS = re.compile(r".+-[0-9a-f]{32}\.(json\.gz|[A-Za-z0-9_-]+\.npy)")


@dataclass(frozen=True)
class Cache:
    """Files in `folder` (None: nothing is kept), at most some `most_bytes` of them.

    `spec` is NETWORK and `size` its input size, as `lolat.readers.read` takes them; every method raises
    InputError for a wrong size.
    """

    folder: Path | None = field(default_factory=cache_folder)
    most_bytes: int = MOST_BYTES

    def key(self, spec: str, size: Any = None) -> str | None:
        """A name for the network's files: readable, then a hash of everything that the graph depends on.

        That is: `spec`, `size`, this LoLat, the packages that read it, and the content of its file. None
        for the network of `package.module:callable`, whose code may change, and for a file that cannot be
        read.
        """
        sizes = as_sizes(size)
        prefix, _, name = spec.partition(":")
        packages = _PREFIXES.get(prefix) or _ENDINGS.get(os.path.splitext(spec)[1].lower())
        if packages is None or _is_of_the_caller(spec):
            return None
        file = "" if prefix in _PREFIXES else spec
        if prefix == "transformers":
            file = name.partition("?")[0]
        try:
            content = _sha256(file) if file else ""
        except (OSError, ValueError):  # ValueError: a null character in the name
            return None
        depends_on = [
            # The same file in another folder is the same network.
            spec.replace(file, os.path.basename(file)) if file else spec, content, sizes,
            __version__, READERS, FORMAT_VERSION, {p: installed_version(p) for p in packages},
            _keras_settings() if packages is _KERAS else [],
        ]  # fmt: skip
        digest = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:32]
        shown = f"{prefix}-{os.path.basename(name)}" if prefix in _PREFIXES else Path(spec).stem
        shown = re.sub(r"[^A-Za-z0-9_.-]+", "-", shown)[:60].strip(".-")
        return f"{shown or 'network'}-{digest}"

    def read(self, spec: str, size: Any, make: Callable[[], Graph]) -> Graph:
        """The network's graph: one that comes along or is kept, or the result of `make`, then kept."""
        graph = shipped_graph(spec, as_sizes(size)) or self.graph(spec, size)
        if graph is None:
            graph = make()
            self.put(spec, size, graph)
        return graph

    def graph(self, spec: str, size: Any = None) -> Graph | None:
        """The network's graph; None where it is not kept, or its file is damaged."""
        return self._read(
            spec, size, ".json.gz", lambda c: Graph.from_dict(json.loads(gzip.decompress(c)))
        )

    def put(self, spec: str, size: Any, graph: Graph) -> None:
        """Keep the network's graph."""
        text = json.dumps(graph.to_dict(), separators=(",", ":"))
        self._write(spec, size, ".json.gz", gzip.compress(text.encode(), mtime=0))

    def array(self, spec: str, size: Any, name: str) -> np.ndarray | None:
        """The array `name` of the network; None where it is not kept, or its file is damaged.

        `name`: letters, digits, - and _, as "work-amp". The code that makes the array is no part of the
        key: where that changes, so must the name.
        """
        return self._read(
            spec, size, f".{name}.npy",
            lambda c: np.lib.format.read_array(io.BytesIO(c), allow_pickle=False),
        )  # fmt: skip

    def put_array(self, spec: str, size: Any, name: str, array: np.ndarray) -> None:
        """Keep an array `name` of the network; ValueError where it is one of Python objects."""
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        self._write(spec, size, f".{name}.npy", content.getvalue())

    def trim(self, most_bytes: int) -> None:
        """Remove the files that were not used for longest, until the rest has at most `most_bytes`.

        Files that are not of the cache stay, and do not count.
        """
        with contextlib.suppress(OSError):
            paths = (
                [p for p in self.folder.iterdir() if _OURS.fullmatch(p.name)] if self.folder else []
            )
            facts = sorted((p.stat().st_mtime_ns, p.stat().st_size, p) for p in paths)
            total = sum(size for _, size, _ in facts)
            for _, size, path in facts:
                if total <= most_bytes:
                    break
                path.unlink()
                total -= size

    def _path(self, spec: str, size: Any, ending: str) -> Path | None:
        key = None if self.folder is None else self.key(spec, size)
        return self.folder / (key + ending) if self.folder and key else None

    def _read(self, spec: str, size: Any, ending: str, parse: Callable[[bytes], Any]) -> Any:
        """A file's content, parsed; None where there is none, or it is damaged."""
        path = self._path(spec, size, ending)
        if path is None:
            return None
        try:
            value = parse(path.read_bytes())
        except (OSError, EOFError, ValueError, LolatError, RecursionError, MemoryError, zlib.error):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now, for `trim`
        return value

    def _write(self, spec: str, size: Any, ending: str, content: bytes) -> None:
        """Put a file there; where the folder cannot be written to, nothing is kept."""
        path = self._path(spec, size, ending)
        if path is None:
            return
        with contextlib.suppress(LolatError):
            write_bytes(path, content)
        # Now and then: for one network in sixteen, as keys are spread evenly.
        if path.name.removesuffix(ending).endswith("0"):
            self.trim(self.most_bytes)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_of_the_caller(spec: str) -> bool:
    """Whether a network may be of classes that this process added to Keras or timm, and could change."""
    keras: Any = sys.modules.get("keras")
    if spec.lower().endswith(".keras") and hasattr(keras, "saving"):
        return bool(keras.saving.get_custom_objects())
    timm: Any = sys.modules.get("timm")
    if spec.startswith("timm:") and hasattr(timm, "model_entrypoint"):
        name = re.split(r"[.?]", spec.removeprefix("timm:"))[0]
        known = timm.is_model(name)
        return known and not timm.model_entrypoint(name).__module__.startswith("timm.")
    return False


def _keras_settings() -> list[str]:
    """The user's settings for all networks of Keras: its backend, where channels stand."""
    settings = [os.environ.get("KERAS_BACKEND", "")]
    with contextlib.suppress(OSError):
        settings.append(keras_settings().read_text(encoding="utf-8", errors="replace"))
    return settings


# ---- Networks that come with LoLat, read already: keras:ResNet50 or timm:resnet50 without a framework.
#
# `networks.jsonl.xz` is lines of JSON: first the networks and the versions of the packages they were read
# with, then a graph for each. `benchmarks/shipped_networks.py` writes it.

FILE = Path(__file__).with_name("networks.jsonl.xz")
_IN_ANY_CASE = ("keras", "torchvision")


def shipped_graph(spec: str, size: Any = ()) -> Graph | None:
    """The graph of NETWORK `spec` at input size `size`, as `lolat.readers.size.as_sizes` returns it.

    None where it does not come along, is wanted at another size than its own, or where another version of
    its package is installed, or one that is set to turn shapes round, so that the network may differ.
    """
    package, _, name = spec.partition(":")
    header, lines = _shipped()
    if installed_version(package) not in ("", header["packages"].get(package)):
        return None
    architecture = name.partition(".")[0] if package == "timm" else name
    known = f"{package}:{architecture.lower() if package in _IN_ANY_CASE else architecture}"
    if known not in lines or (package == "keras" and _channels_first()):
        return None
    graph = Graph.from_dict(json.loads(lines[known]))
    return replace(graph, name=name) if is_of_size(graph, size) else None


def shipped_networks() -> list[str]:
    """The networks that come along, as NETWORK names them."""
    networks: list[str] = _shipped()[0]["networks"]
    return networks


@functools.cache  # of a thousand networks that are asked for, each would open the package's metadata
def installed_version(package: str) -> str:
    """The version that is installed, without importing it; "" for none."""
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):  # ValueError: no name at all
        return ""


def keras_settings() -> Path:
    """The file with a user's settings for all networks of Keras; it need not exist."""
    return Path(os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras"), "keras.json")


def _channels_first() -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        settings = json.loads(keras_settings().read_text(encoding="utf-8"))
        return settings.get("image_data_format") == "channels_first"
    return False


@functools.cache
def _shipped() -> tuple[dict[str, Any], dict[str, bytes]]:
    """The file's first line, and the line of each network by the name that it is looked up with."""
    first, *lines = lzma.decompress(FILE.read_bytes()).split(b"\n")
    header = json.loads(first)
    names = (n.lower() if n.startswith(_IN_ANY_CASE) else n for n in header["networks"])
    return header, dict(zip(names, lines, strict=True))
