"""A model's age and its last check, as `predict`, `report`, `explain` and `budget` say them."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lolat.device import file as state
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


@pytest.mark.parametrize("command", ASKED)
def test_an_old_model_is_told_once_on_stderr(lolat: Command, desk: Desk, command: str) -> None:
    ask = (command, "local", "keras:A", *ASKED[command])
    assert lolat.done(*ask).err == "", "an hour is no age"
    desk.now = LEARNED + timedelta(days=3)
    found = lolat.done(*ask)
    said = "local: learned 3 days ago, not checked since; `lolat doctor local` takes 10 seconds"
    assert one_line(found.err) == f"lolat: {said}"
    assert "3 days ago, not checked" not in found.out
    if command != "budget":
        told = lolat.answer(*ask)["state"]
        assert (told["age_days"], told["check"]) == (3, None)
        assert told["remark"] == "learned 3 days ago, not checked since"
        both = lolat.done(command, desk.path, "keras:A", *ASKED[command])
        assert f"`lolat doctor {desk.path}` takes 10 seconds" in one_line(both.err)


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
        "which is more than 10 % off; `lolat doctor local` takes 10 seconds"
    )
    told = json.loads(found.out)["state"]
    assert told["check"] == {
        "by": "doctor", "date": (LEARNED + timedelta(hours=1)).isoformat(),
        "ratio": pytest.approx(1.3), "limit": 0.1,
    }  # fmt: skip
    measuring.ratio = 1.04
    lolat.json("doctor", "local")
    assert lolat.done("predict", "local", "keras:A").err == ""
    desk.now += timedelta(days=2)
    assert "checked 2 days ago: 1.04 times as long" in lolat.done("predict", "local", "keras:A").err
    lolat.json("doctor", "local")
    assert lolat.done("predict", "local", "keras:A").err == ""
    assert desk.path.read_bytes() == before


@pytest.fixture
def probed(
    desk: Desk, measuring: Measuring, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[float, float]]:
    """What a probe finds now, on a machine whose networks go with the roots of two of its times."""
    desk.write(others=0.1, probe={"forks": [2.0, 3.0], "copy": [4.0, 8.0]})
    monkeypatch.setattr(
        probe, "WEIGHTS", {"forks": (0.5, 0.0), "copy": (0.0, 0.5), "new": (1.0, 1.0)}
    )
    found = {"forks": (2.0, 3.0), "copy": (4.0, 8.0), "new": (1.0, 1.0)}
    monkeypatch.setattr(probe, "probe", lambda threads: found if threads == 2 else {})
    return found


@pytest.mark.parametrize("command", ["predict", "report", "explain"])
def test_a_probe_tells_that_the_machine_has_moved(
    lolat: Command, desk: Desk, probed: dict[str, tuple[float, float]], command: str
) -> None:
    ask, spread = (command, "local", "keras:A"), 1 + 3 * probe.SPREAD
    usual = lolat.json(*ask, "--as-learned")
    assert lolat.json(*ask) == usual, "it has not moved"
    probed["forks"] = (2.0 * 1.5**2, 99.0)
    assert lolat.json(*ask, "--as-learned") == usual
    now = lolat.json(*ask)
    assert now["latency_ms"] == pytest.approx(1.5 * usual["latency_ms"])
    told = now["warnings"][0]
    assert "1.50 times as long as learned" in told
    assert "--now" in told
    assert "--as-learned" in told
    assert told in lolat.text(*ask)
    low, high = now["interval_ms"]
    assert low * spread > now["latency_ms"] > high / spread
    assert high / low > usual["interval_ms"][1] / usual["interval_ms"][0]
    assert now["state"]["check"] == {
        "by": "probe", "date": desk.now.isoformat(), "ratio": pytest.approx(1.5), "limit": 0.1,
    }  # fmt: skip
    probed["copy"] = (0.1, 8.0 / 1.5**2)
    assert lolat.json(*ask) == usual, "as much faster in memory"


def test_other_programs_are_told(
    lolat: Command, desk: Desk, probed: dict[str, tuple[float, float]], measuring: Measuring
) -> None:
    ask = "predict", "local", "keras:A"
    usual = lolat.json(*ask)
    measuring.others = 0.25  # 0.1 when it was learned
    assert lolat.json(*ask) == usual
    measuring.others = 1.4
    busy = lolat.json(*ask)
    (told,) = {*busy["warnings"]} - {*usual["warnings"]}
    assert "1.00 times as long" in told
    assert "1.4 processors" in told
    assert busy["latency_ms"] == pytest.approx(usual["latency_ms"])
    half = math.log(busy["interval_ms"][1] / busy["latency_ms"])
    assert half > 1.64 * math.hypot(probe.SPREAD, 0.7 * probe.BUSY), "1.4 of two processors"
    assert half == pytest.approx(math.log(busy["latency_ms"] / busy["interval_ms"][0]))
    assert lolat.json(*ask, "--as-learned") == usual


def test_who_is_not_probed(
    lolat: Command, desk: Desk, probed: dict[str, tuple[float, float]]
) -> None:
    probed["forks"] = (2.0 * 1.5**2, 3.0)
    moved = lolat.json("predict", "local", "keras:A")["latency_ms"]
    desk.now = LEARNED + timedelta(minutes=9)
    fresh = lolat.json("predict", "local", "keras:A")["latency_ms"]
    assert moved == pytest.approx(1.5 * fresh)
    desk.now = LEARNED + timedelta(hours=1)
    assert lolat.json("predict", desk.path, "keras:A")["latency_ms"] == moved, "by its path too"
    trained = lolat.answer("cost", "local", "keras:A", "--batch-size", 8, "--samples", 100)
    assert "as the machine is now" not in str(trained), "training is not what is probed"
    desk.facts = {"family": 25, "model": 1}
    assert lolat.answer("predict", "local", "keras:A")["latency_ms"] == fresh, "another processor"
    desk.facts = desk.where["processor"]
    assert "one of them" in lolat.refused("predict", "local", "keras:A", "--now", "--as-learned")
    desk.write()
    assert lolat.json("predict", "local", "keras:A")["latency_ms"] == fresh, "no probe when learned"
    assert "no probe" in lolat.refused("predict", "local", "keras:A", "--as-learned")


def test_a_model_of_another_machine(lolat: Command, desk: Desk, measuring: Measuring) -> None:
    """It is not checked here, nothing is kept of it, and an answer for it asks for no check here."""
    desk.now = LEARNED + timedelta(days=3)
    measuring.ratio, measuring.differences = 1.0, (Difference("processor", "a desk", "a rack"),)
    assert lolat.json("doctor", "local", code=3)["verdict"] == "another machine"
    assert [p.name for p in desk.path.parent.iterdir()] == ["desk.json"]
    desk.facts = {"family": 26, "model": 2}
    assert "another processor" in one_line(lolat.done("predict", "local", "keras:A").err)
    assert lolat.done("predict", desk.path, "keras:A").err == ""
