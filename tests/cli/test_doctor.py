"""`lolat doctor` with made-up measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.cli.main import COMMANDS
from lolat.errors import DeviceError
from lolat.fitting.points import Point
from lolat.graph.counts import count
from lolat.model.learning import model_document
from microbench import doctor, environment
from microbench.blocks import BLOCKS, NETWORKS
from microbench.doctor import Again, Difference, Examination
from microbench.learn import REFERENCES
from microbench.runner import Runner
from tests import synthetic
from tests.cli.commands import Command
from tests.microbench.fakes import FakeDevice


class Machine:
    """In place of measuring."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.ratio = 1.02
        self.loaded = 1.0
        self.differences: tuple[Difference, ...] = ()
        self.error: BaseException | None = None

    def examine(
        self, points: Any, label: str, learned: Any, backend: str, device: str, progress: Any
    ) -> Examination:
        self.asked.append({"points": len(points), "label": label, "learned": learned,
                           "backend": backend, "device": device})  # fmt: skip
        if self.error is not None:
            raise self.error
        again = tuple(Again(p, self.ratio * p.latency_ms) for p in points[:5])
        return Examination(
            again,
            self.differences,
            {},
            1.1,
            self.loaded,
            load=0.1,
            threads=2,
            seconds=9.0,
            starting_s=5.0,
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr("microbench.doctor.examine", found.examine)
    return found


def test_a_model_that_holds(lolat: Command, model: Path, machine: Machine) -> None:
    before = model.read_bytes()
    found = lolat("doctor", model)
    assert (found.code, found.err) == (0, "")
    assert "ok: the model holds on this machine." in found.out
    assert "The networks are 2.0 % slower at the median (1.02 to 1.02 times as long)" in found.out
    assert f"Next: lolat evaluate {model}" in found.out
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]
    (asked,) = machine.asked
    assert asked["points"] == 105
    assert asked["learned"] == json.loads(model.read_text())["environment"]
    assert (asked["label"], asked["backend"], asked["device"]) == (
        "a desk, 2 threads", "tensorflow", "cpu",
    )  # fmt: skip


def test_json(lolat: Command, model: Path, machine: Machine) -> None:
    found = lolat("doctor", model, "--json")
    assert (found.code, found.err) == (0, "")
    assert len(found.out.splitlines()) == 1
    answer = json.loads(found.out)
    assert answer["verdict"] == "ok"
    assert answer["ratio"] == pytest.approx(1.02)
    assert {"name", "batch_size", "learned_ms", "now_ms", "ratio"} <= answer["networks"][0].keys()
    assert (answer["seconds"], answer["differences"]) == (9.0, [])
    assert answer["state"] == pytest.approx({"computing": 1.02, "moving": 1.02, "starting": 1.02})
    assert isinstance(answer["warnings"], list)


def test_other_programs_are_in_the_state_but_not_in_the_verdict(
    lolat: Command, model: Path, machine: Machine
) -> None:
    machine.loaded = 1.5
    answer = json.loads(lolat("doctor", model, "--json").out)
    assert (answer["verdict"], answer["loaded"]) == ("ok", 1.5)
    assert answer["ratio"] == pytest.approx(1.02)
    assert answer["state"] == pytest.approx({"computing": 1.53, "moving": 1.53, "starting": 1.53})


@pytest.mark.parametrize("as_json", [False, True])
def test_a_model_that_does_not_hold(
    lolat: Command, model: Path, machine: Machine, as_json: bool
) -> None:
    machine.ratio = 1.3
    found = lolat("doctor", model, *(["--json"] if as_json else []))
    assert (found.code, found.err) == (3, "")
    if as_json:
        assert json.loads(found.out)["verdict"] == "drifted"
    else:
        assert "drifted by +30 %" in found.out
        assert "block 1 " in found.out, "the networks are listed"
    machine.ratio, machine.differences = 1.0, (Difference("threads", 2, 4),)
    found = lolat("doctor", model)
    assert found.code == 3
    assert "another machine: learned with threads 2, here it is 4" in found.out


def test_ctrl_c(lolat: Command, model: Path, machine: Machine) -> None:
    machine.error = KeyboardInterrupt()
    found = lolat("doctor", model)
    assert (found.code, found.out) == (130, "")


def test_a_device_that_is_not_there(lolat: Command, model: Path, machine: Machine) -> None:
    machine.error = DeviceError("no cpu here")
    assert "no cpu here" in lolat.refused("doctor", model)


@pytest.mark.parametrize("count", [0, 3])
def test_a_model_without_networks(lolat: Command, tmp_path: Path, count: int) -> None:
    path = tmp_path / "bare.json"
    document = synthetic.document()
    path.write_text(json.dumps(document | {"points": document["points"][:count]}))
    assert (
        f"none of the model's {count} points is a whole network of this version, so there is nothing to "
        "measure again; expected a model learned by measuring: python learn_model.py cpu"
        in lolat.refused("doctor", path)
    )


def test_an_unknown_framework_and_model(lolat: Command, tmp_path: Path, machine: Machine) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(synthetic.document(environment={"framework": "jax"})))
    assert "no backend 'jax'; this version has" in lolat.refused("doctor", path)
    assert "no such model" in lolat.refused("doctor", "nobody")
    assert machine.asked == []


def test_the_command_is_listed_with_the_others(lolat: Command) -> None:
    assert "doctor" in COMMANDS
    said = " ".join(lolat("doctor", "--help").out.split())
    assert "Exit code 0: it does. 3: it does not" in said


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
    found = lolat("doctor", path, "--json")
    answer = json.loads(found.out)
    assert (found.code, answer["verdict"], answer["ratio"]) == (0, "ok", pytest.approx(1.0))
    assert sorted(n["name"] for n in answer["networks"]) == sorted(REFERENCES)
    assert [n["now_ms"] for n in answer["networks"]] == pytest.approx([2.0] * 5)
    assert answer["state"] == pytest.approx({"computing": 1.0, "moving": 1.0, "starting": 1.0})
    for point in document["points"]:
        point["latency_ms"] = 1.5
    path.write_text(json.dumps(document))
    found = lolat("doctor", path, "--json")
    assert (found.code, json.loads(found.out)["verdict"]) == (3, "drifted")
