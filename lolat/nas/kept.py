"""Networks of a space's function, kept on disk: a second command on the space starts at once.

A file is named by a hash of the function's place, the choices, the input size and the versions. It holds
the hash of each of the user's modules that were loaded when it was written, and is used only as long as all
are the same. Nothing is kept of a function that its module's text does not determine: a closure, a method,
one that was typed in, or one whose module changed after it was loaded.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lolat import __version__
from lolat.errors import LolatError
from lolat.graph import FORMAT_VERSION, Graph
from lolat.io.paths import cache_folder
from lolat.io.writing import write_bytes
from lolat.readers.cache import READERS, installed_version
from lolat.readers.size import as_sizes

STARTED = time.time()
LOLAT = os.path.dirname(os.path.dirname(__file__))
PACKAGES = ("keras", "tensorflow", "tensorflow-cpu", "torch", "torchvision", "timm", "transformers")
Row = tuple[int, ...]


class Kept(msgspec.Struct):
    """A file: the hashes of the user's modules, candidates and their networks."""

    modules: dict[str, str]
    rows: list[Row]
    graphs: list[Graph]


def load(
    function: Callable[..., Any], choices: Mapping[str, Sequence[Any]], size: Any
) -> tuple[list[Row], list[Graph]]:
    """Candidates and their networks that are kept; none where a module changed."""
    path = _path(function, choices, size)
    with contextlib.suppress(Exception):  # there is none, or it is damaged
        if path is not None:
            kept = msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=Kept)
            if all(_digest(module) == digest for module, digest in kept.modules.items()):
                return kept.rows, kept.graphs
    return [], []


def save(
    function: Callable[..., Any],
    choices: Mapping[str, Sequence[Any]],
    size: Any,
    rows: list[Row],
    graphs: list[Graph],
) -> None:
    """Keep candidates and their networks; nothing where the folder cannot be written to."""
    path = _path(function, choices, size)
    with contextlib.suppress(LolatError, OSError):
        if path is not None:
            kept = Kept({module: _digest(module) for module in _modules()}, rows, graphs)
            write_bytes(path, gzip.compress(msgspec.msgpack.encode(kept), 3, mtime=0))


def _path(function: Any, choices: Mapping[str, Sequence[Any]], size: Any) -> Path | None:
    """The file of a function's networks; None where they are not kept."""
    folder, code, modules = cache_folder(), getattr(function, "__code__", None), _modules()
    if folder is None or code is None or function.__closure__ or hasattr(function, "__self__"):
        return None
    module = os.path.abspath(code.co_filename)
    if module not in modules or any(os.path.getmtime(m) > STARTED for m in modules):
        return None
    defaults = repr((function.__defaults__, function.__kwdefaults__, list(choices.items())))
    versions = {package: installed_version(package) for package in PACKAGES}
    facts = [module, function.__qualname__, code.co_firstlineno, defaults, as_sizes(size),
             __version__, READERS, FORMAT_VERSION, versions]  # fmt: skip
    # An address in memory says nothing of what stands there.
    named = hashlib.sha256(repr(facts).encode()).hexdigest()
    return None if " at 0x" in defaults else folder / f"{named}.space.gz"


def _modules() -> list[str]:
    """The files of all modules that are loaded and neither Python's, nor installed, nor LoLat's."""
    other = (LOLAT, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    files = {
        os.path.abspath(getattr(m, "__file__", None) or "") for m in list(sys.modules.values())
    }
    return [
        file
        for file in sorted(files)
        if file.endswith(".py") and not file.startswith(tuple(o + os.sep for o in other))
        and "site-packages" not in file and "dist-packages" not in file and os.path.isfile(file)
    ]  # fmt: skip


def _digest(path: str) -> str:
    """A hash of a file's content."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
