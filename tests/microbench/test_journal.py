"""The journal: on disk at once, read after a kill, and never thrown away without a word."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError, LolatError, MeasuringError
from microbench.journal import Journal, parse
from microbench.runner import Outcome
from microbench.timing import Visit

KEY = {"blocks": "abc", "framework_version": "2.21", "flags": {}}
VISIT = {
    "key": "conv x1", "samples_ms": [1.5, 2.5], "reference_ms": [40.0, 41.0], "at_s": [1.7e9, 1.8e9],
    "before": "net x1",
}  # fmt: skip
AFTER = {
    "key": "conv x1", "samples_ms": [1.5], "reference_ms": [40.0], "at_s": [1.7e9], "before": "net x1",
}  # fmt: skip
LOOP = {
    "key": "net x1", "samples_ms": [40.5, 41.0], "reference_ms": [], "at_s": [1.7e9, 1.7e9 + 0.04],
    "before": "",
}  # fmt: skip
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


def test_a_record_is_on_disk_and_synced_when_append_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path, KEY, NOW)
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_bytes()))
    journal.append(VISIT)
    header, visit = (json.loads(line) for line in synced[0].splitlines())
    assert visit == VISIT
    assert header["schema"] == "lolat-journal"
    assert header["key"] == KEY
    journal.close()


def test_the_same_run_goes_on(path: Path) -> None:
    written(path, VISIT, FAILURE)
    journal = Journal(path, KEY, NOW + 24 * 3600 - 1)
    assert journal.records == [VISIT, FAILURE]
    assert journal.dropped == ""
    assert not journal.aside.exists()
    journal.append(VISIT)
    journal.close()
    assert opened(path).records == [VISIT, FAILURE, VISIT]


@pytest.mark.parametrize("record", [VISIT, AFTER, LOOP, FAILURE])
@pytest.mark.parametrize("cut", [1, 2, 10, 29])
def test_a_torn_last_line_is_the_only_loss(path: Path, record: dict[str, Any], cut: int) -> None:
    written(path, VISIT, FAILURE, record)
    path.write_bytes(path.read_bytes()[:-cut])
    journal = Journal(path, KEY, NOW + 60)
    kept = [VISIT, FAILURE, record][: 3 if cut == 1 else 2]  # without its line end it is whole
    assert journal.records == kept
    journal.append(FAILURE)
    journal.close()
    assert opened(path).records == [*kept, FAILURE]


@pytest.mark.parametrize("line", ["[1, 2]", "\x00\x00\x00", "[" * 100_000])
def test_a_damaged_line_is_left_out_and_the_others_stay(path: Path, line: str) -> None:
    written(path, VISIT)
    with path.open("a") as file:
        file.write(line + "\n" + json.dumps(FAILURE) + "\n")
    assert opened(path).records == [VISIT, FAILURE]


def test_a_record_comes_back_as_the_visit_that_it_was(path: Path) -> None:
    outcome = Outcome()
    outcome.recall(opened(written(path, LOOP, AFTER, VISIT)).records)
    assert outcome.visits == {
        "net x1": [Visit((40.5, 41.0), (), (1.7e9, 1.7e9 + 0.04), "")],
        "conv x1": [
            Visit((1.5,), (40.0,), (1.7e9,), "net x1"),
            Visit((1.5, 2.5), (40.0, 41.0), (1.7e9, 1.8e9), "net x1"),
        ],
    }


@given(st.binary(max_size=200))
def test_no_content_is_too_odd_to_read(content: bytes) -> None:
    parse(content)
    _, records = parse(json.dumps({"schema": "lolat-journal"}).encode() + b"\n" + content)
    assert all("key" in r for r in records)


@pytest.mark.parametrize(
    ("key", "now", "why"),
    [
        ({**KEY, "framework_version": "2.22"}, NOW + 60, "other framework_version"),
        ({**KEY, "blocks": "x", "flags": {"A": "1"}}, NOW + 60, "other blocks, flags"),
        (KEY, NOW + 24 * 3600, "older than a day"),
    ],
)
def test_a_journal_of_another_run_is_kept_aside(
    path: Path, key: dict[str, Any], now: float, why: str
) -> None:
    before = written(path, VISIT).read_bytes()
    journal = opened(path, now, key=key)
    assert journal.records == []
    assert why in journal.dropped
    assert journal.aside == path.with_name(path.name + ".old")
    assert journal.aside.read_bytes() == before
    assert opened(path, now + 1, key=key).dropped == ""  # the new one is a journal of its own


def test_only_the_last_one_is_kept_aside(path: Path) -> None:
    for number in (1, 2):
        written(path, {**FAILURE, "failed": str(number)})
        opened(path, key={"blocks": "other"})
        path.unlink()
    assert os.listdir(path.parent) == [path.name + ".old"]
    aside = path.with_name(path.name + ".old")
    assert parse(aside.read_bytes())[1][0]["failed"] == "2"


def test_what_is_no_journal_is_kept_aside(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"schema": "diary"}\n')
    journal = opened(path)
    assert "not a journal" in journal.dropped
    assert journal.aside.read_text() == '{"schema": "diary"}\n'


def test_an_empty_journal_of_another_run_is_nothing_to_keep(path: Path) -> None:
    written(path)
    assert opened(path, key={"blocks": "other"}).dropped == ""
    assert os.listdir(path.parent) == [path.name]


def test_restart_throws_away(path: Path) -> None:
    written(path, VISIT)
    journal = opened(path, restart=True)
    assert (journal.records, journal.dropped) == ([], "")
    assert opened(path).records == []
    assert os.listdir(path.parent) == [path.name]


def test_success_removes_it(path: Path) -> None:
    journal = Journal(path, KEY, NOW)
    journal.append(VISIT)
    journal.remove()
    assert os.listdir(path.parent) == []


def test_two_runs_do_not_share_a_journal(path: Path) -> None:
    first = Journal(path, KEY, NOW)
    first.append(VISIT)
    with pytest.raises(InputError, match="another run is writing"):
        Journal(path, KEY, NOW, restart=True)
    first.append(FAILURE)
    first.close()
    assert opened(path).records == [VISIT, FAILURE]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_ends_the_run_and_keeps_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    journal = Journal(path, KEY, NOW)
    journal.append(VISIT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_a_write_then(code))
        with pytest.raises(MeasuringError) as caught:
            journal.append(FAILURE)
    assert os.strerror(code) in str(caught.value)
    assert str(caught.value).isprintable()
    journal.close()
    assert journal.records == [VISIT]
    assert opened(path).records == [VISIT]


def half_a_write_then(code: int) -> Any:
    """An os.write that takes a few bytes and then fails, as a disk does that gets full."""
    real, room = os.write, [7]

    def write(handle: int, content: Any) -> int:
        if not room[0]:
            raise OSError(code, os.strerror(code))
        taken, room[0] = real(handle, bytes(content[: room[0]])), 0
        return taken

    return write


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EACCES, InputError), (errno.EROFS, InputError), (errno.ENOSPC, MeasuringError)],
)
def test_a_folder_that_takes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[LolatError]
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(kind) as caught:
        Journal(path, KEY, NOW)
    assert type(caught.value) is kind
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()


def test_where_no_journal_can_be(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir(parents=True)
    with pytest.raises(InputError, match="cannot write the journal"):
        Journal(path, KEY, NOW)
    monkeypatch.setattr(os, "write", half_a_write_then(errno.ENOSPC))
    with pytest.raises(MeasuringError, match="make room"):
        Journal(path.with_name("other"), KEY, NOW)
