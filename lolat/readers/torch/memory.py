"""Bytes that a module's parameters and buffers take beyond those that its graph tells."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from lolat.graph import Graph
from lolat.graph.memory import weights_bytes
from lolat.graph.modes import FLOAT16, FLOAT_BYTES, HALF_BYTES, SIZES, Mode, own_dtype
from lolat.graph.network import ExtraBytes

LEAST, LEAST_BYTES = 0.01, 4096
"""The least share of all bytes, and the least bytes, that are told: not the counters of normalizations."""


def with_buffers(model: Any, graph: Graph) -> Graph:
    """Return the graph with `extra_bytes`: of tables in buffers, integers, mixed data types.

    Weights that a known library quantizes have their bytes in the graph.
    """
    if any("bits" in o.attributes for o in graph.operations):
        return graph
    every = {id(t): t for t in (*model.parameters(), *model.buffers())}.values()
    sizes = [(t.numel(), t.element_size(), t.is_floating_point()) for t in every]
    own = sum(number * size for number, size, _ in sizes)
    half = sum(number * (HALF_BYTES if is_float else size) for number, size, is_float in sizes)
    each = SIZES.get(own_dtype(graph) or "", FLOAT_BYTES)
    others = sum(p.numel() * (p.element_size() - each) for p in model.parameters())
    in_own = own - weights_bytes(graph)
    in_half = half - weights_bytes(graph, Mode(FLOAT16))
    of_buffers = in_own - round(others)
    least = max(LEAST * own, LEAST_BYTES)
    extra = ExtraBytes(*(size * (abs(size) > least) for size in (in_own, in_half, of_buffers)))
    return structs.replace(graph, extra_bytes=extra) if any(extra) else graph
