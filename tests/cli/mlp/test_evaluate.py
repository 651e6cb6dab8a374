"""`lolat mlp evaluate` and `predict`: the figures, and what is said beside them; a column more."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from lolat.mlp.layer_model import write_layer_model
from lolat.mlp.table import COLUMNS
from tests.cli.commands import Command
from tests.mlp.tables import csv_text, hand_model, rows_of, write


def asked(tmp_path: Path) -> tuple[Path, Path]:
    """A model that says 2 ms, and a table with 1 ms on a V100 and 4 ms with adam on a K80."""
    model, table = tmp_path / "model.json", tmp_path / "a.csv"
    write_layer_model(model, hand_model(gpus=("V100", "K80"), slope=0.25))
    changes = [{"time_ms_median": "1"}, {"gpu": "K80", "optimizer": "adam", "time_ms_median": "4"}]
    return model, write(table, rows_of("dense", *changes))


def test_one_json_object(lolat: Command, tmp_path: Path) -> None:
    model, table = asked(tmp_path)
    found = lolat.done("mlp", "evaluate", model, table, "--json")
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


# ---- `lolat mlp predict`: a column more, everything else as it was.


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    path = tmp_path / "model.json"
    write_layer_model(path, hand_model(gpus=("V100", "K80"), slope=0.25))
    return path


def test_rows_stay_in_order_and_as_they_stood(
    lolat: Command, trained: Path, tmp_path: Path
) -> None:
    sizes = [{"batch_size": n, "time_ms_median": "1.50"} for n in ("8", "8.0", "8")]
    sizes[1]["gpu"] = "k80"
    table = write(tmp_path / "a.csv", rows_of("dense", *sizes))
    output = tmp_path / "out.csv"
    assert lolat.text("mlp", "predict", trained, table, "--output", output) == f"{output}: 3 rows\n"
    before, after = table.read_text().splitlines(), output.read_text().splitlines()
    assert after == [before[0] + ",predicted_ms", *(line + ",2" for line in before[1:])]


def test_times_are_not_needed_and_quotes_are_kept(
    lolat: Command, trained: Path, tmp_path: Path
) -> None:
    row = {name: rows_of("dense", {})[0][name] for name in COLUMNS["dense"]}
    table = write(tmp_path / "a.csv", [{"note": 'a "b", c', **row}])
    output = tmp_path / "out.csv.gz"
    lolat.done("mlp", "predict", trained, table, "--output", output)
    (found,) = csv.DictReader(gzip.decompress(output.read_bytes()).decode().splitlines())
    assert found == {"note": 'a "b", c', **row, "predicted_ms": "2"}


def test_no_rows_give_a_header(lolat: Command, trained: Path, tmp_path: Path) -> None:
    table, output = tmp_path / "a.csv", tmp_path / "out.csv"
    table.write_text(",".join(COLUMNS["dense"]) + "\n")
    assert lolat("mlp", "predict", trained, table, "--output", output).out.endswith(": 0 rows\n")
    assert output.read_text() == ",".join([*COLUMNS["dense"], "predicted_ms"]) + "\n"


def test_rows_outside_and_a_column_that_is_there(
    lolat: Command, trained: Path, tmp_path: Path
) -> None:
    table = write(tmp_path / "a.csv", rows_of("dense", {"batch_size": "12", "predicted_ms": "7"}))
    found = lolat.done("mlp", "predict", trained, table, "--output", tmp_path / "out.csv")
    assert "1 of 1 rows lie outside what the model was trained on (batch_size 8..8)" in found.err
    assert "has a column predicted_ms already" in found.err
    (row,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert row["predicted_ms"] == "3"


def test_a_new_gpu_needs_facts(lolat: Command, trained: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "a.csv", rows_of("dense", {"gpu": "X1"}))
    call = ("mlp", "predict", trained, table, "--output", tmp_path / "out.csv")
    assert "unknown GPU 'X1'; known are V100" in lolat.refused(*call)
    facts = tmp_path / "gpus.csv"
    facts.write_text("name,bandwidth,cores,clock\nX1,100,1000,1000\n")
    assert "(gpu K80, V100)" in lolat.done(*call, "--facts", facts).err


def test_bad_input_writes_nothing(lolat: Command, trained: Path, tmp_path: Path) -> None:
    """Each fault of a table: tests/mlp/test_table.py."""
    table, output = tmp_path / "a.csv", tmp_path / "out.csv"
    table.write_text(csv_text(rows_of("convolution", {})))
    said = lolat.refused("mlp", "predict", trained, table, "--output", output)
    assert "is a table of convolution layers" in said
    assert not output.exists()
