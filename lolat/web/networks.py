"""What a page asks about, the last ones kept in memory: networks, each read by a process of its own, and
language models.
"""

from __future__ import annotations

import hashlib
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

from lolat.errors import InputError, NetworkError, arg
from lolat.graph import Graph
from lolat.llm.config import read_decoder
from lolat.llm.decoder import Decoder
from lolat.llm.names import named
from lolat.readers import OF_TRANSFORMERS
from lolat.readers.cache import Cache
from lolat.readers.children import read_in_child
from lolat.readers.size import is_of_size
from lolat.units import plain, shapes_text

UPLOAD = "upload:"
"""What NETWORK of a file that was sent begins with; the file's name follows, and digits of its content."""
MOST_KEPT = 128


def sent_name(spec: str) -> str:
    """The name of a file that was sent, from its NETWORK; any other as it is."""
    sent = spec.removeprefix(UPLOAD)
    return spec if sent == spec else re.sub(r"@[0-9a-f]{6}$", "", sent)


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
                    return self._of_its_size(spec, size)
                graph = Cache().read(spec, size, lambda: self._read(spec, size))
                _keep(self._graphs, (spec, size), graph)
            return self._graphs[spec, size]

    def _of_its_size(self, spec: str, size: tuple[int, ...]) -> Graph:
        """A file that was sent and read at another input size, where its network is of this one too."""
        read = [graph for (known, _), graph in self._graphs.items() if known == spec]
        if not read:
            raise NetworkError(f"{sent_name(spec)} is not known (any more); give the file again")
        if found := next((graph for graph in read if size and is_of_size(graph, size)), None):
            return found
        shapes = shapes_text((1, *shape) for shape in read[-1].input_sizes)
        raise NetworkError(
            f"{arg('input_size')}: {sent_name(spec)} was read with inputs of {shapes}; for others set this "
            "field and give the file again. A .keras file can have others; an .onnx or a .json file keeps "
            "the size that it was written with"
        )

    def put(self, file: BinaryIO, name: str, size: tuple[int, ...] = ()) -> str:
        """Read an open file that a client sent as `name`, and keep its network, under the NETWORK returned.

        Nothing of the file is left on the disk. NetworkError where it is no network.
        """
        with self._lock, _received(file, name) as (name, path, spec):
            stem, _, ending = name.rpartition(".")
            if ending == "py":
                raise _in_terminal(name, f"{stem}:FUNCTION", f"{stem}.json")
            try:
                graph = self._read(str(path), size)
            except NetworkError as error:
                if error.code == OF_TRANSFORMERS:
                    raise _in_terminal(name, f"transformers:{name}", "net.json") from None
                raise
            _keep(self._graphs, (spec, size), replace(graph, name=stem))
        return spec


class Decoders:
    """Known language models, and the last configurations that were sent."""

    def __init__(self) -> None:
        self._sent: dict[str, Decoder] = {}

    def get(self, spec: str) -> Decoder:
        """The language model. InputError where it is not known (any more)."""
        if not spec.startswith(UPLOAD):
            return named(spec)
        if spec not in self._sent:
            raise InputError(f"{sent_name(spec)} is not known (any more); give the file again")
        return self._sent[spec]

    def put(self, file: BinaryIO, name: str) -> str:
        """As `Networks.put`, of a configuration. InputError where it is none."""
        with _received(file, name) as (name, path, spec):
            decoder = read_decoder(path)
            stem = name.rpartition(".")[0]
            called = decoder.architecture if stem == "config" else stem
            _keep(self._sent, spec, changed(decoder, name=called))
        return spec


def _in_terminal(name: str, network: str, output: str) -> NetworkError:
    """The error of a file whose network takes code to make, which a page never runs."""
    return NetworkError(
        f"{name}: a network that code makes, and this page runs none; expected what `lolat read "
        f"{network} --output {output}` writes in a terminal: give {output} here"
    )


@contextmanager
def _received(file: BinaryIO, name: str) -> Iterator[tuple[str, Path, str]]:
    """(name, where it lies for a moment, NETWORK) of an open file that a client sent as `name`; an
    InputError names it by that.
    """
    name = plain(re.split(r"[/\\]", name)[-1])[:200]
    with tempfile.TemporaryDirectory(prefix="lolat-") as folder:
        # The name that came with the file may be anything.
        path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        with path.open("rb") as copy:
            digest = hashlib.file_digest(copy, "sha256").hexdigest()
        try:
            yield name, path, f"{UPLOAD}{name}@{digest[:6]}"
        except InputError as error:
            words = error.message.replace(str(path), name).replace(f"'{path.stem}'", repr(name))
            raise error.reworded(words) from error


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value; the first one goes where there are too many."""
    kept[key] = value
    for first in list(kept)[:-MOST_KEPT]:
        kept.pop(first, None)
