"""Networks that come with LoLat, read already: keras:ResNet50 or timm:resnet50 without a framework.

`networks.jsonl.xz` is lines of JSON: first the networks and the versions of the packages they were read
with, then a graph for each. `benchmarks/shipped_networks.py` writes it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import lzma
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from lolat.graph import Graph
from lolat.readers import is_of_size

FILE = Path(__file__).with_name("networks.jsonl.xz")
_IN_ANY_CASE = ("keras", "torchvision")


def shipped_graph(spec: str, size: Any = ()) -> Graph | None:
    """The graph of NETWORK `spec` at input size `size`, as `lolat.readers.as_sizes` gives it.

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
