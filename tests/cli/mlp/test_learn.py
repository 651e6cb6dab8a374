"""`lolat mlp learn`: wrong calls, what goes where, and a whole run on a few layers."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from lolat.cli import mlp_fit as fit_module
from lolat.errors import DeviceError, LolatError
from lolat.mlp.devices import Device, read_devices
from lolat.mlp.table import read_table
from microbench import learn as measuring
from microbench import learn_layers, worker
from microbench.runner import Runner, graph_job
from tests.cli.commands import Command
from tests.microbench.fakes import FakeDevice, small

FIT = fit_module.fit
FACTS = Device("EPYC 2 threads", 7.5, 64, 2596.0)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A device on which every layer takes 2 ms."""
    found = FakeDevice()
    monkeypatch.setattr(
        measuring, "Runner", lambda b, d, p: Runner(b, d, p, found.start, found.clock)
    )
    monkeypatch.setattr(
        "microbench.environment.device_label",
        lambda device, name=None, threads=None: name or "EPYC, 2 threads",
    )
    monkeypatch.setattr(learn_layers, "cpu_facts", lambda name: FACTS)
    return found


def instead_of_fit(monkeypatch: pytest.MonkeyPatch, callback: Callable[..., Any]) -> None:
    """`lolat mlp fit` is this, of the same options."""
    stub = click.Command("fit", callback=callback, params=FIT.params)
    monkeypatch.setattr(fit_module, "fit", stub)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `lolat mlp fit` was asked for, instead of doing it."""
    asked: list[dict[str, Any]] = []

    def note(**options: Any) -> None:
        asked.append(options)
        click.echo("fitted")

    instead_of_fit(monkeypatch, note)
    return asked


def learn(output: Path, device: str = "cpu") -> tuple[object, ...]:
    return ("mlp", "learn", device, "--count", 20, "--backend", "torch", "--output", output)


def test_layers_are_measured_written_and_trained_on(
    lolat: Command, device: FakeDevice, fitted: list[dict[str, Any]], tmp_path: Path
) -> None:
    output = tmp_path / "m.json"
    found = lolat(
        "mlp", "learn", "cpu", "--count", 25, "--output", output, "--recipe", "paper", "--seed", 3,
        "--backend", "torch",
    )  # fmt: skip
    assert (found.code, found.out) == (0, "fitted\n")
    table, record = tmp_path / "m.csv", tmp_path / "m.csv.devices.json"
    rows = read_table(table, "convolution")
    assert len(rows) == 25
    assert set(rows["gpu"]) == {"EPYC 2 threads"}
    assert set(rows.times_ms) == {2.0}
    assert read_devices(record) == {FACTS.name: FACTS}
    how = json.loads(record.read_text())["layers"]
    assert how.pop("seconds") >= 0
    assert how == {"kind": "convolution", "points": 25, "seed": 3, "most_work_macs": 1e9}
    (asked,) = fitted
    assert {k: asked[k] for k in ("table", "layer", "recipe", "facts", "output", "seed", "only")} == {
        "table": str(table), "layer": "convolution", "recipe": "paper", "facts": str(record),
        "output": output, "seed": 3, "only": None,
    }  # fmt: skip
    assert f"25 convolution layers are in {table}" in found.err
    assert all(line.startswith("lolat: ") for line in found.err.splitlines())
    assert sorted(os.listdir(tmp_path)) == ["m.csv", "m.csv.devices.json"], "the journal is gone"


def test_dense_layers_into_a_table_of_another_name(
    lolat: Command, device: FakeDevice, fitted: list[dict[str, Any]], tmp_path: Path
) -> None:
    table = tmp_path / "more" / "dense.csv.gz"
    lolat.done(
        "mlp", "learn", "cpu", "--count", 20, "--layer", "dense", "--csv", table, "--backend",
        "tensorflow", "--output", tmp_path / "d.json", "--max-gmacs", 0.1,
    )  # fmt: skip
    rows = read_table(table, "dense")
    assert len(rows) == 20
    # a number moved counts 64 multiply-accumulates
    assert (64 * rows["in_features"] * rows["out_features"]).max() < 1e8
    assert (table.parent / "dense.csv.gz.devices.json").is_file()
    assert fitted[0]["recipe"] == "best"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cpu"], "cpu-epyc-2-threads-convolution.json"),
        (["cpu", "--layer", "dense"], "cpu-epyc-2-threads-dense.json"),
        (["cpu", "--backend", "torch"], "cpu-epyc-2-threads-torch-convolution.json"),
    ],
)
def test_the_model_has_a_name_of_its_own_beside_those_of_networks(
    lolat: Command, device: FakeDevice, fitted: list[dict[str, Any]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path)
    monkeypatch.setattr(worker, "pick", lambda device, options: ("tensorflow", ""))
    lolat.done("mlp", "learn", *arguments, "--count", 20)
    assert fitted[0]["output"] == tmp_path / "mlp" / said


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(**options: Any) -> None:
        raise error

    return fail


def test_the_journal_stays_until_the_model_is_there(
    lolat: Command, device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, journal = tmp_path / "m.json", tmp_path / "m.json.journal.jsonl"
    instead_of_fit(monkeypatch, raising(LolatError("the disk is full")))
    found = lolat(*learn(output))
    assert (found.code, found.err.splitlines()[-1]) == (1, "lolat: the disk is full")
    assert journal.exists()
    asked = len(device.keys("time"))
    instead_of_fit(monkeypatch, raising(KeyboardInterrupt()))
    found = lolat(*learn(output))
    assert found.code == 130
    assert found.err.splitlines()[-1] == (
        f"lolat: interrupted; what was measured is in {journal}, give the same command again to go on"
    )
    instead_of_fit(monkeypatch, lambda **options: None)
    assert "going on from" in lolat.done(*learn(output)).err
    assert len(device.keys("time")) == asked, "nothing is measured twice"
    assert not journal.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cpu", "--count", "19"], "'19': expected a whole number from 20"),
        (["cpu", "--backend", "onnxruntime"], "'onnxruntime' is not one of 'tensorflow', 'torch'"),
        (["cpu", "--max-gmacs", "0"], "'0': expected a number of 10^9 multiply-accumulates above 0"),
        (["cpu", "--max-gmacs", "1e-9", "--backend", "torch"], "of 819200 random convolution layers 0 "
         "have at most 1 MACs of work; expected 2000: allow larger ones"),
        (["cpu", "--backend", "torch", "--output", "."], "--output . is a folder"),
        (["cpu", "--backend", "torch", "--csv", "."], "File '.' is a directory"),
        (["cpu", "--backend", "torch", "--csv", "/dev/null/x.csv"], "give --csv elsewhere"),
        (["cpu", "--backend", "torch", "--csv", "m.json"], "--csv and --output are both m.json; expected "
         "two files"),
        (["cpu", "--facts", "nothing.csv"], "nothing.csv: no such file"),
    ],
)  # fmt: skip
def test_a_wrong_call(
    lolat: Command, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--output" not in arguments:
        arguments = [*arguments, "--output", "m.json"]
    assert said in lolat.refused("mlp", "learn", *arguments)
    assert os.listdir(tmp_path) == []


def test_a_gpu_without_facts_is_refused_before_it_is_measured(
    lolat: Command, device: FakeDevice, fitted: list[dict[str, Any]], tmp_path: Path
) -> None:
    device.environment = {"framework": "fake", "device_name": "Banana 9000"}
    command = learn(tmp_path / "m.json", "gpu")
    said = lolat.refused(*command)
    assert "unknown GPU 'Banana 9000'" in said
    assert "--facts FILE" in said
    assert device.keys("prepare") == []
    facts = tmp_path / "facts.csv"
    facts.write_text("name,bandwidth,cores,clock\nBanana 9000,100,1000,1500\n")
    assert lolat(*command, "--facts", facts).code == 0
    assert read_devices(tmp_path / "m.csv.devices.json")["Banana 9000"].bandwidth_gbs == 100
    how = json.loads((tmp_path / "m.csv.devices.json").read_text())["layers"]
    assert how["most_work_macs"] is None, "a GPU takes the paper's layers as they are"


def test_a_computer_without_a_framework_that_trains(
    lolat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        worker, "pick", lambda device, options: ("onnxruntime", "measuring with it")
    )
    said = lolat.refused("mlp", "learn", "cpu", "--output", tmp_path / "m.json")
    assert "onnxruntime is installed, but runs no backward pass" in said
    assert "[tensorflow]'" in said

    def none(device: str, options: Any) -> Any:
        raise DeviceError("no gpu here")

    monkeypatch.setattr(worker, "pick", none)
    assert "no gpu here" in lolat.refused("mlp", "learn", "gpu", "--output", tmp_path / "m.json")


def test_a_whole_run(lolat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, but beside a small block, and without measuring again what a noisy machine disturbed."""
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(learn_layers, "reference_job", lambda: graph_job(small(), "small", 1))
    settings = replace(learn_layers.SETTINGS, rounds=2, extra_s=0.0)
    quick = functools.partial(learn_layers.measure_layers, settings=settings)
    monkeypatch.setattr(learn_layers, "measure_layers", quick)
    output, table = tmp_path / "m.json", tmp_path / "m.csv"
    lolat.done(
        "mlp", "learn", "cpu", "--count", 20, "--layer", "dense", "--backend", "torch",
        "--max-gmacs", 0.05, "--recipe", "paper", "--epochs", 3, "--output", output,
    )  # fmt: skip
    rows = read_table(table, "dense")
    assert len(rows) == 20
    assert (rows["time_ms_min"] <= rows.times_ms).all()
    assert (rows.times_ms <= rows["time_ms_max"]).all()
    predicted = tmp_path / "out.csv"
    lolat.done("mlp", "predict", output, table, "--output", predicted)
    assert len(predicted.read_text().splitlines()) == 21
