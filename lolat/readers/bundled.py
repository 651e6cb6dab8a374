"""Networks that come with LoLat, such as keras:ResNet50 and timm:resnet50: no framework is needed.

`networks.jsonl.xz` has lines of JSON. The first line has the names of the networks, the other names of
timm for them, and the versions of the packages that read them. A graph for each network follows.
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

    None if it is not bundled or has another size, or if its package is installed in another version or set
    otherwise than usual, as its network may differ.
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
    """The names of the bundled networks, as NETWORK takes them."""
    networks: list[str] = _bundled()[0]["networks"]
    return networks


def _is_bundled_version(package: str) -> bool:
    """True unless a package is installed in another version than that of its bundled networks."""
    return installed_version(package) in ("", _bundled()[0]["packages"][package])


def check_name(spec: str) -> None:
    """NetworkError for a network that keras.applications lacks, told without Keras.

    All of its networks are bundled; nothing is refused if another version is installed.
    """
    package, _, name = spec.partition(":")
    if package != "keras" or not _is_bundled_version(package):
        return
    names = [n.partition(":")[2] for n in bundled_networks() if n.startswith("keras:")]
    if name.lower() not in map(str.lower, names):
        raise unknown_network(spec, names, "keras.io/api/applications")


def bundled_as(name: str) -> list[str]:
    """The bundled networks with a given name, whatever their package, case, hyphens and underscores."""

    def letters(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    return [n for n in bundled_networks() if letters(n.partition(":")[2]) == letters(name)]


@cache
def _bundled() -> tuple[dict[str, Any], dict[str, bytes]]:
    """The file's first line, and lookup name of a network -> its line."""
    first, *lines = lzma.decompress(FILE.read_bytes()).split(b"\n")
    header = json.loads(first)
    names = (n.lower() if n.startswith("keras") else n for n in header["networks"])
    return header, dict(zip(names, lines, strict=True))


def with_bundled_hint(spec: str, missing: MissingPackageError) -> MissingPackageError:
    """The error of a missing package, behind a hint: the size that is bundled, or bundled names near it."""
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
