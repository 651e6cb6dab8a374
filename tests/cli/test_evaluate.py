"""`lolat evaluate` with made-up measurements."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lolat.fitting.points import Point
from lolat.model import load
from microbench.doctor import Again
from microbench.environment import UNSAID
from microbench.evaluate import Case, Evaluation, MeasuredNetwork
from tests import synthetic
from tests.cli.commands import Command


class Device:
    """In place of measuring: every network takes a tenth longer than predicted."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failures: dict[str, str] = {}
        self.error: BaseException | None = None
        self.cpu = "a desk"
        self.versions: dict[str, Any] = {"framework_version": "2.21.0"}
        self.ratio: float | None = None  # of the model's own networks; None: it has none
        self.points = 0
        self.model: Any = None

    def measure(
        self, backend: str, device: str, wanted: Sequence[Case], points: Sequence[Point] = (),
        progress: Any = None,
    ) -> Evaluation:  # fmt: skip
        self.calls.append(
            (backend, device, tuple((c.spec, c.batch_size, c.input_size) for c in wanted))
        )
        self.points = len(points)
        if self.error is not None:
            raise self.error
        found = []
        names = list(dict.fromkeys(c.spec for c in wanted))
        for case in wanted:
            i = names.index(case.spec)
            graph = synthetic.network(stages=1 + i % 4, size=32 + 8 * i, name=case.spec)
            if case.spec not in self.failures:
                time = 1.1 * self.model.predict(graph, case.batch_size).latency_ms
                found.append(MeasuredNetwork(case.spec, graph, case.batch_size, time, 0.01))
        own = () if self.ratio is None else points[:5]
        again = tuple(Again(p, (self.ratio or 1.0) * p.latency_ms) for p in own)
        noise = {"floor": 0.02, "quiet": 0.9, "busy": 1.3}
        return Evaluation(tuple(found), self.failures, again, self.versions, noise)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, model: Path) -> Device:
    fake = Device()
    document = synthetic.document()
    document["environment"] |= {"cpu": "a desk", "threads": 2, "processor": {"name": "a desk"}}
    model.write_text(json.dumps(document))
    fake.model = load(model)
    monkeypatch.setattr("microbench.evaluate.measure_cases", fake.measure)
    monkeypatch.setattr("microbench.environment.cpu_model", lambda: fake.cpu)
    monkeypatch.setattr("microbench.environment.cpu_count", lambda: 2)
    monkeypatch.setattr("microbench.environment.processor_facts", lambda: {"name": fake.cpu})
    return fake


def test_ten_networks_at_two_batch_sizes(lolat: Command, model: Path, device: Device) -> None:
    out = lolat.text("evaluate", model)
    ((backend, where, wanted),) = device.calls
    assert (backend, where) == ("tensorflow", "cpu")
    networks = {spec for spec, _, _ in wanted}
    assert sorted(wanted) == sorted((spec, n, ()) for spec in networks for n in (1, 4))
    assert len(networks) == 10
    assert all(spec.startswith("keras:") for spec in networks)
    assert device.points == 105, "of the model, to choose from"
    error = "as predicted: median error 9.1 %, bias -9 %, 100 % within 10 %, "
    assert re.search(error + r"\d+ of 20 inside their intervals\n", out)
    assert re.search(r"intervals of 90 %: \d+ .. \d+ % inside with 95 % certainty", out)
    assert "machine meanwhile: not known, the model has no networks of its own that tell\n" in out


def test_json(lolat: Command, model: Path, device: Device) -> None:
    ask = ("evaluate", model, "keras:A", "keras:B", "--batch-size", 2, "--input-size", 96)
    answer = lolat.json(*ask)
    assert device.calls[0][2] == (("keras:A", 2, (96,)), ("keras:B", 2, (96,)))
    found = [(n["network"], n["batch_size"]) for n in answer["networks"]]
    assert found == [("keras:A", 2), ("keras:B", 2)]
    assert answer["summary"]["median"] == pytest.approx(1 - 1 / 1.1)
    assert answer["intervals"]["of"] == 2
    assert answer["intervals"]["inside"] == sum(n["inside"] for n in answer["networks"])
    assert (answer["predictor"], answer["noise_floor"], answer["ratio"]) == ("extended", 0.03, None)


def test_what_the_models_networks_say_of_the_machine_is_told_and_corrects_nothing(
    lolat: Command, model: Path, device: Device
) -> None:
    ask = ("evaluate", model, "keras:A", "keras:B", "--batch-size", 2)
    alone = lolat.json(*ask)
    device.ratio = 1.2
    answer = lolat.json(*ask)
    taken_out = answer["ratio_taken_out"]
    assert answer == alone | {
        "ratio": pytest.approx(1.2), "ratio_taken_out": taken_out, "cause": "machine",
    }  # fmt: skip
    assert taken_out["bias"] == pytest.approx(1.2 / 1.1 - 1)
    assert (answer["verdict"], answer["limit"], alone["cause"]) == ("fair", 0.1, "unknown")
    predicted = device.model.predict(synthetic.network(stages=1, size=32, name="keras:A"), 2)
    first = answer["networks"][0]
    assert first["predicted_ms"] == pytest.approx(predicted.latency_ms)
    assert first["interval_ms"] == pytest.approx(list(predicted.interval_ms))
    assert answer["noise"] == {"floor": 0.02, "quiet": 0.9, "busy": 1.3}
    told = (
        "machine meanwhile: 1.20 times as long as learned; with that taken out median error 9.1 %"
    )
    assert told in lolat("evaluate", model, "keras:A").out


def test_a_plot(
    lolat: Command, model: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = tmp_path / "plot.svg"
    ask = ("evaluate", model, "keras:A", "--plot", plot)
    assert lolat.done(*ask).err == f"lolat: drawn: {plot}\n"
    assert "measured, ms" in plot.read_text()
    assert lolat.answer(*ask)

    def full(*unused: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    failed = lolat(*ask, "--json")
    assert failed.code == 1
    assert json.loads(failed.out)["networks"], "what was measured is not lost"
    assert f"{plot}: not written, the disk is full" in failed.err


@pytest.mark.parametrize("name", ["plot.gif", "no/plot.svg"])
def test_a_plot_that_cannot_be_drawn_is_found_out_before_measuring(
    lolat: Command, model: Path, device: Device, tmp_path: Path, name: str
) -> None:
    assert "--plot" in lolat.refused("evaluate", model, "--plot", tmp_path / name)
    assert device.calls == []


def test_what_failed_is_said(lolat: Command, model: Path, device: Device) -> None:
    device.failures = {"keras:B": "died"}
    out = lolat.done("evaluate", model, "keras:A", "keras:B").out
    assert "not measured: keras:B: died" in out
    line = lolat.refused("evaluate", model, "keras:B", code=1)
    assert "no network could be measured (keras:B: died)" in line


def test_where_nothing_can_be_measured(lolat: Command, model: Path, device: Device) -> None:
    device.error = KeyboardInterrupt()
    assert lolat.refused("evaluate", model, "keras:A", code=130) == "lolat: interrupted"


def test_another_machine_or_version_is_a_warning(
    lolat: Command, model: Path, device: Device
) -> None:
    device.cpu, device.versions = "a rack", {"framework_version": "3"}
    found = lolat.done("evaluate", model, "keras:A", "--json")
    json.loads(found.out)
    processor, version = found.err.splitlines()
    assert processor.startswith("lolat: warning: ")
    assert "this is another processor: learned on a desk, here a rack" in processor
    assert "framework_version 2.21.0, this is 3" in version


@pytest.mark.parametrize(
    ("environment", "here", "words"),
    [
        ({"framework": "tensorflow", "device": "gpu"}, {"device_name": "NVIDIA T4"}, []),
        ({"framework": "tensorflow", "device": "gpu"}, {"device_name": "NVIDIA L4"},
         ["this is another device: learned on NVIDIA T4, here NVIDIA L4"]),
        ({"framework": "torch", "device": "cpu", "cuda_version": "12.4", "tf32": {"a": True}},
         {"cuda_version": "12.8", "tf32": {"a": True}},
         [UNSAID, "learned with cuda_version 12.4, this is 12.8"]),
    ],
)  # fmt: skip
def test_what_the_backend_says_of_a_device_is_compared(
    lolat: Command, tmp_path: Path, device: Device,
    environment: dict[str, Any], here: dict[str, Any], words: list[str],
) -> None:  # fmt: skip
    path = tmp_path / "other.json"
    label = "NVIDIA T4" if environment["device"] == "gpu" else "a desk, 2 threads"
    path.write_text(json.dumps(synthetic.document(device=label, environment=environment)))
    device.versions = here
    lines = lolat("evaluate", path, "A").err.splitlines()
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


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
    lolat: Command, tmp_path: Path, device: Device, environment: dict[str, Any], backend: str
) -> None:
    path = tmp_path / "other.json"
    document = synthetic.document(
        environment={"device": "cpu", **environment}, noise={"floor": 0.1}
    )
    path.write_text(json.dumps(document))
    assert lolat("evaluate", path, "A", "--batch-size", 2).code == 0
    assert device.calls == [(backend, "cpu", (("A", 2, ()),))]


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        # a command as it stands
        ("torch", "lolat evaluate {} torchvision.models:resnet50 --input-size 224"),
        ("onnxruntime", "lolat evaluate {} network.onnx"),
        ("jax", "no backend 'jax'; this version has"),
    ],
)
def test_without_networks_for_a_backend_that_has_none(
    lolat: Command, tmp_path: Path, device: Device, framework: str, words: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(synthetic.document(environment={"framework": framework})))
    line = lolat.refused("evaluate", path)
    assert words.format(path) in line
    assert framework in line
    assert device.calls == []


def test_a_gpu_of_others_is_not_measured_here(lolat: Command) -> None:
    line = lolat.refused("evaluate", "rtx-4090-amp", "timm:resnet50")
    assert "which this machine is not" in line
    assert line.endswith("`lolat evaluate rtx-4090-amp --table TIMES.csv`")
