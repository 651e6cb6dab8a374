"""The journal of a run: one JSON line per visit, on disk before the next visit starts.

A run that was killed goes on from its journal when everything that makes times comparable is the same
and it is younger than a day; otherwise it starts anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lolat.errors import InputError, MeasuringError

SCHEMA = "lolat-journal"
FORMAT_VERSION = 1
OLDEST_S = 24 * 3600.0


def fingerprint(key: Mapping[str, Any]) -> str:
    """A short name for what makes times comparable: block set, device, versions, flags."""
    text = json.dumps(key, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """An append-only file of records; every `append` is on disk when it returns."""

    def __init__(
        self, path: Path, key: Mapping[str, Any], now: float, restart: bool = False
    ) -> None:
        """Open `path`, keeping its records if they belong to the same run.

        `now`: seconds since the epoch. Raises InputError when the file cannot be written.
        """
        self.path = path
        self.records: list[dict[str, Any]] = []
        self.dropped = ""
        header = {
            "schema": SCHEMA,
            "version": FORMAT_VERSION,
            "fingerprint": fingerprint(key),
            "key": dict(key),
            "started": now,
        }
        found = None if restart else read(path)
        keep = False
        if found is not None:
            old, self.records = found
            if old.get("fingerprint") != header["fingerprint"]:
                self.dropped = (
                    "it was measured with other blocks, versions, flags or another device"
                )
            elif not 0 <= now - float(old.get("started", 0)) < OLDEST_S:
                self.dropped = "it is older than a day"
            else:
                keep = True
        if not keep:
            self.records = []
        lines = [header if not keep else found[0], *self.records] if found is not None else [header]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Written anew, so that a line torn by a kill does not stay in the middle.
            temporary = path.with_name(path.name + ".new")
            with open(temporary, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise InputError(
                f"cannot write the journal {path}: {error.strerror}; give --output in a folder that "
                "you may write to and that has room"
            ) from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record; MeasuringError when the disk does not take it."""
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
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


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Header and records of a journal; None if there is none. A torn last line is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    documents = []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            break
        if not isinstance(document, dict):
            break
        documents.append(document)
    if not documents or documents[0].get("schema") != SCHEMA:
        return None
    return documents[0], documents[1:]
