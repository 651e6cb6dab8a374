"""`lolat mlp evaluate`: the figures, and what is said beside them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from lolat.mlp.layer_model import write_layer_model
from tests.cli.commands import Command
from tests.mlp.tables import hand_model, rows_of, write


def asked(tmp_path: Path) -> tuple[Path, Path]:
    """A model that says 2 ms, and a table with 1 ms on a V100 and 4 ms with adam on a K80."""
    model, table = tmp_path / "model.json", tmp_path / "a.csv"
    write_layer_model(model, hand_model(gpus=("V100", "K80"), slope=0.25))
    changes = [{"time_ms_median": "1"}, {"gpu": "K80", "optimizer": "adam", "time_ms_median": "4"}]
    return model, write(table, rows_of("dense", *changes))


def test_one_json_object(lolat: Command, tmp_path: Path) -> None:
    model, table = asked(tmp_path)
    found = lolat("mlp", "evaluate", model, table, "--json")
    assert found.code == 0
    answer = json.loads(found.out)
    assert (answer["layer"], answer["recipe"], answer["rows"]) == ("dense", "paper", 2)
    assert answer["rmse_ms"] == pytest.approx((5 / 2) ** 0.5)
    assert answer["mean_relative_error"] == pytest.approx(0.75)
    assert answer["median_relative_error"] == pytest.approx(0.75)
    assert answer["spread"] == pytest.approx((0.05 + 0.0125) / 2)
    assert answer["gpus"]["K80"]["mean_relative_error"] == pytest.approx(0.5)
    assert answer["optimizers"]["none"]["rmse_ms"] == pytest.approx(1)
    assert len(answer["warnings"]) == 1
    assert "1 of 2 rows lie outside" in found.err


def test_a_table_for_people(lolat: Command, tmp_path: Path) -> None:
    found = lolat("mlp", "evaluate", *asked(tmp_path))
    lines = found.out.splitlines()
    assert lines[0].endswith("model.json: dense layers, recipe paper")
    assert lines[2].split() == ["all", "2", "1.58", "75", "%", "75", "%", "3.1", "%"]
    assert [line.split()[0] for line in lines[4:] if line] == ["V100", "K80", "forward", "adam"]


def test_the_rows_it_was_trained_on_are_known_again(lolat: Command, tmp_path: Path) -> None:
    model, table = asked(tmp_path)
    trained = {"table": {"sha256": hashlib.sha256(table.read_bytes()).hexdigest()}}
    errors = {"rmse_ms": 3.14159, "mean_relative_error": 0.2}
    write_layer_model(
        model, replace(hand_model(gpus=("V100", "K80")), training=trained, errors=errors)
    )
    said = lolat("mlp", "evaluate", model, table).err
    assert "trained on most of these rows" in said
    assert "on rows left out: RMSE 3.14 ms, mean error 20.0 %" in said
    write_layer_model(model, replace(hand_model(gpus=("V100", "K80")), training=trained))
    assert "on rows left out: not known" in lolat("mlp", "evaluate", model, table).err
