"""Where the blocks of a network belong: module paths from their labels and their operations' paths.

A name is cut where a module ends: at `/` and `.`, at `_` between a number and a word ("conv2_block1" is in
"conv2"; "block_3" and "multi_head" are one name) and in front of a single letter behind a number
("block2a" is in "block2").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from lolat.graph import Graph

_PLACES = re.compile(r"[/._]|(?<=\d)(?=[a-z](?![a-z0-9]))")
_NUMBERED = re.compile(r"\d[a-z]?$")
_DIMENSIONS = re.compile(r"(?:conv|pool|ling|ding|norm|pout)[123]d$")


class Part(Protocol):
    """A block (`lolat.blocks.Block`)."""

    @property
    def label(self) -> str:
        """Its short name."""

    @property
    def operations(self) -> tuple[int, ...]:
        """Positions of its operations in the graph."""


def module_paths(graph: Graph, blocks: Sequence[Part]) -> list[tuple[str, ...]]:
    """For each block, the modules that it is in, the outermost first, and the block itself last.

    Each is written with what is around it: ("conv2", "conv2_block1"). What all blocks are in is left out.
    """
    found = []
    for block in blocks:
        paths = [graph.operations[p].path.split("/") for p in block.operations]
        found.append(levels(_joined(_common(paths), block.label)))
    while found and len({f[0] for f in found}) == 1 and min(map(len, found)) > 1:
        found = [f[1:] for f in found]
    return found


def levels(name: str) -> tuple[str, ...]:
    """The beginnings of a name at which a module ends, and the name."""
    ends = [m.start() for m in _PLACES.finditer(name) if _is_end(name, m.start())]
    return (*(name[:end] for end in ends if name[:end].strip("/._")), name)


def _is_end(name: str, at: int) -> bool:
    before, mark, behind = name[:at], name[at], name[at + 1 : at + 2]
    if mark in "/.":
        return True
    if _DIMENSIONS.search(before if mark == "_" else before + mark):
        return False  # a kind of layer: conv2d, max_pooling2d
    return mark != "_" or bool(_NUMBERED.search(before) and not behind.isdigit())


def _common(paths: Sequence[Sequence[str]]) -> list[str]:
    """The components with which all paths begin."""
    first = min(paths, default=[], key=len)
    shared = 0
    while shared < len(first) and all(path[shared] == first[shared] for path in paths):
        shared += 1
    return [part for part in first[:shared] if part]


def _joined(path: Sequence[str], label: str) -> str:
    """A label behind the part of the path that it does not repeat."""
    own = label.replace(".", "/").split("/")
    parts = "/".join(path).replace(".", "/").split("/") if path else []
    for start in range(len(parts)):
        inside = parts[start : start + len(own)]
        if (
            inside == own[: len(inside)]
        ):  # the path goes on with the label, or the label with the path
            return "/".join([*parts[:start], label])
    return "/".join([*parts, label])
