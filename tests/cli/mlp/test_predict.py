"""`lolat mlp predict`: a column more, everything else as it was."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from lolat.mlp.layer_model import write_layer_model
from lolat.mlp.table import COLUMNS
from tests.cli.commands import Command
from tests.mlp.tables import csv_text, hand_model, rows_of, write


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
    found = lolat("mlp", "predict", trained, table, "--output", output)
    assert (found.code, found.out, found.err) == (0, f"{output}: 3 rows\n", "")
    before, after = table.read_text().splitlines(), output.read_text().splitlines()
    assert after == [before[0] + ",predicted_ms", *(line + ",2" for line in before[1:])]


def test_times_are_not_needed_and_quotes_are_kept(
    lolat: Command, trained: Path, tmp_path: Path
) -> None:
    row = {name: rows_of("dense", {})[0][name] for name in COLUMNS["dense"]}
    table = write(tmp_path / "a.csv", [{"note": 'a "b", c', **row}])
    output = tmp_path / "out.csv.gz"
    assert lolat("mlp", "predict", trained, table, "--output", output).code == 0
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
    found = lolat("mlp", "predict", trained, table, "--output", tmp_path / "out.csv")
    assert found.code == 0
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
    found = lolat(*call, "--facts", facts)
    assert found.code == 0
    assert "(gpu K80, V100)" in found.err


def test_bad_input_writes_nothing(lolat: Command, trained: Path, tmp_path: Path) -> None:
    """Each fault of a table: tests/mlp/test_table.py."""
    table, output = tmp_path / "a.csv", tmp_path / "out.csv"
    table.write_text(csv_text(rows_of("convolution", {})))
    said = lolat.refused("mlp", "predict", trained, table, "--output", output)
    assert "is a table of convolution layers" in said
    assert not output.exists()
