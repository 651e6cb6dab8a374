"""The age of a model and its last check, with a clock and folders of the tests."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lolat.api import measuring
from lolat.api.model import Model
from lolat.device import state
from lolat.device.file import DeviceFile
from lolat.device.state import limit_of, state_of, write_check
from lolat.io.paths import list_models
from tests import synthetic

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
LEARNED = "2026-03-10T09:00:00+00:00"


class Clock:
    """A clock instead of the machine's."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(state, "now", made)
    return made


def document(date: object = LEARNED, **changes: Any) -> dict[str, Any]:
    made = synthetic.document(**changes)
    made["environment"] = made["environment"] | {"date": date}
    return made


def saved(folder: Path, made: dict[str, Any]) -> str:
    path = folder / "desk.json"
    path.write_text(json.dumps(made))
    return str(path)


def state_in(source: str, made: dict[str, Any]) -> state.State:
    known = state_of(DeviceFile(made), source)
    assert known is not None
    return known


@pytest.mark.parametrize(
    ("date", "days", "remark"),
    [
        (LEARNED, 0, None),
        ("2026-03-09T12:00:01+00:00", 0, None),  # a second less than a day
        ("2026-03-09T12:00:00+00:00", 1, "learned 24 hours ago, not checked since"),
        ("2026-03-09T05:00:00-07:00", 1, "learned 24 hours ago, not checked since"),
        ("2026-03-07T11:00:00+00:00", 3, "learned 3 days ago, not checked since"),
        ("2026-03-10T14:06:00+00:00", 0, None),  # of another clock
    ],
)  # fmt: skip
def test_the_age(clock: Clock, tmp_path: Path, date: str, days: int, remark: str | None) -> None:
    made = document(date)
    assert state_in(saved(tmp_path, made), made) == state.State(date, days, None, remark)


@pytest.mark.parametrize(
    ("ratio", "limit", "is_off"),
    [(1.09, 0.0, False), (1.11, 0.0, True), (0.9, 0.0, True), (0.91, 0.0, False), (1.18, 0.19, False),
     (1.2, 0.19, True), (1.3, 3.33, True), (1.19, 3.33, False)],
)  # fmt: skip
def test_a_check_that_held_is_remarked_on_after_a_day(
    clock: Clock, tmp_path: Path, ratio: float, limit: float, is_off: bool
) -> None:
    made = document(noise={"floor": 0.03, "repeatability": limit})
    source = saved(tmp_path, made)
    clock.now += timedelta(days=5)
    write_check(DeviceFile(made), source, "doctor", ratio)
    young = state_in(source, made)
    assert young.check is not None
    assert (young.check.by, young.check.ratio, young.check.is_off) == ("doctor", ratio, is_off)
    assert young.check.limit == limit_of(DeviceFile(made)) == min(max(limit, 0.1), 0.2)
    assert (young.remark is not None) is is_off
    clock.now += timedelta(days=1)
    times = f"{ratio:.2f} times as long as learned"
    beyond = f", which is more than {100 * limit_of(DeviceFile(made)):.0f} % off" if is_off else ""
    remark = f"learned 6 days ago, checked 24 hours ago: {times}{beyond}"
    assert state_in(source, made).remark == remark


def test_a_check_that_could_not_tell_is_no_verdict(clock: Clock, tmp_path: Path) -> None:
    """On a busy machine: 22 times as long says nothing about the profile."""
    made = document()
    source = saved(tmp_path, made)
    write_check(DeviceFile(made), source, "doctor", 22.75, settled=False)
    found = state_in(source, made)
    assert found.check is not None
    assert (found.check.settled, found.check.is_off) == (False, False)
    assert found.remark is not None
    assert found.remark.endswith(
        "0 minutes ago: could not tell, as the machine was busy or unsteady; networks took 22.75 times "
        "as long then (`--now` answers for that)"
    )


def test_no_answer_that_is_kept_has_the_state_before_a_check(clock: Clock, tmp_path: Path) -> None:
    """Not of the same graph, and not of the device run in another way."""
    model, graph = Model.load(saved(tmp_path, document())), synthetic.network()
    other = model.run_as("fp32")
    assert {m.predict(graph).state.check for m in (model, other)} == {None}
    measuring.write_state(model, "doctor", 1.5)
    for asked in (model, other):
        assert asked.predict(graph).state.check.ratio == 1.5


def test_the_file_beside_the_model_is_no_model(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = document()
    source = saved(tmp_path, made)
    before = Path(source).read_bytes()
    write_check(DeviceFile(made), source, "doctor", 1.02)
    assert sorted(os.listdir(tmp_path)) == ["desk.json", "desk.state.json"]
    assert Path(source).read_bytes() == before
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path)
    assert [name for name, _, origin in list_models() if origin == "local"] == ["desk"]
    assert Model.load("local").source == source


STORED = {
    "learned": LEARNED,
    "check": {"by": "doctor", "date": NOW.isoformat(), "ratio": 1.5, "limit": 0.1},
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "{",
        json.dumps(STORED | {"check": STORED["check"] | {"ratio": -1.0}}),  # type: ignore[operator]
        json.dumps(STORED | {"learned": "2026-03-01T09:00:00+00:00"}),  # of an earlier learning
    ],
)
def test_a_damaged_file_is_as_none(clock: Clock, tmp_path: Path, content: str) -> None:
    made = document()
    source = saved(tmp_path, made)
    (tmp_path / "desk.state.json").write_text(json.dumps(STORED))
    assert state_in(source, made).check is not None
    (tmp_path / "desk.state.json").write_text(content)
    assert state_in(source, made).check is None
    write_check(DeviceFile(made), source, "doctor", 1.5)
    assert state_in(source, made).check is not None


@pytest.mark.parametrize(
    "changes",
    [{"date": None}, {"date": "2026-03-01"}, {"device": "unknown"},
     {"source": {"sample": "a table"}}],
)  # fmt: skip
def test_only_a_model_that_was_learned_here_has_a_state(
    clock: Clock, tmp_path: Path, changes: dict[str, Any]
) -> None:
    made = document("2026-03-01T00:00:00+00:00")
    source = saved(tmp_path, made)
    assert state_of(DeviceFile(made), source) is not None
    assert state_of(DeviceFile(made), str(tmp_path / "gone.json")) is None
    made["environment"] |= changes
    assert state_of(DeviceFile(made), source) is None
    write_check(DeviceFile(made), source, "doctor", 1.5)
    assert os.listdir(tmp_path) == ["desk.json"]


def test_a_shipped_model_has_none(clock: Clock) -> None:
    """Its folder is the checkout's, which nothing changes."""
    shipped = Model.load("epyc-2t")
    before = sorted(os.listdir(Path(shipped.source).parent))
    write_check(shipped.file, shipped.source, "doctor", 1.5)
    assert sorted(os.listdir(Path(shipped.source).parent)) == before
    assert shipped.predict(synthetic.network()).state is None
