"""`lolat mlp fit`: what it hands to training, what it keeps of it, what it refuses at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lolat.mlp import training
from tests.cli.commands import Command
from tests.mlp.tables import hand_model, random_rows, write


class Learn:
    """Instead of minutes of training: remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.there: bool | None = None  # the checkpoint, when it was asked

    def __call__(self, table: Any, recipe: Any, devices: Any, **options: Any) -> Any:
        self.asked = {"table": table, "recipe": recipe, "devices": devices, **options}
        self.there = options["checkpoint"].exists()
        return hand_model(table.layer, tuple(devices), covers=table)


@pytest.fixture
def learn(monkeypatch: pytest.MonkeyPatch) -> Learn:
    found = Learn()
    monkeypatch.setattr(training, "learn", found)
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "a.csv", random_rows("dense", 100, gpus=("V100", "K80", "T4")))


def call(table: Path, *more: object) -> tuple[object, ...]:
    output = table.with_name("model.json")
    return ("mlp", "fit", table, "--layer", "dense", "--recipe", "paper", "--output", output, *more)


def test_four_fifths_train_and_a_tenth_judges(lolat: Command, learn: Learn, table: Path) -> None:
    found = lolat.done(*call(table, "--seed", 3, "--epochs", 7))
    assert len(learn.asked["table"]) == 80
    assert (learn.asked["seed"], learn.asked["epochs"]) == (3, 7)
    assert list(learn.asked["devices"]) == ["V100", "K80", "T4"]
    document = json.loads(table.with_name("model.json").read_text())
    assert document["errors"]["rows"] == 10
    assert document["training"]["validation"]["rows"] == 10
    assert document["training"]["table"]["name"] == "a.csv"
    assert document["training"]["versions"]["lolat"]
    assert "Errors on rows left out of training:" in found.out
    again = lolat("mlp", "evaluate", table.with_name("model.json"), table)
    assert "trained on most of these rows" in again.err


def test_the_checkpoint_goes_when_the_model_is_kept(
    lolat: Command, learn: Learn, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = table.with_name("model.json.checkpoint.npz")
    checkpoint.write_bytes(b"half an hour")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *names: os.rename("nothing", "nowhere"))
        assert lolat(*call(table)).code == 2
    assert checkpoint.exists()
    lolat.done(*call(table))
    assert not checkpoint.exists()


def test_gpus_and_batch_sizes_are_chosen(lolat: Command, learn: Learn, table: Path) -> None:
    lolat.done(*call(table, "--only", "k80,v100", "--max-batch-size", 24))
    assert list(learn.asked["devices"]) == ["V100", "K80"]
    assert set(learn.asked["table"]["gpu"]) == {"V100", "K80"}
    assert learn.asked["table"]["batch_size"].max() <= 24


def test_a_run_that_was_killed_goes_on_or_is_thrown_away(
    lolat: Command, learn: Learn, table: Path
) -> None:
    left = table.with_name("model.json.checkpoint.npz")
    left.write_bytes(b"state")
    assert "goes on from it" in lolat(*call(table)).err
    assert learn.asked["checkpoint"] == left
    left.write_bytes(b"state")
    learn.there = None
    lolat.done(*call(table, "--restart"))
    assert learn.there is False


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--only", "K40"], "--only K40: no rows of K40; the table has "),
        (["--only", ","], "expected at least one device"),
        (["--layer", "convolution"], "is a table of dense layers"),
        (["--recipe", "worst"], "'worst' is not one of 'best', 'paper'"),
        (["--facts", "none.csv"], "none.csv: no such file"),
    ],
)
def test_a_wrong_call_trains_nothing(
    lolat: Command, learn: Learn, table: Path, more: list[str], words: str
) -> None:
    assert words in lolat.refused(*call(table, *more))
    assert learn.asked == {}


def test_no_row_is_small_enough_and_too_few(lolat: Command, learn: Learn, tmp_path: Path) -> None:
    rows = [{**row, "batch_size": "9"} for row in random_rows("dense", 20)]
    ask = call(write(tmp_path / "a.csv", rows), "--max-batch-size", 8)
    assert "no rows with a batch size of at most 8" in lolat.refused(*ask)
    few = call(write(tmp_path / "a.csv", random_rows("dense", 9)))
    assert "9 rows to train on; expected at least 10" in lolat.refused(*few)


def test_an_unknown_gpu_and_its_facts(lolat: Command, learn: Learn, tmp_path: Path) -> None:
    rows = [{**row, "gpu": "X1"} for row in random_rows("dense", 20)]
    table = write(tmp_path / "a.csv", rows)
    assert "unknown GPU 'X1'; known are V100" in lolat.refused(*call(table))
    facts = tmp_path / "gpus.json"
    facts.write_text('{"X1": {"bandwidth": 100, "cores": 10, "clock": 1000}}')
    monkeyed = lolat(*call(table, "--facts", facts, "--epochs", 1))
    assert learn.asked["devices"]["X1"].cores == 10, monkeyed.err
