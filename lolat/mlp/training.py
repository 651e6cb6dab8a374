"""Trains the layer model of a recipe on a table; a training that is killed goes on where it was.

The last epoch counts, as in the authors' code of 2018: nothing is chosen by the rows left out.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lolat.errors import InputError, LolatError
from lolat.mlp.layer_model import LayerModel, ranges
from lolat.mlp.perceptron import Layer, Perceptron
from lolat.mlp.recipes import Devices, Facts, Plan, Recipe
from lolat.mlp.table import LayerTable
from lolat.model.file import write_bytes
from lolat.units import plain

SHARES = (0.8, 0.1)
"""Of the rows for training and for validation; the rest is the test part."""
SAVE_EVERY = 2  # epochs from checkpoint to checkpoint
TRIES = 10  # seeds for a network whose output dies


class Progress(Protocol):
    """Who is told how far a training is; those of lolat.cli.progress are such."""

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def step(self) -> None:
        """One step is done."""

    def note(self, text: str) -> None:
        """A remark."""


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

    The model's `training` has seed, epochs, rows, and per member the mean loss of each epoch (`losses`)
    and the networks that were started (`tries`, more than 1 where outputs died); its `errors` are empty.

    With `checkpoint` the state is kept in that file every few epochs, and a run with the same table,
    recipe, seed and epochs goes on from there as if it had not stopped; the file is removed at the end.
    Raises InputError for less than one epoch, without Keras, or where `checkpoint` cannot be written, and
    LolatError where it comes to nothing.
    """
    plan = recipe.plan(table.layer, len(devices) > 1)
    epochs = plan.epochs if epochs is None else epochs
    if epochs < 1:
        raise InputError(f"{epochs} epochs; expected at least 1")
    x = recipe.features(table, devices)
    y = recipe.encode(table.times_ms, table, devices)
    names = recipe.feature_names(table.layer, len(devices) > 1)
    _check(x, names)
    mean = x.mean(axis=0)
    # A column that is the same in all rows says nothing; its deviation may be a rounding error.
    scale = np.where(np.ptp(x, axis=0) == 0, 1.0, x.std(axis=0))
    x = (x - mean) / scale
    run = _Run(plan, x, y, seed, epochs, progress)
    if plan.strangers:
        run.strange = (recipe.features(table, Facts(devices, trained=())) - mean) / scale
    if checkpoint is not None:
        run.keep_in(checkpoint, _fingerprint(recipe.name, plan, x, y, seed, epochs))
    members = [run.member(i) for i in range(plan.members)]
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return LayerModel(
        layer=table.layer,
        recipe=recipe.name,
        devices=devices,
        features=names,
        mean=mean,
        scale=scale,
        network=Perceptron([m.layers for m in members]),
        ranges=ranges(table),
        training={
            "seed": seed,
            "epochs": epochs,
            "rows": len(table),
            "losses": [list(m.losses) for m in members],
            "tries": [m.tries for m in members],
        },
        errors={},
    )


def _check(x: np.ndarray, names: tuple[str, ...]) -> None:
    """InputError where a feature is not known of all rows."""
    lacking = [n for n, good in zip(names, np.isfinite(x).all(axis=0), strict=True) if not good]
    if lacking:
        raise InputError(
            f"the recipe needs {', '.join(lacking)} of each GPU, and they are not known of all in the "
            "table; give them with --devices FILE"
        )


@dataclass(frozen=True)
class _Member:
    layers: list[Layer]
    losses: tuple[float, ...]
    tries: int


class _Run:
    """The training of a plan's members one after another, with what a checkpoint holds of it."""

    def __init__(
        self,
        plan: Plan,
        x: np.ndarray,
        y: np.ndarray,
        seed: int,
        epochs: int,
        progress: Progress | None,
    ) -> None:
        self.plan, self.x, self.y = plan, x, y
        self.seed, self.epochs, self.progress = seed, epochs, progress
        self.strange: np.ndarray | None = None  # the rows of x as of GPUs that are not known
        self.file: Path | None = None
        self.fingerprint = ""
        self.kept: dict[str, np.ndarray] = {}

    def keep_in(self, file: Path, fingerprint: str) -> None:
        """Keeps checkpoints in `file`, and goes on from what is there if it is of the same training."""
        self.file, self.fingerprint = file, fingerprint
        self.kept = _read(file, fingerprint)
        if not self.kept and self.progress and file.exists():
            self.progress.note(
                f"{plain(str(file))} is damaged or of another training: beginning anew"
            )

    def member(self, number: int) -> _Member:
        """Trains one network, or what is left of it; anew with another seed while its output dies."""
        from lolat.mlp.keras_training import KerasNetwork

        of = f"member{number}."
        kept = {k.removeprefix(of): v for k, v in self.kept.items() if k.startswith(of)}
        tries, losses = int(kept.get("tries", 1)), list(kept.get("losses", ()))
        while tries <= TRIES:
            seed = int(np.random.SeedSequence([self.seed, number, tries]).generate_state(1)[0])
            network = KerasNetwork(self.plan, self.x, self.y, self.epochs, seed, self.strange)
            if kept:
                network.take(kept)
            self._begin(number, network.done)
            while network.done < self.epochs and not network.dead:
                losses.append(network.epoch())
                if self.progress:
                    self.progress.step()
                if network.done % SAVE_EVERY == 0 or network.done == self.epochs:
                    self._save(of, network.state(), tries, losses)
            if not network.dead:
                return _Member(network.layers(), tuple(map(float, losses)), tries)
            if self.progress:
                self.progress.note(
                    f"the network answers 0 everywhere after {network.done} epochs (its last ReLU died): "
                    "once more from other weights"
                )
            tries, losses, kept = tries + 1, [], {}
        raise LolatError(
            f"the network's output died from {TRIES} different beginnings; give another seed, or more rows"
        )

    def _begin(self, number: int, done: int) -> None:
        if self.progress is None:
            return
        of = f" {number + 1} of {self.plan.members}" if self.plan.members > 1 else ""
        self.progress.start(f"train{of}", self.epochs)
        for _ in range(done):
            self.progress.step()

    def _save(
        self, of: str, state: Mapping[str, np.ndarray], tries: int, losses: list[float]
    ) -> None:
        if self.file is None:
            return
        now = {**state, "tries": np.asarray(tries), "losses": np.asarray(losses)}
        self.kept.update({of + k: v for k, v in now.items()})
        arrays: dict[str, Any] = {**self.kept, "fingerprint": np.asarray(self.fingerprint)}
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
