"""`lolat evaluate` with made-up measurements."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lolat.api.model import Model
from tests import synthetic
from tests.cli.commands import Command, Measuring


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, model: Path, measuring: Measuring) -> Measuring:
    """This machine is a desk, which `model` is of."""
    document = synthetic.document()
    document["environment"] |= {"cpu": "a desk", "threads": 2, "processor": {"name": "a desk"}}
    model.write_text(json.dumps(document))
    measuring.model = Model.load(model)
    measuring.versions = {"framework_version": "2.21.0"}
    monkeypatch.setattr("lolat.microbench.environment.cpu_model", lambda: "a desk")
    monkeypatch.setattr("lolat.microbench.environment.cpu_count", lambda: 2)
    monkeypatch.setattr("lolat.microbench.environment.processor_facts", lambda: {"name": "a desk"})
    return measuring


def test_ten_networks_at_two_batch_sizes(lolat: Command, model: Path, device: Measuring) -> None:
    out = lolat.text("evaluate", model)
    ((backend, where, wanted),) = device.calls
    assert (backend, where) == ("tensorflow", "cpu")
    networks = {spec for spec, _, _ in wanted}
    assert sorted(wanted) == sorted((spec, n, ()) for spec in networks for n in (1, 4))
    assert len(networks) == 10
    assert all(spec.startswith("keras:") for spec in networks)
    error = "as predicted: median error 9.1 %, bias -9 %, 100 % within 10 %, "
    assert re.search(error + r"\d+ of 20 inside their intervals\n", out)


def test_json(lolat: Command, model: Path, device: Measuring) -> None:
    ask = ("evaluate", model, "keras:A", "keras:B", "--batch-size", 2, "--input-size", 96)
    answer = lolat.json(*ask)
    assert device.calls[0][2] == [("keras:A", 2, (96,)), ("keras:B", 2, (96,))]
    networks = [(n["network"], n["batch_size"]) for n in answer["networks"]]
    assert networks == [("keras:A", 2), ("keras:B", 2)]
    assert answer["summary"]["median"] == pytest.approx(1 - 1 / 1.1)
    assert answer["intervals"]["of"] == 2
    assert answer["intervals"]["inside"] == sum(n["inside"] for n in answer["networks"])
    assert (answer["predictor"], answer["noise_floor"], answer["ratio"]) == ("extended", 0.03, None)


def test_the_state_of_the_machine_is_told_and_corrects_nothing(
    lolat: Command, model: Path, device: Measuring
) -> None:
    ask = ("evaluate", model, "keras:A", "keras:B", "--batch-size", 2)
    alone = lolat.json(*ask)
    device.ratio = 1.2
    answer = lolat.json(*ask)
    rest = answer["ratio_taken_out"]
    assert rest["median"] == pytest.approx(abs(1.2 / 1.1 - 1))  # of 1 / 1.1, times the ratio
    assert answer == alone | {
        "ratio": pytest.approx(1.2), "ratio_taken_out": rest, "cause": "machine"
    }  # fmt: skip
    assert (answer["verdict"], answer["limit"], alone["cause"]) == ("fair", 0.1, "formula")
    predicted = device.model.predict(synthetic.network(stages=1, size=32, name="keras:A"), 2)
    first = answer["networks"][0]
    assert first["predicted_ms"] == pytest.approx(predicted.latency_ms)
    assert first["interval_ms"] == pytest.approx(list(predicted.interval_ms))
    assert answer["noise"]["busy"] == 1.3


def test_a_profile_learned_in_a_slow_spell_is_no_fault_of_the_formula(
    lolat: Command, tmp_path: Path, device: Measuring
) -> None:
    """However badly its own times repeat, a machine twice as fast is another than the learned one."""
    path = tmp_path / "noisy.json"
    document = dict(device.model.file.document) | {"noise": {"floor": 0.03, "repeatability": 3.33}}
    path.write_text(json.dumps(document))
    device.ratio = 0.48
    answer = lolat.json("evaluate", path, "keras:A")
    assert (answer["cause"], answer["limit"]) == ("machine", 0.2)
    text = lolat.text("evaluate", path, "keras:A")
    assert "(up to 20 % is usual), which was in a slow spell then: learn again." in text


def test_a_network_that_fails_is_listed(lolat: Command, model: Path, device: Measuring) -> None:
    device.failures = {"keras:B": "died"}
    assert "not measured: keras:B: died" in lolat.done("evaluate", model, "keras:A", "keras:B").out
    line = lolat.refused("evaluate", model, "keras:B", code=1)
    assert "no network could be measured (keras:B: died)" in line
    device.error = KeyboardInterrupt()
    assert lolat.refused("evaluate", model, "keras:A", code=130) == "lolat: interrupted"


def test_another_machine_or_version_is_a_warning(
    lolat: Command, model: Path, device: Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lolat.microbench.environment.cpu_model", lambda: "a rack")
    device.versions = {"framework_version": "3"}
    found = lolat.done("evaluate", model, "keras:A", "--json")
    (told,) = json.loads(found.out)["differences"]
    assert (told["field"], told["learned"], told["now"]) == ("processor", "a desk", "a rack")
    device.ratio = 1.5
    text = lolat.done("evaluate", model, "keras:A").out
    assert "not the machine of this profile: this is another processor: learned on a desk" in text
    assert "this is another machine, 50 % slower than that of the profile: learn this one." in text
    assert "has become" not in text
    processor, version = found.err.splitlines()
    assert "this is another processor: learned on a desk, here a rack" in processor
    assert "`lolat learn cpu --backend tensorflow` learns this one" in processor
    assert "framework version 2.21.0, here it is 3" in version


@pytest.mark.parametrize(
    ("environment", "backend"),
    [
        ({"framework": "tensorflow", "jit": True}, "tensorflow+jit"),
        ({"framework": "torch", "compile": True, "channels_last": False, "half": True},
         "torch+compile+half"),
        ({"framework": "onnxruntime"}, "onnxruntime"),
        ({"framework": "torch", "threads": 1, "threads_asked": 1}, "torch+threads=1"),
        ({}, "tensorflow"),
    ],
)  # fmt: skip
def test_the_backend_and_the_options_are_the_models(
    lolat: Command, tmp_path: Path, device: Measuring, environment: dict[str, Any], backend: str
) -> None:
    path = tmp_path / "other.json"
    where = {"device": "cpu", **environment}
    path.write_text(json.dumps(synthetic.document(environment=where, noise={"floor": 0.1})))
    assert lolat("evaluate", path, "A", "--batch-size", 2).code == 0
    assert device.calls == [(backend, "cpu", [("A", 2, ())])]


def test_a_gpu_of_others_is_not_measured_here(lolat: Command) -> None:
    line = lolat.refused("evaluate", "rtx-4090-amp", "timm:resnet50")
    assert line.endswith("`lolat evaluate rtx-4090-amp --table TIMES.csv`")


def test_other_programs_are_told_at_once(lolat: Command, model: Path, device: Measuring) -> None:
    device.others = 1.5
    assert "other programs use 1.5 of" in lolat.done("evaluate", model, "keras:A", "--json").err
