"""The numpy network against the formula and against PyTorch's layers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lolat.mlp import layer_model
from lolat.mlp.layer_model import Layer, Perceptron


def layer(rng: np.random.Generator, inputs: int, outputs: int, activation: str) -> Layer:
    weights = rng.normal(0, inputs**-0.5, (inputs, outputs)).astype(np.float32)
    return Layer(weights, rng.normal(size=outputs).astype(np.float32), activation)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("relu", max(0, -1.5)), ("linear", -1.5), ("silu", -1.5 / (1 + math.exp(1.5)))],
)
def test_one_layer_by_hand(activation: str, expected: float) -> None:
    network = Perceptron(
        [[Layer(np.array([[2], [1]], np.float32), np.array([0.5], np.float32), activation)]]
    )
    assert network(np.array([[-1.5, 1.0]])) == pytest.approx([expected], rel=1e-6)


def test_a_network_is_what_pytorch_makes_of_it() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    members = [
        [layer(rng, 7, 33, "silu"), layer(rng, 33, 20, "relu"), layer(rng, 20, 1, "linear")]
        for _ in range(3)
    ]
    functions = {"silu": torch.nn.functional.silu, "relu": torch.relu, "linear": lambda x: x}
    x = rng.normal(size=(100, 7))
    outputs = []
    for layers in members:
        y = torch.from_numpy(x)
        for item in layers:
            weights, biases = torch.from_numpy(item.weights), torch.from_numpy(item.biases)
            y = functions[item.activation](y @ weights.double() + biases.double())
        outputs.append(y[:, 0].numpy())
    found = Perceptron(members)(x)
    assert found.dtype == np.float64
    assert found.shape == (100,)
    np.testing.assert_allclose(found, np.mean(outputs, axis=0), rtol=1e-4, atol=1e-5)


def test_slices_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    network = Perceptron([[layer(rng, 3, 8, "silu"), layer(rng, 8, 1, "linear")]])
    x = rng.normal(size=(11, 3))
    whole = network(x)
    monkeypatch.setattr(layer_model, "SLICE", 4)
    np.testing.assert_allclose(network(x), whole, rtol=1e-6)
    assert network(x[:0]).shape == (0,)


def test_silu_of_large_numbers_is_a_number() -> None:
    network = Perceptron([[Layer(np.ones((1, 1), np.float32), None, "silu")]])
    assert network(np.array([[-1e4], [1e4]])).tolist() == [0, 1e4]


def test_what_does_not_fit_is_refused() -> None:
    ones = np.ones((2, 1), np.float32)
    with pytest.raises(ValueError, match="activation 'tanh'; expected one of relu, silu, linear"):
        Layer(ones, None, "tanh")
    with pytest.raises(ValueError, match=r"expected \(in, out\)"):
        Layer(ones[0], None, "relu")
    with pytest.raises(ValueError, match="biases of shape"):
        Layer(ones, np.ones(2, np.float32), "relu")
    with pytest.raises(ValueError, match="no layers"):
        Perceptron([])
    with pytest.raises(ValueError, match="2 outputs; expected one"):
        Perceptron([[Layer(ones.T, None, "relu")]])
    with pytest.raises(ValueError, match="weights for 2 inputs follow 1 outputs"):
        Perceptron([[Layer(ones, None, "relu"), Layer(ones, None, "relu")]])
    with pytest.raises(ValueError, match=r"expected \(rows, 2\)"):
        Perceptron([[Layer(ones, None, "relu")]])(np.zeros((3, 3)))
