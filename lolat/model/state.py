"""The state of a model that was learned on this machine: its age, and what its last check found.

`lolat doctor` and `lolat evaluate` write a check into a small file beside the model (`desk.state.json`), or
into the user's data folder where the model's folder cannot be written to. The model file itself stays as it
was learned. A state file that is damaged, or that is of an earlier learning, is as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from lolat.errors import LolatError
from lolat.fitting.intervals import repeatability_of
from lolat.io.documents import Positive, read_json, to_json
from lolat.io.paths import STATE, shipped_folder, state_folder
from lolat.io.writing import write_bytes
from lolat.units import off, percent

LIMIT = 0.1
"""How far the times of a machine may be from the learned ones where its model holds; see `limit_of`."""
OLD = timedelta(days=1)
"""From this age on a model's age is told."""
SKEW = timedelta(minutes=5)
"""So far two clocks may disagree."""
SCHEMA = "lolat-state"
EXPECTED = "expected what `lolat doctor` writes beside a model"


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
    """How old a model is and what its last check found.

    `age_days`: whole days; null where the date of learning is in the future. `remark`: what is to be said
    of it; null while the model is young and the last check was in order.
    """

    learned: str
    age_days: int | None
    check: Check | None
    remark: str | None

    @property
    def is_recent(self) -> bool:
        """Whether the model was checked within a day and held, so that nothing is to be done."""
        checked = None if self.check is None else age_of(self.check.date)
        return checked is not None and timedelta(0) <= checked < OLD and not self.check_is_off

    @property
    def check_is_off(self) -> bool:
        """Whether there was a check and it was not in order."""
        return self.check is not None and self.check.is_off


class Stored(msgspec.Struct):
    """A state file: the check, and when the model that it is of was learned."""

    schema: Literal["lolat-state"]
    version: Literal[1]
    learned: str
    check: Check


# ---- Dates


def now() -> datetime:
    """The time of this machine's clock."""
    return datetime.now(UTC)


def moment(date: Any) -> datetime | None:
    """A date of a file, in UTC; None where it is none or lacks its time zone."""
    try:
        when = datetime.fromisoformat(date)
        return when.astimezone(UTC) if when.tzinfo is not None else None
    except (TypeError, ValueError, OverflowError):  # this one: years 1 and 9999 in other zones
        return None


def age_of(date: Any) -> timedelta | None:
    """How long ago a date is; negative for the future; None where it is no date."""
    when = moment(date)
    return None if when is None else now() - when


def ago(date: str) -> str:
    """How long ago in words: 5 minutes ago, 3 days ago; a time of the future as it is."""
    when = moment(date)
    if when is None:
        return "at an unknown time"
    age = now() - when
    if age < -SKEW:
        return f"on {when:%Y-%m-%d %H:%M} UTC, which is still to come"
    minutes = max(age.total_seconds(), 0.0) / 60.0
    if minutes < 2:
        return "just now"
    for most, unit, size in ((120, "minutes", 1), (48 * 60, "hours", 60)):
        if minutes < most:
            return f"{math.floor(minutes / size)} {unit} ago"
    return f"{age.days} days ago"


# ---- The limit


def limit_of(document: Mapping[str, Any]) -> float:
    """How far from 1 the ratio of now to learned may be: LIMIT, or the model's repeatability if larger."""
    return max(LIMIT, repeatability_of(document) or 0.0)


# ---- The state


def state_of(document: Mapping[str, Any], source: str) -> State | None:
    """The state of a model; None where it was not learned by measuring, comes with LoLat or is no file.

    `source`: its path.
    """
    learned = learned_here(document, source)
    if learned is None:
        return None
    check = read_check(source, learned)
    age = age_of(learned)
    is_known = age is not None and age >= -SKEW
    days = max(age.days, 0) if age is not None and is_known else None
    told = (check is not None and check.is_off) or days is None or days >= OLD.days
    return State(learned, days, check, _remark(learned, check) if told else None)


def learned_here(document: Mapping[str, Any], source: str) -> str | None:
    """When a model was learned by measuring; None of one that others measured or that comes with LoLat."""
    where = document["environment"]
    date = where.get("date")
    if where.get("device") not in ("cpu", "gpu") or "source" in where or moment(date) is None:
        return None
    path = Path(source)
    with contextlib.suppress(OSError):
        if path.is_file() and path.resolve().parent != shipped_folder().resolve():
            return str(date)
    return None


def _remark(learned: str, check: Check | None) -> str:
    age = age_of(learned)
    said = f"learned {ago(learned)}"
    if age is not None and age < -SKEW:
        said += " (a clock is or was wrong)"
    if check is None:
        return f"{said}, not checked since"
    beyond = f", which is more than {percent(check.limit)} off" if check.is_off else ""
    return f"{said}, checked {ago(check.date)}: {check.ratio:.2f} times as long as learned{beyond}"


# ---- The file


def state_files(source: str) -> Iterator[Path]:
    """Where the state of a model may be: beside it, or in the user's data folder."""
    path = Path(source).resolve()
    stem = path.name.removesuffix(".json")
    yield path.with_name(stem + STATE)
    with contextlib.suppress(LolatError):  # a user without a home folder
        key = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        yield state_folder() / f"{stem}-{key}{STATE}"


def read_check(source: str, learned: str) -> Check | None:
    """The last check of the model at `source` that was learned at this date; None where none is known."""
    found = []
    for path in state_files(source):
        with contextlib.suppress(LolatError, OSError, msgspec.ValidationError):
            stored = msgspec.convert(read_json(path, EXPECTED), Stored)
            if stored.learned == learned and moment(stored.check.date) is not None:
                found.append(stored.check)
    return max(found, key=lambda check: moment(check.date) or now(), default=None)


def write_check(
    document: Mapping[str, Any], source: str, by: Literal["doctor", "evaluate"], ratio: float
) -> None:
    """Write what a check found; nothing where the model has no state, or nothing can be written."""
    learned = learned_here(document, source)
    if learned is None:
        return
    check = Check(by, now().isoformat(timespec="seconds"), ratio, limit_of(document))
    stored = {"schema": SCHEMA, "version": 1, "learned": learned, "check": asdict(check)}
    for path in state_files(source):
        with contextlib.suppress(LolatError):
            write_bytes(path, to_json(stored).encode("ascii"))
            return
