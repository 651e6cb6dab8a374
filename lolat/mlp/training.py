"""Trains the layer model of a recipe on a table, with Keras 3 on TensorFlow.

The weights of the last epoch are kept, as in the authors' code of 2018: no choice depends on held-out rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError
from lolat.io.progress import Progress
from lolat.mlp.layer_model import DenseLayer, LayerModel, output_of, ranges
from lolat.mlp.recipes import Devices, Recipe
from lolat.mlp.table import TIME, LayerTable
from lolat.readers.keras import import_keras

TRIES = 10  # seeds to try if a network's output ReLU dies


def train(
    recipe: Recipe, x: np.ndarray, y: np.ndarray, epochs: int, seed: int, progress: Progress
) -> tuple[list[DenseLayer], list[float]]:
    """Train a recipe's network; return (its layers, mean loss of each epoch without the l2 penalty).

    `x`: (n, k) standardized features; `y`: (n,) targets. `seed` determines everything random. No layers are
    returned if the output ReLU is dead: 0 for all of 1,000 rows. LolatError if a loss is not finite;
    MissingPackageError without Keras or TensorFlow.
    """
    x, y = x.astype(np.float32), y.astype(np.float32)[:, None]
    network = build_network(recipe, x.shape[1], math.ceil(len(x) / recipe.batch), epochs, seed)
    losses: list[float] = []
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(x))
        trained = network.fit(x[order], y[order], batch_size=recipe.batch, shuffle=False, verbose=0)
        losses.append(float(trained.history["plain_loss"][0]))
        if not math.isfinite(losses[-1]):
            raise LolatError(f"the training diverged in epoch {epoch + 1}")
        layers = numpy_layers(network)
        if not recipe.is_log and not output_of(layers, x[:1000]).any():
            return [], losses
        progress.step()
    return layers, losses


def build_network(recipe: Recipe, inputs: int, steps: int, epochs: int, seed: int) -> Any:
    """A compiled Keras network: dense layers, dropout, one output. `steps`: steps in an epoch."""
    keras = import_keras()
    seeds = np.random.SeedSequence(seed).generate_state(len(recipe.hidden) + 2).tolist()
    penalty = keras.regularizers.L2(recipe.l2 / 2)  # Keras multiplies the sum of squares by this

    def dense(units: int, activation: str, **more: Any) -> Any:
        kernel = keras.initializers.GlorotUniform(seeds.pop())
        return keras.layers.Dense(units, activation, kernel_initializer=kernel, **more)

    hidden = [dense(units, "relu", kernel_regularizer=penalty) for units in recipe.hidden]
    dropout = [keras.layers.Dropout(recipe.dropout, seed=seeds.pop())] if recipe.dropout else []
    last = dense(1, "linear" if recipe.is_log else "relu", use_bias=recipe.is_log)
    network = keras.Sequential([keras.Input((inputs,)), *hidden, *dropout, last])
    schedules, rate = keras.optimizers.schedules, recipe.learning_rate
    if recipe.halve_every:
        falling = schedules.ExponentialDecay(rate, steps * recipe.halve_every, 0.5, staircase=True)
    else:
        falling = schedules.CosineDecay(rate, steps * epochs)
    name = "MeanAbsoluteError" if recipe.is_log else "MeanSquaredLogarithmicError"
    network.compile(
        optimizer=keras.optimizers.Adam(falling, epsilon=recipe.epsilon),
        loss=getattr(keras.losses, name)(),
        metrics=[getattr(keras.metrics, name)("plain_loss")],
        jit_compile=False,  # XLA took ten times longer on a CPU
    )
    return network


def numpy_layers(network: Any) -> list[DenseLayer]:
    """A Keras network as numpy layers, without its dropout."""
    layers = []
    for dense in (layer for layer in network.layers if hasattr(layer, "kernel")):
        biases = None if dense.bias is None else np.asarray(dense.bias)
        layers.append(DenseLayer(np.asarray(dense.kernel), biases, dense.activation.__name__))
    return layers


def split(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of 80 % of `rows` rows to train on and of 10 % to test on, drawn at random.

    The remaining 10 % are unused. InputError for fewer than 10 rows.
    """
    if rows < 10:
        raise InputError(f"{rows} rows to train on; expected at least 10")
    order = np.random.default_rng([seed, rows]).permutation(rows)
    return order[: int(0.8 * rows)], order[int(0.9 * rows) :]


def learn(
    table: LayerTable,
    recipe: Recipe,
    devices: Devices,
    seed: int = 0,
    epochs: int | None = None,
    progress: Progress | None = None,
) -> LayerModel:
    """Train a layer model on all rows of `table`. `epochs`: None for the number in the recipe.

    The model's `training` has seed, epochs, rows, the mean loss of each epoch (`losses`) and the number of
    networks that were started (`tries`, above 1 if the first output ReLU died); its `errors` are empty.
    MissingPackageError without Keras; LolatError if the training diverges or every network dies.
    """
    epochs, progress = epochs or recipe.epochs, progress or Progress()
    if len(devices) > 1:
        recipe = replace(recipe, hidden=recipe.hidden + recipe.more_hidden)
    x = recipe.features(table, devices)
    y = np.log(table[TIME]) if recipe.is_log else table[TIME]
    mean = x.mean(axis=0)
    # The deviation of a column that is the same in all rows may be a rounding error.
    scale = np.where(np.ptp(x, axis=0) == 0, 1.0, x.std(axis=0))
    for tries in range(1, TRIES + 1):
        of_network = int(np.random.SeedSequence([seed, 0, tries]).generate_state(1)[0])
        progress.start("train", epochs)
        layers, losses = train(recipe, (x - mean) / scale, y, epochs, of_network, progress)
        if layers:
            break
    else:
        raise LolatError(f"the network's output stayed 0 from {TRIES} different first weights")
    about = {"seed": seed, "epochs": epochs, "rows": len(table), "losses": losses, "tries": tries}
    return LayerModel(
        table.layer,  # type: ignore[arg-type]
        recipe.name,  # type: ignore[arg-type]
        dict(devices), mean.tolist(), scale.tolist(), layers, ranges(table), about, errors={},
    )  # fmt: skip
