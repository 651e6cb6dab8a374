"""`lolat mlp fit` and `lolat mlp predict`: files written and left alone, figures by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from lolat.mlp import training
from lolat.mlp.layer_model import write_layer_model
from lolat.mlp.table import LAYER_COLUMNS
from tests.cli.commands import Command
from tests.mlp.tables import hand_model, random_rows, rows_of, write

# ---- predict.


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """0.25 ms a sample, of dense layers on a V100 and a K80."""
    path = tmp_path / "model.json"
    write_layer_model(path, hand_model(gpus=("V100", "K80"), slope=0.25))
    return path


def test_a_table_with_times_gives_errors(lolat: Command, model: Path, tmp_path: Path) -> None:
    """Predicted 2 ms; 1 ms measured on a V100 and 4 ms with adam on a K80."""
    changes = [{"time_ms_median": "1"}, {"gpu": "K80", "optimizer": "adam", "time_ms_median": "4"}]
    table = write(tmp_path / "a.csv", rows_of("dense", *changes))
    answer = lolat.answer("mlp", "predict", model, table)
    errors = answer["errors"]
    assert (answer["layer"], answer["recipe"], answer["rows"]) == ("dense", "paper", 2)
    assert errors["rmse_ms"] == pytest.approx((5 / 2) ** 0.5)
    assert errors["mean_relative_error"] == pytest.approx(0.75)
    unread, outside = answer["warnings"]
    assert unread.endswith("columns that are not read: run")
    assert "outside" in outside
    assert "2 rows: RMSE 1.58 ms, mean error 75" in lolat.done("mlp", "predict", model, table).out


def test_rows_stay_in_order_and_as_they_stood(lolat: Command, model: Path, tmp_path: Path) -> None:
    sizes = [{"batch_size": n, "time_ms_median": "1.50"} for n in ("8", "8.0", "8")]
    sizes[1]["gpu"] = "k80"
    table, output = write(tmp_path / "a.csv", rows_of("dense", *sizes)), tmp_path / "out.csv"
    lolat.done("mlp", "predict", model, table, "--output", output)
    before, after = table.read_text().splitlines(), output.read_text().splitlines()
    assert after == [before[0] + ",predicted_ms", *(line + ",2" for line in before[1:])]


def test_times_are_not_needed_and_quotes_stay(lolat: Command, model: Path, tmp_path: Path) -> None:
    row = {name: rows_of("dense", {})[0][name] for name in LAYER_COLUMNS["dense"]}
    table = write(tmp_path / "a.csv", [{"note": 'a "b", c', **row}])
    output = tmp_path / "out.csv"
    lolat.done("mlp", "predict", model, table, "--output", output)
    (found,) = csv.DictReader(output.read_text().splitlines())
    assert found == {"note": 'a "b", c', **row, "predicted_ms": "2"}
    lolat.refused("mlp", "predict", model, table)  # nothing to say of it


def test_predictions_are_not_written_over_what_they_are_from(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    table = write(tmp_path / "a.csv", rows_of("dense", {}))
    for path in (model, table):
        before = path.read_bytes()
        assert path.name in lolat.refused("mlp", "predict", model, table, "--output", path)
        assert path.read_bytes() == before


def test_a_gpu_without_a_data_sheet_is_refused(lolat: Command, model: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "a.csv", rows_of("dense", {"gpu": "X1"}))
    assert "X1" in lolat.refused("mlp", "predict", model, table)


def test_bad_input_writes_nothing(lolat: Command, model: Path, tmp_path: Path) -> None:
    table, output = write(tmp_path / "a.csv", rows_of("convolution", {})), tmp_path / "out.csv"
    lolat.refused("mlp", "predict", model, table, "--output", output)
    assert not output.exists()


# ---- fit.


class Learn:
    """Instead of minutes of training: remembers the question."""

    def __init__(self) -> None:
        self.question: dict[str, Any] = {}

    def __call__(
        self, table: Any, recipe: Any, devices: Any, seed: int, epochs: int, progress: Any
    ) -> Any:
        self.question = {"table": table, "recipe": recipe, "devices": devices, "epochs": epochs}
        return hand_model(table.layer, tuple(devices), covers=table)


@pytest.fixture
def learn(monkeypatch: pytest.MonkeyPatch) -> Learn:
    fake = Learn()
    monkeypatch.setattr(training, "learn", fake)
    return fake


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "a.csv", random_rows("dense", 100, gpus=("V100", "K80", "T4")))


def call(table: Path, *more: object) -> tuple[object, ...]:
    output = table.with_name("model.json")
    return ("mlp", "fit", table, "--recipe", "paper", "--output", output, *more)


def test_copies_of_a_row_count_once(lolat: Command, learn: Learn, table: Path) -> None:
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *rows, *rows[:30], rows[0]]) + "\n")
    copies, _ = lolat.answer(*call(table))["warnings"]
    assert copies == "31 of 131 rows are copies of others, and count once"
    assert len(learn.question["table"]) == 80
    document = json.loads(table.with_name("model.json").read_text())
    assert document["errors"]["rows"] == 10


def test_four_fifths_train_and_a_tenth_judges(lolat: Command, learn: Learn, table: Path) -> None:
    (unread,) = lolat.answer(*call(table, "--epochs", 7))["warnings"]
    assert unread.endswith("columns that are not read: run")
    assert len(learn.question["table"]) == 80
    assert learn.question["epochs"] == 7
    assert set(learn.question["devices"]) == {"v100", "k80", "t4"}
    document = json.loads(table.with_name("model.json").read_text())
    assert document["errors"]["rows"] == 10
    assert document["training"]["table"] == "a.csv"
