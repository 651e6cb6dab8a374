"""A model's age and its last check, as `predict`, `report`, `explain` and `budget` say them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lolat.device import file as state
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


def test_a_model_of_another_machine(lolat: Command, desk: Desk, measuring: Measuring) -> None:
    """It is not checked here, nothing is kept of it, and an answer for it asks for no check here."""
    desk.now = LEARNED + timedelta(days=3)
    measuring.ratio, measuring.differences = 1.0, (Difference("processor", "a desk", "a rack"),)
    assert lolat.json("doctor", "local", code=3)["verdict"] == "another machine"
    assert [p.name for p in desk.path.parent.iterdir()] == ["desk.json"]
    desk.facts = {"family": 26, "model": 2}
    assert "another processor" in one_line(lolat.done("predict", "local", "keras:A").err)
    assert lolat.done("predict", desk.path, "keras:A").err == ""
