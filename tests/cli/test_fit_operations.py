"""`lolat suggest` what to time, `fit` of operations, then `predict` and `evaluate --table`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import median

import pytest

from lolat.model.file import read
from tests.cli.commands import Command
from tests.devices import made_up

NETWORK = "tests.devices.made_up:encoder"


def fitted(lolat: Command, folder: Path) -> Path:
    operations, facts = made_up.write_tables(folder)
    out = folder / "desk.json"
    found = lolat.done("fit", operations, "--facts", facts, "--name", "desk", "--output", out)
    assert found.out.splitlines()[0] == "140 points on desk (from 140 operations, float32)"
    assert "kernels (default): each operation by the terms of its class (" in found.out
    assert found.err.count("\n") == 1, found.err
    return out


def test_from_a_table_to_a_network(lolat: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = fitted(lolat, tmp_path)
    assert read(model)["default"] == "kernels"
    ask = (NETWORK, "--sequence-length", 256, "--batch-size", 4)
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
        f"network,sequence_length,batch_size,latency_ms\n{NETWORK},256,4,{wanted}\nnone:x,1,1,1\n"
    )
    out = tmp_path / "out.csv"
    found = lolat.done("evaluate", model, "--table", table, "--predictions", out)
    assert "1 networks: median error" in found.out
    assert "1 left out: none:x: " in found.err
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert float(row["predicted_ms"]) == pytest.approx(answer["latency_ms"])
    found = lolat("evaluate", model, "--table", table, "--json")
    assert json.loads(found.out)["summary"]["networks"] == 1


def test_a_device_of_which_the_data_sheet_is_known(lolat: Command, tmp_path: Path) -> None:
    """9.4 TFLOP/s and 500 GB/s: 85 % of the one, 80 % of the other; a dense layer by hand."""
    pytest.importorskip("torch")
    _, facts = made_up.write_tables(tmp_path)
    out = tmp_path / "sheet.json"
    found = lolat.done("fit", "--facts", facts, "--name", "desk", "--output", out)
    assert "nothing was measured on this device" in found.err
    ask = (NETWORK, "--sequence-length", 4096, "--batch-size", 8)
    answer = lolat.json("predict", out, *ask)
    macs, bytes_ = 8 * 4096 * 2048 * 512, 4.0 * 8 * 4096
    wanted = 4 * macs / (0.85 * 4.7e9) + bytes_ * (4 * 2048 + 4 * 512 + 2 * 512) / (0.8 * 5e8)
    assert answer["latency_ms"] == pytest.approx(wanted, rel=0.1)
    low, high = answer["interval_ms"]
    assert 1.2 < high / answer["latency_ms"] < 2.0
    assert answer["latency_ms"] / low == pytest.approx(high / answer["latency_ms"])


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
    assert 110 <= inside <= 138
    found = lolat("evaluate", model, "--table", other, "--json")
    answer = json.loads(found.out)
    assert (answer["summary"]["operations"], len(answer["operations"])) == (140, 140)
    found = lolat("evaluate", model, "--table", other, "--predictor", "extended", "--json")
    assert json.loads(found.out)["operations"][0]["predicted_ms"] > 0.0


def test_nothing_to_fit(lolat: Command, tmp_path: Path) -> None:
    assert "nothing to fit: give tables" in lolat.refused(
        "fit", "--name", "desk", "--output", tmp_path / "m.json"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["{blocks}", "{blocks}"], "2 tables of blocks; expected one"),
        (["{blocks}", "--facts", "{facts}"], "--facts is for tables of operations"),
        (["{ops}", "--facts", "{facts}"], "--facts says what devices are like; give --name NAME"),
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
    found = lolat("fit", *(g.format(**names) for g in given), "--output", tmp_path / "m.json")
    assert found.code == 2
    assert said in found.err
    assert found.err.count("\n") == 1


def test_options_that_are_for_tables_alone(lolat: Command, model: Path) -> None:
    assert "are for --table" in lolat.refused("evaluate", model, "--predictions", "x.csv")
    assert "--table has its networks and sizes itself" in lolat.refused(
        "evaluate", model, "keras:X", "--table", "x.csv"
    )


def test_a_table_to_time(lolat: Command, tmp_path: Path) -> None:
    out, facts = tmp_path / "todo.csv", tmp_path / "devices.csv"
    facts.write_text(made_up.FACTS)
    found = lolat("suggest", "--facts", facts, "--name", "desk", "--output", out)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"written: {out}, 20 operations\nNext: python examples/time_oper")
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == 20


def test_from_a_table_and_of_an_unknown_device(lolat: Command, tmp_path: Path) -> None:
    operations, _ = made_up.write_tables(tmp_path)
    out = tmp_path / "todo.csv"
    lolat.done("suggest", "--among", operations, "--count", 5, "--output", out)
    with operations.open() as pool, out.open() as file:
        known = [[r[c] for c in ("op", "batch", "m", "rows")] for r in csv.DictReader(pool)]
        chosen = [[r[c] for c in ("op", "batch", "m", "rows")] for r in csv.DictReader(file)]
    assert len(chosen) == 5
    assert all(row in known for row in chosen)


@pytest.mark.parametrize("given", [["--name", "l4"], ["--facts", "devices.csv"]])
def test_facts_without_a_device(lolat: Command, tmp_path: Path, given: list[str]) -> None:
    assert "--facts and --name go together" in lolat.refused(
        "suggest", *given, "--output", tmp_path / "todo.csv"
    )
