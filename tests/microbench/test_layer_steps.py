"""One layer in training mode, with TensorFlow and with PyTorch, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.mlp.table import ACTIVATIONS, OPTIMIZERS
from microbench import backends
from tests.microbench.layer_oracle import (
    CONVOLUTION,
    DENSE,
    Optimizer,
    forward,
    gradients,
)

TRAINED = [o for o in OPTIMIZERS if o != "none"]


@dataclass
class Framework:
    """A backend, and its layers' numbers as numpy's: channels last, kernels as (..., in, out), float64."""

    name: str
    backend: Any
    numbers: Callable[[Any, Any], Any]

    def step(self, layer: dict[str, Any]) -> Any:
        """The step of a layer, before it is wrapped for running out of memory."""
        module = {"keras": "tensorflow", "torch": "torch"}[self.name]
        found = __import__(f"microbench.backends.{module}.training", fromlist=["LayerStep"])
        return found.LayerStep(self.backend, layer)

    def x(self, step: Any) -> np.ndarray:
        return self.numbers(step.x, "image")

    def weights(self, step: Any) -> list[np.ndarray]:
        if self.name == "keras":
            return [self.numbers(v.value, "kernel") for v in step.layer.trainable_variables]
        return [self.numbers(p, "kernel") for p in step.layer.parameters()]

    def learn_with(self, step: Any, rate: float) -> None:
        """Another learning rate than the usual one, which is so small that nothing changes."""
        if self.name == "keras":
            assert float(step.optimizer.learning_rate) == pytest.approx(1e-4)
            step.optimizer.learning_rate = rate
        for group in step.optimizer.param_groups if self.name == "torch" else ():
            assert group["lr"] == 1e-4
            group["lr"] = rate

    def output(self, step: Any) -> np.ndarray:
        given = () if self.name == "torch" else step.given
        return self.numbers(
            (step.forward if self.name == "torch" else step.compiled)(*given), "image"
        )

    def train(self, step: Any) -> tuple[float, np.ndarray]:
        """One step: the loss before it, the gradient of the input."""
        if self.name == "keras":
            loss, gradient = step.compiled(*step.given)
            return float(loss), self.numbers(gradient, "image")
        loss = step.train()
        return float(loss.detach()), self.numbers(step.x.grad, "image")


def from_keras(tensor: Any, what: str) -> np.ndarray:
    return np.asarray(tensor).astype(np.float64)


def from_torch(tensor: Any, what: str) -> np.ndarray:
    found = tensor.detach().numpy().astype(np.float64)
    if what == "image":
        return found.transpose(0, 2, 3, 1) if found.ndim == 4 else found
    return found.transpose(2, 3, 1, 0) if found.ndim == 4 else found.T


@pytest.fixture(scope="module", params=["keras", "torch"])
def framework(request: pytest.FixtureRequest) -> Framework:
    if request.param == "keras":
        pytest.importorskip("tensorflow")
        return Framework("keras", backends.create("tensorflow", "cpu"), from_keras)
    pytest.importorskip("torch")
    return Framework("torch", backends.create("torch", "cpu"), from_torch)


LAYERS = [
    *({**CONVOLUTION, "activation": a} for a in ACTIVATIONS),
    *({**DENSE, "activation": a} for a in ACTIVATIONS),
    {**CONVOLUTION, "padding": "valid", "use_bias": 0},
    {**CONVOLUTION, "kernel_size": 2, "stride": 1},  # one more behind than in front
    {**CONVOLUTION, "kernel_size": 1, "stride": 4, "input_size": 6},
    {**CONVOLUTION, "kernel_size": 1, "stride": 3, "input_size": 1},
    {**CONVOLUTION, "kernel_size": 4, "stride": 3, "input_size": 7, "padding": "valid"},
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda x: "-".join(map(str, x.values())))
def test_forward_is_that_of_numpy(framework: Framework, layer: dict[str, Any]) -> None:
    step = framework.step(layer)
    _, expected = forward(layer, framework.x(step), framework.weights(step))
    np.testing.assert_allclose(framework.output(step), expected, rtol=1e-5, atol=1e-6)
    before = framework.weights(step)
    step()
    for was, now in zip(before, framework.weights(step), strict=True):
        np.testing.assert_array_equal(was, now)


@pytest.mark.parametrize("optimizer", TRAINED)
@pytest.mark.parametrize("layer", [CONVOLUTION, DENSE], ids=["convolution", "dense"])
def test_a_step_changes_the_weights_by_the_optimisers_rule(
    framework: Framework, layer: dict[str, Any], optimizer: str
) -> None:
    layer = {**layer, "optimizer": optimizer}
    step = framework.step(layer)
    rate = 10.0 if optimizer == "adadelta" else 0.1  # large, for changes that float32 can tell
    framework.learn_with(step, rate)
    rule = Optimizer(optimizer, framework.name, rate)
    x, weights = framework.x(step), framework.weights(step)
    assert np.abs(x).max() > 0.1, "an input of zeros would hide the kernel's gradient"
    first = weights
    for _ in range(3):  # what the optimiser keeps counts from the second one
        loss, dx, grads = gradients(layer, x, weights)
        found_loss, found_dx = framework.train(step)
        assert found_loss == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(found_dx, dx, rtol=1e-4, atol=1e-6)  # float32 sums
        weights = rule.step(weights, grads)
    for was, now, expected in zip(first, framework.weights(step), weights, strict=True):
        assert np.abs(expected - was).max() > 1e-3
        np.testing.assert_allclose(now - was, expected - was, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("optimizer", TRAINED)
def test_the_loss_falls(framework: Framework, optimizer: str) -> None:
    step = framework.step({**CONVOLUTION, "activation": "none", "optimizer": optimizer})
    framework.learn_with(step, 5.0 if optimizer == "adadelta" else 0.05)
    first, _ = framework.train(step)
    for _ in range(20):
        step()
    last, _ = framework.train(step)
    assert last < first


def test_a_backend_finds_its_step(framework: Framework) -> None:
    call = backends.layer_step(framework.backend, {**DENSE, "optimizer": "adam"})
    assert call() is None  # type: ignore[func-returns-value]


def test_a_backend_that_trains_nothing_says_so() -> None:
    class Other:
        name = "onnxruntime"

    with pytest.raises(
        InputError, match="onnxruntime backend trains no layers; expected tensorflow or torch"
    ):
        backends.layer_step(Other(), DENSE)  # type: ignore[arg-type]
