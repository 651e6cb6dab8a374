"""`lolat doctor`: with made-up times, and from the file to the verdict with a fake worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lolat.errors import DeviceError
from lolat.fitting.blocks import fitted_file
from lolat.graph.counts import count
from lolat.microbench import environment
from lolat.microbench.blocks import BLOCKS, NETWORKS
from lolat.microbench.environment import Difference
from lolat.microbench.learn import REFERENCES
from lolat.tables.blocks import Point
from tests import synthetic
from tests.cli.commands import Command, Measuring
from tests.microbench.fakes import FakeDevice


@pytest.fixture
def model(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of this machine, a desk."""
    monkeypatch.setattr(environment, "cpu_model", lambda: "a desk")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment, "processor_facts", lambda: {"name": "a desk", "threads": 2})
    return model


def test_a_model_that_holds(lolat: Command, model: Path, measuring: Measuring) -> None:
    measuring.ratio = 1.02
    before = model.read_bytes()
    out = lolat.text("doctor", model)
    assert "ok: this profile is good for this machine now." in out
    assert "2.0 % slower at the median (1.02 to 1.02 times as long)" in out
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model], "of a model without a date there is no state"
    assert measuring.calls == [("tensorflow", "cpu", [])]


def test_a_machine_that_takes_many_times_as_long(
    lolat: Command, model: Path, measuring: Measuring
) -> None:
    """One measure of it: not 42.8 times slower beside 43.8 times as long."""
    measuring.ratio, measuring.others = 43.8, 1.5
    done = lolat("doctor", model)
    assert done.code == 3
    assert "43.8 times as long at the median (43.8 to 43.8)" in done.out
    assert "slower" not in done.out
    assert "the machine is busy before the run" in done.err


def test_a_gpu_that_is_not_there_is_a_difference(
    lolat: Command, tmp_path: Path, measuring: Measuring
) -> None:
    path = tmp_path / "gpu.json"
    document = synthetic.document(device="NVIDIA T4", environment={"device": "gpu"})
    path.write_text(json.dumps(document))
    measuring.ratio, measuring.error = 1.0, DeviceError("no gpu here")
    answer = lolat.json("doctor", path, code=3)
    assert answer["differences"] == [{"field": "device", "learned": "NVIDIA T4", "now": None}]
    assert answer["warnings"] == ["no gpu here"]
    measuring.error, measuring.versions = None, {"device_name": "NVIDIA L4"}
    answer = lolat.json("doctor", path, code=3)
    assert (answer["differences"][0]["now"], answer["networks"]) == ("NVIDIA L4", [])
    measuring.versions = {"device_name": "NVIDIA T4"}
    assert lolat.json("doctor", path)["verdict"] == "ok"


def test_where_there_is_nothing_to_measure(
    lolat: Command, model: Path, measuring: Measuring
) -> None:
    assert "no whole network of this version" in lolat.refused("doctor", model)
    measuring.ratio, measuring.error = 1.0, DeviceError("no cpu here")
    assert lolat.refused("doctor", model) == "lolat: no cpu here", (
        "without a CPU there is no answer"
    )


def test_an_answer_of_the_machine_as_it_is_now(
    lolat: Command, model: Path, measuring: Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network(name="A", size=64))
    document = json.loads(model.read_text())
    document["noise"]["repeatability"] = 0.2
    model.write_text(json.dumps(document))
    measuring.ratio = 1.5
    usual, now = (lolat.json("predict", model, "keras:A", *o) for o in ((), ("--now",)))
    assert now["latency_ms"] == pytest.approx(1.5 * usual["latency_ms"])
    assert [b["latency_ms"] for b in now["blocks"]] == pytest.approx(
        [1.5 * b["latency_ms"] for b in usual["blocks"]]
    )
    assert any("1.50 times as long as learned" in warning for warning in now["warnings"])
    # Times that repeated within 20 % while learning may do so right after the check too.
    widths = [answer["interval_ms"][1] / answer["interval_ms"][0] for answer in (now, usual)]
    assert widths[0] >= (1.0 - 1e-9) * widths[1]
    document["noise"]["repeatability"] = 0.01
    model.write_text(json.dumps(document))
    steady = lolat.answer("predict", model, "keras:A", "--now")["interval_ms"]
    assert 1.0 < steady[1] / steady[0] < 0.8 * widths[0]
    assert "1.50 times as long" in lolat.text("report", model, "keras:A", "--now")
    assert "measure again" in lolat.refused("predict", "t4-fp32", "keras:A", "--now")
    here = Difference("device", "an EPYC", "a desk")
    monkeypatch.setattr(environment, "differences_of_device", lambda *_: (here,))
    assert "--now: epyc-2t cannot be" in lolat.refused("predict", "epyc-2t", "keras:A", "--now")


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, model: Path) -> FakeDevice:
    fake = FakeDevice()
    fake.environment = {"framework": "tensorflow", "framework_version": "2.21.0"}
    monkeypatch.setattr("lolat.microbench.runner.WorkerProcess", fake.start)
    return fake


@pytest.mark.parametrize(
    ("now_ms", "others", "verdict"),
    [(2.0, 0.0, "ok"), (2.6, 0.0, "drifted"), (2.6, 0.9, "unsettled")],
)
def test_from_the_file_to_the_verdict(
    lolat: Command, tmp_path: Path, desk: FakeDevice, monkeypatch: pytest.MonkeyPatch,
    now_ms: float, others: float, verdict: str,
) -> None:  # fmt: skip
    """Everything but the worker."""
    points = [
        Point(b.name, n, count(g).total(n)._asdict(), 2.0, (2.0,), (), 0.0, ("conv",), b.whole)
        for b in (*BLOCKS[:12], *NETWORKS)
        for g in [b.make()]
        for n in b.batch_sizes
    ]
    noise = {"floor": 0.01, "quiet": 0.9, "busy": 1.2}
    path = tmp_path / "m.json"
    made = fitted_file("desk", "a desk, 2 threads", points, desk.environment, noise)
    path.write_text(json.dumps(made.document))
    desk.others = others
    desk.ms = {f"{name} x1": now_ms for name in REFERENCES}
    done = lolat("doctor", path, "--json")
    answer = json.loads(done.out)
    assert done.code == (0 if verdict == "ok" else 3)
    assert (answer["verdict"], answer["ratio"]) == (verdict, pytest.approx(now_ms / 2))
    assert sorted(n["name"] for n in answer["networks"]) == sorted(REFERENCES)
    assert [n["now_ms"] for n in answer["networks"]] == pytest.approx([now_ms] * 5)
    assert all(w.closed for w in desk.workers)


ZEN_5 = {"name": "AMD EPYC", "vendor": "AuthenticAMD", "family": 26, "model": 2, "threads": 2}


def test_the_bundled_profiles_of_this_very_processor_are_named(
    lolat: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its numbers: a cloud calls a Zen 4 and a Zen 5 "AMD EPYC"; of doctor the one of its framework."""
    monkeypatch.setattr(environment, "processor_facts", lambda: dict(ZEN_5))
    monkeypatch.setattr(environment, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    done = lolat("doctor", "epyc-2t-torch")
    assert done.code == 3
    assert "bundled for this very processor: epyc-zen5-2t-torch (PyTorch, 2 threads)" in done.out
    assert "`lolat predict epyc-zen5-2t-torch NETWORK`" in done.out
    every = (
        "epyc-zen5-2t (TensorFlow, 2 threads), epyc-zen5-2t-onnxruntime (ONNX Runtime, 2 threads), "
    )
    assert every + "epyc-zen5-2t-torch" in lolat.refused("predict", "local", "timm:resnet50")
    monkeypatch.setattr(environment, "processor_facts", lambda: {"name": "AMD EPYC"})
    assert "bundled for" not in lolat.refused("predict", "local", "timm:resnet50")
