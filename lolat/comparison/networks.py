"""Whole networks that were measured: read from what `lolat evaluate --json` wrote, counted again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.counts import COLUMNS, count
from lolat.errors import InputError, LolatError
from lolat.graph import Graph
from lolat.readers import read
from lolat.subgraph import block_graph

EXPECTED = "expected what `lolat evaluate MODEL --json` wrote"
_BATCH = 2**31


@dataclass(frozen=True)
class NetworkTime:
    """A network at a batch size (and input size; or a block of it), and its measured time."""

    spec: str
    batch_size: int
    measured_ms: float
    input_size: tuple[int, ...] = ()
    block: int | None = None

    @property
    def label(self) -> str:
        """What it is called in front of people, whatever the batch size."""
        size = "x".join(map(str, self.input_size))
        part = "" if self.block is None else f"block {self.block}"
        return " ".join(word for word in (self.spec, size, part) if word)


def read_evaluation(path: str) -> tuple[list[NetworkTime], str | None]:
    """The measured networks of an evaluation, and the device (None where it does not say).

    Raises InputError for a file that cannot be read or is no evaluation.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            document = json.load(file)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; {EXPECTED}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON; {EXPECTED}") from error
    rows = document.get("networks") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path} has no list of networks; {EXPECTED}")
    found = [_row(row, f"{path}: networks[{i}]") for i, row in enumerate(rows)]
    device = document.get("device")
    return found, device if isinstance(device, str) else None


def count_networks(
    networks: Sequence[NetworkTime],
    reader: Callable[[str, Sequence[int]], Graph] = read,
    done: Callable[[], None] = lambda: None,
) -> tuple[list[NetworkTime], np.ndarray, dict[str, str]]:
    """Read and count: (those that could be, their (networks, COLUMNS) counts, why others could not).

    Each network is read once, at however many batch sizes; `done` is called after each entry.
    """
    graphs: dict[tuple[str, tuple[int, ...]], Graph] = {}
    parts: dict[str, Graph] = {}
    kept, rows = [], []
    skipped: dict[str, str] = {}
    for network in networks:
        key = (network.spec, network.input_size)
        label = network.label
        try:
            if label not in parts and label not in skipped:
                if key not in graphs:
                    graphs[key] = reader(*key)
                parts[label] = _part(network, graphs[key])
            if label in parts:
                rows.append(count(parts[label]).total(network.batch_size))
                kept.append(network)
        except LolatError as error:
            skipped[label] = str(error)
        done()
    return kept, np.array(rows, float).reshape(len(rows), len(COLUMNS)), skipped


def _part(network: NetworkTime, graph: Graph) -> Graph:
    """The network, or the block of it that was measured."""
    if network.block is None:
        return graph
    return block_graph(graph, network.block, network.label)


def _row(row: Any, where: str) -> NetworkTime:
    """One entry, checked."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is not an object; {EXPECTED}")
    spec, batch, time = (row.get(k) for k in ("network", "batch_size", "measured_ms"))
    size, block = row.get("input_size") or (), row.get("block")
    wrong = None
    if not isinstance(spec, str) or not spec:
        wrong = "network is not a text"
    elif isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch < _BATCH:
        wrong = "batch_size is not a whole number from 1"
    elif isinstance(time, bool) or not isinstance(time, (int, float)) or not 0 < time < 1e12:
        wrong = "measured_ms is not a time above 0"
    elif not isinstance(size, (list, tuple)) or not all(type(n) is int and n > 0 for n in size):
        wrong = "input_size is not a list of positive whole numbers"
    elif block is not None and type(block) is not int:
        wrong = "block is not the number of a block"
    if wrong is not None:
        raise InputError(f"{where}: {wrong}; {EXPECTED}")
    return NetworkTime(str(spec), int(batch), float(time), tuple(size), block)  # type: ignore[arg-type]
