"""Writing a model file: whole or not at all, whatever goes wrong, and readable by people."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import InputError, LolatError, ModelFileError
from lolat.model import file as model_file
from tests.model_documents import large, small

_ROOT = Path(model_file.__file__).parents[2]

_PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(), max_size=8),
)
_ANY = st.recursive(
    _PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def _left_overs(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


@given(extra=st.dictionaries(st.text(max_size=6).filter(lambda key: key not in small()), _ANY))
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_what_json_reads(
    tmp_path_factory: pytest.TempPathFactory, extra: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("written") / "model.json"
    document = {**small(), **extra}
    document["environment"] = extra
    document["points"][0]["extra"] = extra
    model_file.write(path, document)
    # repr as well as equality: 1 == 1.0 == True, and a reader must not change one to another.
    oracle = json.loads(path.read_bytes())
    assert oracle == document
    assert _sorted(oracle) == _sorted(document)
    assert _sorted(model_file.read(path)) == _sorted(document)
    assert json.dumps(oracle) == json.dumps(oracle, sort_keys=True), "keys are sorted"


def _sorted(document: Any) -> str:
    return json.dumps(document, sort_keys=True)


def test_a_point_takes_a_line_and_no_line_is_split_in_a_list_of_times(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    document = large(points=20, samples=7)
    model_file.write(path, document)
    lines = path.read_text().splitlines()
    for point in document["points"]:
        line = next(line for line in lines if f'"{point["name"]}"' in line)
        assert json.loads(line.rstrip(",")) == point
    assert ' "name": "desk",' in lines
    assert len(lines) < 20 + 60


def test_it_replaces_and_makes_folders_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "model.json"
    model_file.write(path, small())
    model_file.write(str(path), large())
    assert model_file.read(path) == large()
    assert os.listdir(path.parent) == ["model.json"]
    model_file.write(tmp_path / ("x" * 255), small())
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.skipif(os.name != "posix", reason="modes and links as POSIX has them")
def test_it_is_readable_as_the_umask_says_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    before = os.umask(0o027)
    try:
        model_file.write(link, small())
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert model_file.read(real) == small()


@pytest.mark.parametrize(
    "wrong", [{}, {"version": 1}, {"points": None}, {"noise": {"x": math.nan}}]
)
def test_a_document_that_is_not_valid_changes_nothing(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    path = tmp_path / "model.json"
    model_file.write(path, small())
    document = {**small(), **wrong} if wrong and "version" not in wrong else wrong
    with pytest.raises(ModelFileError):
        model_file.write(path, document)
    assert model_file.read(path) == small()


def test_what_json_cannot_hold_is_one_line(tmp_path: Path) -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in ({1: 2}, {"a", "b"}, object(), circle, b"bytes", {None: [1]}):
        with pytest.raises(ModelFileError) as caught:
            model_file.write(tmp_path / "model.json", {**small(), "extra": value})
        assert str(caught.value).isprintable()
    assert os.listdir(tmp_path) == []


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    bad = [tmp_path, tmp_path / "file" / "model.json", tmp_path / ("x" * 300), "a\0b", ""]
    for path in bad:
        with pytest.raises(InputError) as caught:
            model_file.write(path, small())
        assert str(caught.value).isprintable()
        assert caught.value.exit_code == 2
    assert sorted(os.listdir(tmp_path)) == ["file"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_or_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        model_file.write(tmp_path / "pipe", small())
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize("call", ["open", "replace", "makedirs"])
def test_no_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    # Root may write everywhere, so the refusal is put in place of the system's.
    path = tmp_path / "model.json"
    model_file.write(path, small())
    _fail(monkeypatch, call, code)
    with pytest.raises(InputError, match="no permission to write") as caught:
        model_file.write(path, large())
    monkeypatch.undo()
    assert str(caught.value).isprintable()
    assert model_file.read(path) == small()
    assert _left_overs(tmp_path) == []


def test_a_read_only_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.json"
    model_file.write(path, small())
    path.chmod(0o444)
    if os.access(path, os.W_OK):  # as root
        monkeypatch.setattr(os, "access", lambda *args: False)
    with pytest.raises(InputError, match="no permission"):
        model_file.write(path, large())
    assert model_file.read(path) == small()


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "expected"), [(errno.ENOSPC, "the disk is full"), (errno.EIO, "not written")]
)
def test_a_full_or_failing_disk_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, expected: str
) -> None:
    path = tmp_path / "model.json"
    model_file.write(path, small())
    _fail(monkeypatch, call, code)
    with pytest.raises(LolatError, match=expected) as caught:
        model_file.write(path, large())
    monkeypatch.undo()
    assert caught.value.exit_code == 1
    assert str(caught.value).isprintable()
    assert model_file.read(path) == small()
    assert _left_overs(tmp_path) == []


def _fail(monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)


def test_a_write_that_takes_only_a_part_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:1000])))
    model_file.write(tmp_path / "model.json", large(points=10))
    monkeypatch.undo()
    assert model_file.read(tmp_path / "model.json") == large(points=10)


def test_ctrl_c_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model_file.write(tmp_path / "model.json", small())
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="the system's own limit on a file's size")
def test_a_real_limit_on_the_file_size(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model_file.write(path, small())
    code = (
        "import resource, sys\nfrom lolat.model import file as model_file\n"
        "from lolat.errors import LolatError\n"
        "from tests.model_documents import large\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "try: model_file.write(sys.argv[1], large())\n"
        "except LolatError as error: print(error); sys.exit(error.exit_code)\n"
    )
    done = _python(code, path)
    assert done.wait() == 1
    assert done.stdout is not None
    assert "the disk is full" in done.stdout.read().decode()
    assert model_file.read(path) == small()
    assert _left_overs(tmp_path) == []


def _python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE)


_WRITES_FOR_EVER = (
    "import sys; from lolat.model import file as model_file; from tests.model_documents import large\n"
    "documents = [large(seed=1), large(seed=2)]\n"
    "print('ready', flush=True)\n"
    "while True:\n"
    "    for document in documents: model_file.write(sys.argv[1], document)\n"
)


def test_killed_at_any_instant_the_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model_file.write(path, large(seed=1))
    documents = [large(seed=1), large(seed=2)]
    moments = random.Random(0)
    seen = set()
    for _ in range(12):
        writer = _python(_WRITES_FOR_EVER, path)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(moments.uniform(0.0, 0.12))
        writer.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        writer.wait()
        writer.stdout.close()
        seen.add(documents.index(json.loads(path.read_bytes())))
    assert seen == {0, 1}, "the writer was killed too early to have written anything"
    # What a kill leaves behind is never taken for a model.
    assert [name for name in os.listdir(tmp_path) if name.endswith(".json")] == ["model.json"]


def test_readers_beside_two_writers_see_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    documents = [large(points=40, seed=1), large(points=60, seed=2)]
    model_file.write(path, documents[0])
    stop = threading.Event()
    faults: list[Exception] = []

    def write() -> None:
        try:
            while not stop.is_set():
                for document in documents:
                    model_file.write(path, document)
        except Exception as fault:
            faults.append(fault)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        seen = {documents.index(model_file.read(path)) for _ in range(150)}
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert seen == {0, 1}
    assert faults == []
    assert _left_overs(tmp_path) == []
