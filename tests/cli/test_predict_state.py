"""`lolat predict --state`: a prediction for a machine that is known to be so busy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import DeviceError, InputError
from lolat.model import load
from microbench.doctor import Difference
from tests import by_hand, synthetic
from tests.cli.commands import Command, Doctor

NETWORK = synthetic.network(name="Net")
TWICE = {"computing": 2.0, "moving": 2.0, "starting": 2.0}


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("lolat.readers.read", lambda network, size=None: NETWORK)
    return Command(capsys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(by_hand.document()))
    return path


def asked(lolat: Command, *arguments: object) -> dict[str, Any]:
    return dict(lolat.json("predict", *arguments))


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(document))
    return path


def test_a_machine_that_is_twice_as_slow_takes_twice_as_long(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    usual = asked(lolat, model, "Net")
    slow = asked(lolat, model, "Net", "--state", written(tmp_path, TWICE))
    assert usual["state"] is None
    assert slow["state"] == TWICE
    assert slow["latency_ms"] == pytest.approx(2.0 * usual["latency_ms"])
    for then, now in zip(usual["blocks"], slow["blocks"], strict=True):
        assert now["latency_ms"] == pytest.approx(2.0 * then["latency_ms"])
    assert sum(b["latency_ms"] for b in slow["blocks"]) == pytest.approx(slow["latency_ms"])
    low, high = slow["interval_ms"]
    assert low < slow["latency_ms"] < high


def test_the_file_that_doctor_writes_in_words_and_for_a_budget(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    of_doctor = {"verdict": "drifted", "state": TWICE, "networks": []}
    given = ("--state", written(tmp_path, of_doctor))
    usual = asked(lolat, model, "Net")["latency_ms"]
    assert asked(lolat, model, "Net", *given)["state"] == TWICE
    said = "in the state of the machine that was given"
    assert said in lolat("predict", model, "Net", *given).out
    assert said not in lolat.text("predict", model, "Net", "--max-ms", 1.5 * usual)
    assert lolat("predict", model, "Net", "--max-ms", 1.5 * usual, *given).code == 3


EXPECTED = (
    "expected a file that `lolat doctor MODEL --json` has written, or "
    '{"computing": 1.2, "moving": 1.1, "starting": 1.0}'
)


@pytest.mark.parametrize("code", [2, 21])
def test_a_file_that_cannot_be_read_is_found_out_before_the_network_is(
    lolat: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def never(*unused: object) -> None:
        raise AssertionError("a framework was started")

    monkeypatch.setattr("lolat.readers.read", never)
    path = tmp_path / "nothing.json" if code == 2 else tmp_path
    line = lolat.refused("predict", model, "Net", "--state", path)
    reason = "no such file" if code == 2 else "is a folder"
    assert line == f"lolat: --state {path}: {reason}; {EXPECTED}, or: now"


def test_now_is_what_the_models_networks_take_now(
    lolat: Command, model: Path, doctor: Doctor
) -> None:
    usual = load(model).predict(NETWORK).latency_ms
    doctor.ratio = 1.5
    found = asked(lolat, model, "Net", "--state", "now")
    assert found["state"] == pytest.approx(dict.fromkeys(TWICE, 1.5))
    assert found["latency_ms"] == pytest.approx(1.5 * usual, rel=1e-3)
    (call,) = doctor.calls
    assert (call["points"], call["label"]) == (105, "a desk, 2 threads")
    assert (call["backend"], call["device"]) == ("tensorflow", "cpu")


def test_now_on_another_machine(lolat: Command, model: Path, doctor: Doctor) -> None:
    """Also where the networks could be measured, as with another version."""
    doctor.differences = (Difference("threads", 2, 4),)
    assert lolat.refused("predict", model, "Net", "--state", "now") == (
        f"lolat: --state now: {model} is not of this machine or its framework (lolat doctor {model} says "
        "how they differ); expected a model that was learned here, or --state FILE"
    )


@pytest.mark.parametrize("error", [DeviceError("no cpu here"), InputError("none of the model's")])
def test_now_where_nothing_can_be_measured(
    lolat: Command, model: Path, doctor: Doctor, error: Exception
) -> None:
    doctor.error = error
    assert str(error) in lolat.refused("predict", model, "Net", "--state", "now")
