"""Checks of graphs and refusals, for the readers of all frameworks."""

from __future__ import annotations

from typing import Any

import pytest

import lolat
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.counts import Count, count

FREE = ("reshape", "identity", "dropout", "flatten")


def kinds(graph: Graph) -> list[str]:
    """The operations that are not free, in order."""
    return [o.kind for o in graph.operations if o.kind not in FREE]


def total(graph: Graph, batch_size: int = 1) -> Count:
    """The counts of a graph of known operations."""
    counts = count(graph)
    assert counts.warnings == (), counts.warnings
    return counts.total(batch_size)


def six(counts: Count | Graph, batch_size: int = 1) -> tuple[int, ...]:
    """ACTS, INP, FLOPs, traffic, weights, operations: of counts, or of a graph."""
    return tuple((total(counts, batch_size) if isinstance(counts, Graph) else counts)[:6])


def check(graph: Graph, names: str, counts: tuple[int, ...]) -> None:
    """Its kinds, and its six counts at batch size 1: at 3 all but weights and operations are three times
    as many."""
    assert " ".join(kinds(graph)) == names
    assert six(graph) == counts
    assert six(graph, 3) == (*(3 * n for n in counts[:4]), *counts[4:])


def refused(network: Any, *parts: str, size: Any = None) -> str:
    """The message with which a network is refused: one line for people, with all `parts` in it."""
    with pytest.raises(InputError) as caught:
        lolat.read(network, size)
    message = str(caught.value)
    assert message.isprintable()  # so it is one line
    assert len(message) < 1500
    assert caught.value.exit_code == 2
    for part in parts:
        assert part in message, message
    return message
