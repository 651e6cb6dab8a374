"""Networks that come with LoLat, such as keras:ResNet50 and timm:resnet50, and need no framework.

`networks.jsonl.xz` has lines of JSON. The first line has the names of the networks, timm's other names for
them, and the versions of the packages that they were read with. A graph for each network follows.
`benchmarks/shipped_networks.py` writes the file.
"""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lolat.errors import MissingPackageError
from lolat.graph import Graph
from lolat.io.forms import unknown_network
from lolat.readers.size import OWN_SIZE, Size, is_of_size
from lolat.readers.versions import USUAL, installed_version, keras_settings, torch_settings
from lolat.units import did_you_mean, shapes_text, shortened

FILE = Path(__file__).with_name("networks.jsonl.xz")


def bundled_graph(spec: str, size: Size = OWN_SIZE) -> Graph | None:
    """The graph of NETWORK `spec` at an input size.

    None if the network is not bundled, or is bundled at another size. Also None if its package is installed
    in another version or with unusual settings, because its network may then differ.
    """
    package, _, name = spec.partition(":")
    if keras_settings() != USUAL if package == "keras" else torch_settings():
        return None
    header, lines = _bundled()
    known = f"keras:{name.lower()}" if package == "keras" else header["tags"].get(spec, spec)
    if known not in lines or not _is_bundled_version(package):
        return None
    graph = Graph.from_dict(json.loads(lines[known]))
    return replace(graph, name=name) if is_of_size(graph, size) else None


def bundled_networks() -> list[str]:
    """The names of the bundled networks in the form of the argument NETWORK."""
    networks: list[str] = _bundled()[0]["networks"]
    return networks


def _is_bundled_version(package: str) -> bool:
    """True if a package is not installed, or in the version that its bundled networks were read with."""
    return installed_version(package) in ("", _bundled()[0]["packages"][package])


def check_name(spec: str) -> None:
    """Raise NetworkError for a name that keras.applications lacks, without importing Keras.

    All networks of keras.applications are bundled. If another version of Keras is installed, every name
    passes.
    """
    package, _, name = spec.partition(":")
    if package != "keras" or not _is_bundled_version(package):
        return
    names = [n.partition(":")[2] for n in bundled_networks() if n.startswith("keras:")]
    if name.lower() not in map(str.lower, names):
        raise unknown_network(spec, names, "keras.io/api/applications")


def bundled_as(name: str) -> list[str]:
    """The bundled networks with a given name; package, case, hyphens and underscores are ignored."""

    def letters(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    return [n for n in bundled_networks() if letters(n.partition(":")[2]) == letters(name)]


@cache
def _bundled() -> tuple[dict[str, Any], dict[str, bytes]]:
    """The file's first line, and a mapping from the lookup name of each network to its line."""
    first, *lines = lzma.decompress(FILE.read_bytes()).split(b"\n")
    header = json.loads(first)
    names = (n.lower() if n.startswith("keras") else n for n in header["networks"])
    return header, dict(zip(names, lines, strict=True))


def with_bundled_hint(spec: str, missing: MissingPackageError) -> MissingPackageError:
    """The error of a missing package, after a hint: the bundled input size, or similar bundled names."""
    package, _, name = spec.partition(":")
    near = {
        n.partition(":")[2].lower(): n for n in bundled_networks() if n.startswith(f"{package}:")
    }
    if not near or (spec in near.values() and not bundled_graph(spec)):  # of another version
        return missing
    if graph := bundled_graph(spec):
        why = f"{spec} is bundled at {shapes_text(graph.input_sizes)} alone"
    else:
        same = {name.lower(): near[name.lower()]} if name.lower() in near else near
        hint = did_you_mean(name.lower(), same, "")
        why = f"{shortened(spec)} is not bundled{f' ({hint})' if hint else ''}"
    return MissingPackageError(f"{why}; {missing.message}", code=missing.code)
