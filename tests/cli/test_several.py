"""`lolat predict` and `lolat report` of several networks, batch sizes and devices at once."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.model import load
from tests import synthetic
from tests.cli.commands import Command, one_line

READ: list[str] = []
WIDTHS = {"keras:A": 8, "keras:B": 24}


def read(network: str, size: Any = None) -> Graph:
    READ.append(network)
    if network not in WIDTHS:
        raise NetworkError(f"no network {network!r}: expected keras:A")
    return synthetic.network(width=WIDTHS[network], name=network.removeprefix("keras:"))


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    READ.clear()
    monkeypatch.setattr("lolat.readers.read", read)
    return Command(capsys)


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """A model of a device that takes three times as long for everything."""
    path = tmp_path / "slower.json"
    document = synthetic.document()
    for entry in document["predictors"].values():
        for name, value in entry["coefficients"].items():
            entry["coefficients"][name] = 3 * value
    path.write_text(json.dumps(document))
    return path


def test_every_network_batch_size_and_device(lolat: Command, model: Path, slower: Path) -> None:
    ask = ("keras:A", "keras:B", "--batch-size", "1,4", "--batch-size", 16, "--device", slower)
    found = lolat.json("predict", model, *ask)
    assert READ == ["keras:A", "keras:B"]  # each once
    assert found["failures"] == {}
    rows = [(a["network"], a["batch_size"], a["device"]) for a in found["answers"]]
    devices = (str(model), str(slower))
    assert rows == [(n, b, d) for n in "AB" for b in (1, 4, 16) for d in devices]
    for answer in found["answers"]:
        alone = lolat.json("predict", answer["device"], f"keras:{answer['network']}",
                           "--batch-size", answer["batch_size"])  # fmt: skip
        del answer["device"]
        same = {k: v for k, v in alone.items() if k not in ("schema", "version")}
        assert answer == same
    assert lolat.json("report", model, *ask)["answers"][3] == found["answers"][3] | {
        "device": str(slower)
    }


def test_the_table(lolat: Command, model: Path, slower: Path) -> None:
    out = lolat.text("predict", model, "keras:A", "keras:B", "--device", slower)
    lines = [line.split() for line in out.splitlines() if not line.startswith("note")]
    assert len(lines) == 5
    alone = load(model).predict(read("keras:A")).latency_ms
    assert [line[0] for line in lines[1:]] == ["A", "A", "B", "B"]
    assert float(lines[1][3]) == pytest.approx(alone, rel=0.005)
    assert float(lines[2][3]) == pytest.approx(3 * alone, rel=0.005)
    assert ratio(lines[1]) == 1.0
    assert lines[1][lines[1].index("1.00x") + 1].startswith("inside")
    assert ratio(lines[2]) == 3.0
    by_sample = lolat.text("predict", model, "keras:A", "--batch-size", "1,8").splitlines()
    eight = load(model).predict(read("keras:A"), 8).latency_ms
    last = next(line for line in by_sample if " 8 " in line).split()
    assert ratio(last) == pytest.approx(eight / 8 / alone, abs=0.006)


def ratio(cells: list[str]) -> float:
    """What a row says of its time over the first row's."""
    (found,) = (cell for cell in cells if cell.endswith("x"))
    return float(found.removesuffix("x"))


def test_the_blocks_beside_each_other(lolat: Command, model: Path, slower: Path) -> None:
    out = lolat.text("report", model, "keras:A", "keras:B", "--device", slower)
    tables = out.split("\n\n")
    assert len(tables) == 3  # all, then each network
    for name, table in zip("AB", tables[1:], strict=True):
        lines = table.splitlines()
        assert lines[0] == name
        assert "ratio" in lines[1]
        found = load(model).predict(read(f"keras:{name}"))
        assert len(lines) == 3 + len(found.blocks)
        cells = lines[-1].split()
        assert cells[0] == "together"
        assert float(cells[1]) == pytest.approx(found.latency_ms, rel=0.005)
        assert cells[-1] == "3.00x"
    folded = lolat.text("report", model, "keras:A", "--batch-size", "1,2", "--depth", 0)
    assert "batch 2" in folded
    assert "5 blocks" in folded


def test_one_that_cannot_be_read_costs_itself_alone(lolat: Command, model: Path) -> None:
    for command in ("predict", "report"):
        result = lolat(command, model, "keras:A", "keras:Nope", "--json")
        assert result.code == 2
        assert "keras:Nope" in one_line(result.err)
        found = json.loads(result.out)
        assert [a["network"] for a in found["answers"]] == ["A"]
        assert list(found["failures"]) == ["keras:Nope"]
    result = lolat("predict", model, "keras:No", "keras:A", "keras:Nope")
    assert (result.code, len(result.err.splitlines())) == (2, 2)
    assert any(line.startswith("A ") for line in result.out.splitlines())
    lolat.refused("predict", model, "keras:Nope")


def test_tables_for_a_spreadsheet(
    lolat: Command, model: Path, slower: Path, tmp_path: Path
) -> None:
    ask = (model, "keras:A", "--device", slower, "--batch-size", "1,2", "--csv", tmp_path / "t.csv")
    assert lolat.done("predict", *ask).err == f"lolat: written: {tmp_path / 't.csv'}\n"
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    answers = lolat.json("predict", *ask)["answers"]
    assert len(rows) == len(answers) == 4
    for row, answer in zip(rows, answers, strict=True):
        assert row["device"] == answer["device"]
        assert float(row["latency_ms"]) == pytest.approx(answer["latency_ms"], rel=1e-5)
        assert float(row["high_ms"]) == pytest.approx(answer["interval_ms"][1], rel=1e-5)
        assert int(row["flops"]) == answer["counts"]["flops"]
    assert lolat.done("report", *ask).err == f"lolat: written: {tmp_path / 't.csv'}\n"
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    total = sum(float(r["latency_ms"]) for r in rows if r["device"] == str(model))
    both = [a["latency_ms"] for a in answers if a["device"] == str(model)]
    assert total == pytest.approx(sum(both), rel=1e-4)


def test_a_budget_of_several(lolat: Command, model: Path, slower: Path) -> None:
    limit = 2 * load(model).predict(read("keras:A")).latency_ms
    over = lolat("predict", model, "keras:A", "--device", slower, "--max-ms", limit)
    assert over.code == 3
    line = one_line(over.err)
    assert str(model) not in line
    for words in ("A · batch 1 · 56x56x3 on ", "--max-ms", str(slower)):
        assert words in line


def test_two_sides_of_a_page(lolat: Command, model: Path, slower: Path, tmp_path: Path) -> None:
    """As --against says it."""
    pages = []
    for more in (("--device", slower), ("--against", slower)):
        path = tmp_path / "page.html"
        lolat.done("report", model, "keras:A", *more, "--html", path)
        pages.append(path.read_text())
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("predict MODEL keras:A --device SLOWER --state now", "--state is of one machine"),
        ("predict MODEL keras:A keras:B --max-ratio 2 --against b.json", "--max-ratio is of one"),
        ("predict MODEL keras:A --batch-size 1,2 --max-ratio 2 --against b.json", "give one NETWORK"),
        ("report MODEL keras:A keras:B --columns ms", "--columns is for one answer"),
        ("report MODEL keras:A --batch-size 1,2 --html r.html", "at one batch size"),
        ("report MODEL keras:A keras:B --against c --html r.html", "at most two devices"),
        ("report MODEL keras:A keras:B --device SLOWER --html r.html", "at most two devices"),
        ("explain MODEL keras:A --batch-size 1 --batch-size 2", "1 and 2: this command takes one"),
        ("explain MODEL keras:A --batch-size 1,4", "1,4"),
        ("predict MODEL keras:A --batch-size 1,x", "1,x"),
        ("predict MODEL keras:A --device nothing", "nothing"),
    ],
)  # fmt: skip
def test_what_is_of_one_answer(
    lolat: Command, model: Path, slower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: str, said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    files = {"MODEL": model, "SLOWER": slower}
    assert said in lolat.refused(*(files.get(word, word) for word in words.split()))
    assert READ == []
    assert not (tmp_path / "r.html").exists()
