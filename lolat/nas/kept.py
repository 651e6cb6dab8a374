"""Networks of a space's function, kept on disk: a second command on the space starts at once.

A file is named by a hash of the function's place, the choices, the input size and the versions. It has the
hash of each of the user's modules that were loaded when it was written, and is used while all are the
same. Nothing is kept of a function that its module's text does not determine: a closure, a method, one that
was typed in, or one whose module changed after it was loaded.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lolat import __version__
from lolat.graph import FORMAT_VERSION, Graph
from lolat.io.paths import cache_folder
from lolat.io.writing import write_bytes
from lolat.readers.cache import READERS, installed_version
from lolat.readers.size import as_sizes

STARTED = time.time()
LIBRARIES = tuple(
    os.path.join(place, "")
    for place in (
        os.path.dirname(os.path.dirname(__file__)),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
    )
)
PACKAGES = ("keras", "tensorflow", "tensorflow-cpu", "torch", "torchvision", "timm", "transformers")


class Kept(msgspec.Struct):
    """Candidates and their networks; `modules`: the hashes of the user's modules."""

    modules: dict[str, str]
    rows: list[tuple[int, ...]]
    graphs: list[Graph]


def load(path: Path | None) -> Kept | None:
    """The content of a file of `path_of`; None where there is none, or a module changed."""
    with contextlib.suppress(Exception):  # there is none, or it is damaged
        if path is not None:
            kept = msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=Kept)
            if all(_digest(module) == digest for module, digest in kept.modules.items()):
                return kept
    return None


def save(path: Path | None, rows: list[tuple[int, ...]], graphs: list[Graph]) -> None:
    """Keep candidates and their networks; nothing where the folder cannot be written to."""
    with contextlib.suppress(Exception):
        if path is not None:
            kept = Kept({module: _digest(module) for module in _modules()}, rows, graphs)
            write_bytes(path, gzip.compress(msgspec.msgpack.encode(kept), 3, mtime=0))


def path_of(function: Any, choices: Mapping[str, Sequence[Any]], size: Any) -> Path | None:
    """The file of a function's networks; None where they are not kept."""
    folder, code, modules = cache_folder(), getattr(function, "__code__", None), _modules()
    if folder is None or code is None or function.__closure__ or hasattr(function, "__self__"):
        return None
    module = os.path.abspath(code.co_filename)
    if module not in modules or any(os.path.getmtime(m) > STARTED for m in modules):
        return None
    given = repr((function.__defaults__, function.__kwdefaults__, list(choices.items())))
    if " at 0x" in given:  # an address says nothing of what stands there
        return None
    versions = [installed_version(package) for package in PACKAGES]
    facts = [module, function.__qualname__, code.co_firstlineno, given, as_sizes(size), versions]
    name = repr([*facts, __version__, READERS, FORMAT_VERSION])
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()}.space.gz"


def _modules() -> list[str]:
    """The files of all modules that are loaded and neither Python's, nor installed, nor LoLat's."""
    files = {
        os.path.abspath(getattr(m, "__file__", None) or "") for m in list(sys.modules.values())
    }
    return [
        file
        for file in sorted(files)
        if file.endswith(".py") and not file.startswith(LIBRARIES) and os.path.isfile(file)
        and "site-packages" not in file and "dist-packages" not in file
    ]  # fmt: skip


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
