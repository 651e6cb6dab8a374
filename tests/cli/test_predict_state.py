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
    found = lolat("predict", *arguments, "--json")
    assert (found.code, found.err) == (0, "")
    answer: dict[str, Any] = json.loads(found.out)
    return answer


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


def test_the_file_that_doctor_writes(lolat: Command, model: Path, tmp_path: Path) -> None:
    of_doctor = {"verdict": "drifted", "state": TWICE, "networks": []}
    found = asked(lolat, model, "Net", "--state", written(tmp_path, of_doctor))
    assert found["state"] == TWICE


def test_the_text_says_that_it_is_for_a_state(lolat: Command, model: Path, tmp_path: Path) -> None:
    said = "in the state of the machine that was given"
    assert said in lolat("predict", model, "Net", "--state", written(tmp_path, TWICE)).out
    assert said not in lolat("predict", model, "Net").out


def test_a_budget_is_held_against_that_state(lolat: Command, model: Path, tmp_path: Path) -> None:
    between = 1.5 * asked(lolat, model, "Net")["latency_ms"]
    assert lolat("predict", model, "Net", "--max-ms", between).code == 0
    slow = lolat("predict", model, "Net", "--max-ms", between, "--state", written(tmp_path, TWICE))
    assert slow.code == 3


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


@pytest.mark.parametrize("differs", [True, False])
def test_now_on_another_machine(lolat: Command, model: Path, doctor: Doctor, differs: bool) -> None:
    """Also where the networks could be measured, as with another version."""
    doctor.differences = (Difference("threads", 2, 4),)
    doctor.networks = 5 * differs
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


def test_now_of_a_model_without_networks(lolat: Command, model: Path) -> None:
    said = lolat.refused("predict", model, "Net", "--state", "now")
    assert "none of the model's 105 points is a whole network of this version" in said


def test_now_of_a_framework_that_this_version_cannot_measure(
    lolat: Command, tmp_path: Path, doctor: Doctor
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(synthetic.document(environment={"framework": "jax"})))
    assert "no backend 'jax'; this version has" in lolat.refused(
        "predict", path, "Net", "--state", "now"
    )
    assert doctor.calls == []


def test_ctrl_c_while_measuring(lolat: Command, model: Path, doctor: Doctor) -> None:
    doctor.error = KeyboardInterrupt()
    found = lolat("predict", model, "Net", "--state", "now")
    assert (found.code, found.out) == (130, "")
