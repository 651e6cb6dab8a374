"""`lolat mlp learn`: wrong calls, what goes where, and a whole run on a few layers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from lolat.cli import mlp_fit as fit_module
from lolat.errors import LolatError
from lolat.mlp.devices import DEVICES, read_devices
from lolat.mlp.table import read_table
from microbench import learn as measuring
from microbench import learn_layers
from microbench.blocks import Predefined
from microbench.runner import Runner, Settings
from tests.cli.commands import Command
from tests.microbench.fakes import FakeDevice, small

FIT = fit_module.fit
NAME = "EPYC 2 threads"


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
    table, facts = tmp_path / "m.csv", tmp_path / "m.devices.json"
    rows = read_table(table, "convolution")
    assert len(rows) == 25
    assert set(rows["gpu"]) == {NAME}
    assert rows.times_ms == pytest.approx(2.0)
    assert read_devices(facts)[NAME].cores > 0, "fit asks for the facts of every device"
    (asked,) = fitted
    assert {k: asked[k] for k in ("table", "layer", "recipe", "facts", "output", "seed", "only")} == {
        "table": str(table), "layer": "convolution", "recipe": "paper", "facts": str(facts),
        "output": output, "seed": 3, "only": None,
    }  # fmt: skip
    assert f"25 convolution layers are in {table}" in found.err
    assert all(line.startswith("lolat: ") for line in found.err.splitlines())
    assert sorted(os.listdir(tmp_path)) == ["m.csv", "m.devices.json"], "the journal is gone"


def test_layers_of_a_gpu_with_a_data_sheet(
    lolat: Command, device: FakeDevice, fitted: list[dict[str, Any]], tmp_path: Path
) -> None:
    device.environment = {"framework": "fake", "device_name": "Tesla P100"}
    lolat.done(*learn(tmp_path / "d.json", "gpu"))
    rows = read_table(tmp_path / "d.csv", "convolution")
    assert (len(rows), set(rows["gpu"])) == (20, {"Tesla P100"})
    read_elements = rows["batch_size"] * rows["input_size"] ** 2 * rows["in_channels"]
    assert (64 * read_elements).max() > 2e9, "a GPU takes larger ones"
    assert read_devices(tmp_path / "d.devices.json") == {"P100": DEVICES["P100"]}
    assert fitted[0]["recipe"] == "best"


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
    asked = len(device.keys("sample"))
    instead_of_fit(monkeypatch, raising(KeyboardInterrupt()))
    found = lolat(*learn(output))
    assert found.code == 130
    assert found.err.splitlines()[-1] == (
        f"lolat: interrupted; what was measured is in {journal}, give the same command again to go on"
    )
    instead_of_fit(monkeypatch, lambda **options: None)
    assert "going on from" in lolat.done(*learn(output)).err
    assert len(device.keys("sample")) == asked, "nothing is measured twice"
    assert not journal.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cpu", "--count", "19"], "'19': expected a whole number from 20"),
        (["cpu", "--backend", "onnxruntime"], "'onnxruntime' is not one of 'tensorflow', 'torch'"),
        (["cpu", "--output", "."], "--output . is a folder"),
        (["tpu"], "'tpu' is not one of 'cpu', 'gpu'"),
    ],
)
def test_a_wrong_call(
    lolat: Command, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--output" not in arguments:
        arguments = [*arguments, "--output", "m.json"]
    assert said in lolat.refused("mlp", "learn", *arguments)
    assert os.listdir(tmp_path) == []


def test_a_whole_run(lolat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, but with small layers, twice each, after a small network."""
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    networks = (Predefined("net", small, (1,), True),)
    monkeypatch.setattr(measuring, "references", lambda: networks)
    monkeypatch.setattr(learn_layers, "SETTINGS", Settings(rounds=2))
    monkeypatch.setattr(learn_layers, "MOST_MACS", {"cpu": 5e7})
    output, table = tmp_path / "m.json", tmp_path / "m.csv"
    done = lolat.done(*learn(output), "--layer", "dense", "--recipe", "paper", "--epochs", 3)
    assert f"the facts in {tmp_path / 'm.devices.json'} are made up" in done.err
    rows = read_table(table, "dense")
    assert len(rows) == 20
    assert (rows["time_ms_min"] > 0).all()
    assert (rows["time_ms_min"] <= rows["time_ms_max"]).all()
    predicted = tmp_path / "out.csv"
    lolat.done("mlp", "predict", output, table, "--output", predicted)
    assert len(predicted.read_text().splitlines()) == 21
