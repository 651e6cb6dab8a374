"""`lolat predict --state`: a prediction for a machine that is known to be so busy."""

from __future__ import annotations

import json
import os
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


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(document))
    return path


def test_a_machine_that_is_twice_as_slow_takes_twice_as_long(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    usual = lolat.json("predict", model, "Net")
    slow = lolat.json("predict", model, "Net", "--state", written(tmp_path, TWICE))
    assert (usual["state"], slow["state"]) == (None, TWICE)
    assert slow["latency_ms"] == pytest.approx(2.0 * usual["latency_ms"])
    for then, now in zip(usual["blocks"], slow["blocks"], strict=True):
        assert now["latency_ms"] == pytest.approx(2.0 * then["latency_ms"])
    assert sum(b["latency_ms"] for b in slow["blocks"]) == pytest.approx(slow["latency_ms"])
    low, high = slow["interval_ms"]
    assert low < slow["latency_ms"] < high


def test_each_kind_slows_down_its_own_terms(lolat: Command, model: Path, tmp_path: Path) -> None:
    """By hand from the formula: the call and starting operations take five times as long."""
    started = by_hand.COEFFICIENTS["ops"] * synthetic.totals(NETWORK)["ops"]
    started += by_hand.COEFFICIENTS["call"]
    state = written(tmp_path, {"computing": 1.0, "moving": 1.0, "starting": 5.0})
    usual = lolat.json("predict", model, "Net")["latency_ms"]
    slow = lolat.json("predict", model, "Net", "--state", state)["latency_ms"]
    assert slow == pytest.approx(usual + 4.0 * started)


def test_the_file_that_doctor_writes(lolat: Command, model: Path, tmp_path: Path) -> None:
    state = written(tmp_path, {"verdict": "drifted", "state": TWICE, "networks": []})
    assert lolat.json("predict", model, "Net", "--state", state)["state"] == TWICE
    words = "in the state of the machine that was given"
    assert words in lolat("predict", model, "Net", "--state", state).out
    assert words not in lolat("predict", model, "Net").out


def test_the_interval_is_that_of_a_machine_whose_state_is_known(
    lolat: Command, tmp_path: Path
) -> None:
    """Without the drift between calm and busy moments, which a usual prediction has to hold."""
    path = tmp_path / "desk.json"
    noise = {"floor": 0.03, "quiet": 0.7, "busy": 2.0}
    path.write_text(json.dumps(by_hand.document(noise=noise)))
    usual = lolat.json("predict", path, "Net")
    state = written(tmp_path, dict.fromkeys(TWICE, 1.0))
    same = lolat.json("predict", path, "Net", "--state", state)
    assert same["latency_ms"] == pytest.approx(usual["latency_ms"])
    assert same["interval_ms"][0] > usual["interval_ms"][0]
    assert same["interval_ms"][1] < usual["interval_ms"][1]


def test_a_budget_is_held_against_that_state(lolat: Command, model: Path, tmp_path: Path) -> None:
    between = 1.5 * lolat.json("predict", model, "Net")["latency_ms"]
    ask = ("predict", model, "Net", "--max-ms", between)
    assert lolat(*ask).code == 0
    assert lolat(*ask, "--state", written(tmp_path, TWICE)).code == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not json", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        *((text.encode(), "it holds no state")
          for text in ("[1, 2]", "{}", '{"state": null}', '{"computing": 1.0, "moving": 1.0}')),
        *((json.dumps(TWICE | wrong).encode(), words) for wrong, words in (
            ({"moving": "slow"}, "moving is 'slow'"),
            ({"starting": True}, "starting is True"),
            ({"computing": 0}, "computing is 0"),
            ({"computing": 101}, "computing is 101"),
            ({"state": TWICE | {"moving": float("nan")}}, "moving is nan"))),
        (2, os.strerror(2)),
        (21, os.strerror(21)),
    ],
)  # fmt: skip
def test_a_file_that_is_no_state_is_found_out_before_the_network_is_read(
    lolat: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    content: bytes | int, words: str,
) -> None:  # fmt: skip
    def never(*_: object) -> None:
        raise AssertionError("a framework was started")

    monkeypatch.setattr("lolat.readers.read", never)
    path = tmp_path if content == 21 else tmp_path / "state.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    line = lolat.refused("predict", model, "Net", "--state", path)
    assert line.startswith(f"lolat: --state {path}: {words}; expected ")
    if " is " in words and content != 21:
        assert line.endswith("a factor from 0.01 to 100")
    else:
        assert "lolat doctor MODEL --json" in line


def test_now_is_what_the_models_networks_take_now(
    lolat: Command, model: Path, doctor: Doctor
) -> None:
    doctor.ratio = 1.5
    usual = load(model).predict(NETWORK).latency_ms
    answer = lolat.json("predict", model, "Net", "--state", "now")
    assert answer["state"] == pytest.approx(dict.fromkeys(TWICE, 1.5))
    assert answer["latency_ms"] == pytest.approx(1.5 * usual, rel=1e-3)
    (call,) = doctor.calls
    assert (call["points"], call["label"], call["backend"], call["device"]) == (
        105, "a desk, 2 threads", "tensorflow", "cpu",
    )  # fmt: skip


@pytest.mark.parametrize("networks", [5, 0])
def test_now_on_another_machine(lolat: Command, model: Path, doctor: Doctor, networks: int) -> None:
    """Also where the networks could be measured, as with another version."""
    doctor.differences, doctor.networks = (Difference("threads", 2, 4),), networks
    line = lolat.refused("predict", model, "Net", "--state", "now")
    assert f"--state now: {model} is not of this machine or its framework" in line
    assert f"lolat doctor {model}" in line


@pytest.mark.parametrize(
    ("error", "code"),
    [(DeviceError("no cpu here"), 2), (InputError("none of the model's"), 2), (KeyboardInterrupt(), 130)],
)  # fmt: skip
def test_now_where_nothing_can_be_measured(
    lolat: Command, model: Path, doctor: Doctor, error: BaseException, code: int
) -> None:
    doctor.error = error
    told = lolat("predict", model, "Net", "--state", "now")
    assert (told.code, told.out) == (code, "")
    assert str(error) in told.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "none of the model's 105 points is a whole network"),
        ({"environment": {"framework": "jax"}}, "no backend 'jax'; this version has"),
    ],
)
def test_now_of_a_model_that_cannot_be_measured_again(
    lolat: Command, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(synthetic.document(**changes)))
    assert words in lolat.refused("predict", path, "Net", "--state", "now")
