"""Small Keras networks for the reader's tests: built without weights, read into a Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lolat.graph import Graph
from lolat.graph.counts import KINDS, Count, count
from lolat.readers.keras import import_keras, read_model
from lolat.readers.keras.calls import without_weights

keras = import_keras()
layers = keras.layers
ops = keras.ops


def functional(
    call: Callable[..., Any], *shapes: tuple[int | None, ...], dtype: str = "float32"
) -> Any:
    """A functional network of inputs of these shapes (without the batch) and what `call` makes."""
    with without_weights():
        inputs = [keras.Input(shape, dtype=dtype) for shape in shapes]
        return keras.Model(inputs, call(*inputs))


def graph_of(
    call: Callable[..., Any], *shapes: tuple[int | None, ...], dtype: str = "float32"
) -> Graph:
    """The graph of such a network."""
    graph = read_model(functional(call, *shapes, dtype=dtype))
    check_families(graph)
    return graph


def check_families(graph: Graph, batch_size: int = 3) -> None:
    """Whatever the network: the kinds of a family add up to what the family counts."""
    found = count(graph).total(batch_size)._asdict()
    assert {family: sum(found[n] for n in names) for family, names in KINDS.items()} == {
        "flops": found["flops"],
        "weights": found["weights"],
        "ops": found["ops"],
        "elements": found["acts"] + found["inp"] + found["traffic"],
    }


def counted(
    call: Callable[..., Any],
    *shapes: tuple[int | None, ...],
    batch_size: int = 1,
    dtype: str = "float32",
) -> Count:
    """The counts of such a network."""
    return total(graph_of(call, *shapes, dtype=dtype), batch_size)


def total(graph: Graph, batch_size: int = 1) -> Count:
    """The counts of a graph of known operations."""
    counts = count(graph)
    assert counts.warnings == ()
    return counts.total(batch_size)


def kinds(graph: Graph) -> list[str]:
    """The operations that are not free, in order."""
    return [o.kind for o in graph.operations if o.kind not in ("reshape", "identity", "dropout")]


def six(counts: Count) -> tuple[int, ...]:
    """ACTS, INP, FLOPs, traffic, weights, operations."""
    return tuple(counts[:6])
