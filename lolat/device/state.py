"""The state of a profile that was measured on this machine: its age, and its last check."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from lolat.device.file import DeviceFile
from lolat.errors import LolatError
from lolat.io.documents import Positive, read_json, to_json
from lolat.io.paths import STATE, bundled_folder
from lolat.io.writing import write_bytes
from lolat.units import deviation, percent, plural

LIMIT = 0.1
"""The largest relative change of a machine's times for which its profile still holds; see `limit_of`."""
STEADY = 0.2
"""The largest relative repeatability of a profile that a check can judge; on the calm machines of the
bundled profiles, times repeat within 5 to 15 %."""
OLD_AGE = timedelta(days=1)
"""Age, since learning or the last check, at which a profile gets a remark."""


@dataclass(frozen=True)
class Check:
    """A check of a profile on its machine.

    `ratio`: new / learned time; `limit`: largest deviation of the ratio from 1; `settled`: False if the
    machine was so busy or unsteady that the check could not tell.
    """

    by: Literal["doctor", "evaluate", "probe"]
    date: str
    ratio: Positive
    limit: Positive
    settled: bool = True

    @property
    def is_off(self) -> bool:
        """True if the machine's times have changed by more than the limit."""
        return self.settled and deviation(self.ratio) > self.limit

    @property
    def words(self) -> str:
        """The finding in words, which follow "checked 5 minutes ago: "."""
        if not self.settled:
            then = f"networks took {self.ratio:.2f} times as long then (`--now` answers for that)"
            return f"could not tell, as the machine was busy or unsteady; {then}"
        beyond = f", which is more than {percent(self.limit)} off" if self.is_off else ""
        return f"{self.ratio:.2f} times as long as learned{beyond}"


@dataclass(frozen=True)
class State:
    """The age of a profile in whole days, and its last check.

    `remark`: both in words; null if the profile was learned, or passed a check, within a day.
    """

    learned: str
    age_days: int
    check: Check | None
    remark: str | None


def limit_of(file: DeviceFile) -> float:
    """The limit of a check: LIMIT, or the repeatability if that is larger, but never more than STEADY."""
    return min(max(LIMIT, file.noise.repeatability or 0.0), STEADY)


def is_noisy(file: DeviceFile) -> bool:
    """True if the machine was so unsteady while learning that a check cannot judge the profile."""
    return (file.noise.repeatability or 0.0) > STEADY


def state_of(file: DeviceFile, source: str) -> State | None:
    """The state of the profile in the file `source`; None unless it was measured on this machine."""
    learned = _learned_here(file, source)
    if learned is None:
        return None
    check, remark = file.check, None
    if check is None:
        with contextlib.suppress(LolatError, msgspec.ValidationError, KeyError):
            stored = read_json(_state_file(source), "expected a state")
            if stored["learned"] == learned:
                check = msgspec.convert(stored["check"], Check)
    if check is None and age_of(learned) >= OLD_AGE:
        remark = f"learned {ago(learned)}, not checked since"
    elif check is not None and (check.is_off or not check.settled or age_of(check.date) >= OLD_AGE):
        remark = f"learned {ago(learned)}, checked {ago(check.date)}: {check.words}"
    return State(learned, age_of(learned).days, check, remark)


def check_now(
    by: Literal["doctor", "evaluate", "probe"], ratio: float, limit: float, settled: bool = True
) -> Check:
    """A check of a profile, dated now."""
    return Check(by, now().isoformat(timespec="seconds"), ratio, limit, settled)


def write_check(
    file: DeviceFile, source: str, by: Literal["doctor", "evaluate"], ratio: float,
    settled: bool = True,
) -> None:  # fmt: skip
    """Write a check beside the profile, if it was measured here and its folder is writable."""
    learned = _learned_here(file, source)
    if learned is not None:
        check = check_now(by, ratio, limit_of(file), settled)
        stored = {"learned": learned, "check": msgspec.to_builtins(check)}
        with contextlib.suppress(LolatError):
            write_bytes(_state_file(source), to_json(stored).encode("ascii"))


def _learned_here(file: DeviceFile, source: str) -> str | None:
    """The date on which a profile was measured here; None if it is bundled or fitted to published times."""
    where, path = file.environment, Path(source).resolve()
    is_here = path.is_file() and path.parent != bundled_folder().resolve()
    is_learned = where.is_learned and not where.source and is_here
    return where.date if is_learned and moment(where.date) else None


def _state_file(source: str) -> Path:
    path = Path(source).resolve()
    return path.with_name(path.name.removesuffix(".json") + STATE)


def now() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)


def moment(date: Any) -> datetime | None:
    """A date in a file as a UTC datetime; None if it is not a date or has no time zone."""
    try:
        when = datetime.fromisoformat(date)
    except (TypeError, ValueError):
        return None
    return when.astimezone(UTC) if when.tzinfo is not None else None


def age_of(date: str) -> timedelta:
    """The time since a date in a file; 0 if the date is in the future."""
    return max(now() - (moment(date) or now()), timedelta(0))


def ago(date: str) -> str:
    """The age of a date in words: 5 minutes ago, 3 days ago."""
    age = age_of(date)
    minutes = int(age.total_seconds() / 60)
    if minutes < 120:
        return f"{plural(minutes, 'minute')} ago"
    return f"{minutes // 60} hours ago" if age < timedelta(days=2) else f"{age.days} days ago"
