"""`lolat explain` and `budget`; the networks are made by hand, so no framework is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.model import load
from lolat.model.attribution import explain_block, explain_network
from tests import synthetic
from tests.cli.commands import Command, one_line

ASKED: list[tuple[Any, ...]] = []


def read(network: str, input_size: Any = None) -> Graph:
    """A reader of networks of any size up to 640."""
    ASKED.append((network, input_size))
    side = input_size[0] if input_size else 56
    if network == "keras:Missing" or side > 640:
        raise NetworkError("no such network; give another --input-size")
    return synthetic.network(size=side)


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    ASKED.clear()
    monkeypatch.setattr("lolat.readers.read", read)
    return Command(capsys)


def test_json_is_one_object_and_nothing_else(lolat: Command, model: Path) -> None:
    found = lolat.json("explain", model, "keras:A", "--batch-size", 4)
    wanted = explain_network(load(model), synthetic.network(), 4, None, lambda s: read("", (s,)))
    assert found == json.loads(json.dumps(wanted.to_dict()))
    assert "resolution" in {c["kind"] for c in found["counterfactuals"]}


def test_json_of_a_block(lolat: Command, model: Path) -> None:
    found = lolat.json("explain", model, "keras:A", "--block", "conv2", "--input-size", 32)
    graph = synthetic.network(size=32)
    wanted = explain_block(load(model), graph, "conv2_block1").to_dict()
    assert found == json.loads(json.dumps(wanted))
    assert ASKED == [("keras:A", (32,))]


def test_text(lolat: Command, model: Path) -> None:
    out = lolat.text("explain", model, "keras:A", "--predictor", "two-regime")
    assert "one call of the framework" in out
    assert "memory traffic" not in out  # no term of that formula
    assert "operation by operation" in lolat("explain", model, "keras:A", "--block", "stem").out


def test_what_is_wrong_is_said_in_one_line(lolat: Command, model: Path) -> None:
    assert "no such network" in lolat.refused("explain", model, "keras:Missing")
    line = lolat.refused("explain", model, "keras:A", "--block", "conv2_blok1")
    assert "did you mean conv2_block1" in line
    line = lolat.refused("explain", model, "keras:B", "--predictor", "best")
    assert "'best' is not one of 'two-regime'" in line
    assert "keras:B" not in {name for name, _ in ASKED}


# ---- `lolat budget`.


@pytest.mark.parametrize(
    ("vary", "option"), [("width", ""), ("resolution", "--input-size"), ("batch", "--batch-size")]
)
def test_the_answer_of_a_budget_is_what_predict_says(
    lolat: Command, model: Path, vary: str, option: str
) -> None:
    answer = lolat.json("budget", model, "keras:A", "--max-ms", 20, "--vary", vary)
    assert answer["vary"] == vary
    assert answer["latency_ms"] <= 20 < answer["next"]["latency_ms"]
    assert answer["answer"] < answer["next"]["value"]
    steps = [(answer["answer"], answer), (answer["next"]["value"], answer["next"])]
    for value, wanted in steps if option else ():
        told = lolat.json("predict", model, "keras:A", option, value)
        assert told["latency_ms"] == pytest.approx(wanted["latency_ms"], rel=1e-12)


def test_a_budget_in_words_and_its_options(lolat: Command, model: Path) -> None:
    ask = ("budget", model, "keras:A", "--max-ms", 30, "--vary")
    out = lolat.text(*ask, "resolution", "--batch-size", 2)
    assert out.startswith("hand made: ")
    assert "px stays within 30 ms" in out
    wide, narrow = (lolat.json(*ask, "batch", "--sure", percent) for percent in (95, "50%"))
    assert wide["interval_ms"][1] <= 30 < wide["next"]["interval_ms"][1]
    assert (wide["coverage"], narrow["coverage"]) == (0.95, 0.5)


def test_a_budget_that_cannot_be_met(lolat: Command, model: Path) -> None:
    ask = ("budget", model, "keras:A", "--vary", "batch", "--max-ms")
    line = lolat.refused(*ask, 0.5, code=3)
    latency = load(model).predict(synthetic.network()).latency_ms
    assert "even batch 1 of 'hand made' takes" in line
    enough = line.rpartition("give --max-ms ")[2].removesuffix(" or more")
    assert latency <= float(enough) < 1.02 * latency
    lolat.done(*ask, enough)
    told = lolat(*ask, 0.01, "--json", "--sure")
    assert (told.code, "even " in one_line(told.err)) == (3, True)
    found = json.loads(told.out)
    assert [found[k] for k in ("answer", "latency_ms", "interval_ms")] == [None] * 3
    assert (found["budget_ms"], found["sure"]) == (0.01, True)
    assert found["next"]["interval_ms"][1] > 0.01
    assert found["next"]["latency_ms"] <= found["now"]["latency_ms"]
    assert found["now"]["latency_ms"] == pytest.approx(latency, rel=1e-12)
