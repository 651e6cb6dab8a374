"""`lolat doctor` with made-up measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lolat.errors import DeviceError
from lolat.fitting.points import Point
from lolat.graph.counts import count
from lolat.model.learning import model_document
from microbench import doctor, environment
from microbench.blocks import BLOCKS, NETWORKS
from microbench.doctor import Difference
from microbench.learn import REFERENCES
from microbench.runner import Runner
from tests import synthetic
from tests.cli.commands import Command, Doctor
from tests.microbench.fakes import FakeDevice


def test_a_model_that_holds(lolat: Command, model: Path, doctor: Doctor) -> None:
    before = model.read_bytes()
    out = lolat.text("doctor", model)
    assert "ok: the model holds on this machine." in out
    assert "The networks are 2.0 % slower at the median (1.02 to 1.02 times as long)" in out
    assert f"Next: lolat evaluate {model}" in out
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model], "of a model without a date there is no state"
    assert doctor.calls == [
        {"points": 105, "learned": json.loads(before)["environment"], "label": "a desk, 2 threads",
         "backend": "tensorflow", "device": "cpu"},
    ]  # fmt: skip


def test_json(lolat: Command, model: Path, doctor: Doctor) -> None:
    answer = lolat.json("doctor", model)
    assert (answer["verdict"], answer["ratio"], answer["limit"]) == ("ok", pytest.approx(1.02), 0.1)
    assert {"name", "batch_size", "learned_ms", "now_ms", "ratio"} <= answer["networks"][0].keys()
    assert (answer["seconds"], answer["differences"]) == (9.0, [])
    assert isinstance(answer["warnings"], list)


def test_a_model_that_does_not_hold(lolat: Command, model: Path, doctor: Doctor) -> None:
    doctor.ratio = 1.3
    assert lolat.json("doctor", model, code=3)["verdict"] == "drifted"
    out = lolat.text("doctor", model, code=3)
    assert "drifted by +30 %" in out
    assert "block 1 " in out, "the networks are listed"
    doctor.ratio, doctor.differences = 1.0, (Difference("threads", 2, 4),)
    out = lolat.text("doctor", model, code=3)
    assert "another machine: learned with threads 2, here it is 4" in out


def test_where_nothing_can_be_measured(lolat: Command, model: Path, doctor: Doctor) -> None:
    doctor.error = DeviceError("no cpu here")
    assert lolat.refused("doctor", model) == "lolat: no cpu here"


def test_a_model_without_networks(lolat: Command, model: Path) -> None:
    line = lolat.refused("doctor", model)
    assert "none of the model's 105 points is a whole network of this version" in line
    assert "lolat learn cpu" in line


def test_an_unknown_framework_and_model(lolat: Command, tmp_path: Path, doctor: Doctor) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(synthetic.document(environment={"framework": "jax"})))
    assert "no backend 'jax'; this version has" in lolat.refused("doctor", path)
    assert "no such model" in lolat.refused("doctor", "nobody")
    assert doctor.calls == []


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    found = FakeDevice()
    found.environment = {"framework": "tensorflow", "framework_version": "2.21.0"}
    monkeypatch.setattr(
        doctor, "Runner", lambda b, d, p, clock: Runner(b, d, p, found.start, found.clock)
    )
    monkeypatch.setattr(environment, "load", lambda: 0.1)
    monkeypatch.setattr(environment, "cpu_model", lambda: "a desk")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    return found


def test_from_the_file_to_the_verdict(lolat: Command, tmp_path: Path, desk: FakeDevice) -> None:
    """Everything but the worker, which says 2 ms for every network."""
    points = [
        Point(b.name, n, count(g).total(n)._asdict(), 2.0, (2.0,), (), 0.0, ("conv",), b.whole)
        for b in (*BLOCKS[:12], *NETWORKS)
        for g in [b.make()]
        for n in b.batch_sizes
    ]
    noise = {"floor": 0.01, "quiet": 0.9, "busy": 1.2}
    document = model_document("desk", "a desk, 2 threads", points, desk.environment, noise)
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(document))
    answer = lolat.answer("doctor", path)
    assert (answer["verdict"], answer["ratio"]) == ("ok", pytest.approx(1.0))
    assert sorted(n["name"] for n in answer["networks"]) == sorted(REFERENCES)
    assert [n["now_ms"] for n in answer["networks"]] == pytest.approx([2.0] * 5)
    for point in document["points"]:
        point["latency_ms"] = 1.5
    path.write_text(json.dumps(document))
    found = lolat("doctor", path, "--json")
    assert (found.code, json.loads(found.out)["verdict"]) == (3, "drifted")
