"""The journal: on disk at once, read after a kill, and dropped where it is of another run."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import InputError, LolatError
from lolat.microbench.journal import Journal

KEY = {"blocks": "abc", "framework_version": "2.21", "flags": {}}
VISIT = {"key": "conv x1", "visit": {"samples_ms": [1.5, 2.5], "at_s": [1.7e9, 1.8e9]}}
FAILURE = {"key": "big x8", "failed": "not enough memory"}
NOW = 1.7e9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models" / "m.json.journal.jsonl"


def written(path: Path, *records: dict[str, Any]) -> Path:
    """A journal of an earlier run, started at NOW."""
    journal = Journal(path, KEY, NOW)
    for record in records:
        journal.append(record)
    journal.close()
    return path


def opened(path: Path, now: float = NOW + 60, **options: Any) -> Journal:
    journal = Journal(path, options.pop("key", KEY), now, **options)
    journal.close()
    return journal


def test_append_syncs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path, KEY, NOW)
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_bytes()))
    journal.append(VISIT)
    header, record = (json.loads(line) for line in synced[0].splitlines())
    assert record == VISIT
    assert header == {"key": KEY, "started": NOW}
    journal.close()


def test_the_same_run_goes_on(path: Path) -> None:
    written(path, VISIT, FAILURE)
    journal = Journal(path, KEY, NOW + 24 * 3600 - 1)
    assert (journal.records, journal.dropped) == ([VISIT, FAILURE], "")
    journal.append(VISIT)
    assert [json.loads(line) for line in path.read_bytes().splitlines()[-1:]] == [VISIT]
    journal.remove()
    assert os.listdir(path.parent) == [], "after success"


@pytest.mark.parametrize("cut", [1, 2, 10, 29])
def test_a_torn_last_line_is_the_only_loss(path: Path, cut: int) -> None:
    written(path, VISIT, FAILURE, VISIT)
    path.write_bytes(path.read_bytes()[:-cut])
    journal = Journal(path, KEY, NOW + 60)
    kept = [VISIT, FAILURE, VISIT][: 3 if cut == 1 else 2]  # without its line end it is whole
    assert journal.records == kept
    journal.append(FAILURE)
    journal.close()
    assert opened(path).records == [*kept, FAILURE]


@pytest.mark.parametrize(
    ("key", "now", "why"),
    [
        ({**KEY, "framework_version": "2.22"}, NOW + 60, "other framework_version"),
        ({**KEY, "blocks": "x", "flags": {"A": "1"}}, NOW + 60, "other blocks, flags"),
        (KEY, NOW + 24 * 3600, "older than a day"),
    ],
)
def test_another_run_drops_it(path: Path, key: dict[str, Any], now: float, why: str) -> None:
    written(path, VISIT)
    journal = opened(path, now, key=key)
    assert journal.records == []
    assert why in journal.dropped
    assert opened(path, now + 1, key=key).dropped == "", "the new one is a journal of its own"


def test_two_runs_do_not_write_into_one_file(path: Path) -> None:
    journal = Journal(path, KEY, NOW)
    journal.append(VISIT)
    for options in ({}, {"restart": True}):
        with pytest.raises(InputError) as caught:
            Journal(path, KEY, NOW + 1, **options)
        assert (caught.value.code, caught.value.arguments) == ("in-use", ["output"])
    journal.append(FAILURE)
    journal.close()
    assert opened(path).records == [VISIT, FAILURE]


def test_a_full_disk_keeps_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of a line that the disk took is left out; the exit code is that of a full disk."""
    journal = Journal(path, KEY, NOW)
    journal.append(VISIT)

    def full(handle: int) -> None:
        os.truncate(path, path.stat().st_size - 7)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LolatError) as caught:
            journal.append(FAILURE)
    assert (caught.value.code, caught.value.exit_code) == ("not-written", 1)
    assert journal.records == [VISIT]
    journal.close()
    assert opened(path).records == [VISIT]
