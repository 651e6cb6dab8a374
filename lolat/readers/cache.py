"""Networks that were read once, kept on disk: their graphs, and arrays that were made from them.

Reading takes seconds, most of them a framework's; a file of here, a millisecond. Its name holds a hash of
what the graph depends on, so what is out of date is not found, and goes when it was not used for longest.
No framework is imported here.
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
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from lolat import __version__
from lolat.errors import InputError, LolatError
from lolat.graph import FORMAT_VERSION, Graph
from lolat.io.writing import write_bytes
from lolat.readers.size import as_sizes, is_of_size

READERS = 6
"""Raise it when what readers write changes: what was kept before is then read again."""
MOST_BYTES = 2 * 2**30
OFF = "off"

_KERAS = ("keras", "tensorflow", "tensorflow-cpu")
_PREFIXES = {
    "keras": _KERAS, "generate": _KERAS, "timm": ("timm", "torch"),
    "torchvision": ("torchvision", "torch"), "transformers": ("transformers", "torch"),
}  # fmt: skip
_ENDINGS = {".keras": _KERAS, ".onnx": ("onnx",)}
_OURS = re.compile(r".+-[0-9a-f]{32}\.(json\.gz|[A-Za-z0-9_-]+\.npy)")
_HALF_WRITTEN = re.compile(r"\.lolat-\d+-[0-9a-f]{8}\.tmp")
_HOUR_S = 3600.0


def cache_folder() -> Path | None:
    """LOLAT_CACHE, or `lolat` where this system keeps a user's caches.

    None, where nothing is kept: LOLAT_CACHE is `off`, or no home is known.
    """
    if named := os.environ.get("LOLAT_CACHE", ""):
        return None if named == OFF else Path(os.path.abspath(named))
    try:
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA", "")
            base = Path(local) if local else Path.home() / "AppData" / "Local"
            return base / "lolat" / "cache"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "lolat"
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification has a relative path ignored.
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "lolat"
    except RuntimeError:
        return None


@dataclass(frozen=True)
class Cache:
    """What is kept in `folder` (None: nothing is), at most some `most_bytes` of it.

    `spec` is NETWORK and `size` its input size, as `lolat.readers.read` takes them; every method raises
    InputError for a size that is none. `remarks`, no part of the value: why something could not be
    kept, for people; each once.
    """

    folder: Path | None = field(default_factory=cache_folder)
    most_bytes: int = MOST_BYTES
    remarks: list[str] = field(default_factory=list, compare=False)

    def key(self, spec: str, size: Any = None) -> str | None:
        """A name for the network's files: readable, then a hash of what the graph depends on.

        That is: `spec`, `size`, this LoLat, the packages that read it, and the content of its file (of an
        `.onnx` not the data that it has in further files). None for what is not kept: the network of
        `package.module:callable`, whose code may change, and a file that cannot be read.
        """
        sizes = as_sizes(size)
        prefix, _, name = spec.partition(":")
        ending = os.path.splitext(spec)[1].lower()
        packages = _PREFIXES.get(prefix) or _ENDINGS.get(ending)
        if packages is None or _is_of_the_caller(spec):
            return None
        file = "" if prefix in _PREFIXES else spec
        if prefix == "transformers":
            file = name.partition("?")[0]
        try:
            content = _sha256(file) if file else ""
        except (OSError, ValueError):  # ValueError: no file's name holds a null character
            return None
        depends_on = {
            # The same file in another folder is the same network.
            "spec": spec.replace(file, os.path.basename(file)) if file else spec,
            "size": sizes,
            "lolat": [__version__, READERS, FORMAT_VERSION],
            "packages": {package: installed_version(package) for package in packages},
            "keras": _keras_settings() if packages is _KERAS else [],
            "content": content,
        }
        digest = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:32]
        shown = f"{prefix}-{os.path.basename(name)}" if prefix in _PREFIXES else Path(spec).stem
        shown = re.sub(r"[^A-Za-z0-9_.-]+", "-", shown)[:60].strip(".-")
        return f"{shown or 'network'}-{digest}"

    def read(self, spec: str, size: Any, make: Callable[[], Graph]) -> Graph:
        """The network's graph: that which comes along or is kept, or what `make` returns, then kept."""
        graph = shipped_graph(spec, as_sizes(size)) or self.graph(spec, size)
        if graph is None:
            graph = make()
            self.put(spec, size, graph)
        return graph

    def graph(self, spec: str, size: Any = None) -> Graph | None:
        """The network's graph; None where it is not kept, or its file is damaged."""

        def parse(content: bytes) -> Graph:
            return Graph.from_dict(json.loads(gzip.decompress(content)))

        return self._read(spec, size, ".json.gz", parse)

    def put(self, spec: str, size: Any, graph: Graph) -> None:
        """Keep the network's graph."""
        text = json.dumps(graph.to_dict(), separators=(",", ":"))
        self._write(spec, size, ".json.gz", gzip.compress(text.encode(), mtime=0))

    def array(self, spec: str, size: Any, name: str) -> np.ndarray | None:
        """The array `name` of the network; None where it is not kept, or its file is damaged.

        `name`: letters, digits, - and _, as "work-amp". The code that makes the array is no part of the
        key: where that changes, so must the name.
        """

        def parse(content: bytes) -> np.ndarray:
            array = np.load(io.BytesIO(content), allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("several arrays")
            return array

        return self._read(spec, size, f".{name}.npy", parse)

    def put_array(self, spec: str, size: Any, name: str, array: np.ndarray) -> None:
        """Keep an array `name` of the network; ValueError where it is one of Python objects."""
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        self._write(spec, size, f".{name}.npy", content.getvalue())

    def trim(self, most_bytes: int) -> None:
        """Remove the files that were not used for longest, until the rest has at most `most_bytes`.

        Files that are not of here stay, and do not count.
        """
        ours = self._ours()
        total = sum(size for _, size, _ in ours)
        for _, size, path in sorted(ours):
            if total <= most_bytes:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= size

    def _ours(self) -> list[tuple[int, int, str]]:
        """(when it was used, bytes, path) of each file; half of one, of a killed run, is removed."""
        ours: list[tuple[int, int, str]] = []
        old = time.time() - _HOUR_S
        if self.folder is None:
            return ours
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # removed meanwhile by another process
                    facts = entry.stat(follow_symlinks=False)
                    if _OURS.fullmatch(entry.name):
                        ours.append((facts.st_mtime_ns, facts.st_size, entry.path))
                    elif _HALF_WRITTEN.fullmatch(entry.name) and facts.st_mtime < old:
                        os.unlink(entry.path)
        return ours

    def remark(self, text: str) -> None:
        """Add to the remarks what they do not say yet."""
        if text not in self.remarks:
            self.remarks.append(text)

    def _path(self, spec: str, size: Any, ending: str) -> Path | None:
        key = None if self.folder is None else self.key(spec, size)
        return self.folder / (key + ending) if self.folder and key else None

    def _read(self, spec: str, size: Any, ending: str, parse: Callable[[bytes], Any]) -> Any:
        """What `parse` makes of a file's content; None where there is none, or it is damaged."""
        path = self._path(spec, size, ending)
        if path is None:
            return None
        try:
            value = parse(path.read_bytes())
        except (OSError, EOFError, ValueError, InputError, RecursionError, MemoryError, zlib.error):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now, for `trim`
        return value

    def _write(self, spec: str, size: Any, ending: str, content: bytes) -> None:
        """Put a file there; a folder that cannot be written to is a remark."""
        path = self._path(spec, size, ending)
        if path is None:
            return
        try:
            write_bytes(path, content)
        except LolatError as error:
            reason = getattr(error.__context__, "strerror", None) or error
            self.remark(
                f"networks that were read are not kept: {path.parent} cannot be written to ({reason}); "
                "LOLAT_CACHE can name another folder"
            )
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
    """What the user has set for all networks of Keras: its backend, where channels stand."""
    settings = [os.environ.get("KERAS_BACKEND", "")]
    with contextlib.suppress(OSError):
        settings.append(_sha256(str(keras_settings())))
    return settings


# ---- Networks that come with LoLat, read already: keras:ResNet50 or timm:resnet50 without a framework.
#
# `networks.jsonl.xz` is lines of JSON: first the networks and the versions of the packages they were read
# with, then a graph for each. `benchmarks/shipped_networks.py` writes it.

FILE = Path(__file__).with_name("networks.jsonl.xz")
_IN_ANY_CASE = ("keras", "torchvision")


def shipped_graph(spec: str, size: Any = ()) -> Graph | None:
    """The graph of NETWORK `spec` at input size `size`, as `lolat.readers.size.as_sizes` gives it.

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
    """The file with what a user has set for all networks of Keras; it need not exist."""
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
