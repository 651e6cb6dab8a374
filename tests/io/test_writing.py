"""Writing files: straight into a device, and the places that are checked before minutes of measuring."""

from __future__ import annotations

import errno
import gzip
import os
import re
import stat
from pathlib import Path

import pytest

from lolat.errors import InputError, LolatError
from lolat.io.paths import shown_path
from lolat.io.writing import check_file, write_bytes, write_text


@pytest.mark.parametrize("name", ["a.csv.gz", "A.CSV.GZ"])
def test_a_name_in_gz_is_compressed(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "arch,latency_ms\nä,1\n")
    with gzip.open(tmp_path / name, "rt", encoding="utf-8") as file:
        assert file.read() == "arch,latency_ms\nä,1\n"


def test_text_into_a_file(tmp_path: Path) -> None:
    for text in ("ä\r\n", "", "x" * 70_000):
        write_text(str(tmp_path / "a" / "b.txt"), text)
        assert (tmp_path / "a" / "b.txt").read_bytes() == text.encode()
    assert os.listdir(tmp_path / "a") == ["b.txt"]
    write_text(tmp_path / "a" / ("x" * 255), "")  # as long as a name can be
    os.link(tmp_path / "a" / "b.txt", tmp_path / "before")
    os.chmod(tmp_path / "a" / "b.txt", 0o640)
    write_text(tmp_path / "a" / "b.txt", "new")
    assert stat.S_IMODE(os.stat(tmp_path / "a" / "b.txt").st_mode) == 0o640
    assert (tmp_path / "before").read_text() == text, "replaced, not written over"
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b.txt")
    write_text(tmp_path / "link", "by a link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a" / "b.txt").read_text() == "by a link"
    for bad in (tmp_path, "a\0b", "", tmp_path / "a" / "b.txt" / "c"):
        with pytest.raises(InputError, match="^" + re.escape(shown_path(bad) + ": ")):
            write_text(bad, "x")
    assert [shown_path(p) for p in ("", b"a/b", "a\nb")] == ["''", "a/b", "a\\nb"]


MISTAKES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)
FAULTS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


@pytest.mark.parametrize("code", MISTAKES + FAULTS)
def test_what_a_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Exit code 2 for a mistake of the user, 1 for a fault of the machine; nothing is left behind."""

    def refuse(source: object, target: object) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "a").write_text("before")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(LolatError) as caught:
        write_bytes(tmp_path / "a", b"x")
    monkeypatch.undo()
    assert caught.value.exit_code == (2 if code in MISTAKES else 1)
    assert (caught.value.code, caught.value.data) == ("not-written", {"path": str(tmp_path / "a")})
    assert os.strerror(code) in str(caught.value)
    assert ("the disk is full" in str(caught.value)) == (code in FAULTS[:3])
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "before"


def test_first_the_disk_then_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("fsync") or fsync(handle))
    monkeypatch.setattr(os, "replace", lambda *names: calls.append("replace") or replace(*names))
    write_bytes(tmp_path / "a", b"x")
    assert calls == ["fsync", "replace"]


def test_places_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_file(None, "output")
    check_file(tmp_path / "new" / "folder" / "model.json", "output", make_folder=True)
    assert (tmp_path / "new" / "folder").is_dir()
    check_file(tmp_path / "new" / "model.json", "output")
    (tmp_path / "file").write_text("x")
    check_file(tmp_path / "file", "output")
    check_file(tmp_path / "new" / "other.csv", "csv")
    os.mkfifo(tmp_path / "pipe")

    def refused(path: Path, make_folder: bool = False) -> None:
        with pytest.raises(InputError, match=re.escape(str(path))) as caught:
            check_file(path, "output", make_folder)
        assert (caught.value.code, caught.value.arguments) == ("not-written", ["output"])

    for path in (tmp_path, tmp_path / "pipe", tmp_path / "file" / "model.json"):
        refused(path)
        refused(path, make_folder=True)
        with pytest.raises(InputError, match=r"folder|regular file|Not a directory"):
            write_bytes(path, b"")
    refused(tmp_path / "none" / "a.csv")
    with pytest.raises(InputError, match=f"no folder {re.escape(str(tmp_path))}/none[)]"):
        check_file(tmp_path / "none" / "a.csv", "csv")
    assert not (tmp_path / "none").exists()
    # Root may write everywhere, so the refusal is put in place of the system's.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    refused(tmp_path / "file")
    refused(tmp_path / "new.json")
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.isfile(path))
    refused(tmp_path / "file")  # could be written, but not replaced
    (tmp_path / "new" / "link").symlink_to(tmp_path / "file")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
    refused(tmp_path / "new" / "link")
