"""Caches the networks of a user's function on disk for later runs, while its code stays the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lolat.graph import Graph
from lolat.parameters import InputSize
from lolat.readers.cache import Cache, key_of
from lolat.readers.opened_files import Stamps
from lolat.readers.size import as_size
from lolat.readers.source_hashes import UnknownCodeError, facts_of, modules_of, sources_of
from lolat.readers.versions import keras_settings


class CandidateCache:
    """The networks of a function that earlier runs built; empty before `open`.

    `facts`: the function and the values of its arguments; `most`: limit on the networks that a run adds.
    """

    def __init__(self, facts: Sequence[Any], size: InputSize, most: int) -> None:
        self._facts, self._size, self._left = facts, size, most
        self._key = ""

    def open(self, build: Callable[[], Iterable[Graph]]) -> None:
        """Find what earlier runs cached, unless the code that builds the networks may have changed.

        The key has the source text of the function's module and of modules that it imports, and a few
        networks that `build` makes anew, with each choice in one of them: they show if a setting changed.
        Each cached network stores stamps of the files that Python had opened, and is used while these are
        unchanged.
        """
        if Cache().folder is None:
            return
        try:
            given = facts_of(self._facts)
        except UnknownCodeError:
            return
        seen = [_without_names(graph.to_dict()) for graph in build()]
        try:  # now that all modules are imported
            sources = sources_of(modules_of(self._facts))
        except (UnknownCodeError, ImportError, OSError, SyntaxError, ValueError):
            return
        python = [*sys.version_info[:3]]
        self._key = key_of(
            [given, as_size(self._size).given, sources, seen, keras_settings(), python]
        )

    def find(self, candidate: Sequence[int]) -> Graph | None:
        """The cached network of a candidate; None if there is none."""
        return Cache().graph(key_of([self._key, candidate])) if self._key else None

    def put(self, candidate: Sequence[int], graph: Graph, files: Stamps) -> None:
        """Cache a candidate's network, and the stamps of the files that it was made from."""
        if self._key and self._left:  # a long loop of the user's fills no folder
            self._left -= 1
            Cache().put_graph(key_of([self._key, candidate]), graph, files)


def _without_names(value: Any) -> Any:
    """A graph's document without names of layers, because Keras numbers layers through the process."""
    if isinstance(value, dict):
        named = ("name", "path")
        return {key: _without_names(one) for key, one in value.items() if key not in named}
    return [*map(_without_names, value)] if isinstance(value, list | tuple) else value
