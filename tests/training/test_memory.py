"""Parameters and memory of an iteration, counted by hand and by Keras."""

from __future__ import annotations

import pytest

from lolat.graph import GraphBuilder
from lolat.graph.analysis import parameters
from lolat.training.memory import OPTIMIZERS, kept_bytes, memory_bytes, working_bytes
from tests.training.epoch_tables import by_hand, read


def test_memory_by_hand() -> None:
    """4x4x2 -> conv 3 channels -> relu -> flatten -> dropout -> dense 5 -> softmax."""
    b = GraphBuilder("small", "keras")
    x = b.input((1, 4, 4, 2))
    x = b.add("conv", [x], (1, 4, 4, 3), kernel=(3, 3), in_channels=2, out_channels=3, groups=1,
              bias=True, strides=(1, 1))  # fmt: skip
    x = b.add("relu", [x], (1, 4, 4, 3))
    x = b.add("flatten", [x], (1, 48))
    x = b.add("dropout", [x], (1, 48))
    x = b.add("dense", [x], (1, 5), in_features=48, out_features=5, bias=True)
    graph = b.build([b.add("softmax", [x], (1, 5))])
    learned = 3 * 3 * 2 * 3 + 3 + 48 * 5 + 5
    assert parameters(graph) == learned
    # input of the convolution, relu's result, dropout's mask, softmax's result; the dense layer's
    # input is the dropout's result
    kept = 32 + 48 + 48 + 5
    assert kept_bytes(graph, 1) == 4 * kept
    assert kept_bytes(graph, 7) == 7 * 4 * kept
    assert working_bytes(graph, 7) == 7 * 4 * (48 + 48)  # conv: 32 + 48, relu: 48 + 48
    for name, slots in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        expected = 7 * 4 * (kept + 96) + 4 * learned * (2 + slots)
        assert memory_bytes(graph, 7, OPTIMIZERS[name]) == expected


@pytest.mark.parametrize("network", ["s1w8x14", "s4w32x28"])
def test_parameters_of_a_network(network: str) -> None:
    assert parameters(read(network)) == by_hand(network)


@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_a_normalisation_has_two_vectors(framework: str) -> None:
    shape = (1, 6, 6, 16) if framework == "keras" else (1, 16, 6, 6)
    b = GraphBuilder("norm", framework)
    x = b.input(shape)
    assert parameters(b.build([b.add("batch_norm", [x], shape)])) == 32
