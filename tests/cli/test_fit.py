"""`lolat fit`: from a model file and from a table."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from lolat.graph.counts import FEATURES
from lolat.model import load
from lolat.model.file import read, write
from tests import synthetic
from tests.cli.commands import Command
from tests.training import epoch_tables

BEFORE = Path(__file__).parent / "model_of_before.json.xz"
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
    assert found.out.splitlines()[0] == "105 points on a desk, 2 threads"
    assert f"written: {new}" in found.out


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A model that was shipped before kinds of operations were told apart; without its raw samples."""
    path = tmp_path / "before.json"
    path.write_bytes(lzma.decompress(BEFORE.read_bytes()))
    return path


def test_a_model_of_before_is_fitted_again_as_it_was(
    lolat: Command, tmp_path: Path, before: Path
) -> None:
    """Its points tell no kinds of operations apart, so its formula has none."""
    new = tmp_path / "again.json"
    lolat.done("fit", before, "--output", new)
    old, again = read(before), read(new)
    for name in ("two-regime", "extended"):
        was, now = (d["predictors"][name] for d in (old, again))
        assert now["coefficients"].keys() == was["coefficients"].keys()
        for term, value in was["coefficients"].items():
            assert now["coefficients"][term] == pytest.approx(value, rel=0.02), term
        assert now["residuals"] == pytest.approx(was["residuals"], abs=0.02)
        assert not {"alone", "networks"} & now.keys()
        assert "networks_left_out" not in now["error"]
    assert again["points"][0].get("whole") is None
    assert [p["latency_ms"] for p in again["points"]] == [p["latency_ms"] for p in old["points"]]
    assert again["domain"] == old["domain"]


def test_a_model_of_before_answers_as_it_did(before: Path) -> None:
    """By hand: its coefficients times the counts that it knows."""
    model = load(before)
    network = synthetic.network()
    coefficients = read(before)["predictors"]["extended"]["coefficients"]
    for batch_size in (1, 8):
        totals = synthetic.totals(network, batch_size)
        wanted = sum(totals.get(name, 1) * value for name, value in coefficients.items())
        prediction = model.predict(network, batch_size)
        assert prediction.latency_ms == pytest.approx(wanted, rel=1e-9)
        assert sum(b.latency_ms for b in prediction.blocks) == pytest.approx(wanted, rel=1e-9)
        assert prediction.quiet_ms is None
        assert prediction.interval_ms is not None
        assert {b.bound_by for b in prediction.blocks} <= {
            "flops", "memory", "weights", "patches", "ops", "call", "nothing"
        }  # fmt: skip


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
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        assert "no permission" in lolat.refused(
            "fit", table, "--output", tmp_path / "closed/m.json"
        )


def test_a_model_of_training_alone_has_nothing_to_fit_again(lolat: Command, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, epoch_tables.document())
    said = lolat.refused("fit", path, "--output", tmp_path / "again.json")
    assert f"{path} knows epochs of training, but no latencies of inference" in said


def test_a_packed_table_of_blocks(lolat: Command, tmp_path: Path) -> None:
    rows = [f"{i},{2 * i},{1000 * i},{0.1 * i}" for i in range(1, 30)]
    text = "\n".join([",".join(THREE), *rows]) + "\n"
    plain, packed = tmp_path / "blocks.csv", tmp_path / "blocks.csv.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        lolat.done("fit", path, "--output", path.with_suffix(".json"))
    found = [read(p.with_suffix(".json"))["predictors"] for p in (plain, packed)]
    assert found[0] == found[1]
