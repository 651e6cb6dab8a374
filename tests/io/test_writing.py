"""Writing files: straight into a device, and the places that are checked before minutes of measuring."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from lolat.errors import InputError, LolatError
from lolat.io.writing import check_writable, shown_path, write_bytes, write_text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_text_goes_straight_into_a_device(tmp_path: Path) -> None:
    write_text("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(LolatError, match=r"^/dev/full: not written, the disk is full") as caught:
        write_text("/dev/full", "x")
    assert caught.value.exit_code == 1
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_text(tmp_path / "pipe", "ä\n")
    reader.join()
    assert read == ["ä\n".encode()]
    assert os.listdir(tmp_path) == ["pipe"]


def test_text_into_a_file(tmp_path: Path) -> None:
    for text in ("ä\r\n", "", "x" * 70_000):
        write_text(str(tmp_path / "a" / "b.txt"), text)
        assert (tmp_path / "a" / "b.txt").read_bytes() == text.encode()
    assert os.listdir(tmp_path / "a") == ["b.txt"]
    write_text(tmp_path / "a" / ("x" * 255), "")  # as long as a name can be
    os.link(tmp_path / "a" / "b.txt", tmp_path / "before")
    write_text(tmp_path / "a" / "b.txt", "new")
    assert (tmp_path / "before").read_text() == text, "replaced, not written over"
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b.txt")
    write_text(tmp_path / "link", "by a link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a" / "b.txt").read_text() == "by a link"
    for bad in (tmp_path, "a\0b", "", tmp_path / "a" / "b.txt" / "c"):
        with pytest.raises(InputError, match="^" + re.escape(shown_path(bad) + ": ")):
            write_text(bad, "x")


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (
            errno.EACCES,
            InputError,
            "no permission to write it; expected a file in a folder that this user can",
        ),
        (errno.EPERM, InputError, "no permission"),
        (errno.EROFS, InputError, "no permission"),
        (errno.ENOSPC, LolatError, f"not written, the disk is full ({os.strerror(errno.ENOSPC)})"),
        (errno.EFBIG, LolatError, "not written, the disk is full ("),
        (errno.EDQUOT, LolatError, "not written, the disk is full ("),
        (
            errno.ENOTDIR,
            InputError,
            f"cannot be written ({os.strerror(errno.ENOTDIR)}); expected the name",
        ),
        (errno.ENAMETOOLONG, InputError, "cannot be written ("),
        (errno.EINVAL, InputError, "cannot be written ("),
        (
            errno.EIO,
            LolatError,
            f"not written ({os.strerror(errno.EIO)}); what was there before is unchanged",
        ),
    ],
)
def test_what_a_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type, words: str
) -> None:
    """What is the user's to mend has exit code 2; nothing is left behind."""

    def refuse(source: object, target: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(LolatError) as caught:
        write_bytes(tmp_path / "a", b"x")
    monkeypatch.undo()
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"{tmp_path / 'a'}: {words}")
    assert os.listdir(tmp_path) == []


def test_it_is_on_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content, then the name, then the folder with it; a folder that refuses does no harm."""
    calls: list[tuple[str, bool]] = []
    fsync, replace = os.fsync, os.replace

    def forced(handle: int) -> None:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        calls.append(("fsync", folder))
        if folder:
            raise OSError(errno.EINVAL, "not of this file system")
        fsync(handle)

    def renamed(source: str, target: str) -> None:
        calls.append(("replace", Path(source).parent == Path(target).parent == tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", forced)
    monkeypatch.setattr(os, "replace", renamed)
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    write_bytes(tmp_path / "a", b"x")
    if before:
        assert len(os.listdir("/proc/self/fd")) == before, "what was opened is closed"
    assert calls == [("fsync", False), ("replace", True), ("fsync", True)]


def test_places_are_checked_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "new" / "folder" / "model.json")
    assert (tmp_path / "new" / "folder").is_dir()
    check_writable(tmp_path / "new" / "model.json")
    (tmp_path / "file").write_text("x")
    check_writable(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")

    def said(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            check_writable(path)
        assert caught.value.code == "not-written"
        return str(caught.value).replace(str(tmp_path), "HERE")

    assert said(tmp_path) == "output HERE is a folder; expected the name of a file"
    pipe = "output HERE/pipe is not a regular file; expected the name of a file"
    assert said(tmp_path / "pipe") == pipe
    below = said(tmp_path / "file" / "model.json")
    assert below.startswith("cannot write HERE/file/model.json: ")
    assert below.endswith("; give output elsewhere")
    for refused, words in (
        (tmp_path / "file", "no permission to write HERE/file; give output elsewhere"),
        (tmp_path, "no permission to write in HERE; give output elsewhere"),
    ):
        # Root may write everywhere, so the refusal is put in place of the system's.
        monkeypatch.setattr(os, "access", lambda path, mode, no=refused: Path(path) != no)
        assert said(tmp_path / "file") == words
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.W_OK)
    check_writable(tmp_path / "file")


@pytest.mark.parametrize(
    ("path", "shown"),
    [("", "''"), (b"a/b", "a/b"), (Path("a b"), "a b"), ("a\nb", "a\\nb")],
)
def test_a_path_in_a_message(path: str, shown: str) -> None:
    assert shown_path(path) == shown
