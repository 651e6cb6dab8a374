"""`lolat predict` and `lolat report`; the networks are made by hand, so no framework is needed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from lolat.counts import FEATURES
from lolat.errors import NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.model import load
from tests import synthetic
from tests.cli.commands import Command, process

ASKED: list[tuple[Any, ...]] = []


def read(network: str, input_size: Any = None) -> Graph:
    """A reader of networks that come by name."""
    ASKED.append((network, input_size))
    if network == "keras:Missing":
        raise NetworkError("no network 'keras:Missing': expected keras:NAME")
    if network == "keras:Strange":
        builder = GraphBuilder("Strange")
        x = builder.input((1, 8, 8, 3))
        return builder.build([builder.add("teleport", [x], (1, 8, 8, 3), "[red]t[/]\x1b[2J")])
    return synthetic.network(name=network.removeprefix("keras:"))


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    ASKED.clear()
    monkeypatch.setattr("lolat.readers.read", read)
    return Command(capsys)


@pytest.mark.parametrize("command", ["predict", "report"])
def test_json_is_one_object_and_nothing_else(lolat: Command, model: Path, command: str) -> None:
    found = lolat(command, model, "keras:ResNet", "--batch-size", 8, "--json")
    assert found.code == 0
    assert found.err == ""
    answer = json.loads(found.out)
    assert len(found.out.splitlines()) == 1
    wanted = load(model).predict(synthetic.network(name="ResNet"), 8).to_dict()
    assert answer == json.loads(json.dumps(wanted))
    assert answer["batch_size"] == 8
    assert list(answer["counts"])[:6] == list(FEATURES)
    assert sum(b["latency_ms"] for b in answer["blocks"]) == pytest.approx(answer["latency_ms"])


def test_json_of_a_strange_network_is_still_one_object(lolat: Command, model: Path) -> None:
    found = lolat("predict", model, "keras:Strange", "--json")
    answer = json.loads(found.out)
    assert answer["in_domain"] is False
    assert any("teleport" in w for w in answer["warnings"])
    assert len(found.out.splitlines()) == 1


def test_text(lolat: Command, model: Path) -> None:
    found = lolat("predict", model, "keras:ResNet")
    assert found.code == 0
    assert found.out.startswith("ResNet · batch 1: ")
    assert "90 % sure of" in found.out
    assert "MACs" in found.out


def test_options_go_where_they_belong(lolat: Command, model: Path) -> None:
    lolat("predict", model, "keras:A", "--input-size", "224,192,3")
    lolat("predict", model, "keras:B", "--input-size", "96")
    lolat("predict", model, "keras:C")
    assert ASKED == [("keras:A", (224, 192, 3)), ("keras:B", (96,)), ("keras:C", ())]
    extended = json.loads(lolat("predict", model, "keras:A", "--json").out)
    two = json.loads(lolat("predict", model, "keras:A", "--json", "--predictor", "two-regime").out)
    assert (extended["predictor"], two["predictor"]) == ("extended", "two-regime")
    assert extended["latency_ms"] != two["latency_ms"]


@pytest.mark.parametrize("command", ["predict", "report"])
def test_what_is_wrong_is_said_in_one_line(lolat: Command, model: Path, command: str) -> None:
    assert "no network 'keras:Missing'" in lolat.refused(command, model, "keras:Missing")
    line = lolat.refused(command, model, "keras:A", "--predictor", "best")
    assert "no predictor 'best'; it has" in line
    assert "keras:A" not in {a[0] for a in ASKED}  # found out before the network is built
    assert "too large" in lolat.refused(command, model, "keras:A", "--batch-size", 10**15)


def test_report(lolat: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "blocks.csv"
    found = lolat("report", model, "keras:ResNet", "--batch-size", 2, "--csv", path)
    assert found.code == 0
    assert found.err == ""
    for words in ("ResNet · batch 2", "conv1_block1", "call", "Bottleneck", "Next: lolat show"):
        assert words in found.out
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["name"] == "call"


def test_a_report_does_not_act_on_names(lolat: Command, model: Path) -> None:
    out = lolat("report", model, "keras:Strange").out
    assert "\x1b" not in out
    assert "note: no formula for operation teleport" in out


def test_a_csv_that_cannot_be_written(lolat: Command, model: Path, tmp_path: Path) -> None:
    line = lolat.refused("report", model, "keras:A", "--csv", tmp_path / "no" / "blocks.csv")
    assert "cannot write" in line
    assert "give --csv elsewhere" in line
    assert "is a directory" in lolat.refused("report", model, "keras:A", "--csv", tmp_path)


def test_a_network_of_ones_own_without_any_framework(model: Path, tmp_path: Path) -> None:
    """The entry point as a process; what the network's code prints is not in the JSON."""
    (tmp_path / "mine.py").write_text("def net():\n    print('hello')\n    return 17\n")
    done = process(["predict", model, "mine:net", "--json"], cwd=tmp_path,
                   env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    *printed, line = done.stderr.splitlines()
    assert printed == ["hello"]
    assert line.startswith("lolat: ")
    assert "int" in line


@pytest.mark.slow
def test_a_network_of_keras(model: Path) -> None:
    done = process(["predict", model, "keras:MobileNetV2", "--batch-size", "4", "--json"])
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert len(done.stdout.splitlines()) == 1
    # 0.30 GMACs an image is the published figure.
    assert answer["counts"]["flops"] == pytest.approx(4 * 0.30e9, rel=0.02)
    assert answer["network"] == "MobileNetV2"
