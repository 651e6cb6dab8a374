"""The journal of a run: one JSON line per visit, on disk before the next visit starts.

A run that was killed goes on from its journal when everything that makes times comparable is the same
and it is younger than a day; otherwise it starts anew, and the old journal is kept beside it once.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from lolat.errors import InputError, LolatError, MeasuringError, arg
from lolat.io.paths import near

SCHEMA = "lolat-journal"
OLDEST_S = 24 * 3600.0

_DISK_FAILS = {errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}


def fingerprint(key: Mapping[str, Any]) -> str:
    """A short name for a part of what makes times comparable, such as all blocks."""
    text = json.dumps(key, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """An append-only file of records; every `append` is on disk when it returns.

    `records`: what an earlier part of the same run measured. `dropped`: why what was there does not
    count ("" if it does, or there was nothing); it is kept in `aside` then.
    """

    def __init__(
        self, path: Path, key: Mapping[str, Any], now: float, restart: bool = False
    ) -> None:
        """Open `path`, keeping its records if they belong to the same run.

        `key`: what makes times comparable: block set, device, versions, flags. `now`: seconds since the
        epoch. `restart` throws away what is there. Raises InputError when the file cannot be written or
        another run is writing it, MeasuringError when the disk is full.
        """
        self.path, self.aside = path, path.with_name(path.name + ".old")
        self.records: list[dict[str, Any]] = []
        self.dropped = ""
        header = {"schema": SCHEMA, "key": json.loads(json.dumps(key)), "started": now}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_alone(path)
        except OSError as error:
            raise _refusal(path, error) from error
        try:
            self._begin(header, restart)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise _refusal(path, error) from error
            raise

    def _begin(self, header: Mapping[str, Any], restart: bool) -> None:
        """Go on with what is there, or start anew."""
        content = self._file.readall()
        old, records = parse(content)
        why = _why_not(old, header)
        if content and not restart and not why:
            self.records = records
            if not content.endswith(b"\n"):  # torn by a kill; the rest is whole
                self._put(b"\n")
            return
        if content and not restart and (records or old is None):
            self.dropped = why
            self.aside.write_bytes(content)
        self._file.truncate(0)
        self._put(_line(header))

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record; MeasuringError when the disk does not take it."""
        try:
            self._put(_line(record))
        except OSError as error:
            raise MeasuringError(
                f"cannot write the journal {self.path}: {error.strerror}; make room and start the "
                "same command again, it goes on where it stopped"
            ) from error
        self.records.append(dict(record))

    def close(self) -> None:
        """Close the file; what was appended stays."""
        self._file.close()

    def remove(self) -> None:
        """The run succeeded: its journal is no longer needed."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _put(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._file.fileno(), rest) :]
        os.fsync(self._file.fileno())


def parse(content: bytes) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Header (None if this is no journal) and records of a journal's content.

    A line that is not a whole record, such as the last one of a run that was killed, is left out.
    """
    documents = [_document(line) for line in content.splitlines()]
    if not documents or documents[0].get("schema") != SCHEMA:
        return None, []
    return documents[0], [d for d in documents[1:] if "key" in d]


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _why_not(old: Mapping[str, Any] | None, header: Mapping[str, Any]) -> str:
    """Why a journal with the header `old` is not of the run with `header`; "" if it is."""
    if old is None:
        return "it is not a journal of LoLat"
    if other := [k for k, value in header["key"].items() if old["key"].get(k) != value]:
        return f"it was measured with other {', '.join(other)}"
    return "" if header["started"] - old["started"] < OLDEST_S else "it is older than a day"


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode("ascii") + b"\n"


def _open_alone(path: Path) -> FileIO:
    """Open for reading from the start and appending; InputError when another run has it open."""
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by Journal.close()
    try:
        import fcntl
    except ImportError:  # Windows
        fcntl = None  # type: ignore[assignment]
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(
            f"another run is writing the journal {path}; wait until it is done, or give another "
            f"{arg('output')}"
        ) from None
    except OSError:
        pass  # a file system without locks
    file.seek(0)
    return file


def _refusal(path: Path, error: OSError) -> LolatError:
    reason = error.strerror or str(error)
    if error.errno in _DISK_FAILS:
        return MeasuringError(f"cannot write the journal {path}: {reason}; make room and try again")
    return InputError(
        f"cannot write the journal {path}: {reason}; give {arg('output')} in a folder that you may write "
        "to",
        code="not-written",
        path=str(path),
    )


@contextmanager
def interruptible(journal_path: Path) -> Iterator[None]:
    """Ctrl-C says what becomes of what was measured."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; what was measured is in {near(journal_path)}, give the same command again to go "
            "on"
            if journal_path.exists()
            else "interrupted before anything was measured; give the same command again"
        ) from None
