"""A part of a network as a network of its own: what can be measured, or written down, alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lolat.graph import Graph


def subgraph(graph: Graph, positions: Iterable[int], name: str) -> Graph:
    """The operations at `positions` of `graph` as a graph called `name`.

    Its inputs are the tensors that the part reads from the rest of the network (or that are the
    network's own), in the order in which they are read; its outputs those that the rest, or the
    network's caller, reads. A constant operand (which nobody writes and is no input) stays one.
    Tensors are numbered anew.
    """
    inside = sorted(set(positions))
    operations = [graph.operations[p] for p in inside]
    written = {t for o in operations for t in o.outputs}
    produced = {t for o in graph.operations for t in o.outputs}
    fed = produced | set(graph.inputs)
    inputs = list(
        dict.fromkeys(t for o in operations for t in o.inputs if t in fed and t not in written)
    )
    members = set(inside)
    read_outside = {
        t for p, o in enumerate(graph.operations) if p not in members for t in o.inputs
    } | set(graph.outputs)
    outputs = [t for o in operations for t in o.outputs if t in read_outside]
    used = list(dict.fromkeys(t for o in operations for t in (*o.inputs, *o.outputs)))
    number = {old: new for new, old in enumerate(used)}
    return Graph(
        name,
        tuple(graph.tensors[t] for t in used),
        tuple(
            replace(
                o,
                inputs=tuple(number[t] for t in o.inputs),
                outputs=tuple(number[t] for t in o.outputs),
            )
            for o in operations
        ),
        tuple(number[t] for t in inputs),
        tuple(number[t] for t in outputs),
    )
