"""A network with other channel counts: all of them, or those that do not leave a block."""

from __future__ import annotations

from collections.abc import Iterable

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.variations.channels import Channels


def channels(graph: Graph) -> Channels:
    """Which sizes of a network are free; kept with the graph. InputError where that is not clear."""
    found: Channels | None = graph.cache.get("channels")
    if found is None:
        found = graph.cache["channels"] = Channels(graph)
    return found


def widened(graph: Graph, factor: float) -> Graph:
    """The network with every free channel count times `factor`.

    Each is rounded to a multiple of 8 and of the groups of its convolutions (`sizes.scaled`); inputs and
    outputs of the network stay, and so do the heads of attention, whose size changes. Raises
    InputError where an operation does not tell how channels pass through it, and where there is
    nothing to vary.
    """
    known = channels(graph)
    free = known.sizes.free()
    if not free:
        raise InputError(
            f"the width of {graph.name!r} cannot be varied: none of its channel counts is free, they are "
            "those of its inputs and outputs; vary the resolution or the batch size"
        )
    return known.resized({u: known.sizes.scaled(u, factor) for u in free})


def inner(graph: Graph, positions: Iterable[int]) -> dict[int, int]:
    """The free channel counts that do not leave the operations at `positions`: unknown -> count.

    Raises InputError as `channels` does.
    """
    known = channels(graph)
    inside = set(positions)
    written: set[int] = set()
    elsewhere = set(graph.outputs)
    for position, operation in enumerate(graph.operations):
        if position in inside:
            written.update(operation.outputs)
        else:
            elsewhere.update((*operation.inputs, *operation.outputs))
    own = _unknowns(known, written - elsewhere) - _unknowns(known, elsewhere)
    return {u: known.sizes.now[u] for u in sorted(own & set(known.sizes.free()))}


def _unknowns(known: Channels, tensors: Iterable[int]) -> set[int]:
    resolved = known.sizes.resolved
    return {u for t in tensors for size in known.dims[t] for u, _ in resolved(size)}


def inner_widened(graph: Graph, unknowns: Iterable[int], factor: float) -> Graph:
    """The network with these channel counts (see `inner`) times `factor`, the others as they are."""
    known = channels(graph)
    return known.resized({u: known.sizes.scaled(u, factor) for u in unknowns})
