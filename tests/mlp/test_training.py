"""Training a layer model: each step against Adam written out, a table learned, what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, LolatError
from lolat.mlp import training
from lolat.mlp.devices import DEVICES
from lolat.mlp.layer_model import Layer, output_of, read_layer_model, write_layer_model
from lolat.mlp.recipes import PAPER, Plan, Recipe
from lolat.mlp.table import LayerTable, read_table
from lolat.mlp.training import KerasNetwork, learn, split
from tests.mlp.tables import random_rows, write

PAPERS = PAPER.plan("dense", False)
PLAN = replace(PAPERS, hidden=(8, 4), dropout=0.0, l2=0.0, batch=64, epochs=6)
PLAN = replace(PLAN, learning_rate=0.05, halve_every=2)
STRAIGHT = replace(PLAN, output_activation="linear", loss="absolute")
RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = np.exp(X @ [0.5, -0.25, 1.0] / 2).astype(np.float32)


def network(plan: Plan = PLAN, seed: int = 1, strange: np.ndarray | None = None) -> KerasNetwork:
    return KerasNetwork(plan, X, Y, 6, seed, strange)


def weights(layers: Sequence[Layer]) -> list[np.ndarray]:
    """Kernels and biases, in order."""
    return [a for layer in layers for a in (layer.weights, layer.biases) if a is not None]


def arrays(trained: KerasNetwork) -> list[np.ndarray]:
    return [a.astype(float) for a in weights(trained.layers())]


LOSSES = {
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
        replace(PLAN, loss="absolute", optimizer="adamw", l2=0.1, schedule="cosine"),
    ],
    ids=["paper", "best"],
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
    np.testing.assert_allclose(output_of(trained.layers(), X), expected, rtol=1e-5, atol=1e-6)


def test_every_row_is_in_one_batch_of_an_epoch_and_the_last_may_be_smaller() -> None:
    # A rate of 0: the loss of the epoch is that of the weights it began with, on all 40 rows.
    still = network(replace(PLAN, batch=16, learning_rate=0.0))
    output = output_of(still.layers(), X)
    expected = np.mean((np.log1p(output) - np.log1p(Y)) ** 2)
    assert still.epoch() == pytest.approx(expected, rel=1e-5)
    assert int(still.network.optimizer.iterations) == 3


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_share_of_an_epochs_rows_is_of_strangers(share: float) -> None:
    """Of a network that does not learn, the loss says which rows it saw."""
    still = network(replace(PLAN, learning_rate=0.0, strangers=share), strange=X + 1)
    outputs = (output_of(still.layers(), x) for x in (X, X + 1))
    own, strange = ((np.log1p(output) - np.log1p(Y)) ** 2 for output in outputs)
    losses = [still.epoch() for _ in range(3)]
    if share == 1.0:
        assert losses == pytest.approx([strange.mean()] * 3, rel=1e-4)
    else:
        assert len(set(losses)) == 3  # others each time
        lowest, highest = np.minimum(own, strange).mean(), np.maximum(own, strange).mean()
        assert all(lowest < loss < highest for loss in losses)


def test_everything_follows_from_the_seed() -> None:
    """Dropout, the order of the rows, and which of them are strangers', too."""
    plan = replace(PLAN, dropout=0.25, batch=16, strangers=0.3)
    one, same = (network(plan, strange=X + 1) for _ in range(2))
    for others in (network(plan, 2, X + 1), network(replace(plan, dropout=0.0))):
        assert others.epoch() != network(plan, strange=X + 1).epoch()
    assert [one.epoch() for _ in range(4)] == [same.epoch() for _ in range(4)]
    for a, b in zip(arrays(one), arrays(same), strict=True):
        np.testing.assert_array_equal(a, b)


def filled(trained: KerasNetwork, value: float) -> KerasNetwork:
    """The network with that value in all of its output's weights."""
    kernel = trained.network.layers[-1].kernel
    kernel.assign(np.full(kernel.shape, value))
    return trained


def test_an_output_that_is_0_everywhere_is_dead() -> None:
    trained = network()
    trained.epoch()
    assert not trained.dead
    filled(trained, -1.0).epoch()
    assert trained.dead
    straight = filled(network(STRAIGHT), 0.0)
    straight.epoch()
    assert not straight.dead


def test_a_loss_that_is_no_number_is_an_error() -> None:
    with pytest.raises(LolatError, match="diverged in epoch 1"):
        filled(network(STRAIGHT), np.nan).epoch()


# ---- On a table: the split, what is learned, what goes wrong.

ONE = {"v100": DEVICES["v100"]}
EPOCHS = 6


def small(**changes: Any) -> Recipe:
    """The paper's recipe with a small network."""
    usual = {"hidden": (16, 16), "learning_rate": 0.02, "epochs": EPOCHS, "batch": 32}
    plan = replace(PAPERS, **usual | changes)
    return replace(PAPER, plan=lambda layer, several: plan)


@pytest.fixture
def rows(tmp_path: Path) -> LayerTable:
    return read_table(write(tmp_path / "rows.csv", random_rows("dense", 80, seed=1)))


def test_the_split_takes_a_row_once_by_the_seed() -> None:
    train, test = split(1000, 3)
    assert (len(train), len(test), len({*train.tolist(), *test.tolist()})) == (800, 100, 900)
    assert split(1000, 3)[1].tolist() == test.tolist() != split(1000, 4)[1].tolist()
    assert not np.array_equal(train, np.sort(train))
    with pytest.raises(InputError):
        split(9, 0)


def test_it_learns_what_decides_the_time(rows: LayerTable, tmp_path: Path) -> None:
    model = learn(rows, small(dropout=0.0, epochs=60, learning_rate=0.1), ONE, seed=2)
    relative = np.abs(model.predict(rows) / rows.times_ms - 1)
    constant = np.abs(np.median(rows.times_ms) / rows.times_ms - 1)
    assert np.mean(relative) < 0.5 * np.mean(constant)
    assert (model.layer, model.recipe, list(model.devices)) == ("dense", "paper", ["v100"])
    features = PAPER.features(rows, ONE, ONE)
    np.testing.assert_allclose(model.mean, features.mean(axis=0))
    np.testing.assert_allclose(model.scale, features.std(axis=0))
    assert model.ranges["batch_size"] == [rows["batch_size"].min(), rows["batch_size"].max()]
    expected = {"rows": 80, "seed": 2, "epochs": 60, "tries": 1}
    assert model.training == expected | {"losses": model.training["losses"]}
    assert len(model.training["losses"]) == 60
    assert model.errors == {}
    write_layer_model(tmp_path / "m.json", model)
    read = read_layer_model(tmp_path / "m.json")
    np.testing.assert_array_equal(read.predict(rows), model.predict(rows))


def test_a_share_of_the_rows_is_shown_as_of_gpus_that_are_not_known(
    rows: LayerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[np.ndarray] = []

    def watched(*arguments: Any) -> training.KerasNetwork:
        shown.append(arguments[5])
        return REAL(*arguments)

    def columns(table: LayerTable, devices: Any, trained: Any) -> dict[str, np.ndarray]:
        """The paper's features, the first one replaced: 1 for a GPU that was trained on, else 0."""
        first = np.full(len(table), float(bool(trained)))
        return PAPER.columns(table, devices, trained) | {"batch_size": first}

    monkeypatch.setattr(training, "KerasNetwork", watched)
    recipe = replace(small(epochs=1, strangers=0.5), columns=columns)
    model = learn(rows, recipe, ONE)
    strange = recipe.features(rows, ONE, ())
    np.testing.assert_allclose(shown[0], (strange - model.mean) / model.scale)
    # The first feature is the same in all rows for training: it is not blown up.
    assert (model.mean[0], model.scale[0]) == (1.0, 1.0)


REAL = training.KerasNetwork


class Dying:
    """Networks whose outputs die in the second epoch, but for number `well` of those that are started."""

    def __init__(self, well: int) -> None:
        self.well, self.seeds = well, []  # type: tuple[int, list[int]]

    def __call__(self, *arguments: Any) -> training.KerasNetwork:
        self.seeds.append(arguments[4])
        network = REAL(*arguments)
        if len(self.seeds) != self.well:
            real = network.epoch

            def epoch() -> float:
                if network.done == 1:
                    filled(network, -1.0)
                return real()

            network.epoch = epoch  # type: ignore[method-assign]
        return network


def test_a_network_whose_output_died_begins_again_from_other_weights(
    rows: LayerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Dying(well=3)
    monkeypatch.setattr(training, "KerasNetwork", dying)
    model = learn(rows, small(epochs=4), ONE)
    assert len(set(dying.seeds)) == 3
    assert model.training["tries"] == 3
    assert len(model.training["losses"]) == 4
    assert model.predict(rows).max() > 0
