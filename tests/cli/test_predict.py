"""`lolat predict`, `report`, `explain` and `budget`: options and remarks.

--json, --csv and the page are what Python answers: tests/contract. Refusals: tests/test_refusals.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lolat.api.model import Model
from lolat.errors import NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.io.tables import read_table
from lolat.readers.size import as_size
from tests import synthetic
from tests.cli.commands import Command, one_line, process

READ: list[tuple[Any, ...]] = []


def read(network: str, input_size: Any = None) -> Graph:
    """A reader of networks that come by name, of any size up to 640."""
    READ.append((network, as_size(input_size).given))
    side = (as_size(input_size).images or (56,))[0]
    if network.startswith("keras:Missing") or side > 640:
        raise NetworkError(f"no network {network!r}: expected keras:NAME")
    if network == "keras:Strange":
        builder = GraphBuilder("Strange")
        x = builder.input((1, 8, 8, 3))
        return builder.build([builder.add("teleport", [x], (1, 8, 8, 3), "[red]t[/]\x1b[2J")])
    made = synthetic.network(name=network.removeprefix("keras:"), size=side)
    return replace(made, framework="torch") if network.startswith("timm:") else made


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    READ.clear()
    monkeypatch.setattr("lolat.readers.read", read)
    return Command(capsys)


def test_options_go_where_they_belong(lolat: Command, model: Path) -> None:
    lolat("predict", model, "keras:A", "--input-size", "224,192,3")
    extended = lolat.json("predict", model, "keras:B", "--input-size", "96")
    lolat("predict", model, "keras:A", "--sequence-length", "77", "--input-size", "96")
    named = {"input_size": (96,), "sequence_length": 77}
    assert [("keras:A", (224, 192, 3)), ("keras:B", (96,)), ("keras:A", named)] == READ
    two = lolat.json("predict", model, "keras:B", "--predictor", "two-regime", "--input-size", 96)
    assert (extended["predictor"], two["predictor"]) == ("extended", "two-regime")
    widths = []
    for coverage in (0.5, 0.9, 0.975):
        answer = lolat.json("predict", model, "keras:A", "--coverage", coverage)
        widths.append(answer["interval_ms"][1] / answer["interval_ms"][0])
    assert widths == sorted(set(widths))


def test_an_operation_without_a_formula_is_said_and_names_are_text(
    lolat: Command, model: Path
) -> None:
    answer = lolat.json("predict", model, "keras:Strange")
    assert 0.0 < answer["inside_share"] < 1.0  # a call of nothing is known
    for command in ("predict", "report", "explain"):
        out = lolat(command, model, "keras:Strange").out
        assert "\x1b" not in out
        assert "note: no formula for operation teleport" in out


def test_a_network_of_ones_own_without_any_framework(model: Path, tmp_path: Path) -> None:
    """The entry point as a process; what the network's code prints is not in the JSON."""
    (tmp_path / "mine.py").write_text("def net():  # no torch\n    print('hello')\n    return 17\n")
    done = process(["predict", model, "mine:net", "--json"], cwd=tmp_path,
                   env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    printed, line = done.stderr.splitlines()
    assert (printed, line[:7]) == ("hello", "lolat: ")


def test_a_networks_file_reads_none_of_our_arguments(model: Path, tmp_path: Path) -> None:
    """A script's own parser has its defaults."""
    (tmp_path / "mine.py").write_text(
        "import argparse\nasked = argparse.ArgumentParser()\n"
        "asked.add_argument('--batch-size', type=int, default=4)\n"
        "print('it is', asked.parse_args().batch_size)\ndef net(): return 17\n"
    )
    done = process(["predict", model, "mine.py:net", "--batch-size", 64], cwd=tmp_path,
                   env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert "it is 4" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_network_of_keras(model: Path) -> None:
    done = process(["predict", model, "keras:MobileNetV2", "--batch-size", "4", "--json"])
    answer = json.loads(done.stdout)
    # 0.30 GMACs an image is the published figure.
    assert answer["counts"]["flops"] == pytest.approx(4 * 0.30e9, rel=0.02)


# ---- Several networks, batch sizes and devices


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
    call = ("keras:A", "keras:B", "--batch-size", "1,4", "--device", slower)
    found = lolat.json("predict", model, *call)
    assert [name for name, _ in READ] == ["keras:A", "keras:B"]  # each once
    rows = [(a["network"], a["batch_size"], a["device"]) for a in found["answers"]]
    devices = (str(model), str(slower))
    assert rows == [(f"keras:{n}", b, d) for n in "AB" for b in (1, 4) for d in devices]
    alone = lolat.json("predict", slower, "keras:B", "--batch-size", 4)
    names = ("price_per_hour", "instance", "dollars_per_million")
    price = {name: found["answers"][-1][name] for name in names}
    assert found["answers"][-1] == alone | {"device": str(slower)} | price


def test_two_names_of_one_device_are_told(lolat: Command) -> None:
    """The compiled profile of a card answers for both names, in one row."""
    on = ("predict", "timm:A", "--on", "rtx-4090-amp,rtx-4090-amp-compiled", "--batch-size", 64)
    one = lolat(*on, "--launch", "graph")
    assert "are the same in this precision and launch" in one.err
    assert "are the same" not in lolat(*on).err


@pytest.mark.parametrize("option", ["--launch graph", "--precision bf16", "--channels-last"])
def test_what_a_cpu_cannot_run_in_is_of_the_gpus(
    lolat: Command, model: Path, slower: Path, option: str
) -> None:
    """The CPU answers as it does alone, and says so; refused if no device can run so."""
    given = option.split()
    both = lolat.json("predict", "timm:A", "--on", f"{model},rtx-4090", *given)["answers"]
    assert [a["device"] for a in both] == [str(model), "rtx-4090"]
    alone = lolat.json("predict", model, "timm:A")
    gpu = lolat.json("predict", "timm:A", "--on", "rtx-4090,h100", *given)["answers"][0]
    assert both[0]["latency_ms"] == alone["latency_ms"]
    assert both[1]["latency_ms"] == pytest.approx(gpu["latency_ms"])
    name = given[0].strip("-").replace("-", " ")
    notes = [[w for w in a["warnings"] if w.startswith(name) and "apply" in w] for a in both]
    assert [len(of) for of in notes] == [1, 0]
    assert given[0] in lolat.refused("predict", model, "timm:A", *given)
    assert given[0] in lolat.refused("predict", "timm:A", "--on", f"{model},{slower}", *given)


def test_a_limit_names_the_device_that_exceeds_it(
    lolat: Command, model: Path, slower: Path
) -> None:
    """A script asks one device if it keeps a limit, and several which one does."""
    limit = 2 * Model.load(model).predict(read("keras:A")).latency_ms
    over = lolat("predict", slower, "keras:A", "--max-ms", limit)
    assert over.code == 3
    line = one_line(over.err)
    assert str(slower) in line
    assert "--max-ms" in line
    ask = ("predict", model, "keras:A", "--device", slower, "--max-ms")
    assert (lolat(*ask, limit).code, lolat(*ask, limit / 4).code) == (0, 3)


def test_a_change_of_the_resolution_reads_the_network_again(lolat: Command, model: Path) -> None:
    found = lolat.json("explain", model, "keras:A")
    assert "resolution" in {c["kind"] for c in found["counterfactuals"]}
    assert READ == [("keras:A", ()), ("keras:A", (28,))]
    answer = lolat.json("budget", model, "keras:A", "--max-ms", 20, "--vary", "resolution")
    at = lolat.json("predict", model, "keras:A", "--input-size", answer["answer"])
    assert at["latency_ms"] == pytest.approx(answer["latency_ms"])
    assert at["latency_ms"] <= 20


@pytest.mark.parametrize(
    "words", [["report"], ["explain"], ["budget", "--max-ms", "1000", "--vary", "width"]]
)
def test_several_batch_sizes_are_answered_as_each_alone(
    lolat: Command, model: Path, words: list[str]
) -> None:
    def asked(size: str) -> Any:
        name, *options = words
        return lolat.json(name, model, "keras:A", *options, "--batch-size", size)

    found = asked("1,4")["answers"]
    assert {one.get("device", str(model)) for one in found} == {str(model)}
    assert found == [asked("1"), asked("4")]
    name, *options = words
    lines = lolat(name, model, "keras:A", *options, "--batch-size", "1,4").out.splitlines()
    first = lolat(name, model, "keras:A", *options).out.splitlines()
    assert lines[: len(first) + 1] == [*first, ""]


def test_no_of_one_of_several_batch_sizes_names_it(lolat: Command, model: Path) -> None:
    longest = lolat.json("predict", model, "keras:A")["latency_ms"]
    words = ["budget", model, "keras:A", "--max-ms", longest, "--vary", "width"]
    done = lolat(*words, "--batch-size", "1,4096")
    assert (done.code, done.out) == (3, "")
    assert one_line(done.err).startswith("lolat: --batch-size 4096: even width")


def test_the_table_of_several_reports_has_the_batch_size(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    table = tmp_path / "blocks.csv"
    lolat("report", model, "keras:A", "--batch-size", "1,4", "--csv", table)
    found = read_table(table)
    assert {*found.columns[found.names.index("batch_size")]} == {"1", "4"}


def test_a_size_without_its_option_is_no_network(lolat: Command) -> None:
    said = lolat.refused("predict", "rtx-4090", "timm:resnet50", 224)
    assert "224 is no network; did you mean --input-size 224?" in said
