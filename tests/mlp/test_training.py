"""Training on a table: the split, what is learned, what a kill leaves, what goes wrong."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, LolatError
from lolat.mlp import training
from lolat.mlp.devices import DEVICES
from lolat.mlp.layer_model import LayerModel, read_layer_model, write_layer_model
from lolat.mlp.recipes import Devices, Facts, Plan, Recipe, trained_on
from lolat.mlp.recipes.paper import RECIPE
from lolat.mlp.table import LayerTable
from lolat.mlp.training import learn, split
from tests.mlp.tables import random_rows, table
from tests.processes import python

ROOT = Path(__file__).resolve().parents[2]
ONE = {"V100": DEVICES["V100"]}
PLAN = replace(RECIPE.plan("dense", False), hidden=(16, 16), learning_rate=0.02, epochs=6, batch=32)
EPOCHS = PLAN.epochs


def small(**changes: Any) -> Recipe:
    """The paper's recipe with a small network."""
    plan = replace(PLAN, **changes)
    return replace(RECIPE, plan=lambda layer, several: plan)


@pytest.fixture
def rows(tmp_path: Path) -> LayerTable:
    return table(tmp_path, random_rows("dense", 80, seed=1))


class Seen:
    """A progress that remembers; `at`: what is done at a step."""

    def __init__(self, at: Any = None) -> None:
        self.stages: list[tuple[str, int]] = []
        self.steps: list[int] = []
        self.notes: list[str] = []
        self.at = at

    def start(self, text: str, total: int) -> None:
        self.stages.append((text, total))
        self.steps.append(0)

    def step(self) -> None:
        self.steps[-1] += 1
        if self.at:
            self.at(self.steps[-1])

    def note(self, text: str) -> None:
        self.notes.append(text)


def weights(model: LayerModel) -> list[np.ndarray]:
    found = [layer.weights for layers in model.network.members for layer in layers]
    return found + [
        layer.biases
        for layers in model.network.members
        for layer in layers
        if layer.biases is not None
    ]


def same(a: LayerModel, b: LayerModel) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def test_the_split_takes_every_row_once_by_the_seed() -> None:
    parts = split(1000, 3)
    assert [len(p) for p in (parts.train, parts.validation, parts.test)] == [800, 100, 100]
    everything = np.concatenate([parts.train, parts.validation, parts.test])
    assert sorted(everything.tolist()) == list(range(1000))
    assert split(1000, 3).test.tolist() == parts.test.tolist() != split(1000, 4).test.tolist()
    assert not np.array_equal(parts.train, np.sort(parts.train))
    with pytest.raises(InputError, match=r"^9 rows to train on; expected at least 10$"):
        split(9, 0)


def test_it_learns_what_decides_the_time(rows: LayerTable) -> None:
    model = learn(rows, small(dropout=0.0, epochs=60, learning_rate=0.1), ONE, seed=2)
    relative = np.abs(model.predict(rows) / rows.times_ms - 1)
    constant = np.abs(np.median(rows.times_ms) / rows.times_ms - 1)
    assert np.mean(relative) < 0.5 * np.mean(constant)
    assert model.layer == "dense"
    assert model.recipe == "paper"
    assert list(model.devices) == ["V100"]
    assert model.features == RECIPE.feature_names("dense", False)
    features = RECIPE.features(rows, ONE)
    np.testing.assert_allclose(model.mean, features.mean(axis=0))
    np.testing.assert_allclose(model.scale, features.std(axis=0))
    assert model.ranges["batch_size"] == [rows["batch_size"].min(), rows["batch_size"].max()]
    assert model.training["rows"] == 80
    assert model.training["seed"] == 2
    assert model.training["epochs"] == len(model.training["losses"][0]) == 60
    assert model.training["tries"] == [1]
    assert model.errors == {}


def test_the_model_survives_its_file(rows: LayerTable, tmp_path: Path) -> None:
    model = learn(rows, small(epochs=1), ONE)
    write_layer_model(tmp_path / "m.json", model)
    read = read_layer_model(tmp_path / "m.json")
    np.testing.assert_array_equal(read.predict(rows), model.predict(rows))


def test_a_share_of_the_rows_is_shown_as_of_gpus_that_are_not_known(
    rows: LayerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[np.ndarray | None] = []

    def kept(*arguments: Any) -> training.KerasNetwork:
        shown.append(arguments[5])
        return REAL(*arguments)

    def known(chosen: LayerTable, devices: Devices) -> np.ndarray:
        """The paper's features, the first one replaced: 1 for a GPU that was trained on, else 0."""
        found = RECIPE.features(chosen, devices)
        found[:, 0] = [name in trained_on(devices) for name in chosen["gpu"].tolist()]
        return found

    monkeypatch.setattr(training, "KerasNetwork", kept)
    model = learn(rows, replace(small(epochs=1, strangers=0.5), features=known), ONE)
    as_known, as_stranger = (known(rows, d) for d in (ONE, Facts(ONE, trained=())))
    assert as_known[:, 0].all()
    assert not as_stranger[:, 0].any()
    np.testing.assert_allclose(shown[0], (as_stranger - model.mean) / model.scale)
    learn(rows, small(epochs=1), ONE)
    assert shown[1] is None


def test_a_column_that_never_changes_is_not_blown_up(tmp_path: Path) -> None:
    rows = table(tmp_path, [{**row, "batch_size": "3"} for row in random_rows("dense", 30)])

    def tenth(chosen: LayerTable, devices: object) -> np.ndarray:
        return RECIPE.features(chosen, devices) / 10  # type: ignore[arg-type]

    model = learn(rows, replace(small(epochs=1), features=tenth), ONE)
    assert model.scale[0] == 1.0
    assert model.mean[0] == pytest.approx(0.3)


def test_a_feature_that_is_not_known_is_named(rows: LayerTable) -> None:
    def lacking(chosen: LayerTable, devices: object) -> np.ndarray:
        found = RECIPE.features(chosen, devices)  # type: ignore[arg-type]
        found[7, 1] = np.nan
        return found

    words = r"^the recipe needs in_features of each GPU, .* give them with --facts FILE$"
    with pytest.raises(InputError, match=words):
        learn(rows, replace(small(), features=lacking), ONE)


def test_less_than_one_epoch_is_refused(rows: LayerTable) -> None:
    with pytest.raises(InputError, match="0 epochs; expected at least 1"):
        learn(rows, small(), ONE, epochs=0)


KILLED = """
import os, signal, sys
from pathlib import Path
from lolat.mlp.table import read_table
from lolat.mlp.training import learn
from tests.mlp.test_training import ONE, Seen, small
def at(step):
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
learn(read_table(sys.argv[1]), small(), ONE, checkpoint=Path(sys.argv[2]), progress=Seen(at))
"""


def test_a_killed_training_goes_on_and_comes_to_the_same_bit_for_bit(
    rows: LayerTable, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "model.json.checkpoint.npz"
    done = python(KILLED, tmp_path / "rows.csv", checkpoint)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with np.load(checkpoint) as stored:
        assert stored["done"] == 4
    epochs: list[int] = []
    seen = Seen(epochs.append)
    resumed = learn(rows, small(), ONE, checkpoint=checkpoint, progress=seen)
    assert seen.steps == [EPOCHS]
    assert seen.notes == []
    assert same(resumed, learn(rows, small(), ONE))
    assert len(resumed.training["losses"][0]) == EPOCHS
    assert {p.name for p in tmp_path.iterdir()} == {"rows.csv", checkpoint.name}


class Stop(Exception):
    pass


def interrupted(rows: LayerTable, checkpoint: Path, recipe: Recipe, at: int) -> None:
    """A training that ends in its step number `at`, counted from 1."""
    steps = 0

    def count(_: int) -> None:
        nonlocal steps
        steps += 1
        if steps == at:
            raise Stop

    with pytest.raises(Stop):
        learn(rows, recipe, ONE, checkpoint=checkpoint, progress=Seen(count))
    assert checkpoint.exists()


def test_epochs_that_were_done_are_not_trained_again(
    rows: LayerTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, checkpoint = small(epochs=4), tmp_path / "c.npz"
    whole = learn(rows, recipe, ONE)
    interrupted(rows, checkpoint, recipe, at=3)
    epochs = counted(monkeypatch)
    assert same(learn(rows, recipe, ONE, checkpoint=checkpoint), whole)
    assert len(epochs) == 2
    # Until the model is kept, the checkpoint is: one that is killed before trains nothing again.
    assert same(learn(rows, recipe, ONE, checkpoint=checkpoint), whole)
    assert len(epochs) == 2


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every epoch that a network trains from now on."""
    found: list[int] = []
    real = training.KerasNetwork.epoch

    def epoch(network: training.KerasNetwork) -> float:
        found.append(network.done)
        return real(network)

    monkeypatch.setattr(training.KerasNetwork, "epoch", epoch)
    return found


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of a training of three epochs on `rows` that was interrupted in the third."""
    folder = tmp_path_factory.mktemp("left")
    checkpoint = folder / "c.npz"
    same_rows = table(folder, random_rows("dense", 80, seed=1))
    interrupted(same_rows, checkpoint, small(epochs=3), at=3)
    return checkpoint.read_bytes()


@pytest.mark.parametrize("other", ["seed", "epochs", "rows", "plan", "damaged", "pickle", "none"])
def test_a_checkpoint_of_another_training_is_not_used(
    other: str, rows: LayerTable, left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "c.npz"
    checkpoint.write_bytes(left)
    recipe, seed, epochs, chosen = small(epochs=3), 0, 3, rows
    if other == "seed":
        seed = 1
    elif other == "epochs":
        epochs = 4
    elif other == "rows":
        chosen = rows.select(np.arange(79))
    elif other == "plan":
        recipe = small(epochs=3, l2=0.5)
    elif other == "damaged":
        checkpoint.write_bytes(left[:-100])
    elif other == "pickle":
        np.savez(checkpoint, fingerprint=np.array({"a": 1}, dtype=object))
    seen, trained = Seen(), counted(monkeypatch)
    learn(chosen, recipe, ONE, seed=seed, epochs=epochs, checkpoint=checkpoint, progress=seen)
    anew = f"{checkpoint} is damaged or of another training: beginning anew"
    assert seen.notes == ([] if other == "none" else [anew])
    assert trained == list(range(2 if other == "none" else 0, epochs))


def test_a_checkpoint_that_cannot_be_written_is_an_input_error(
    rows: LayerTable, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder"):
        learn(rows, small(), ONE, checkpoint=tmp_path / "folder")


REAL = training.KerasNetwork
DIED = "the network answers 0 everywhere after 2 epochs (its last ReLU died): once more from other weights"


class Dying:
    """Networks whose outputs die in the second epoch, but for number `well` of those that are started."""

    def __init__(self, well: int) -> None:
        self.well, self.seeds = well, []  # type: tuple[int, list[int]]

    def __call__(
        self,
        plan: Plan,
        x: np.ndarray,
        y: np.ndarray,
        epochs: int,
        seed: int,
        strange: np.ndarray | None,
    ) -> training.KerasNetwork:
        self.seeds.append(seed)
        network = REAL(plan, x, y, epochs, seed, strange)
        if len(self.seeds) != self.well:
            kernel = network.network.layers[-1].kernel
            real = network.epoch

            def epoch() -> float:
                if network.done == 1:
                    kernel.assign(-np.ones(kernel.shape))
                return real()

            network.epoch = epoch  # type: ignore[method-assign]
        return network


def test_a_network_whose_output_died_begins_again_from_other_weights(
    rows: LayerTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, seen = Dying(well=3), Seen()
    monkeypatch.setattr(training, "KerasNetwork", dying)
    model = learn(rows, small(epochs=4), ONE, progress=seen, checkpoint=tmp_path / "c.npz")
    assert len(set(dying.seeds)) == 3
    assert model.training["tries"] == [3]
    assert len(model.training["losses"][0]) == 4
    assert seen.notes == [DIED] * 2
    assert seen.steps == [2, 2, 4]
    assert model.predict(rows).max() > 0


def test_one_that_dies_always_is_an_error(
    rows: LayerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "KerasNetwork", Dying(well=0))
    monkeypatch.setattr(training, "TRIES", 2)
    with pytest.raises(LolatError, match="died from 2 different beginnings; give another seed"):
        learn(rows, small(epochs=3), ONE)
