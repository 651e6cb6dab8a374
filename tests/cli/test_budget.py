"""`lolat budget`; the networks are made by hand, so no framework is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lolat.graph import Graph
from lolat.model import load
from tests import synthetic
from tests.cli.commands import Command, one_line


def read(network: str, input_size: tuple[int, ...] = ()) -> Graph:
    """A reader of networks of any size."""
    return synthetic.network(size=input_size[0] if input_size else 56)


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("lolat.readers.read", read)
    return Command(capsys)


@pytest.mark.parametrize("vary", ["width", "resolution", "batch"])
def test_json_is_one_object_and_it_holds(lolat: Command, model: Path, vary: str) -> None:
    """The answer is checked with `lolat predict`, where it can be."""
    found = lolat("budget", model, "keras:A", "--max-ms", 20, "--vary", vary, "--json")
    assert (found.code, found.err, len(found.out.splitlines())) == (0, "", 1)
    answer = json.loads(found.out)
    assert answer["vary"] == vary
    assert answer["latency_ms"] <= 20 < answer["next"]["latency_ms"]
    assert answer["answer"] < answer["next"]["value"]
    option = {"resolution": "--input-size", "batch": "--batch-size"}.get(vary)
    if option:
        for value, wanted in (
            (answer["answer"], answer),
            (answer["next"]["value"], answer["next"]),
        ):
            told = json.loads(lolat("predict", model, "keras:A", option, value, "--json").out)
            assert told["latency_ms"] == pytest.approx(wanted["latency_ms"], rel=1e-12)


def test_text_and_options(lolat: Command, model: Path) -> None:
    found = lolat(
        "budget", model, "keras:A", "--max-ms", 30, "--vary", "resolution", "--batch-size", 2
    )
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("hand made: ")
    assert "px stays within 30 ms" in found.out
    sure = ("budget", model, "keras:A", "--max-ms", 30, "--vary", "batch", "--json", "--sure")
    wide, narrow = (json.loads(lolat(*sure, percent).out) for percent in (95, "50%"))
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


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("vary", ["batch", "width", "resolution"])
def test_a_budget_that_cannot_be_met_in_json(
    lolat: Command, model: Path, vary: str, sure: bool
) -> None:
    """One object of the same schema, and the reason on stderr; `now` is what `predict` says."""
    told = lolat(
        "budget", model, "keras:A", "--vary", vary, "--max-ms", 0.01, "--json", *["--sure"] * sure
    )
    assert told.code == 3
    assert "even " in one_line(told.err)
    found = json.loads(told.out)
    assert [found[k] for k in ("answer", "latency_ms", "interval_ms")] == [None] * 3
    assert (found["vary"], found["budget_ms"], found["sure"]) == (vary, 0.01, sure)
    smallest = found["next"]
    takes = smallest["interval_ms"][1] if sure else smallest["latency_ms"]
    assert takes > 0.01
    assert smallest["latency_ms"] <= found["now"]["latency_ms"]
    now = load(model).predict(synthetic.network())
    assert found["now"]["latency_ms"] == pytest.approx(now.latency_ms, rel=1e-12)


def test_what_is_wrong_is_said_in_one_line(lolat: Command, model: Path) -> None:
    assert "Missing option '--max-ms'" in lolat.refused("budget", model, "a", "--vary", "batch")
    assert "Missing option '--vary'" in lolat.refused("budget", model, "a", "--max-ms", 3)
    line = lolat.refused("budget", model, "a", "--max-ms", 3, "--vary", "depth")
    assert "'width', 'resolution', 'batch'" in line
    line = lolat.refused("budget", model, "a", "--max-ms", 3, "--vary", "batch", "--coverage", 2)
    assert "'2': expected a number above 0 and below 1" in line
