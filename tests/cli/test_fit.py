"""`lolat fit`: from a model file and from a table."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import median

import pytest

from lolat.graph.counts import FEATURES
from lolat.model import load
from lolat.model.file import read, write
from tests import synthetic
from tests.cli.commands import Command
from tests.devices import made_up
from tests.training import epoch_tables

THREE = ["acts", "inp", "flops", "latency_ms"]


def test_a_model_fitted_again_has_the_same_numbers(lolat: Command, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new" / "again.json"
    document = synthetic.document(warnings=["the machine was busy"])
    old.write_text(json.dumps(document))
    found = lolat.done("fit", old, "--output", new)
    again = read(new)
    for name in ("predictors", "default", "domain", "points", "environment", "noise", "device"):
        assert again[name] == json.loads(json.dumps(document[name])), name
    assert again["name"] == "again"
    assert again["warnings"] == ["the machine was busy"]  # what was said of the points stays true
    assert found.err == "lolat: warning: the machine was busy\n"
    assert found.out.splitlines()[0] == "a desk, 2 threads · tensorflow 2.21.0 · 105 points"
    assert f"written: {new}" in found.out


@pytest.mark.parametrize("name", ["points.csv", "POINTS.CSV"])
def test_a_table_with_all_counts(lolat: Command, tmp_path: Path, name: str) -> None:
    points = synthetic.measured()
    table, output = tmp_path / name, tmp_path / "model.json"
    table.write_text(synthetic.table(points, [*FEATURES, "latency_ms", "batch_size", "name"]))
    lolat.done("fit", table, "--output", output)
    model = load(output)
    assert model.default == "extended"
    assert model.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20) == pytest.approx(
        synthetic.CALL_MS + 2 + 1 + 2 + 0.8 + 0.05 + 0.2, rel=0.05
    )
    assert model.document["environment"]["source"] == name


def test_a_table_with_three_counts(lolat: Command, tmp_path: Path) -> None:
    table, output = tmp_path / "points.csv", tmp_path / "model.json"
    table.write_text(synthetic.table(synthetic.measured(), THREE))
    lolat.done("fit", table, "--output", output)
    model = load(output)
    assert list(model.predictors) == ["two-regime"]
    assert model.default == "two-regime"
    assert model.predict(synthetic.network()).in_domain is None
    lolat.done("show", output)


def test_points_of_one_block_are_fitted_with_a_warning(lolat: Command, tmp_path: Path) -> None:
    table, output = tmp_path / "points.csv", tmp_path / "model.json"
    points = synthetic.measured(1, range(1, 12))
    table.write_text(synthetic.table(points, [*THREE, "batch_size", "name"]))
    found = lolat.done("fit", table, "--output", output)
    assert "lolat: warning: the points are of too few different blocks" in found.err
    assert load(output).predict(synthetic.network()).interval_ms is None
    lolat.done("show", output)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (",".join(THREE) + "\n1,2,3,4\n", "1 point is too few"),
        (",".join(THREE) + "\n1,2,nan,4\n", "line 2: flops is 'nan'"),
    ],
)
def test_a_wrong_table_leaves_no_model(
    lolat: Command, tmp_path: Path, content: str, words: str
) -> None:
    table, output = tmp_path / "points.csv", tmp_path / "model.json"
    table.write_text(content)
    assert words in lolat.refused("fit", table, "--output", output)
    assert not output.exists()


def test_points_that_are_not_there(lolat: Command, tmp_path: Path) -> None:
    output = tmp_path / "model.json"
    assert "no such file" in lolat.refused("fit", tmp_path / "none.csv", "--output", output)
    assert "no such model" in lolat.refused("fit", tmp_path / "none.json", "--output", output)
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps(synthetic.document() | {"points": []}))
    assert "has no points to fit" in lolat.refused("fit", empty, "--output", output)
    assert not output.exists()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_table_by_another_name(lolat: Command, tmp_path: Path, encoding: str) -> None:
    table, output = tmp_path / "points.txt", tmp_path / "model.json"
    table.write_text(synthetic.table(synthetic.measured(), THREE), encoding)
    message = lolat.refused("fit", table, "--output", output)
    assert "a CSV table, which must be named *.csv" in message
    table.write_text('{"schema": "lolat-model"')  # half of a model is no table
    assert "csv" not in lolat.refused("fit", table, "--output", output)
    assert not output.exists()


def test_a_place_that_cannot_be_written(lolat: Command, tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    table.write_text(synthetic.table(synthetic.measured(), THREE))
    assert "is a folder" in lolat.refused("fit", table, "--output", tmp_path)
    assert "cannot" in lolat.refused("fit", table, "--output", table / "model.json")


def test_a_model_of_training_alone_has_nothing_to_fit_again(lolat: Command, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, epoch_tables.document())
    said = lolat.refused("fit", path, "--output", tmp_path / "again.json")
    assert f"{path} knows epochs of training, but no latencies of inference" in said


# ---- Operations: `fit`, then `predict` and `evaluate --table`.


ENCODER = "tests.devices.made_up:encoder"


def fitted(lolat: Command, folder: Path) -> Path:
    operations, facts = made_up.write_tables(folder)
    out = folder / "desk.json"
    found = lolat.done("fit", operations, "--facts", facts, "--name", "desk", "--output", out)
    assert found.out.splitlines()[0] == "desk (from 140 operations, float32) · torch"
    told = lolat.text("show", out, "--formula")
    assert "kernels (default): each operation by the terms of its class (" in told
    assert found.err.count("\n") == 1, found.err
    return out


def test_from_a_table_to_a_network(lolat: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = fitted(lolat, tmp_path)
    assert read(model)["default"] == "kernels"
    ask = (ENCODER, "--sequence-length", 256, "--batch-size", 4)
    answer = lolat.json("predict", model, *ask)
    # Four dense layers and what is between them, by hand.
    m, ms = 4 * 256, made_up.product_ms
    wanted = 2 * (ms(1, m, 2048, 512) + ms(1, m, 512, 2048))
    wanted += 2 * made_up.moves_ms(2 * m * 2048) + 2 * made_up.moves_ms(2 * m * 512)
    wanted += made_up.moves_ms(2 * m * 512)  # rows of the table of embeddings
    assert answer["latency_ms"] == pytest.approx(wanted, rel=0.1)
    assert sum(b["latency_ms"] for b in answer["blocks"]) == pytest.approx(answer["latency_ms"])
    assert answer["predictor"] == "kernels"
    lolat.done("report", model, *ask)
    lolat.done("show", model)
    assert "was fitted to tables; give them again (operations.csv)" in lolat.refused(
        "fit", model, "--output", tmp_path / "again.json"
    )

    table = tmp_path / "networks.csv"
    table.write_text(
        f"network,sequence_length,batch_size,latency_ms\n{ENCODER},256,4,{wanted}\nnone:x,1,1,1\n"
    )
    out = tmp_path / "out.csv"
    found = lolat.done("evaluate", model, "--table", table, "--predictions", out)
    assert "1 networks: median error" in found.out
    assert "1 left out: none:x: " in found.err
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert float(row["predicted_ms"]) == pytest.approx(answer["latency_ms"])


def test_a_device_of_which_the_data_sheet_is_known(lolat: Command, tmp_path: Path) -> None:
    """9.4 TFLOP/s and 500 GB/s: 85 % of the one, 80 % of the other; a dense layer by hand."""
    pytest.importorskip("torch")
    _, facts = made_up.write_tables(tmp_path)
    out = tmp_path / "sheet.json"
    found = lolat.done("fit", "--facts", facts, "--name", "desk", "--output", out)
    assert "nothing was measured on this device" in found.err
    ask = (ENCODER, "--sequence-length", 4096, "--batch-size", 8)
    answer = lolat.json("predict", out, *ask)
    macs, bytes_ = 8 * 4096 * 2048 * 512, 4.0 * 8 * 4096
    wanted = 4 * macs / (0.85 * 4.7e9) + bytes_ * (4 * 2048 + 4 * 512 + 2 * 512) / (0.8 * 5e8)
    assert answer["latency_ms"] == pytest.approx(wanted, rel=0.1)
    low, high = answer["interval_ms"]
    assert 1.2 < high / answer["latency_ms"] < 2.0
    assert answer["latency_ms"] / low == pytest.approx(high / answer["latency_ms"], rel=1e-3)


def test_operations_that_were_not_in_the_fit(lolat: Command, tmp_path: Path) -> None:
    model = fitted(lolat, tmp_path)
    other, out = tmp_path / "other.csv", tmp_path / "out.csv"
    other.write_text("\n".join([made_up.COLUMNS, *made_up.rows(seed=7)]) + "\n")
    found = lolat.done("evaluate", model, "--table", other, "--predictions", out)
    assert found.out.startswith("linear: 40 timed, median error ")
    assert "140 operations: median error " in found.out
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*made_up.COLUMNS.split(","), "predicted_ms", "low_ms", "high_ms"]
    off = [abs(float(r["predicted_ms"]) / float(r["latency_ms"]) - 1) for r in rows]
    assert median(off) < 0.05
    inside = sum(float(r["low_ms"]) <= float(r["latency_ms"]) <= float(r["high_ms"]) for r in rows)
    assert inside >= 110
    answer = lolat.json("evaluate", model, "--table", other)
    assert (answer["summary"]["operations"], len(answer["operations"])) == (140, 140)
    said = lolat.refused("evaluate", model, "--table", other, "--predictor", "extended")
    assert "has no predictor 'extended'; it has kernels" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--name", "desk"], "nothing to fit: give tables"),
        (["{blocks}", "{blocks}"], "2 tables of blocks; expected one"),
        (["{blocks}", "--facts", "{facts}"], "--facts is for tables of operations"),
        (["{ops}", "--facts", "{facts}"], "--facts says what devices are like; give --name too"),
        (["{ops}", "--facts", "{facts}", "--name", "x"], "has no device 'x'; it has desk"),
    ],
)
def test_what_does_not_go_together(
    lolat: Command, tmp_path: Path, given: list[str], said: str
) -> None:
    operations, facts = made_up.write_tables(tmp_path)
    blocks = tmp_path / "blocks.csv"
    blocks.write_text("acts,inp,flops,latency_ms\n1,2,3,4\n")
    names = {"ops": operations, "facts": facts, "blocks": blocks}
    options = [g.format(**names) for g in given]
    assert said in lolat.refused("fit", *options, "--output", tmp_path / "m.json")


def test_options_that_are_for_tables_alone(lolat: Command, model: Path) -> None:
    assert "are for --table" in lolat.refused("evaluate", model, "--predictions", "x.csv")
    assert "--table has its networks and sizes itself" in lolat.refused(
        "evaluate", model, "keras:X", "--table", "x.csv"
    )
