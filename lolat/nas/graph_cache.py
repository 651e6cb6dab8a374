"""The networks of a space's function on disk: a second command on the space starts at once.

A file is named by a hash of the function's place, the choices, the input size, the versions and the text of
the user's modules. No file is written for a function that its module's text does not determine: a closure,
a method, one that was typed in, or one whose module changed after it was loaded.
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
_OWN = os.path.dirname(os.path.dirname(__file__))
LIBRARIES = tuple(
    os.path.join(folder, "")
    for folder in (_OWN, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
)
PACKAGES = ("keras", "tensorflow", "tensorflow-cpu", "torch", "torchvision", "timm", "transformers")


Cached = tuple[list[tuple[int, ...]], list[Graph]]
"""Candidates, and their networks."""


def load(path: Path | None) -> Cached | None:
    """The content of a file of `path_of`; None if there is none."""
    with contextlib.suppress(Exception):  # there is none, or it is damaged
        if path is not None:
            return msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=Cached)
    return None


def save(path: Path | None, cached: Cached) -> None:
    """Write candidates and their networks; nothing if the folder cannot be written to."""
    with contextlib.suppress(Exception):
        if path is not None:
            write_bytes(path, gzip.compress(msgspec.msgpack.encode(cached), 3, mtime=0))


def path_of(function: Any, choices: Mapping[str, Sequence[Any]], size: Any) -> Path | None:
    """The file of a function's networks; None if its module's text does not determine them."""
    folder, code, modules = cache_folder(), getattr(function, "__code__", None), _modules()
    if folder is None or code is None or function.__closure__ or hasattr(function, "__self__"):
        return None
    module = os.path.abspath(code.co_filename)
    if module not in modules or any(os.path.getmtime(m) > STARTED for m in modules):
        return None
    given = repr((function.__defaults__, function.__kwdefaults__, list(choices.items())))
    if " at 0x" in given:  # an address says nothing of the object there
        return None
    texts = [(file, hashlib.sha256(Path(file).read_bytes()).hexdigest()) for file in modules]
    place = [module, function.__qualname__, code.co_firstlineno, given, as_sizes(size), texts]
    versions = [*map(installed_version, PACKAGES), __version__, READERS, FORMAT_VERSION]
    return folder / f"{hashlib.sha256(repr([place, versions]).encode()).hexdigest()}.space.gz"


def _modules() -> list[str]:
    """The files of the loaded modules that are neither Python's, nor installed, nor LoLat's."""
    loaded = (getattr(module, "__file__", None) or "" for module in [*sys.modules.values()])
    return [
        file
        for file in sorted(set(map(os.path.abspath, loaded)))
        if file.endswith(".py") and not file.startswith(LIBRARIES) and os.path.isfile(file)
        and "site-packages" not in file and "dist-packages" not in file
    ]  # fmt: skip
