"""Which backends train, and how their parts are asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.layers import Layers
from microbench.backends import BACKENDS, training

PARTS = ("passes", "update", "epoch", "start")
REFUSED = "the onnxruntime backend trains nothing; expected tensorflow or torch for --mode training"


def small() -> Graph:
    n = Layers.on("small", 4, 4, 3)
    return n.done(n.same("relu", n.input))


@pytest.mark.parametrize("backend", ["tensorflow", "tensorflow+jit", "torch+compile+half"])
def test_backends_that_train(backend: str) -> None:
    training.check(backend)


def test_a_backend_that_trains_nothing_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        training.check("onnxruntime")
    assert str(caught.value) == REFUSED
    other: Any = SimpleNamespace(name="onnxruntime")
    with pytest.raises(InputError) as caught:
        training.of(other)
    assert str(caught.value) == REFUSED


@pytest.mark.parametrize("name", sorted(training.TRAINING))
def test_what_is_promised_is_there(name: str) -> None:
    assert name in BACKENDS
    pytest.importorskip(name)
    module, _, attribute = training.TRAINING[name].partition(":")
    cls = getattr(importlib.import_module(module), attribute)
    for part in PARTS:
        wanted = inspect.signature(getattr(training.Training, part)).parameters
        assert list(inspect.signature(getattr(cls, part)).parameters) == list(wanted)


class Noted:
    """In place of a framework: what it was asked for."""

    def passes(self, graph: Graph, batch_size: int, backward: bool, of_inputs: bool) -> Any:
        return lambda: ("passes", graph, batch_size, backward, of_inputs)

    def update(self, optimizer: str, shapes: Sequence[Sequence[int]]) -> Any:
        return lambda: ("update", optimizer, shapes)

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Any:
        return lambda: ("epoch", shape, batch_size, steps)

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("job", "asked"),
    [
        (
            {"passes": {"graph": small().to_dict(), "batch_size": 4, "backward": True, "of_inputs": False}},
            ("passes", small(), 4, True, False),
        ),
        ({"update": {"optimizer": "adam", "shapes": [[2, 3]]}}, ("update", "adam", [[2, 3]])),
        ({"epoch": {"shape": [8, 8, 3], "batch_size": 2, "steps": 5}}, ("epoch", [8, 8, 3], 2, 5)),
    ],
)  # fmt: skip
def test_a_job_is_the_part_it_names(job: dict[str, Any], asked: tuple[Any, ...]) -> None:
    assert training.prepare(Noted(), job)() == asked
    assert training.prepare(Noted(), job)() == asked, "a job may be prepared again"
