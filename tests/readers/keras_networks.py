"""Small Keras networks for the reader's tests: built without weights, read into a Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lolat.graph import Graph
from lolat.graph.counts import MEMBERS, Count, count
from lolat.readers.keras import import_keras, read_model, without_weights
from tests.readers.counting import check as check
from tests.readers.counting import kinds as kinds
from tests.readers.counting import six as six
from tests.readers.counting import total as total

keras = import_keras()
layers = keras.layers
ops = keras.ops


def since(*version: int) -> pytest.MarkDecorator:
    """Skip a test of a layer that came with a later Keras than the oldest that pyproject.toml admits."""
    older = tuple(map(int, keras.__version__.split(".")[:2])) < version
    return pytest.mark.skipif(older, reason=f"came with Keras {version}")


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
    """Check that the counts of the kinds of a family add up to that of the family."""
    counts = count(graph).total(batch_size)._asdict()
    counts["elements"] = counts["acts"] + counts["inp"] + counts["traffic"]
    for family, names in MEMBERS.items():
        assert sum(counts[n] for n in names) == counts[family]


def counted(
    call: Callable[..., Any],
    *shapes: tuple[int | None, ...],
    batch_size: int = 1,
    dtype: str = "float32",
) -> Count:
    """The counts of such a network."""
    return total(graph_of(call, *shapes, dtype=dtype), batch_size)
