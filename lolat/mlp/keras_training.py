"""Trains one network of a plan with Keras 3 on TensorFlow: the only file of the companion that needs it.

An epoch is one compiled call over data that lies in memory as one tensor: at a batch of 128 rows and some
ten thousand weights a step takes half a millisecond, less than a loop in Python around it would. (Compiled
by XLA it took ten times longer on a CPU.)
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError, MissingPackageError
from lolat.mlp.perceptron import Layer
from lolat.mlp.recipes import Plan


class KerasNetwork:
    """A network of `plan` with its optimiser, between two epochs of training on (x, y).

    x: (n, k) standardised features; y: (n,) encoded times; `epochs`: of the whole training, for the
    schedule; `strange`: (n, k) the same rows as of unknown GPUs, which the plan's share of the rows of an
    epoch are replaced by. Everything random follows from `seed`, so that a network that took its `state`
    from another goes on exactly as that one would have. `done`: epochs so far. `dead`: whether the last
    epoch's outputs were all 0 behind a ReLU, which no gradient passes: it stays like that.
    Raises MissingPackageError without Keras or TensorFlow, InputError for a plan that it does not know.
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
        keras, tf = _packages()
        self.plan, self.seed, self.done, self.dead = plan, seed, 0, False
        self.rows = len(x)
        self.network = _network(keras, plan, x.shape[1], seed)
        steps = math.ceil(self.rows / plan.batch)
        self.optimizer = _optimizer(keras, plan, steps, epochs)
        self.optimizer.build(self.network.trainable_variables)
        self.strangers = 0.0 if strange is None else plan.strangers
        if strange is not None:  # row i once more as row n + i
            x, y = np.concatenate([x, strange]), np.concatenate([y, y])
        self.x = tf.constant(x, tf.float32)
        self.y = tf.constant(y, tf.float32)
        self._epoch = _epoch(tf, plan, self.network, self.optimizer)

    def epoch(self) -> float:
        """Trains once over all rows in a new order; the mean loss over them, penalties apart.

        Raises LolatError when the loss is no number any more.
        """
        order = np.random.default_rng([self.seed, self.done]).permutation(self.rows)
        if self.strangers:
            drawn = np.random.default_rng([self.seed, self.done, 1]).random(self.rows)
            order += self.rows * (drawn < self.strangers)
        loss, largest = (float(v) for v in self._epoch(self.x, self.y, order.astype(np.int32)))
        self.done += 1
        if not math.isfinite(loss):
            raise LolatError(
                f"the training diverged in epoch {self.done}: its loss is {loss}; try another seed"
            )
        self.dead = self.plan.output_activation == "relu" and largest == 0
        return loss

    def state(self) -> dict[str, np.ndarray]:
        """All that the next epochs depend on: weights, the optimiser's moments, the dropout's seed."""
        found = {f"variable{i}": np.asarray(v) for i, v in enumerate(self._variables())}
        return {**found, "done": np.asarray(self.done), "dead": np.asarray(self.dead)}

    def take(self, state: dict[str, np.ndarray]) -> None:
        """Goes on from what `state` gave for the same plan, data and seed."""
        for i, variable in enumerate(self._variables()):
            variable.assign(state[f"variable{i}"])
        self.done, self.dead = int(state["done"]), bool(state["dead"])

    def _variables(self) -> list[Any]:
        return [*self.network.variables, *self.optimizer.variables]

    def layers(self) -> list[Layer]:
        """The network as numpy layers, without its dropout."""
        found = []
        dense = [layer for layer in self.network.layers if hasattr(layer, "kernel")]
        activations = [self.plan.activation] * len(self.plan.hidden) + [self.plan.output_activation]
        for layer, activation in zip(dense, activations, strict=True):
            kernel, *bias = (np.asarray(w) for w in layer.get_weights())
            found.append(Layer(kernel, bias[0] if bias else None, activation))
        return found


def _packages() -> tuple[Any, Any]:
    """Keras and TensorFlow, imported quietly: the latter greets on stderr from C++ in any case."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    saved = os.dup(2)
    try:
        with tempfile.TemporaryFile() as muffled:
            os.dup2(muffled.fileno(), 2)
            try:
                import keras
                import tensorflow as tf
            finally:
                os.dup2(saved, 2)
    except ImportError as error:
        raise MissingPackageError(
            f"training needs Keras and TensorFlow, which cannot be imported ({error}); install them with: "
            "pip install 'lolat[tensorflow]'"
        ) from None
    finally:
        os.close(saved)
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"training needs Keras on TensorFlow, but it runs on {keras.backend.backend()}; "
            "unset KERAS_BACKEND"
        )
    return keras, tf


def _network(keras: Any, plan: Plan, inputs: int, seed: int) -> Any:
    """Dense layers, dropout after the last hidden one, one output."""
    seeds = np.random.SeedSequence(seed).generate_state(len(plan.hidden) + 2).tolist()
    layers: list[Any] = [keras.Input((inputs,))]
    for units in plan.hidden:
        layers.append(
            keras.layers.Dense(
                units,
                activation=plan.activation,
                kernel_initializer=keras.initializers.GlorotUniform(seeds.pop()),
            )
        )
    if plan.dropout:
        layers.append(keras.layers.Dropout(plan.dropout, seed=seeds.pop()))
    layers.append(
        keras.layers.Dense(
            1,
            activation=plan.output_activation,
            use_bias=plan.output_bias,
            kernel_initializer=keras.initializers.GlorotUniform(seeds.pop()),
        )
    )
    return keras.Sequential(layers)


def _optimizer(keras: Any, plan: Plan, steps: int, epochs: int) -> Any:
    """Adam, or AdamW with `l2` as its weight decay; its rate by the plan's schedule, `steps` per epoch."""
    schedules = keras.optimizers.schedules
    if plan.schedule == "halve":
        rate = schedules.ExponentialDecay(
            plan.learning_rate, steps * plan.halve_every, 0.5, staircase=True
        )
    elif plan.schedule == "cosine":
        rate = schedules.CosineDecay(plan.learning_rate, steps * epochs)
    else:
        raise InputError(f"unknown schedule {plan.schedule!r}; expected halve or cosine")
    if plan.optimizer == "adam":
        return keras.optimizers.Adam(rate, epsilon=plan.epsilon)
    if plan.optimizer == "adamw":
        return keras.optimizers.AdamW(rate, weight_decay=plan.l2, epsilon=plan.epsilon)
    raise InputError(f"unknown optimizer {plan.optimizer!r}; expected adam or adamw")


def _loss(tf: Any, name: str) -> Callable[[Any, Any], Any]:
    """The mean loss of outputs (rows,) for targets (rows,)."""
    each = {
        "squared": lambda output, target: tf.square(output - target),
        "absolute": lambda output, target: tf.abs(output - target),
        "squared-log1p": lambda output, target: tf.square(
            tf.math.log1p(output) - tf.math.log1p(target)
        ),
    }
    if name not in each:
        raise InputError(f"unknown loss {name!r}; expected one of {', '.join(each)}")
    return lambda output, target: tf.reduce_mean(each[name](output, target))


def _epoch(tf: Any, plan: Plan, network: Any, optimizer: Any) -> Callable[..., Any]:
    """x (n, k), y (n,), order (n,) -> mean loss, largest output; updates the network."""
    loss_of = _loss(tf, plan.loss)
    variables = network.trainable_variables
    # AdamW decays by itself. The output's kernel, the last one, is not penalised.
    kernels: Sequence[Any] = []
    if plan.optimizer == "adam" and plan.l2:
        kernels = [v for v in variables if v.name == "kernel"][:-1]

    def step(x: Any, y: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            output = network(x, training=True)[:, 0]
            loss = loss_of(output, y)
            total = loss
            if kernels:
                total += plan.l2 * tf.add_n([tf.nn.l2_loss(v) for v in kernels])
        optimizer.apply_gradients(zip(tape.gradient(total, variables), variables, strict=True))
        return loss, tf.reduce_max(output)

    @tf.function
    def epoch(x: Any, y: Any, order: Any) -> tuple[Any, Any]:
        rows = tf.shape(order)[0]
        total, largest = tf.constant(0.0), tf.constant(-math.inf)
        for start in tf.range(0, rows, plan.batch):
            batch = order[start : start + plan.batch]
            loss, top = step(tf.gather(x, batch), tf.gather(y, batch))
            total += loss * tf.cast(tf.shape(batch)[0], tf.float32)
            largest = tf.maximum(largest, top)
        return total / tf.cast(rows, tf.float32), largest

    return epoch
