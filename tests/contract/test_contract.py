"""Each question has one answer: --json is Python's to_dict() and of its schema, --csv is rows().

The page shows the same figures. Networks are files, so that no framework is needed.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lolat as package
from benchmarks import calls
from benchmarks.schema import ANSWERS
from lolat.api.model import Model
from lolat.io.results import Result
from tests import synthetic
from tests.cli.commands import Command, valid_answer
from tests.llm import known_gpu


class Question(NamedTuple):
    """A command, and the same question in Python."""

    command: str
    ask: Callable[[Model], Result]
    csv_rows: Callable[[Any], list[dict[str, Any]]] | None = None


def several(model: Model) -> Any:
    return model.predict(["net.json", "other.json"], [1, 8])


QUESTIONS = [
    Question("predict desk.json net.json --batch-size 8",
             lambda m: m.predict("net.json", 8), lambda p: p.rows()),
    Question("predict desk.json net.json --coverage 0.5 --predictor two-regime",
             lambda m: m.predict("net.json", 1, "two-regime", 0.5)),
    Question("predict desk.json net.json --max-ms 1000 --sure 95",
             lambda m: m.predict("net.json", coverage=0.95)),
    Question("predict desk.json net.json other.json --batch-size 1,8", several, lambda p: p.rows()),
    Question("predict rtx-4090-amp net.json --precision fp16 --prices prices.csv",
             lambda m: package.load("rtx-4090-amp").predict("net.json", precision="fp16",
                                                            prices="prices.csv"),
             lambda p: p.rows()),
    Question("report desk.json net.json", lambda m: m.predict("net.json"), lambda p: p.block_rows()),
    Question("explain desk.json net.json --batch-size 4", lambda m: m.explain("net.json", 4)),
    Question("explain desk.json net.json --block conv2_block1",
             lambda m: m.explain("net.json", block="conv2_block1")),
    Question("budget desk.json net.json --vary batch --max-ms 30",
             lambda m: m.budget("net.json", 30.0, "batch")),
    Question("budget desk.json net.json --vary width --max-ms 30 --sure 50",
             lambda m: m.budget("net.json", 30.0, "width", coverage=0.5, sure=True)),
    Question("llm gpu.json config.json --concurrency 1,8 --tensor-parallel 1,2 --max-tpot-ms 100",
             lambda m: package.load("gpu.json").llm("config.json", concurrency=(1, 8),
                                                    tensor_parallel=(1, 2), max_tpot_ms=100)),
    Question("show desk.json", lambda m: m),
    Question("models", lambda m: package.models()),
]  # fmt: skip
IDS = [q.command for q in QUESTIONS]


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """`desk.json` in the working directory, beside two networks."""
    monkeypatch.chdir(tmp_path)
    Path("desk.json").write_text(json.dumps(synthetic.document()))
    Path("gpu.json").write_text(json.dumps(known_gpu.document()))
    Path("config.json").write_text(json.dumps(known_gpu.LLAMA))
    Path("prices.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price\nx,RTX4090,1,0.5\n"
    )
    for name, stages in (("net", 3), ("other", 2)):
        graph = synthetic.network(stages=stages, name=name)
        Path(f"{name}.json").write_text(json.dumps(graph.to_dict()))
    return package.load("desk.json")


@pytest.mark.parametrize("question", QUESTIONS, ids=IDS)
def test_json_is_what_python_returns(lolat: Command, model: Model, question: Question) -> None:
    """`Command` validates every answer by its schema too."""
    wanted = json.loads(json.dumps(question.ask(model).to_dict()))
    answer = lolat.json(*question.command.split())
    for one in (*answer.get("answers", ()), *wanted.get("answers", ())):
        one.pop("device", None)
    assert answer == wanted


@pytest.mark.parametrize("question", QUESTIONS, ids=IDS)
def test_for_people_there_are_lines_and_with_quiet_nothing_on_stderr(
    lolat: Command, model: Model, question: Question
) -> None:
    for quiet in ("-q", "--quiet"):
        found = lolat(quiet, *question.command.split())
        assert (found.code, found.err) == (0, "")
        assert 1 <= len(found.out.splitlines()) <= 80
        assert "\x1b" not in found.out


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q.csv_rows], ids=lambda q: q.command)
def test_csv_is_the_rows(lolat: Command, model: Model, question: Question) -> None:
    assert question.csv_rows is not None
    rows = question.csv_rows(question.ask(model))
    lolat.done(*question.command.split(), "--csv", "out.csv")
    with open("out.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert len(written) == len(rows)
    for cells, row in zip(written, rows, strict=True):
        assert list(cells) == list(row)
        for name, value in row.items():
            if isinstance(value, float):
                assert math.isclose(float(cells[name]), value, rel_tol=1e-5)
            else:
                assert cells[name] == ("" if value is None else str(value))


def test_the_page_shows_the_same_figure(lolat: Command, model: Model) -> None:
    wanted = model.predict("net.json", 4)
    lolat.done("report", "desk.json", "net.json", "--batch-size", "4", "--html", "page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    assert all(repr(block.latency_ms) in text for block in wanted.blocks)
    wanted.write_html("same.html")
    assert Path("same.html").read_text(encoding="utf-8").count("net") == text.count("net")


# ---- Exit code 3: the object and one line


def test_a_limit_that_is_exceeded_prints_its_answer_too(lolat: Command, model: Model) -> None:
    latency = model.predict("net.json").latency_ms
    call = ("predict", "desk.json", "net.json", "--max-ms")
    lolat.text(*call, latency)  # not more than that
    over = lolat(*call, latency / 1.25, "--json")
    assert (over.code, json.loads(over.out)["latency_ms"]) == (3, latency)
    assert "25 % more than" in over.err
    budget = lolat(
        "budget", "desk.json", "net.json", "--vary", "batch", "--max-ms", "0.5", "--json"
    )
    assert (budget.code, json.loads(budget.out)["answer"]) == (3, None)


def test_a_network_that_cannot_be_read_costs_itself_alone(lolat: Command, model: Model) -> None:
    result = lolat("predict", "desk.json", "net.json", "missing.json", "--json")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    found = json.loads(result.out)
    assert [a["network"] for a in found["answers"]] == ["net.json"]
    assert list(found["failures"]) == ["missing.json"]
    nothing = lolat("predict", "desk.json", "missing.json", "nothing.json")
    assert (nothing.code, nothing.out, len(nothing.err.splitlines())) == (2, "", 2)


# ---- The schema


def test_every_answer_of_a_command_has_a_schema() -> None:
    from benchmarks.command_line import leaves
    from lolat.cli.main import lolat as main

    with_json = {
        name for name, command in leaves(main)
        if any("--json" in option.opts for option in command.params)
    }  # fmt: skip
    assert {name for name, _ in leaves(main)} - with_json == {"serve"}
    assert with_json == {command for _, commands in ANSWERS.values() for command in commands}


def test_a_key_that_no_schema_has_is_found() -> None:
    """The tests' own check can fail: on a key too many, one too few and NaN."""
    whole = '{"schema": "lolat-prices", "version": 1, "prices": "x", "file": null, "offers": []}'
    assert valid_answer(["prices"], whole)["prices"] == "x"
    for damaged in (
        whole.replace("}", ', "more": 1}'),
        whole.replace('"prices": "x", ', ""),
        whole.replace('"x"', "NaN"),
    ):
        with pytest.raises(pytest.fail.Exception):
            valid_answer(["prices"], damaged)


# ---- How far a question goes through the house


def test_a_question_calls_few_functions(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """Counted the second time: what is cached in a process is called once, perhaps by another test."""
    calls.count(["predict", "desk.json", "net.json"])
    capsys.readouterr()
    functions, files, depth = calls.count(["predict", "desk.json", "net.json"])
    assert capsys.readouterr().out.startswith("net · batch 1")
    assert functions <= 195
    assert files <= 41
    assert depth <= 15


def test_a_folded_report_is_folded_in_its_files_too(lolat: Command, model: Model) -> None:
    """One module of all blocks, and the call; the time stays, and the page begins with that folding."""
    call = ("report", "desk.json", "net.json", "--csv", "out.csv", "--html", "page.html")
    whole = lolat.answer(*call)
    page = Path("page.html").read_text(encoding="utf-8")
    folded = lolat.answer(*call, "--depth", 0)
    with open("out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["block"] for r in rows] == [b["name"] for b in folded["blocks"]] == ["net", "call"]
    assert len(whole["blocks"]) > 2
    assert folded["counts"] == whole["counts"]
    assert sum(b["latency_ms"] for b in folded["blocks"]) == pytest.approx(whole["latency_ms"])
    assert Path("page.html").read_text(encoding="utf-8") != page
