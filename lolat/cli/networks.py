"""`lolat read`: a network in a file, so that a question needs no framework."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lolat.cli import common


@dataclass(frozen=True)
class NetworkFile:
    """A network was written to a file: how many operations, and its counts of one sample."""

    network: str
    output: str
    operations: int
    counts: dict[str, int]
    warnings: tuple[str, ...]


@common.command("lolat read keras:ResNet50 --output resnet50.json")
@common.network_argument
@common.size_option
@common.output_option(required=True, more="A JSON file.")
@common.json_option
def read(network: str, input_size: tuple[int, ...], output: Path, as_json: bool) -> None:
    """Write NETWORK to a JSON file, which every command takes as NETWORK, without its framework.

    It holds operations and shapes, no weights.
    """
    from lolat import readers
    from lolat.graph.counts import count
    from lolat.io.documents import to_json
    from lolat.io.writing import write_text
    from lolat.units import plain, plural, quantity

    graph = readers.read(network, input_size)
    counts = count(graph)
    total, warnings = counts.total(), tuple(dict.fromkeys((*graph.warnings, *counts.warnings)))
    write_text(output, to_json(graph.to_dict(), str(output)))
    common.warn(warnings)
    found = NetworkFile(graph.name, str(output), len(graph.operations), total._asdict(), warnings)
    what = f"{plain(graph.name)}, {plural(len(graph.operations), 'operation')}"
    line = f"written: {plain(str(output))} ({what}, {quantity(total.flops, 'MACs')})"
    common.answer("network-file", found, as_json, [line])
