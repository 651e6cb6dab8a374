"""`lolat learn --mode training`: what becomes of the file that is there."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

import lolat as lolat_package
from lolat.device.file import read, write
from lolat.microbench import environment
from tests import synthetic
from tests.cli.commands import Command, Result
from tests.training import epoch_tables, training_points

HERE = "EPYC, 2 threads"
ENVIRONMENT = {
    "framework": "tensorflow", "framework_version": "2.21.0", "device": "cpu", "threads": 2,
}  # fmt: skip


class Journal:
    """What a run leaves until its model is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("times")

    def remove(self) -> None:
        self.path.unlink()

    def close(self) -> None:
        pass


class Machine:
    """Measures in no time; `calls`: (what, restart) in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.environment = dict(ENVIRONMENT)
        self.warnings: list[str] = []

    def blocks(self, run: Any) -> Any:
        if run.check is not None:
            run.check(self.environment)
        self.calls.append(("latency", run.restart))
        points = synthetic.measured(seed=len(self.calls))
        return (
            points,
            dict(self.environment),
            {"floor": 0.03, "quiet": 1.0, "busy": 1.0, "others": 0.0, "trend": 1.0},
            {},
            Journal(run.journal),
        )

    def training(self, run: Any) -> Any:
        run.check(self.environment)
        self.calls.append(("training", run.restart))
        journal = Journal(run.journal)
        section = copy.deepcopy(training_points.section())
        section["environment"] = dict(self.environment)
        section["warnings"] = self.warnings
        return section, journal


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(environment, "cpu_model", lambda: "EPYC")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment, "processor_facts", dict)
    monkeypatch.setattr("lolat.microbench.learn.measure_blocks", found.blocks)
    monkeypatch.setattr("lolat.microbench.learn_training.measure_training", found.training)
    return found


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A latency model of this machine."""
    path = tmp_path / "mine.json"
    write(
        path, synthetic.document(device=HERE, environment=ENVIRONMENT, warnings=["an old remark"])
    )
    return path


TRAINING = ("--mode", "training")
LEARN = ("learn", "cpu", "--backend", "tensorflow", "--output")


def learn(lolat: Command, output: Path, *more: object) -> Result:
    """Training too, which works; options `more`."""
    return lolat.done(*LEARN, output, *TRAINING, *more)


def test_training_is_added_to_a_model_of_this_machine(
    machine: Machine, output: Path, lolat: Command
) -> None:
    before = read(output).document
    machine.warnings = ["32 measurements failed"]
    found = learn(lolat, output)
    assert machine.calls == [("training", False)]
    after = read(output).document
    section = after.pop("training")
    assert after == before, "its latencies are kept as they are"
    assert section["points"] == json.loads(json.dumps(training_points.section()["points"]))
    assert section["environment"]["seconds"] >= 0
    assert found.err.splitlines() == [
        f"lolat: {output} is of this device: its latencies are kept, training is added",
        "lolat: warning: 32 measurements failed",
    ]
    assert "120 passes of 60 blocks; each block left out" in found.out
    assert f"written: {output}\n" in found.out
    assert f"lolat cost {output} keras:ResNet50" in found.out.splitlines()[-1]
    assert os.listdir(output.parent) == [output.name], "no journal is left"
    assert lolat_package.load(output).cost(synthetic.network(), 8).options[0].iteration_ms > 0


def test_without_a_model_the_latencies_are_learned_first(
    machine: Machine, tmp_path: Path, lolat: Command
) -> None:
    output = tmp_path / "new.json"
    learn(lolat, output)
    assert machine.calls == [("latency", False), ("training", False)]
    assert read(output).document["points"]
    assert lolat_package.load(output).device == HERE


def test_latencies_learned_again_keep_the_training(
    machine: Machine, output: Path, lolat: Command
) -> None:
    learn(lolat, output, "--restart")
    assert machine.calls == [("latency", True), ("training", True)]
    before = read(output).document
    lolat.done(*LEARN, output)
    assert read(output).document["training"] == before["training"]
    assert read(output).document["points"] != before["points"]
    machine.environment["framework_version"] = "2.22.0"
    lolat.done(*LEARN, output)
    assert "training" not in read(output).document, "times of two frameworks are not mixed"


OTHERS = {"epochs": epoch_tables.section(), "spaces": {"fbnet": {}}}


def test_what_else_is_known_is_kept(machine: Machine, output: Path, lolat: Command) -> None:
    write(output, {**read(output).document, **OTHERS})
    for more in ((), TRAINING, ("--restart",)):
        lolat.done(*LEARN, output, *more)
        found = read(output).document
        assert {name: found[name] for name in OTHERS} == OTHERS


@pytest.mark.parametrize(
    "other", [{"device": "Xeon, 8 threads"}, {"environment": {"device": "gpu"}}]
)
def test_a_model_of_another_device_is_left_as_it_is(
    machine: Machine, output: Path, lolat: Command, other: dict[str, Any]
) -> None:
    write(output, read(output).document | other)
    content = output.read_bytes()
    said = lolat.refused(*LEARN, output, *TRAINING)
    assert (
        f"{output} is the profile of another device: {other.get('device', HERE)}; give another"
        in said
    )
    assert output.read_bytes() == content
    assert machine.calls == []
    learn(lolat, output, "--restart")
    assert read(output).document["device"] == HERE


@pytest.mark.parametrize(
    ("field", "value"), [("framework", "torch"), ("jit", True), ("half", True)]
)
def test_a_model_of_another_backend_is_left_as_it_is(
    machine: Machine, output: Path, lolat: Command, field: str, value: Any
) -> None:
    """What was learned beside the latencies stays with them; --restart replaces all of it."""
    environment = {"jit": False, "half": False} | ENVIRONMENT
    write(output, read(output).document | OTHERS | {"environment": environment})
    content, machine.environment = output.read_bytes(), environment | {field: value}
    assert f"learned with {field}" in lolat.refused(*LEARN, output)
    assert (output.read_bytes(), machine.calls) == (content, [])
    lolat.done(*LEARN, output, "--restart")
    assert not OTHERS.keys() & read(output).document.keys()


@pytest.mark.parametrize("more", [(), ("--restart",)])
@pytest.mark.parametrize("content", ["network,latency_ms\na,1\n", "{", '{"schema": "else"}'])
def test_what_is_no_model_is_left_as_it_is(
    machine: Machine, output: Path, lolat: Command, content: str, more: tuple[str, ...]
) -> None:
    output.write_text(content)
    assert "--output" in lolat.refused(*LEARN, output, *more)
    assert (output.read_text(), machine.calls) == (content, [])


def test_a_model_of_another_gpu_is_left_as_it_is(
    machine: Machine, output: Path, lolat: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second GPU of the same machine, say."""
    own = {"device": "gpu", "device_name": "NVIDIA L4", "framework": "tensorflow"}
    machine.environment = {**ENVIRONMENT, **own}
    monkeypatch.setattr("lolat.microbench.choice.environment_in_child", lambda *_: own)
    ask = ("learn", "gpu", "--backend", "tensorflow", "--output", output)
    write(
        output,
        read(output).document | {"device": "NVIDIA T4", "environment": {"device": "gpu"}} | OTHERS,
    )
    content = output.read_bytes()
    assert "NVIDIA T4" in lolat.refused(*ask)
    assert output.read_bytes() == content
    lolat.done(*ask, "--restart")
    assert read(output).document["device"] == "NVIDIA L4"
    assert not OTHERS.keys() & read(output).document.keys()
    lolat.done(*ask)
    assert machine.calls == [("latency", True), ("latency", False)]


def test_another_framework_is_refused_before_measuring(
    machine: Machine, output: Path, lolat: Command
) -> None:
    write(
        output,
        read(output).document | {"environment": {**ENVIRONMENT, "framework_version": "2.20.0"}},
    )
    content = output.read_bytes()
    found = lolat(*LEARN, output, *TRAINING)
    assert (found.code, found.out) == (2, "")
    assert "version 2.20.0, here it is 2.21.0" in found.err.splitlines()[-1]
    assert machine.calls == []
    assert output.read_bytes() == content


def test_ctrl_c(
    machine: Machine, output: Path, lolat: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(run: Any) -> None:
        run.journal.write_text("times")
        raise KeyboardInterrupt

    monkeypatch.setattr("lolat.microbench.learn_training.measure_training", interrupt)
    content = output.read_bytes()
    said = lolat(*LEARN, output, *TRAINING)
    assert (said.code, said.out) == (130, "")
    assert f"the measurements are in {output}.training.journal.jsonl" in said.err
    assert output.read_bytes() == content


def test_fitting_again_fits_the_training_too(
    machine: Machine, output: Path, lolat: Command
) -> None:
    learn(lolat, output)
    spoiled = read(output).document
    spoiled["training"]["forward_ms"] = {}
    write(output, spoiled)
    again = output.with_name("again.json")
    lolat("fit", output, "--output", again)
    assert read(again).document["training"]["forward_ms"] != {}
