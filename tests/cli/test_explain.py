"""`lolat explain`; the networks are made by hand, so no framework is needed."""

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
from tests.cli.commands import Command

ASKED: list[tuple[Any, ...]] = []


def read(network: str, input_size: Any = None) -> Graph:
    """A reader of networks of any size up to 64."""
    ASKED.append((network, input_size))
    side = input_size[0] if input_size else 56
    if network == "keras:Missing" or side > 64:
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
    found = lolat("explain", model, "keras:A", "--predictor", "two-regime")
    assert (found.code, found.err) == (0, "")
    assert "one call of the framework" in found.out
    assert "memory traffic" not in found.out  # no term of that formula
    inside = lolat("explain", model, "keras:A", "--block", "stem")
    assert "operation by operation" in inside.out


def test_what_is_wrong_is_said_in_one_line(lolat: Command, model: Path) -> None:
    assert "no such network" in lolat.refused("explain", model, "keras:Missing")
    line = lolat.refused("explain", model, "keras:A", "--block", "conv2_blok1")
    assert "did you mean conv2_block1" in line
    line = lolat.refused("explain", model, "keras:B", "--predictor", "best")
    assert "'best' is not one of 'two-regime'" in line
    assert "keras:B" not in {name for name, _ in ASKED}


@pytest.mark.slow
def test_a_network_of_keras(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("keras")
    found = Command(capsys)("explain", model, "keras:MobileNetV2", "--json")
    answer = json.loads(found.out)
    total = sum(b["latency_ms"] for b in answer["blocks"]) + answer["call_ms"]
    assert total == pytest.approx(answer["latency_ms"], rel=1e-12)
    kinds = {c["kind"] for c in answer["counterfactuals"]}
    assert {"width", "resolution", "drop"} <= kinds
