"""`lolat learn --mode training`: what becomes of the file that is there."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lolat.cli.common import run
from lolat.cli.extend import grown, without
from lolat.cli.main import lolat as command
from lolat.errors import InputError
from lolat.model.file import read, write
from lolat.training.file import load_training
from microbench import environment
from microbench.environment import UNSAID
from tests import synthetic
from tests.cli.commands import Command
from tests.training import training_points

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
    """Measures in no time; `asked`: (what, restart) in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.environment = dict(ENVIRONMENT)
        self.warnings: list[str] = []
        self.meanwhile: Any = None

    def blocks(
        self, backend: str, device: str, path: Path, now: float, restart: bool, bar: Any
    ) -> Any:
        self.asked.append(("latency", restart))
        points = synthetic.measured(seed=len(self.asked))
        return points, dict(self.environment), {"floor": 0.03}, [], Journal(path)

    def training(
        self, backend: str, device: str, path: Path, now: float, restart: bool, bar: Any, check: Any
    ) -> Any:
        check(self.environment)
        self.asked.append(("training", restart))
        journal = Journal(path)
        if self.meanwhile is not None:
            self.meanwhile()
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
    monkeypatch.setattr("microbench.learn.measure_blocks", found.blocks)
    monkeypatch.setattr("microbench.learn_training.measure_training", found.training)
    return found


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A latency model of this machine."""
    path = tmp_path / "mine.json"
    write(
        path, synthetic.document(device=HERE, environment=ENVIRONMENT, warnings=["an old remark"])
    )
    return path


def learn(lolat: Command, output: Path, *more: object) -> Any:
    return lolat("learn", "cpu", "--backend", "tensorflow", "--output", output, *more)


TRAINING = ("--mode", "training")


def test_training_is_added_to_a_model_of_this_machine(
    machine: Machine, output: Path, lolat: Command
) -> None:
    before = read(output)
    machine.warnings = ["32 points saw no calm moment"]
    found = learn(lolat, output, *TRAINING)
    assert found.code == 0, found.err
    assert machine.asked == [("training", False)]
    after = read(output)
    section = after.pop("training")
    assert after == before, "its latencies are kept as they are"
    assert section["points"] == json.loads(json.dumps(training_points.section()["points"]))
    assert section["environment"]["seconds"] >= 0
    assert found.err.splitlines() == [
        f"lolat: {output} is of this device: its latencies are kept, training is added",
        f"lolat: warning: {output}: {UNSAID}",
        "lolat: warning: 32 points saw no calm moment",
    ]
    lines = found.out.splitlines()
    assert lines[0].startswith("training: 120 passes of 60 blocks, 6 updates by 2 optimisers in ")
    assert lines[1].startswith("  forward and backward of blocks left out: median error ")
    assert lines[2] == f"written: {output}"
    assert f"lolat training predict {output} keras:ResNet50" in lines[3]
    assert os.listdir(output.parent) == [output.name], "no journal is left"
    assert load_training(output).predict(synthetic.network(), 8).iteration_ms > 0


def test_without_a_model_the_latencies_are_learned_first(
    machine: Machine, tmp_path: Path, lolat: Command
) -> None:
    output = tmp_path / "new.json"
    found = learn(lolat, output, *TRAINING)
    assert found.code == 0, found.err
    assert machine.asked == [("latency", False), ("training", False)]
    assert read(output)["points"]
    assert found.out.count(f"written: {output}") == 2
    assert load_training(output).name == HERE


def test_restart_measures_both_anew(machine: Machine, output: Path, lolat: Command) -> None:
    assert learn(lolat, output, *TRAINING).code == 0
    before = read(output)
    assert learn(lolat, output, *TRAINING, "--restart").code == 0
    assert machine.asked[1:] == [("latency", True), ("training", True)]
    assert read(output)["points"] != before["points"]


def test_latencies_learned_again_keep_the_training(
    machine: Machine, output: Path, lolat: Command
) -> None:
    assert learn(lolat, output, *TRAINING).code == 0
    before = read(output)
    found = learn(lolat, output)
    assert found.code == 0
    assert found.out.splitlines()[-1].startswith("training: kept as it was measured before (--mode")
    assert read(output)["training"] == before["training"]
    assert read(output)["points"] != before["points"]
    machine.environment["framework_version"] = "2.22.0"
    found = learn(lolat, output)
    assert found.code == 0
    assert "kept" not in found.out
    assert "training" not in read(output), "times of two frameworks are not mixed"


@pytest.mark.parametrize(
    "other", [{"device": "Xeon, 8 threads"}, {"environment": {"device": "gpu"}}]
)
def test_a_model_of_another_device_is_left_as_it_is(
    machine: Machine, output: Path, lolat: Command, other: dict[str, Any]
) -> None:
    write(output, read(output) | other)
    content = output.read_bytes()
    said = lolat.refused("learn", "cpu", "--backend", "tensorflow", "--output", output, *TRAINING)
    name = other.get("device", HERE)
    assert (
        f"{output} is a model of another device: {name}, and this is {HERE}; give another" in said
    )
    assert output.read_bytes() == content
    assert machine.asked == []
    assert learn(lolat, output, *TRAINING, "--restart").code == 0
    assert read(output)["device"] == HERE


def test_what_is_no_model_is_replaced(machine: Machine, output: Path, lolat: Command) -> None:
    output.write_text("else")
    assert learn(lolat, output, *TRAINING).code == 0
    assert load_training(output).name == HERE


@pytest.mark.parametrize(
    ("field", "value"), [("framework", "torch"), ("framework_version", "2.20.0"), ("jit", True)]
)
def test_another_framework_is_refused_before_measuring(
    machine: Machine, output: Path, lolat: Command, field: str, value: Any
) -> None:
    machine.environment["jit"] = False
    write(output, read(output) | {"environment": {**ENVIRONMENT, field: value}})
    content = output.read_bytes()
    found = learn(lolat, output, *TRAINING)
    assert (found.code, found.out) == (2, "")
    said = found.err.splitlines()[-1]
    assert f"({field}: {value}, here {machine.environment[field]})" in said
    assert said.endswith(
        "are not to be mixed; give the --backend and options that it was learned with, another --output, "
        "or --restart to learn all anew"
    )
    assert machine.asked == []
    assert output.read_bytes() == content


def test_a_file_that_was_changed_meanwhile_is_added_to(
    machine: Machine, output: Path, lolat: Command
) -> None:
    changed = read(output) | {"warnings": ["extended meanwhile"]}
    machine.meanwhile = lambda: write(output, changed)
    assert learn(lolat, output, *TRAINING).code == 0
    assert read(output)["warnings"] == ["extended meanwhile"]
    assert "training" in read(output)
    other = changed | {"environment": ENVIRONMENT | {"framework_version": "1.0"}}
    machine.meanwhile = lambda: write(output, other)
    assert learn(lolat, output, *TRAINING).code == 2
    assert read(output) == other
    assert output.with_name("mine.json.training.journal.jsonl").exists(), "nothing measured is lost"


def test_too_little_measured_leaves_the_model(
    machine: Machine, output: Path, lolat: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few(*_: object, **__: object) -> Any:
        raise InputError("8 points are too few to fit 27 coefficients")

    content = output.read_bytes()
    monkeypatch.setattr("microbench.learn_training.measure_training", few)
    found = learn(lolat, output, *TRAINING)
    assert found.code == 2
    assert "too few to fit" in found.err
    assert output.read_bytes() == content


@pytest.mark.parametrize("measured", [True, False])
def test_ctrl_c(
    machine: Machine, output: Path, lolat: Command, monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    def interrupt(backend: str, device: str, path: Path, *_: object, **__: object) -> None:
        if measured:
            path.write_text("times")
        raise KeyboardInterrupt

    monkeypatch.setattr("microbench.learn_training.measure_training", interrupt)
    content = output.read_bytes()
    found = learn(lolat, output, *TRAINING)
    assert (found.code, found.out) == (130, "")
    journal = (
        f"what was measured is in {output}.training.journal.jsonl, give the same command again"
    )
    assert (journal in found.err) == measured
    assert ("interrupted before anything was measured" in found.err) != measured
    assert output.read_bytes() == content


def test_a_backend_that_trains_nothing_is_refused_before_measuring(
    machine: Machine, tmp_path: Path, lolat: Command
) -> None:
    output = tmp_path / "m.json"
    said = lolat.refused("learn", "cpu", "--backend", "onnxruntime", "--output", output, *TRAINING)
    assert "the onnxruntime backend trains nothing; expected tensorflow or torch for --mode" in said
    assert machine.asked == []
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--extend", "m.json", "--for", "keras:VGG16"],
            "--mode training does not go with --extend MODEL",
        ),
        (
            ["cpu", "--fleet", "auto"],
            "--mode training does not go with --fleet: log in to each node",
        ),
        (["cpu", "--for", "keras:VGG16"], "--for goes with --extend MODEL only"),
        ([], "Missing argument '{cpu|gpu}'"),
    ],
)
def test_what_does_not_go_together(
    machine: Machine, lolat: Command, arguments: list[str], said: str
) -> None:
    assert said in lolat.refused("learn", *arguments, *TRAINING)
    assert machine.asked == []


def test_a_mode_that_there_is_not(lolat: Command) -> None:
    said = lolat.refused("learn", "cpu", "--mode", "sleeping")
    assert "'sleeping' is not one of 'inference', 'training'" in said


def test_a_file_without_permission_stays(
    machine: Machine,
    output: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: p != output and access(p, mode))
    arguments = ["learn", "cpu", "--backend", "tensorflow", "--output", str(output), *TRAINING]
    assert run(command, arguments, "lolat") == 2
    assert "no permission to write" in capsys.readouterr().err
    assert machine.asked == []


def test_fitting_again_keeps_the_training(machine: Machine, output: Path, lolat: Command) -> None:
    learn(lolat, output, *TRAINING)
    again = output.with_name("again.json")
    found = lolat("fit", output, "--output", again)
    assert found.code == 0, found.err
    assert read(again)["training"] == read(output)["training"]
    assert (
        "training (`lolat training predict`): 120 passes of 60 blocks; each block left" in found.out
    )
    spoiled = read(output)
    spoiled["training"]["forward_ms"] = {}
    write(output, spoiled)
    lolat("fit", output, "--output", again)
    assert read(again)["training"]["forward_ms"] != {}, "fitted on its points"
    spoiled["training"]["points"][0]["latency_ms"] = -1
    write(output, spoiled)
    before = again.read_bytes()
    said = lolat.refused("fit", output, "--output", again)
    assert f"{output}: its `training` cannot be fitted again (`latency_ms` of a point is -1" in said
    assert again.read_bytes() == before


def test_extending_keeps_the_training() -> None:
    document = synthetic.document(training={"residuals": []})
    point = replace(synthetic.measured(1, (1,), seed=9)[0], name="net/conv1")
    record = {"network": "net", "points": ["net/conv1 x1"], "again": []}
    longer = grown(document, [point], record, ["a remark"], "desk")
    assert len(longer["points"]) == len(document["points"]) + 1
    assert longer["training"] == {"residuals": []}
    shorter = without(longer, "net")
    assert len(shorter["points"]) == len(document["points"])
    assert shorter["training"] == {"residuals": []}


def test_show_says_that_a_model_knows_training(
    machine: Machine, output: Path, lolat: Command
) -> None:
    assert "training" not in lolat("show", output).out
    machine.warnings = ["a remark"]
    learn(lolat, output, *TRAINING)
    error = read(output)["training"]["error"]["left_out_median"]
    found = lolat("show", output).out
    assert (
        "training (`lolat training predict`): 120 passes of 60 blocks; each block left out: median error "
        f"{100 * error:.1f} % (noise floor 3.0 %); adam, sgd\n"
    ) in found
    assert "note on training: a remark" in found
    for damaged in ({}, [], {"points": 3}):
        write(output, read(output) | {"training": damaged})
        found_ = lolat("show", output)
        assert found_.code == 0
        assert "training: damaged; `lolat training predict` says where" in found_.out
