"""The journal of a run: one JSON line per visit, on disk before the next visit starts.

A run that was killed goes on from its journal when everything that makes times comparable is the same
and it is younger than a day; otherwise it starts anew, and what was there is kept beside it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from lolat.errors import InputError, LolatError, MeasuringError
from lolat.io.documents import Number, fits

SCHEMA = "lolat-journal"
FORMAT_VERSION = 1
OLDEST_S = 24 * 3600.0

_DISK_FAILS = {errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}


def fingerprint(key: Mapping[str, Any]) -> str:
    """A short name for what makes times comparable: block set, device, versions, flags."""
    text = json.dumps(key, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """An append-only file of records; every `append` is on disk when it returns.

    `records`: what an earlier part of the same run measured. `dropped`: why what was there does not
    count ("" if it does, or there was nothing), and `aside` where it is kept.
    """

    def __init__(
        self, path: Path, key: Mapping[str, Any], now: float, restart: bool = False
    ) -> None:
        """Open `path`, keeping its records if they belong to the same run.

        `now`: seconds since the epoch. `restart` throws away what is there. Raises InputError when
        the file cannot be written or another run is writing it, MeasuringError when the disk is full.
        """
        self.path = path
        self.records: list[dict[str, Any]] = []
        self.dropped = ""
        self.aside: Path | None = None
        self._header: Mapping[str, Any]
        header = {
            "schema": SCHEMA,
            "version": FORMAT_VERSION,
            "fingerprint": fingerprint(key),
            "key": json.loads(json.dumps(key)),
            "started": now,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_alone(path)
        except OSError as error:
            raise _refusal(path, error) from error
        try:
            content = self._file.readall()
            old, records = parse(content)
            why = _why_not(old, header) if content else ""
            if old is not None and content and not restart and not why:
                self.records = records
                if not content.endswith(b"\n"):  # torn by a kill; the rest is whole
                    self._put(b"\n")
            else:
                if why and not restart and (records or old is None):
                    self.dropped = why
                    self._put_aside()
                self._file.truncate(0)
                old = header
                self._put(_line(header))
            self._header = old
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise _refusal(path, error) from error
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record; MeasuringError when the disk does not take it."""
        try:
            if not os.fstat(self._file.fileno()).st_nlink:
                self._begin_again()  # it was removed meanwhile, maybe with its folder
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

    def _begin_again(self) -> None:
        """A new file with all that there was."""
        self._file.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open_alone(self.path)
        for document in (self._header, *self.records):
            self._put(_line(document))

    def _put_aside(self) -> None:
        """Rename what is there to a name that is free."""
        names = (f"{self.path.name}.old{n or ''}" for n in range(1000))
        self.aside = next(p for p in map(self.path.with_name, names) if not p.exists())
        self._file.close()
        os.replace(self.path, self.aside)
        self._file = _open_alone(self.path)


def parse(content: bytes) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Header (None if this is no journal) and records of a journal's content.

    A line that is not a whole record, such as the last one of a run that was killed, is left out.
    """
    documents = [_document(line) for line in content.splitlines()]
    if not documents or documents[0] is None or documents[0].get("schema") != SCHEMA:
        return None, []
    return documents[0], [d for d in documents[1:] if d is not None and _is_record(d)]


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


class _Failure(msgspec.Struct):
    key: str
    failed: str


class _Start(msgspec.Struct):
    """The start of a training, which is measured once."""

    key: str
    start_ms: Number


class _Visit(msgspec.Struct):
    """Each sample between two of the reference, or with what ran before it (`timing.sample`)."""

    key: str
    samples_ms: list[Number]
    reference_ms: list[Number]
    at_s: list[Number] = []
    before: str | None = None


def _is_record(document: Mapping[str, Any]) -> bool:
    """Either the times of a visit, which fit together, a start's, or a failure."""
    if "failed" in document:
        return fits(document, _Failure)
    if "start_ms" in document:
        return fits(document, _Start)
    if not fits(document, _Visit):
        return False
    samples, lengths = len(document["samples_ms"]), [len(document["reference_ms"])]
    lengths.append(len(document.get("at_s", ())))
    if "before" in document:
        return lengths == [samples if document["before"] else 0, samples]
    return lengths == [samples + 1, 0]


def _why_not(old: Mapping[str, Any] | None, header: Mapping[str, Any]) -> str:
    """Why a journal with the header `old` is not of the run with `header`; "" if it is."""
    if old is None:
        return "it is not a journal of LoLat"
    if old.get("version") != header["version"]:
        return f"it is of version {old.get('version')!r}, this LoLat writes {header['version']}"
    if old.get("fingerprint") != header["fingerprint"]:
        before = old.get("key")
        before = before if isinstance(before, dict) else {}
        other = [k for k, value in header["key"].items() if before.get(k) != value]
        return f"it was measured with other {', '.join(other) or 'settings'}"
    started = old.get("started")
    age = header["started"] - started if isinstance(started, (int, float)) else math.inf
    if age < 0:
        return "it is from the future (was the clock set back?)"
    return "" if age < OLDEST_S else "it is older than a day"


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
            f"another run is writing the journal {path}; wait until it is done, or give another --output"
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
        f"cannot write the journal {path}: {reason}; give --output in a folder that you may write to"
    )


@contextmanager
def interruptible(journal_path: Path) -> Iterator[None]:
    """Ctrl-C says what becomes of what was measured."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; what was measured is in {journal_path}, give the same command again to go on"
            if journal_path.exists()
            else "interrupted before anything was measured; give the same command again"
        ) from None
