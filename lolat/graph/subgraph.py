"""A part of a network as a network of its own: what can be measured, or written down, alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import FORMULAS, behaviors


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
    if not outputs:  # what nobody reads: then all that is left over inside
        read = {t for o in operations for t in o.inputs}
        outputs = [t for o in operations for t in o.outputs if t not in read]
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


def block_graph(graph: Graph, number: int, name: str) -> Graph:
    """Block number `number` (of `cut`, from 0) as a graph of its own called `name`.

    InputError for one that there is not. A number, because a framework may call a layer that nobody
    named otherwise each time.
    """
    blocks = cut(graph)
    if not 0 <= number < len(blocks):
        raise InputError(f"{graph.name!r} has no block {number}: expected 0 to {len(blocks) - 1}")
    return subgraph(graph, blocks[number].operations, name)


def block_kinds(graph: Graph, dtypes: Collection[str]) -> tuple[list[frozenset[str]], list[bool]]:
    """Of each block of `graph`, its kinds of operation, and whether a model of `dtypes` can learn of it.

    It cannot where an operation has no formula, or where it computes in another type of floating point
    numbers: a formula knows one type.
    """
    kinds, able = [], []
    for block in cut(graph):
        operations = [graph.operations[p] for p in block.operations]
        types = {graph.tensors[t].dtype for o in operations for t in o.outputs}
        kinds.append(frozenset(behaviors(operations)))
        able.append(
            all(o.kind in FORMULAS for o in operations)
            and all(t in dtypes for t in types if "float" in t)
        )
    return kinds, able
