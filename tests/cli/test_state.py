"""A model's age and its last check, as `predict`, `report`, `explain` and `budget` say them."""

from __future__ import annotations

import json
import math
import statistics
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lolat.device import state
from lolat.errors import InputError
from lolat.microbench import probe
from lolat.microbench.environment import Difference
from tests import synthetic
from tests.cli.commands import Command, Measuring, one_line

LEARNED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ASKED = {
    "predict": (), "report": (), "explain": (), "budget": ("--max-ms", 1e6, "--vary", "batch"),
}  # fmt: skip


class Desk:
    """This machine: its processor, its clock, and the model that was learned on it."""

    def __init__(self, folder: Path) -> None:
        self.now, self.path = LEARNED + timedelta(hours=1), folder / "desk.json"
        self.facts = {"family": 25, "model": 17}
        self.where = {
            "cpu": "a desk", "threads": 2, "processor": dict(self.facts), "date": LEARNED.isoformat(),
        }  # fmt: skip
        self.write()

    def write(self, **noise: Any) -> None:
        """The model, as learned."""
        document = synthetic.document()
        document["environment"] |= self.where
        document["noise"] |= noise
        self.path.write_text(json.dumps(document))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    folder = tmp_path / "models"
    folder.mkdir()
    made = Desk(folder)
    monkeypatch.setattr(state, "now", lambda: made.now)
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: folder)
    monkeypatch.setattr("lolat.readers.read", lambda name, size=None: synthetic.network(name=name))
    monkeypatch.setattr("lolat.microbench.environment.cpu_model", lambda: "a desk")
    monkeypatch.setattr("lolat.microbench.environment.cpu_count", lambda: 2)
    monkeypatch.setattr("lolat.microbench.environment.processor_facts", lambda: made.facts)
    return made


@pytest.mark.parametrize(
    ("change", "twin"),
    [
        ({}, "epyc-zen5-2t-torch (PyTorch, 2 threads)"),
        ({"framework": "onnxruntime"}, "epyc-zen5-2t-onnxruntime (ONNX Runtime, 2 threads)"),
        ({"threads": 1}, ""),
        ({"compile": True}, ""),
    ],
)
def test_the_bundled_twin_of_a_noisy_profile_is_named(
    lolat: Command, desk: Desk, change: dict[str, Any], twin: str
) -> None:
    """The one of its processor, framework, threads and options, which is none for a compiled profile."""
    facts = {"name": "AMD EPYC", "vendor": "AuthenticAMD", "family": 26, "model": 2}
    desk.where |= {"framework": "torch", "processor": facts, **change}
    desk.facts = facts
    for repeatability in (0.1, 3.33):
        desk.write(repeatability=repeatability)
        said = lolat.done("predict", desk.path, "A").err
        told = bool(twin) and repeatability > 1
        assert (f"bundled for this very processor: {twin}; ask" in said) == told
        assert ("bundled for" in said) == told


@pytest.mark.parametrize("command", ASKED)
def test_an_old_model_is_told_once_on_stderr(lolat: Command, desk: Desk, command: str) -> None:
    ask = (command, "local", "keras:A", *ASKED[command])
    assert lolat.done(*ask).err == "", "an hour is no age"
    desk.now = LEARNED + timedelta(days=3)
    found = lolat.done(*ask)
    said = "local: learned 3 days ago, not checked since; `lolat doctor local` takes 20 seconds"
    assert one_line(found.err) == f"lolat: {said}"
    assert "3 days ago, not checked" not in found.out
    if command != "budget":
        told = lolat.answer(*ask)["state"]
        assert (told["age_days"], told["check"]) == (3, None)
        assert told["remark"] == "learned 3 days ago, not checked since"
        both = lolat.done(command, desk.path, "keras:A", *ASKED[command])
        assert f"`lolat doctor {desk.path}` takes 20 seconds" in one_line(both.err)


def test_what_doctor_found_is_told_until_it_holds_again(
    lolat: Command, desk: Desk, measuring: Measuring
) -> None:
    before = desk.path.read_bytes()
    measuring.ratio = 1.3
    answer = lolat.json("doctor", "local", code=3)
    assert answer["verdict"] == "drifted"
    desk.now += timedelta(minutes=30)
    found = lolat.done("predict", "local", "keras:A", "--json")
    assert one_line(found.err) == (
        "lolat: local: learned 90 minutes ago, checked 30 minutes ago: 1.30 times as long as learned, "
        "which is more than 10 % off; `lolat doctor local` takes 20 seconds"
    )
    told = json.loads(found.out)["state"]
    assert told["check"] == {
        "by": "doctor", "date": (LEARNED + timedelta(hours=1)).isoformat(),
        "ratio": pytest.approx(1.3), "limit": 0.1, "settled": True,
    }  # fmt: skip
    measuring.ratio = 1.04
    lolat.json("doctor", "local")
    assert lolat.done("predict", "local", "keras:A").err == ""
    desk.now += timedelta(days=2)
    assert "checked 2 days ago: 1.04 times as long" in lolat.done("predict", "local", "keras:A").err
    lolat.json("doctor", "local")
    assert lolat.done("predict", "local", "keras:A").err == ""
    assert desk.path.read_bytes() == before


Probed = dict[str, tuple[float, float]]
SLOWER = (3.5, 4.5)
"""Forks of which each takes 0.1 ms more at the mean than when the desk was learned: 1.5 ms of 15."""


@pytest.fixture
def probed(desk: Desk, measuring: Measuring, monkeypatch: pytest.MonkeyPatch) -> Probed:
    """What a probe finds now; when the desk was learned it found the same, beside 0.1 processors."""
    desk.write(others=0.1, probe={"forks": [2.0, 3.0]})
    found = {"forks": (2.0, 3.0)}
    monkeypatch.setattr(probe, "probe", lambda threads: found["forks"] if threads == 2 else ())
    return found


@pytest.mark.parametrize("command", ["predict", "report", "explain"])
def test_a_probe_tells_that_the_machine_has_moved(
    lolat: Command, desk: Desk, probed: Probed, command: str
) -> None:
    """Half of what a fork takes longer for each operation, 0.05 ms: told, in the interval alone."""
    ask = (command, "local", "keras:A")
    usual = lolat.json(*ask, "--as-learned")
    assert lolat.json(*ask) == usual, "it has not moved"
    probed["forks"] = SLOWER
    assert lolat.json(*ask, "--as-learned") == usual
    now = lolat.json(*ask)
    assert now["latency_ms"] == pytest.approx(usual["latency_ms"])
    assert now["blocks"] == usual["blocks"]
    told = now["warnings"][0]
    assert "50 µs more" in told
    assert "--now" in told
    assert told in lolat.text(*ask)
    half = math.log(now["interval_ms"][1] / now["latency_ms"])
    assert half == pytest.approx(math.log(now["latency_ms"] / now["interval_ms"][0]))
    assert half > 1.64 * probe.SPREAD > math.log(usual["interval_ms"][1] / usual["latency_ms"])
    points = json.loads(desk.path.read_text())["points"]
    whole = [p for p in points if p["whole"]] or points
    ratio = statistics.median(1 + 0.05 * p["ops"] / p["latency_ms"] for p in whole)
    assert now["state"]["check"] == {
        "by": "probe", "date": desk.now.isoformat(), "ratio": pytest.approx(ratio), "limit": 0.1,
            "settled": True,
    }  # fmt: skip
    assert f"{ratio:.2f} times" in told


def test_a_machine_that_starts_threads_faster(lolat: Command, probed: Probed) -> None:
    ask = "predict", "local", "keras:A"
    usual = lolat.json(*ask)
    probed["forks"] = (1e-3, 1e-3)
    fast = lolat.json(*ask)
    assert "83 µs less" in fast["warnings"][0], "half of 2.5 ms / 15"
    assert fast["latency_ms"] == pytest.approx(usual["latency_ms"])
    assert fast["interval_ms"][1] > usual["interval_ms"][1]


def test_other_programs_are_told(
    lolat: Command, desk: Desk, probed: Probed, measuring: Measuring
) -> None:
    ask = "predict", "local", "keras:A"
    usual = lolat.json(*ask)
    measuring.others = 0.25  # 0.1 when it was learned
    assert lolat.json(*ask) == usual
    measuring.others = 1.4
    busy = lolat.json(*ask)
    (told,) = {*busy["warnings"]} - {*usual["warnings"]}
    assert "1.4 processors" in told
    assert busy["latency_ms"] == pytest.approx(usual["latency_ms"])
    half = math.log(busy["interval_ms"][1] / busy["latency_ms"])
    assert half > 1.64 * math.hypot(probe.SPREAD, 0.65 * probe.BUSY_SPREAD), (
        "1.3 more of two processors"
    )
    assert lolat.json(*ask, "--as-learned") == usual
    desk.write(others=1.0, probe={"forks": [2.0, 3.0]})
    measuring.others = 0.0
    assert "0.0 processors (when learned 1.0)" in " ".join(lolat.json(*ask)["warnings"])


def test_who_is_not_probed(lolat: Command, desk: Desk, probed: Probed) -> None:
    probed["forks"] = SLOWER

    def high() -> float:
        return float(lolat.json("predict", "local", "keras:A")["interval_ms"][1])

    moved = high()
    desk.now = LEARNED + timedelta(minutes=9)
    fresh = high()
    assert moved > 1.1 * fresh
    desk.now = LEARNED + timedelta(hours=1)
    assert lolat.json("predict", desk.path, "keras:A")["interval_ms"][1] == moved, "by its path too"
    trained = lolat.answer("cost", "local", "keras:A", "--batch-size", 8, "--samples", 100)
    assert "the machine may take" not in str(trained), "training is not what is probed"
    desk.facts = {"family": 25, "model": 1}
    elsewhere = lolat.answer("predict", "local", "keras:A")
    assert elsewhere["interval_ms"][1] == fresh, "another processor"
    desk.facts = desk.where["processor"]
    desk.write()
    assert high() == fresh, "no probe when learned"


def test_a_model_of_another_machine(lolat: Command, desk: Desk, measuring: Measuring) -> None:
    """It is not checked here, nothing is kept of it, and an answer for it asks for no check here."""
    desk.now = LEARNED + timedelta(days=3)
    measuring.ratio, measuring.differences = 1.0, (Difference("processor", "a desk", "a rack"),)
    assert lolat.json("doctor", "local", code=3)["verdict"] == "another machine"
    assert [p.name for p in desk.path.parent.iterdir()] == ["desk.json"]
    desk.facts = {"family": 26, "model": 2}
    assert "another processor" in one_line(lolat.done("predict", "local", "keras:A").err)
    assert lolat.done("predict", desk.path, "keras:A").err == ""


def test_remarks_on_the_profile_do_not_precede_an_error(
    lolat: Command, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.now = LEARNED + timedelta(days=3)
    assert "learned 3 days ago" in lolat.done("predict", "local", "keras:A").err
    refused = lolat("predict", "local", "keras:A", "--batch-size", 0)
    slow = lolat("predict", "local", "keras:A", "--max-ms", 1e-6)

    def missing(*_: object) -> None:
        raise InputError("no such network")

    monkeypatch.setattr("lolat.readers.read", missing)
    no_network = lolat("report", "local", "keras:A")
    assert (refused.code, no_network.code, slow.code) == (2, 2, 3)
    assert "learned 3 days ago" not in refused.err + no_network.err
    assert "learned 3 days ago" in slow.err
