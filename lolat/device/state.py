"""The state of a model that was learned on this machine: its age, and its last check.

`lolat doctor` and `lolat evaluate` write a check into a small file beside the model, `desk.state.json`. The
model file itself stays as it was learned. A state file that is damaged, or of an earlier learning, is
ignored; where the folder cannot be written to, there is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from lolat.device.intervals import repeatability_of
from lolat.errors import LolatError
from lolat.io.documents import Positive, read_json, to_json
from lolat.io.paths import STATE, shipped_folder
from lolat.io.writing import write_bytes
from lolat.units import off, percent, plural

LIMIT = 0.1
"""How far the times of a machine may be from the learned ones where its model holds; see `limit_of`."""
OLD = timedelta(days=1)
"""From this time after it was learned or held on, a model has a remark."""


@dataclass(frozen=True)
class Check:
    """A check of a model on its machine.

    `by`: doctor or evaluate; `date`: when; `ratio`: new over learned time; `limit`: how far it may be off.
    """

    by: Literal["doctor", "evaluate"]
    date: str
    ratio: Positive
    limit: Positive

    @property
    def is_off(self) -> bool:
        """Whether the machine took longer or less long than the model can be trusted for."""
        return off(self.ratio) > self.limit


@dataclass(frozen=True)
class State:
    """How old a model is, in whole days, and its last check.

    `remark`: both in words; null where the model was learned within a day, or was checked and held.
    """

    learned: str
    age_days: int
    check: Check | None
    remark: str | None


def limit_of(document: Mapping[str, Any]) -> float:
    """How far from 1 the ratio of now to learned may be: LIMIT, or the model's repeatability if larger."""
    return max(LIMIT, repeatability_of(document) or 0.0)


def state_of(document: Mapping[str, Any], source: str) -> State | None:
    """The state of a model; None where it was not learned by measuring, comes with LoLat or is no file.

    `source`: its path.
    """
    learned = _learned_here(document, source)
    if learned is None:
        return None
    check, remark = _read_check(source, learned), None
    if check is None and _age(learned) >= OLD:
        remark = f"learned {ago(learned)}, not checked since"
    elif check is not None and (check.is_off or _age(check.date) >= OLD):
        beyond = f", which is more than {percent(check.limit)} off" if check.is_off else ""
        times = f"{check.ratio:.2f} times as long as learned{beyond}"
        remark = f"learned {ago(learned)}, checked {ago(check.date)}: {times}"
    return State(learned, _age(learned).days, check, remark)


def write_check(
    document: Mapping[str, Any], source: str, by: Literal["doctor", "evaluate"], ratio: float
) -> None:
    """Write a check; nothing where the model has no state, or nothing can be written."""
    learned = _learned_here(document, source)
    if learned is not None:
        check = Check(by, now().isoformat(timespec="seconds"), ratio, limit_of(document))
        stored = {"learned": learned, "check": msgspec.to_builtins(check)}
        with contextlib.suppress(LolatError):
            write_bytes(_state_file(source), to_json(stored).encode("ascii"))


def _learned_here(document: Mapping[str, Any], source: str) -> str | None:
    """When a model was learned by measuring; None of one that others measured or that comes with LoLat."""
    where, path = document["environment"], Path(source).resolve()
    is_measured = where.get("device") in ("cpu", "gpu") and "source" not in where
    is_here = path.is_file() and path.parent != shipped_folder().resolve()
    return str(where["date"]) if is_measured and is_here and moment(where.get("date")) else None


def _state_file(source: str) -> Path:
    path = Path(source).resolve()
    return path.with_name(path.name.removesuffix(".json") + STATE)


def _read_check(source: str, learned: str) -> Check | None:
    """The last check of the model at `source` that was learned at this date; None where none is known."""
    with contextlib.suppress(LolatError, msgspec.ValidationError, KeyError):
        stored = read_json(_state_file(source), "expected a state")
        return msgspec.convert(stored["check"], Check) if stored["learned"] == learned else None
    return None


# ---- Dates


def now() -> datetime:
    """The time of this machine's clock."""
    return datetime.now(UTC)


def moment(date: Any) -> datetime | None:
    """A date of a file, in UTC; None where it is none or lacks its time zone."""
    try:
        when = datetime.fromisoformat(date)
    except (TypeError, ValueError):
        return None
    return when.astimezone(UTC) if when.tzinfo is not None else None


def _age(date: str) -> timedelta:
    """How long ago a date is; nothing for one to come, of another clock."""
    return max(now() - (moment(date) or now()), timedelta(0))


def ago(date: str) -> str:
    """How long ago in words: 5 minutes ago, 3 days ago."""
    age = _age(date)
    minutes = int(age.total_seconds() / 60)
    if minutes < 120:
        return f"{plural(minutes, 'minute')} ago"
    return f"{minutes // 60} hours ago" if age < timedelta(days=2) else f"{age.days} days ago"
