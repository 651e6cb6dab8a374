"""Trains the layer model of a recipe on a table, with Keras 3 on TensorFlow; a killed run goes on.

The last epoch counts, as in the authors' code of 2018: nothing is chosen by the rows left out. An epoch is
one compiled call over data that lies in memory as one tensor: at a batch of 128 rows and some ten thousand
weights a step takes half a millisecond, less than a loop in Python around it would. (Compiled by XLA it
took ten times longer on a CPU.)
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import io
import json
import math
import platform
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat import __version__
from lolat.errors import InputError, LolatError
from lolat.io.progress import Progress, Silent
from lolat.io.writing import write_bytes
from lolat.mlp.layer_model import (
    Evaluation,
    Layer,
    LayerModel,
    Perceptron,
    evaluate,
    ranges,
    require_known,
)
from lolat.mlp.recipes import Devices, Facts, Plan, Recipe
from lolat.mlp.table import LayerTable
from lolat.readers.keras import import_keras
from lolat.units import plain

# ---- One network of a plan, with Keras.


class KerasNetwork:
    """A network of `plan` with its optimizer, between two epochs of training on (x, y).

    x: (n, k) standardized features; y: (n,) encoded times; `epochs`: of the whole training, for the
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
        """All that the next epochs depend on: weights, the optimizer's moments, the dropout's seed."""
        variables = {f"variable{i}": np.asarray(v) for i, v in enumerate(self._variables())}
        return {**variables, "done": np.asarray(self.done), "dead": np.asarray(self.dead)}

    def take(self, state: dict[str, np.ndarray]) -> None:
        """Goes on from what `state` gave for the same plan, data and seed."""
        for i, variable in enumerate(self._variables()):
            variable.assign(state[f"variable{i}"])
        self.done, self.dead = int(state["done"]), bool(state["dead"])

    def _variables(self) -> list[Any]:
        return [*self.network.variables, *self.optimizer.variables]

    def layers(self) -> list[Layer]:
        """The network as numpy layers, without its dropout."""
        layers = []
        dense = [layer for layer in self.network.layers if hasattr(layer, "kernel")]
        activations = [self.plan.activation] * len(self.plan.hidden) + [self.plan.output_activation]
        for layer, activation in zip(dense, activations, strict=True):
            kernel, *bias = (np.asarray(w) for w in layer.get_weights())
            layers.append(Layer(kernel, bias[0] if bias else None, activation))  # type: ignore[arg-type]
        return layers


def _packages() -> tuple[Any, Any]:
    """Keras and TensorFlow, which it runs on; imported quietly."""
    keras = import_keras()
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"training needs Keras on TensorFlow, but it runs on {keras.backend.backend()}; "
            "unset KERAS_BACKEND"
        )
    import tensorflow as tf  # there, since Keras runs on it

    return keras, tf


def _network(keras: Any, plan: Plan, inputs: int, seed: int) -> Any:
    """Dense layers, dropout after the last hidden one, one output."""
    seeds = np.random.SeedSequence(seed).generate_state(len(plan.hidden) + 2).tolist()

    def dense(units: int, activation: str, bias: bool = True) -> Any:
        kernel = keras.initializers.GlorotUniform(seeds.pop())
        return keras.layers.Dense(
            units, activation=activation, use_bias=bias, kernel_initializer=kernel
        )

    layers = [keras.Input((inputs,)), *(dense(units, plan.activation) for units in plan.hidden)]
    if plan.dropout:
        layers.append(keras.layers.Dropout(plan.dropout, seed=seeds.pop()))
    return keras.Sequential([*layers, dense(1, plan.output_activation, plan.output_bias)])


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
    log1p = tf.math.log1p
    each = {
        "squared": lambda output, target: tf.square(output - target),
        "absolute": lambda output, target: tf.abs(output - target),
        "squared-log1p": lambda output, target: tf.square(log1p(output) - log1p(target)),
    }
    if name not in each:
        raise InputError(f"unknown loss {name!r}; expected one of {', '.join(each)}")
    return lambda output, target: tf.reduce_mean(each[name](output, target))


def _epoch(tf: Any, plan: Plan, network: Any, optimizer: Any) -> Callable[..., Any]:
    """x (n, k), y (n,), order (n,) -> mean loss, largest output; updates the network."""
    loss_of = _loss(tf, plan.loss)
    variables = network.trainable_variables
    # AdamW decays by itself. The output's kernel, the last one, is not penalized.
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

    # Not by autograph, whose files a process that is killed leaves behind.
    @tf.function(autograph=False)
    def epoch(x: Any, y: Any, order: Any) -> tuple[Any, Any]:
        rows = tf.shape(order)[0]

        def batch(start: Any, total: Any, largest: Any) -> tuple[Any, Any, Any]:
            drawn = order[start : start + plan.batch]
            loss, top = step(tf.gather(x, drawn), tf.gather(y, drawn))
            total += loss * tf.cast(tf.shape(drawn)[0], tf.float32)
            return start + plan.batch, total, tf.maximum(largest, top)

        begin = tf.constant(0), tf.constant(0.0), tf.constant(-math.inf)
        _, total, largest = tf.while_loop(lambda start, *_: start < rows, batch, begin)
        return total / tf.cast(rows, tf.float32), largest

    return epoch


# ---- The training of a model.

SHARES = (0.8, 0.1)
"""Of the rows for training and for validation; the rest is the test part."""
SAVE_EVERY = 2  # epochs from checkpoint to checkpoint
TRIES = 10  # seeds for a network whose output dies


@dataclass(frozen=True)
class Split:
    """Indices of a table's rows, each row in one part: `train`, `validation`, `test`."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split(rows: int, seed: int) -> Split:
    """80, 10 and 10 % of `rows` rows, drawn at random. InputError for fewer than 10 rows."""
    if rows < 10:
        raise InputError(f"{rows} rows to train on; expected at least 10")
    order = np.random.default_rng([seed, rows]).permutation(rows)
    first = int(SHARES[0] * rows)
    second = int((SHARES[0] + SHARES[1]) * rows)
    return Split(*np.split(order, [first, second]))


def learn(
    table: LayerTable,
    recipe: Recipe,
    devices: Devices,
    *,
    seed: int = 0,
    epochs: int | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> LayerModel:
    """Trains on all rows of `table`. `epochs`: None, as the recipe says.

    The model's `training` has seed, epochs, rows, and in lists of one the mean losses of the epochs
    (`losses`) and how many networks were started (`tries`, more than 1 where outputs died); its `errors`
    are empty.

    With `checkpoint` the state is kept in that file every few epochs, and a run with the same table,
    recipe, seed and epochs goes on from there as if it had not stopped. Whoever has kept the model removes
    the file.
    Raises InputError for less than one epoch, without Keras, or where `checkpoint` cannot be written, and
    LolatError where it comes to nothing.
    """
    plan = recipe.plan(table.layer, len(devices) > 1)
    epochs = plan.epochs if epochs is None else epochs
    if epochs < 1:
        raise InputError(f"{epochs} epochs; expected at least 1")
    names, x = recipe.features(table, devices)
    y = recipe.encode(table.times_ms, table, devices)
    require_known(x, names, "recipe")
    mean = x.mean(axis=0)
    # A column that is the same in all rows says nothing; its deviation may be a rounding error.
    scale = np.where(np.ptp(x, axis=0) == 0, 1.0, x.std(axis=0))
    x = (x - mean) / scale
    strange = None
    if plan.strangers:
        _, of_strangers = recipe.features(table, Facts(devices, trained=()))
        strange = (of_strangers - mean) / scale
    fingerprint = _fingerprint(recipe.name, plan, x, y, seed, epochs)
    run = _Run(plan, x, y, strange, seed, epochs, progress or Silent(), checkpoint, fingerprint)
    layers, losses, tries = run.trained()
    about = {"seed": seed, "epochs": epochs, "rows": len(table)}
    return LayerModel(
        layer=table.layer,  # type: ignore[arg-type]
        recipe=recipe.name,  # type: ignore[arg-type]
        devices=dict(devices),
        features=list(names),
        mean=mean.tolist(),
        scale=scale.tolist(),
        network=Perceptron(layers),
        ranges=ranges(table),
        training=about | {"losses": [losses], "tries": [tries]},
        errors={},
    )


def about_training(
    model: LayerModel, rows: LayerTable, parts: Split, table: str, sha256: str
) -> tuple[LayerModel, Evaluation]:
    """The model with its errors on rows left out and how it was made, and these errors.

    `rows`: all rows, of which `parts.train` trained it; `table`, `sha256`: the name and digest of their
    file.
    """
    validation, test = (evaluate(model, rows.select(p)) for p in (parts.validation, parts.test))
    versions = {"lolat": __version__, "python": platform.python_version()}
    for package in ("numpy", "keras", "tensorflow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    training = {
        **model.training,
        "table": {"name": table, "sha256": sha256},
        "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "validation": asdict(validation.all),
    }
    return msgspec.structs.replace(model, training=training, errors=asdict(test.all)), test


@dataclass
class _Run:
    """The training of a plan's network; `strange`: the rows of x as of GPUs that are not known.

    Where there is a `file`, checkpoints of the training that is told by `fingerprint` are kept in it.
    """

    plan: Plan
    x: np.ndarray
    y: np.ndarray
    strange: np.ndarray | None
    seed: int
    epochs: int
    progress: Progress
    file: Path | None
    fingerprint: str

    def trained(self) -> tuple[list[Layer], list[float], int]:
        """(layers, losses, tries) of the network; anew with another seed while its output dies."""
        kept = {} if self.file is None else _read(self.file, self.fingerprint)
        if not kept and self.file is not None and self.file.exists():
            self.progress.note(
                f"{plain(str(self.file))} is damaged or of another training: beginning anew"
            )
        tries, losses = int(kept.get("tries", 1)), list(map(float, kept.get("losses", ())))
        while tries <= TRIES:
            seed = int(np.random.SeedSequence([self.seed, 0, tries]).generate_state(1)[0])
            network = KerasNetwork(self.plan, self.x, self.y, self.epochs, seed, self.strange)
            if kept:
                network.take(kept)
            self.progress.start("train", self.epochs)
            for _ in range(network.done):
                self.progress.step()
            while network.done < self.epochs and not network.dead:
                losses.append(network.epoch())
                self.progress.step()
                if network.done % SAVE_EVERY == 0 or network.done == self.epochs:
                    self._save(network.state(), tries, losses)
            if not network.dead:
                return network.layers(), losses, tries
            self.progress.note(
                f"the network answers 0 everywhere after {network.done} epochs (its last ReLU died): "
                "once more from other weights"
            )
            tries, losses, kept = tries + 1, [], {}
        raise LolatError(
            f"the network's output died from {TRIES} different beginnings; give another seed, or more rows"
        )

    def _save(self, state: Mapping[str, np.ndarray], tries: int, losses: list[float]) -> None:
        if self.file is None:
            return
        told = {"tries": tries, "losses": losses, "fingerprint": self.fingerprint}
        arrays: dict[str, Any] = {**state, **told}
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_bytes(self.file, content.getvalue())


def _fingerprint(
    recipe: str, plan: Plan, x: np.ndarray, y: np.ndarray, seed: int, epochs: int
) -> str:
    """Changes with anything that the result depends on."""
    words = json.dumps([recipe, asdict(plan), x.shape, seed, epochs], default=str, sort_keys=True)
    data = np.ascontiguousarray(x).tobytes() + np.ascontiguousarray(y).tobytes()
    return hashlib.sha256(words.encode() + data).hexdigest()


def _read(file: Path, fingerprint: str) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint; empty where there is none, a damaged one or one of another training."""
    try:
        # Opened here: np.load leaves a file that is no archive open.
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}
    return arrays if str(arrays.pop("fingerprint", "")) == fingerprint else {}
