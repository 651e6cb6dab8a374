"""The journal of a run: one JSON line per measurement, on disk before the next measurement starts.

A run that was killed continues from its journal if the journal is younger than a day and everything that
makes times comparable is unchanged; otherwise it starts anew. Only one run at a time can have a journal
open.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lolat.errors import InputError, arg
from lolat.io.paths import relative_path, shown_path
from lolat.io.writing import not_written

OLDEST_S = 24 * 3600.0
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None


class Journal:
    """An append-only file of records.

    `records`: the measurements that an interrupted run had made. `dropped`: the reason why records in the
    file were discarded; "" if they were not.
    """

    def __init__(
        self, path: Path, key: Mapping[str, Any], now: float, restart: bool = False
    ) -> None:
        """Open `path`, and read its records if they belong to the same run.

        `key`: all that makes times comparable, as JSON. `now`: seconds since the epoch. `restart`: True to
        discard the records. InputError if the file cannot be written or another process has it open,
        LolatError if the disk is full.
        """
        self.path, self.dropped = path, ""
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            self._lock()
            header, *self.records = read(path) or [{}]
            if header and not restart:
                self.dropped = _why_not(header, key, now)
            if header and not restart and not self.dropped:
                self._file.write(b"\n")  # ends a line that a kill cut
            else:
                self.records = []
                self._file.truncate(0)
                self._put({"key": key, "started": now})

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record, which is on disk when this returns; LolatError if it cannot be written."""
        with self._writing():
            self._put(record)
        self.records.append(dict(record))

    def close(self) -> None:
        """Close the file; the records stay."""
        self._file.close()

    def remove(self) -> None:
        """Delete the file after the run has succeeded."""
        if fcntl is None:  # Windows removes no open file
            self.close()
        self.path.unlink(missing_ok=True)
        self.close()

    def _lock(self) -> None:
        """Keep other processes from the file until it is closed, on systems with file locks."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InputError(
                f"{shown_path(self.path)}: another `lolat learn` is measuring for this file; wait until it "
                f"has ended, or give another {arg('output')}",
                code="in-use",
            ) from None
        except OSError:  # a file system without locks
            return

    def _put(self, record: Mapping[str, Any]) -> None:
        line = memoryview(msgspec.json.encode(record) + b"\n")
        while line:
            line = line[self._file.write(line) :]
        os.fsync(self._file.fileno())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise not_written(error, f"{arg('output')} {shown_path(self.path)}") from error


def read(path: Path) -> list[dict[str, Any]]:
    """The header and the records of a journal; [] if there is no journal.

    An incomplete line, such as the last one of a run that was killed, is skipped.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
    return rows if rows and rows[0].keys() == {"key", "started"} else []


def _why_not(header: Mapping[str, Any], key: Mapping[str, Any], now: float) -> str:
    """The reason why a journal does not belong to the run with `key`; "" if it does."""
    other = [name for name, value in key.items() if header["key"].get(name) != value]
    if other:
        return f"it was measured with other {', '.join(other)}"
    return "" if now - header["started"] < OLDEST_S else "it is older than a day"


@contextlib.contextmanager
def interruptible(journal_path: Path) -> Iterator[None]:
    """Give a KeyboardInterrupt a message: whether something was measured, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        words = "interrupted before anything was measured; give the same command again"
        if journal_path.exists():
            place = relative_path(journal_path)
            words = f"interrupted; the measurements are in {place}, give the same command again to go on"
        raise KeyboardInterrupt(words) from None
