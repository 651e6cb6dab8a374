"""Training a layer model: each step against Adam written out, a table learned, what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, LolatError
from lolat.io.progress import Progress
from lolat.mlp import training
from lolat.mlp.layer_model import DenseLayer, output_of, read_layer_model, write_layer_model
from lolat.mlp.recipes import PAPER, Recipe, data_sheets
from lolat.mlp.table import TIME, LayerTable
from lolat.mlp.training import build_network, learn, numpy_layers, split, train
from tests.mlp.tables import random_rows, table

STEPS = replace(
    PAPER, hidden=(8, 4), dropout=0.0, l2=0.0, batch=64, learning_rate=0.05, halve_every=2
)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = np.exp(X @ [0.5, -0.25, 1.0] / 2).astype(np.float32)


def trained(recipe: Recipe, epochs: int, seed: int = 1) -> tuple[list[DenseLayer], list[float]]:
    return train(recipe, X, Y, epochs, seed, Progress())


def weights(layers: Sequence[DenseLayer]) -> list[np.ndarray]:
    """Kernels and biases, in order."""
    arrays = [a for layer in layers for a in (layer.weights, layer.biases) if a is not None]
    return [a.astype(float) for a in arrays]


def by_hand(
    weights: list[np.ndarray], recipe: Recipe, epochs: int
) -> tuple[list[np.ndarray], list[float]]:
    """Weights and losses after steps over the whole of (X, Y): ReLU layers, Adam (Kingma and Ba 2015) with
    l2/2 of the squared hidden kernels in the loss."""
    w = [a.copy() for a in weights]
    m, v = [0 * a for a in w], [0 * a for a in w]
    losses = []
    for t in range(1, epochs + 1):
        kernels, biases = w[0::2], w[1::2] + [np.zeros(1)] * (not recipe.is_log)
        inputs, outputs, x = [], [], X.astype(float)
        for i, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
            inputs.append(x)
            x = x @ kernel + bias
            is_linear = recipe.is_log and i == len(kernels) - 1
            x = x if is_linear else np.maximum(x, 0)
            outputs.append(np.ones_like(x) if is_linear else x > 0)
        off = x[:, 0] - Y if recipe.is_log else np.log(1 + x[:, 0]) - np.log(1 + Y)
        losses.append(float(np.mean(np.abs(off) if recipe.is_log else off**2)))
        slope = np.sign(off) if recipe.is_log else 2 * off / (1 + x[:, 0])
        slope = (slope / len(Y))[:, None]
        gradients: list[np.ndarray] = []
        for i in reversed(range(len(kernels))):
            slope = slope * outputs[i]
            if len(w) > 2 * i + 1:
                gradients.insert(0, slope.sum(axis=0))
            decay = recipe.l2 * kernels[i] if i < len(kernels) - 1 else 0
            gradients.insert(0, inputs[i].T @ slope + decay)
            slope = slope @ kernels[i].T
        rate = recipe.learning_rate * (1 + np.cos(np.pi * (t - 1) / epochs)) / 2
        if recipe.halve_every:
            rate = recipe.learning_rate * 0.5 ** ((t - 1) // recipe.halve_every)
        for i, g in enumerate(gradients):
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            step = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            w[i] = w[i] - step * m[i] / (np.sqrt(v[i]) + recipe.epsilon)
    return w, losses


@pytest.mark.parametrize(
    "recipe",
    [replace(STEPS, l2=0.05), replace(STEPS, is_log=True, halve_every=0, epsilon=1e-7)],
    ids=["paper", "best"],
)
def test_the_steps_are_those_of_adam_written_out(recipe: Recipe) -> None:
    first = numpy_layers(build_network(recipe, 3, steps=1, epochs=6, seed=1))
    expected, losses = by_hand(weights(first), recipe, 6)
    layers, found = trained(recipe, 6)
    assert found == pytest.approx(losses, rel=1e-4)
    for one, wanted in zip(weights(layers), expected, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("is_log", [False, True])
def test_the_numpy_network_answers_as_the_keras_one(is_log: bool) -> None:
    network = build_network(replace(STEPS, is_log=is_log, dropout=0.3), 3, 1, 1, 1)
    expected = np.asarray(network(X, training=False))[:, 0]
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(output_of(numpy_layers(network), X), expected, rtol=1e-5, atol=1e-6)


def test_every_row_is_in_one_batch_of_an_epoch_and_the_last_may_be_smaller() -> None:
    # A rate of 0: the loss of the epoch is that of the first weights, on all 40 rows.
    layers, (loss,) = trained(replace(STEPS, batch=16, learning_rate=0.0), 1)
    expected = np.mean((np.log1p(output_of(layers, X)) - np.log1p(Y)) ** 2)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_everything_follows_from_the_seed() -> None:
    """Dropout and the order of the rows, too."""
    recipe = replace(STEPS, dropout=0.25, batch=16)
    (one, losses), (same, again) = trained(recipe, 4), trained(recipe, 4)
    assert losses == again
    for a, b in zip(weights(one), weights(same), strict=True):
        np.testing.assert_array_equal(a, b)
    assert trained(recipe, 4, seed=2)[1] != losses != trained(replace(recipe, dropout=0.0), 4)[1]


class Filled:
    """Keras networks of which some have one value in all weights of the output."""

    def __init__(self, value: float, well: int = 0) -> None:
        self.value, self.well, self.seeds = value, well, []  # type: tuple[float, int, list[int]]

    def __call__(self, recipe: Recipe, *sizes: int) -> Any:
        network = build_network(recipe, *sizes)
        self.seeds.append(sizes[-1])
        if len(self.seeds) != self.well:
            kernel = network.layers[-1].kernel
            kernel.assign(np.full(kernel.shape, self.value))
        return network


def test_a_loss_that_is_no_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "build_network", Filled(np.nan))
    with pytest.raises(LolatError, match="diverged in epoch 1"):
        trained(replace(STEPS, is_log=True), 2)


def test_an_output_that_is_0_everywhere_is_dead_behind_a_relu_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "build_network", Filled(-1.0))
    assert trained(STEPS, 3)[0] == []
    monkeypatch.setattr(training, "build_network", Filled(0.0))
    assert len(trained(replace(STEPS, is_log=True), 3)[1]) == 3


# ---- On a table: the split, what is learned, what goes wrong.

ONE = data_sheets(["V100"])
SMALL = replace(PAPER, hidden=(16, 16), learning_rate=0.02, epochs=6, batch=32)


@pytest.fixture
def rows() -> LayerTable:
    return table(random_rows("dense", 80, seed=1))


def test_the_split_takes_a_row_once_by_the_seed() -> None:
    train, test = split(1000, 3)
    assert (len(train), len(test), len({*train.tolist(), *test.tolist()})) == (800, 100, 900)
    assert split(1000, 3)[1].tolist() == test.tolist() != split(1000, 4)[1].tolist()
    assert not np.array_equal(train, np.sort(train))
    with pytest.raises(InputError):
        split(9, 0)


@pytest.mark.parametrize(
    "recipe",
    [
        replace(SMALL, dropout=0.0, epochs=60, learning_rate=0.1),
        replace(SMALL, dropout=0.0, epochs=60, is_log=True, epsilon=1e-7, name="best"),
    ],
    ids=["paper", "best"],
)
def test_it_learns_what_decides_the_time(
    rows: LayerTable, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lolat.mlp.layer_model.RECIPES", {recipe.name: recipe})
    model = learn(rows, recipe, ONE, seed=2)
    relative = np.abs(model.predict(rows) / rows[TIME] - 1)
    constant = np.abs(np.median(rows[TIME]) / rows[TIME] - 1)
    assert np.mean(relative) < 0.5 * np.mean(constant)
    assert (model.layer, model.recipe, list(model.devices)) == ("dense", recipe.name, ["v100"])
    features = recipe.features(rows, ONE)
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


def test_a_feature_that_is_the_same_in_all_rows_is_not_blown_up(rows: LayerTable) -> None:
    same = replace(SMALL, columns=lambda table, devices: {"one": np.full(len(table), 0.1)})
    model = learn(rows, same, ONE, epochs=1)
    assert (model.mean, model.scale) == (pytest.approx([0.1]), [1.0])


def test_a_network_whose_output_died_begins_again_from_other_weights(
    rows: LayerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Filled(-1.0, well=3)
    monkeypatch.setattr(training, "build_network", dying)
    model = learn(rows, SMALL, ONE, epochs=4)
    assert len(set(dying.seeds)) == 3
    assert (model.training["tries"], len(model.training["losses"])) == (3, 4)
    assert model.predict(rows).max() > 0
