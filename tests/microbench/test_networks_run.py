"""Every backend builds and runs every network and new block, and knows where their inputs lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lolat.graph import Graph
from lolat.graph.layers import Layers
from microbench.backends import create
from microbench.backends.known import as_known
from microbench.blocks import BLOCKS, NETWORKS, Predefined

BACKENDS = {"tensorflow": "keras", "torch": "torch", "onnxruntime": "onnxruntime"}


def backend(name: str) -> Any:
    pytest.importorskip(BACKENDS[name])
    return create(name, "cpu")


def small() -> Graph:
    n = Layers.on("small", 8, 8, 3)
    skip = n.builder.input((1, 8, 8, 4))
    return n.done(n.same("add", n.conv(n.input, 4), skip))


@pytest.mark.parametrize("name", BACKENDS)
def test_the_inputs_are_those_of_the_batch_and_can_be_touched(name: str) -> None:
    call = backend(name).prepare_graph(small(), 2)
    first = name != "tensorflow"  # channels first
    wanted = [(2, 3, 8, 8), (2, 4, 8, 8)] if first else [(2, 8, 8, 3), (2, 8, 8, 4)]
    assert [i.shape for i in call.inputs] == wanted
    assert all(i.dtype == np.float32 for i in call.inputs)
    assert all(np.ptp(i) > 0 or name == "onnxruntime" for i in call.inputs)
    call.touch()
    call()


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_network_runs(name: str, network: Predefined) -> None:
    call = backend(name).prepare_graph(as_known(name, network.make()), network.batch_sizes[-1])
    call()
    call.touch()


NEW = [
    b
    for b in BLOCKS
    if b.name.startswith(("up ", "depthwise", "2 encoders", "token mlp", "norm, "))
]


@pytest.mark.slow
@pytest.mark.parametrize("block", NEW, ids=lambda b: b.name)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_block_runs(name: str, block: Predefined) -> None:
    backend(name).prepare_graph(as_known(name, block.make()), block.batch_sizes[-1])()
