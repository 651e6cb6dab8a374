"""Bytes of a module's parameters and buffers beyond the bytes of its graph's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from msgspec import structs

from lolat.graph import Graph
from lolat.graph.dtypes import FLOAT_BYTES, HALF_BYTES, SIZES
from lolat.graph.modes import FLOAT16, Mode, own_dtype
from lolat.graph.network import ExtraBytes
from lolat.graph.weights import weights_bytes

LEAST, LEAST_BYTES = 0.01, 4096
"""Extra bytes below this share of all bytes, or below LEAST_BYTES, are ignored: counters of batch norms."""


def tensors_of(model: Any) -> list[Any]:
    """Return all tensors of a module: its parameters, its buffers, and plain attributes."""
    values = (value for module in model.modules() for value in vars(module).values())
    plain = (value for value in values if isinstance(value, torch.Tensor))
    return list({id(t): t for t in (*model.parameters(), *model.buffers(), *plain)}.values())


def with_buffers(model: Any, module_tensors: Sequence[Any], graph: Graph) -> Graph:
    """The graph with its `extra_bytes`, from tables in buffers or attributes, integers, mixed data types.

    Weights that a known library quantizes have their bytes in the graph already. In half precision a tensor
    of smaller elements, such as float8, keeps its type. `module_tensors`: the module's tensors
    (`tensors_of`) before its call; the call may add activations.
    """
    if any("bits" in o.attributes for o in graph.operations):
        return graph
    sizes = [(t.numel(), t.element_size(), t.is_floating_point()) for t in module_tensors]
    own = sum(number * size for number, size, _ in sizes)
    half = sum(
        number * (min(size, HALF_BYTES) if is_float else size) for number, size, is_float in sizes
    )
    each = SIZES.get(own_dtype(graph) or "", FLOAT_BYTES)
    others = sum(p.numel() * (p.element_size() - each) for p in model.parameters())
    in_own = own - weights_bytes(graph)
    in_half = half - weights_bytes(graph, Mode(FLOAT16))
    of_buffers = in_own - round(others)
    least = max(LEAST * own, LEAST_BYTES)
    extra = ExtraBytes(*(size * (abs(size) > least) for size in (in_own, in_half, of_buffers)))
    return structs.replace(graph, extra_bytes=extra) if any(extra) else graph
