"""Trains the layer model of a recipe on a table, with Keras 3 on TensorFlow.

The last epoch counts, as in the authors' code of 2018: nothing is chosen by the rows left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError
from lolat.io.progress import Progress
from lolat.mlp.devices import Devices
from lolat.mlp.layer_model import Layer, LayerModel, ranges
from lolat.mlp.recipes import Plan, Recipe
from lolat.mlp.table import LayerTable
from lolat.readers.keras import import_keras

# ---- One network of a plan, with Keras.

LOSSES = {
    "absolute": "mean_absolute_error",
    "squared-log1p": "mean_squared_logarithmic_error",
}
"""A plan's loss as Keras names it."""


class KerasNetwork:
    """A network of `plan` with its optimizer, between two epochs of training on (x, y).

    x: (n, k) standardized features; y: (n,) encoded times; `epochs`: of the whole training, for the
    schedule; `strange`: (n, k) the same rows as of unknown GPUs, which replace the plan's share of the rows
    of an epoch. Everything random follows from `seed`. `done`: number of trained epochs. `dead`: whether
    the last epoch's outputs were all 0 behind a ReLU, which no gradient passes: it stays like that.
    Raises MissingPackageError without Keras or TensorFlow.
    """

    def __init__(
        self,
        plan: Plan,
        x: np.ndarray,
        y: np.ndarray,
        epochs: int,
        seed: int,
        strange: np.ndarray | None = None,
    ) -> None:
        keras = import_keras()
        self.plan, self.seed, self.done, self.dead = plan, seed, 0, False
        self.x, self.strange = x.astype(np.float32), strange
        self.y = y.astype(np.float32)[:, None]
        self.network = _network(keras, plan, x.shape[1], seed)
        self.network.compile(
            optimizer=_optimizer(keras, plan, math.ceil(len(x) / plan.batch), epochs),
            loss=LOSSES[plan.loss],
            metrics=[LOSSES[plan.loss], mean_output],
            jit_compile=False,  # XLA took ten times longer on a CPU
        )

    def epoch(self) -> float:
        """Trains once over all rows in a new order; the mean loss over them, without penalties.

        Raises LolatError if the loss is not a finite number.
        """
        x = self.x
        if self.strange is not None:
            drawn = np.random.default_rng([self.seed, self.done, 1]).random(len(x))
            x = np.where((drawn < self.plan.strangers)[:, None], self.strange, x)
        order = np.random.default_rng([self.seed, self.done]).permutation(len(x))
        trained = self.network.fit(
            x[order], self.y[order], batch_size=self.plan.batch, shuffle=False, verbose=0
        )
        loss, output = (trained.history[k][0] for k in (LOSSES[self.plan.loss], "mean_output"))
        self.done += 1
        if not math.isfinite(loss):
            raise LolatError(
                f"the training diverged in epoch {self.done}: its loss is {loss}; try another seed"
            )
        self.dead = self.plan.output_activation == "relu" and output == 0
        return float(loss)

    def layers(self) -> list[Layer]:
        """The network as numpy layers, without its dropout."""
        layers = []
        dense = [layer for layer in self.network.layers if hasattr(layer, "kernel")]
        activations = [self.plan.activation] * len(self.plan.hidden) + [self.plan.output_activation]
        for layer, activation in zip(dense, activations, strict=True):
            kernel, *bias = (np.asarray(w) for w in layer.get_weights())
            layers.append(Layer(kernel, bias[0] if bias else None, activation))  # type: ignore[arg-type]
        return layers


def mean_output(y: Any, output: Any) -> Any:
    """A metric of Keras: the output itself, whose mean over an epoch is 0 only where a ReLU is dead."""
    return output


def _network(keras: Any, plan: Plan, inputs: int, seed: int) -> Any:
    """Dense layers, dropout after the last hidden one, one output."""
    seeds = np.random.SeedSequence(seed).generate_state(len(plan.hidden) + 2).tolist()
    # AdamW decays the weights by itself. Keras' L2 is the factor of the squares, without 1/2.
    penalty = keras.regularizers.L2(plan.l2 / 2) if plan.optimizer == "adam" else None

    def dense(units: int, activation: str, bias: bool = True, penalty: Any = penalty) -> Any:
        return keras.layers.Dense(
            units, activation=activation, use_bias=bias, kernel_regularizer=penalty,
            kernel_initializer=keras.initializers.GlorotUniform(seeds.pop()),
        )  # fmt: skip

    layers = [keras.Input((inputs,)), *(dense(units, plan.activation) for units in plan.hidden)]
    if plan.dropout:
        layers.append(keras.layers.Dropout(plan.dropout, seed=seeds.pop()))
    return keras.Sequential([*layers, dense(1, plan.output_activation, plan.output_bias, None)])


def _optimizer(keras: Any, plan: Plan, steps: int, epochs: int) -> Any:
    """Adam, or AdamW with `l2` as its weight decay; its rate by the plan's schedule, `steps` per epoch."""
    schedules = keras.optimizers.schedules
    if plan.schedule == "halve":
        rate = schedules.ExponentialDecay(
            plan.learning_rate, steps * plan.halve_every, 0.5, staircase=True
        )
    else:
        rate = schedules.CosineDecay(plan.learning_rate, steps * epochs)
    if plan.optimizer == "adam":
        return keras.optimizers.Adam(rate, epsilon=plan.epsilon)
    return keras.optimizers.AdamW(rate, weight_decay=plan.l2, epsilon=plan.epsilon)


# ---- The training of a model.

TRIES = 10  # seeds for a network whose output dies


def split(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of 80 % of `rows` rows to train on and of 10 % to test on, drawn at random; the rest of the
    rows is seen by nobody. InputError for fewer than 10 rows.
    """
    if rows < 10:
        raise InputError(f"{rows} rows to train on; expected at least 10")
    order = np.random.default_rng([seed, rows]).permutation(rows)
    return order[: int(0.8 * rows)], order[int(0.9 * rows) :]


def learn(
    table: LayerTable,
    recipe: Recipe,
    devices: Devices,
    *,
    seed: int = 0,
    epochs: int | None = None,
    progress: Progress | None = None,
) -> LayerModel:
    """Trains on all rows of `table`. `epochs`: None, as the recipe says.

    The model's `training` has seed, epochs, rows, the mean losses of the epochs (`losses`) and how many
    networks were started from other weights (`tries`, more than 1 where outputs died); its `errors` are
    empty. MissingPackageError without Keras; LolatError where the training diverges or every output dies.
    """
    plan = recipe.plan(table.layer, len(devices) > 1)
    epochs = plan.epochs if epochs is None else epochs
    x = recipe.features(table, devices, devices)
    y = recipe.encode(table.times_ms, table, devices)
    mean = x.mean(axis=0)
    # A column that is the same in all rows says nothing; its deviation may be a rounding error.
    scale = np.where(np.ptp(x, axis=0) == 0, 1.0, x.std(axis=0))
    x = (x - mean) / scale
    strange = None
    if plan.strangers:
        strange = (recipe.features(table, devices, ()) - mean) / scale
    progress = progress or Progress()
    for tries in range(1, TRIES + 1):
        of_network = int(np.random.SeedSequence([seed, 0, tries]).generate_state(1)[0])
        network, losses = KerasNetwork(plan, x, y, epochs, of_network, strange), []
        progress.start("train", epochs)
        while network.done < epochs and not network.dead:
            losses.append(network.epoch())
            progress.step()
        if not network.dead:
            break
    else:
        raise LolatError(f"the network's output died from {TRIES} beginnings; give another seed")
    about = {"seed": seed, "epochs": epochs, "rows": len(table), "losses": losses, "tries": tries}
    return LayerModel(
        layer=table.layer,  # type: ignore[arg-type]
        recipe=recipe.name,  # type: ignore[arg-type]
        devices=dict(devices),
        mean=mean.tolist(),
        scale=scale.tolist(),
        network=network.layers(),
        ranges=ranges(table),
        training=about,
        errors={},
    )
