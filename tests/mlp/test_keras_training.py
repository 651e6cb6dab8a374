"""Training with Keras: against Adam written out in numpy, the framework's own forward pass, and errors."""

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, LolatError, MissingPackageError
from lolat.mlp.layer_model import Perceptron
from lolat.mlp.recipes import Plan
from lolat.mlp.training import KerasNetwork

PLAN = Plan(
    hidden=(8, 4),
    output_activation="relu",
    output_bias=False,
    loss="squared-log1p",
    epsilon=0.1,
    learning_rate=0.05,
    schedule="halve",
    halve_every=2,
    batch=64,
    epochs=6,
)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = np.exp(X @ [0.5, -0.25, 1.0] / 2).astype(np.float32)


def network(plan: Plan = PLAN, seed: int = 1, epochs: int = 6) -> KerasNetwork:
    return KerasNetwork(plan, X, Y, epochs, seed)


def arrays(trained: KerasNetwork) -> list[np.ndarray]:
    """Kernels and biases, in order, float64."""
    found = []
    for layer in trained.layers():
        found.append(layer.weights.astype(float))
        if layer.biases is not None:
            found.append(layer.biases.astype(float))
    return found


LOSSES = {
    "squared": (lambda o, y: (o - y) ** 2, lambda o, y: 2 * (o - y)),
    "absolute": (lambda o, y: np.abs(o - y), lambda o, y: np.sign(o - y)),
    "squared-log1p": (
        lambda o, y: (np.log(1 + o) - np.log(1 + y)) ** 2,
        lambda o, y: 2 * (np.log(1 + o) - np.log(1 + y)) / (1 + o),
    ),
}


def by_hand(
    weights: list[np.ndarray], plan: Plan, epochs: int
) -> tuple[list[np.ndarray], list[float]]:
    """Weights and losses after steps over the whole of (X, Y): ReLU layers, Adam (Kingma and Ba 2015) with
    l2/2 of the squared hidden kernels in the loss, or AdamW, which takes rate * l2 of all weights away."""
    w = [a.copy() for a in weights]
    m, v = [0 * a for a in w], [0 * a for a in w]
    loss_of, slope_of = LOSSES[plan.loss]
    losses = []
    for t in range(1, epochs + 1):
        kernels, biases = w[0::2], [*w[1::2], None]
        inputs, x = [], X.astype(float)
        for kernel, bias in zip(kernels, biases, strict=True):
            inputs.append(x)
            x = np.maximum(x @ kernel + (0 if bias is None else bias), 0)
        losses.append(float(np.mean(loss_of(x[:, 0], Y))))
        slope = (slope_of(x[:, 0], Y) / len(Y))[:, None]
        gradients: list[np.ndarray] = []
        for i in reversed(range(len(kernels))):
            slope = slope * (x > 0)
            if biases[i] is not None:
                gradients.insert(0, slope.sum(axis=0))
            decay = plan.l2 * kernels[i] if plan.optimizer == "adam" and i < len(kernels) - 1 else 0
            gradients.insert(0, inputs[i].T @ slope + decay)
            slope, x = slope @ kernels[i].T, inputs[i]
        rate = plan.learning_rate * 0.5 ** ((t - 1) // plan.halve_every)
        if plan.schedule == "cosine":
            rate = plan.learning_rate * (1 + np.cos(np.pi * (t - 1) / epochs)) / 2
        for i, g in enumerate(gradients):
            if plan.optimizer == "adamw":
                w[i] = w[i] - rate * plan.l2 * w[i]
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            step = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            w[i] = w[i] - step * m[i] / (np.sqrt(v[i]) + plan.epsilon)
    return w, losses


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, l2=0.05),
        replace(PLAN, loss="squared", optimizer="adamw", l2=0.1, schedule="cosine"),
        replace(PLAN, loss="absolute"),
    ],
    ids=["paper", "adamw", "absolute"],
)
def test_the_steps_are_those_of_adam_written_out(plan: Plan) -> None:
    trained = network(plan)
    expected, losses = by_hand(arrays(trained), plan, 6)
    assert [trained.epoch() for _ in range(6)] == pytest.approx(losses, rel=1e-4)
    for found, wanted in zip(arrays(trained), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_the_numpy_network_answers_as_the_keras_one(activation: str) -> None:
    trained = network(replace(PLAN, activation=activation, dropout=0.3, output_bias=True))
    trained.epoch()
    expected = np.asarray(trained.network(X, training=False))[:, 0]
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(Perceptron([trained.layers()])(X), expected, rtol=1e-5, atol=1e-6)


def test_every_row_is_in_one_batch_of_an_epoch_and_the_last_may_be_smaller() -> None:
    # A rate of 0: the loss of the epoch is that of the weights it began with, on all 40 rows.
    still = network(replace(PLAN, batch=16, learning_rate=0.0))
    output = Perceptron([still.layers()])(X)
    expected = np.mean((np.log1p(output) - np.log1p(Y)) ** 2)
    assert still.epoch() == pytest.approx(expected, rel=1e-5)
    assert int(still.optimizer.iterations) == 3


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_share_of_an_epochs_rows_is_of_strangers(share: float) -> None:
    """Of a network that does not learn, the loss says which rows it saw."""
    plan = replace(PLAN, learning_rate=0.0, strangers=share)
    still = KerasNetwork(plan, X, Y, 6, seed=1, strange=X + 1)
    own, strange = (
        (np.log1p(Perceptron([still.layers()])(x)) - np.log1p(Y)) ** 2 for x in (X, X + 1)
    )
    losses = [still.epoch() for _ in range(3)]
    if share == 1.0:
        assert losses == pytest.approx([strange.mean()] * 3, rel=1e-4)
    else:
        assert len(set(losses)) == 3  # others each time
        lowest, highest = np.minimum(own, strange).mean(), np.maximum(own, strange).mean()
        assert all(lowest < loss < highest for loss in losses)


def test_dropout_is_in_training_only_and_its_seed_goes_on() -> None:
    plan = replace(PLAN, dropout=0.5, learning_rate=0.0)
    trained = network(plan)
    without = network(replace(plan, dropout=0.0))
    losses = [trained.epoch() for _ in range(3)]
    assert len(set(losses)) == 3
    assert losses[0] != without.epoch()


def test_everything_follows_from_the_seed_and_the_state() -> None:
    plan = replace(PLAN, dropout=0.25, batch=16)
    one, same, other = network(plan), network(plan), network(plan, seed=2)
    assert any((a != b).any() for a, b in zip(arrays(one), arrays(other), strict=True))
    for _ in range(4):
        one.epoch()
    for _ in range(2):
        same.epoch()
    late = network(plan)
    late.take(same.state())
    assert late.done == 2
    losses = [late.epoch(), late.epoch()]
    assert all(np.isfinite(losses))
    for a, b in zip(arrays(one), arrays(late), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_output_that_is_0_everywhere_is_dead() -> None:
    trained = network()
    trained.epoch()
    assert not trained.dead
    kernel = trained.network.layers[-1].kernel
    kernel.assign(-np.ones(kernel.shape))
    trained.epoch()
    assert trained.dead
    again = network()
    again.take(trained.state())
    assert again.dead
    straight = network(replace(PLAN, output_activation="linear", loss="squared"))
    kernel = straight.network.layers[-1].kernel
    kernel.assign(np.zeros(kernel.shape))
    straight.epoch()
    assert not straight.dead


def test_a_loss_that_is_no_number_is_an_error() -> None:
    trained = network(replace(PLAN, output_activation="linear", loss="squared"))
    kernel = trained.network.layers[-1].kernel
    kernel.assign(np.full(kernel.shape, np.nan))
    with pytest.raises(LolatError, match="diverged in epoch 1: its loss is nan; try another seed"):
        trained.epoch()


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(PLAN, loss="cubic"), "loss 'cubic'; expected one of squared, absolute"),
        (replace(PLAN, optimizer="sgd"), "optimizer 'sgd'; expected adam or adamw"),
        (replace(PLAN, schedule="none"), "schedule 'none'; expected halve or cosine"),
    ],
)
def test_what_a_plan_may_not_say(plan: Plan, words: str) -> None:
    with pytest.raises(InputError, match=f"^unknown {words}"):
        network(plan)


def test_without_tensorflow_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def importing(name: str, *rest: Any, **options: Any) -> Any:
        if name == "keras":
            raise ImportError("No module named 'tensorflow'")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[tensorflow\]'$"):
        network()


def test_keras_on_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(InputError, match="it runs on torch; unset KERAS_BACKEND"):
        network()
