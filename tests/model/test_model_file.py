"""Reading a model file: what is accepted, and one clear line for everything that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import ModelFileError
from lolat.model import file as model_file
from tests.model_documents import as_json, large, small


def _refusal(path: Path) -> str:
    """The message that `read` refuses the file with: one line that begins with the path."""
    with pytest.raises(ModelFileError) as caught:
        model_file.read(path)
    message = str(caught.value)
    assert message.isprintable(), "one line, and nothing that a terminal would act on"
    assert message.startswith(f"{path}: ")
    assert caught.value.exit_code == 2
    return message.removeprefix(f"{path}: ")


def _refusal_of(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "model.json"
    path.write_bytes(content)
    return _refusal(path)


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf", b"\n  "])
def test_what_plain_json_holds_is_what_is_read(tmp_path: Path, prefix: bytes) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(prefix + as_json(small()))
    assert model_file.read(path) == small()
    assert model_file.read(str(path)) == small()


def test_later_minor_additions_are_accepted_and_kept(tmp_path: Path) -> None:
    document = small()
    later = {"anything": [1, "two", None, {"three": True}]}
    for holder in (document, *document["predictors"].values(), *document["points"]):
        holder["added_later"] = later
    document["predictors"]["mlp"] = {"coefficients": {}, "layers": [[1.5], [-2]]}
    path = tmp_path / "model.json"
    path.write_bytes(as_json(document))
    assert model_file.read(path) == document


def test_a_key_given_twice_has_its_last_value(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(as_json(small())[:-1] + b', "name": "second"}')
    assert model_file.read(path)["name"] == "second"


def test_missing_file_folder_pipe_and_bad_names(tmp_path: Path) -> None:
    missing = _refusal(tmp_path / "none.json")
    assert "no such file" in missing
    assert "learn_model.py cpu" in missing
    assert _refusal(tmp_path).startswith("is a folder")
    (tmp_path / "file").write_text("x")
    assert "cannot be read" in _refusal(tmp_path / "file" / "model.json")
    assert "cannot be read" in _refusal(tmp_path / ("x" * 300))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert "not a regular file" in _refusal(tmp_path / "pipe")
    for name in ("a\nb", "a\0b", "\x1b[31m", ""):
        with pytest.raises(ModelFileError) as caught:
            model_file.read(name)
        assert str(caught.value).isprintable()


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(as_json(small()))

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Root may read everything, so the refusal is put in place of the system's.
    monkeypatch.setattr(model_file, "open", refuse, raising=False)
    assert "no permission to read" in _refusal(path)


def test_a_huge_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.json"
    with path.open("wb") as file:
        file.truncate(64 * 2**20 + 1)

    def opened(*args: object, **kwargs: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(model_file, "open", opened, raising=False)
    assert "too large" in _refusal(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello", "not JSON"),
        (b"<html></html>", "not JSON"),
        (b"{'schema': 1}", "not JSON"),
        (as_json(small()) + b" trailing", "not JSON (Extra data"),
        (b"\xff\xfe{\x00", "not UTF-8"),
        (b'{"name": "\xe9"}', "not UTF-8"),
        (b"[1, 2]", "holds a list of 2; expected a LoLat model"),
        (b"null", "holds null"),
        (b"3", "holds 3"),
        (b'"text"', "holds 'text'"),
        (b"{}", "not a LoLat model: it has no field `schema`"),
        (b'{"schema": "onnx", "version": 1}', "its `schema` is 'onnx'"),
        (b'{"schema": "\\ud800\\u0007' + b"x" * 500 + b'"}', "its `schema` is '\\ud800\\x07xxx"),
        (b'{"schema": ["lolat-model"]}', "its `schema` is a list of 1"),
        (b'{"a": ' + b"1" * 5000 + b"}", "integer of thousands of digits"),
        (b'{"a": NaN}', "holds NaN"),
        (b'{"a": [-Infinity]}', "holds -Infinity"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_something_else_than_a_model(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in _refusal_of(tmp_path, content)


def test_cut_off_anywhere_it_says_truncated(tmp_path: Path) -> None:
    document = small()
    document["name"] = "Büro"
    whole = json.dumps(document, ensure_ascii=False, indent=1).encode()
    for length in range(1, len(whole)):
        assert "looks truncated" in _refusal_of(tmp_path, whole[:length]), whole[:length]


@pytest.fixture(params=[1_000, 100_000])
def recursion_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python's own limit: its default, and as other packages raise it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(request.param, before))
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("recursion_limit")
def test_how_deep_is_too_deep_hangs_on_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    start = as_json(small())[:-1] + b', "deep": '

    def deep(depth: int) -> bytes:  # the document itself is one
        return start + b"[" * (depth - 1) + b"0.5" + b"]" * (depth - 1) + b"}"

    path.write_bytes(deep(100))
    assert model_file.read(path)["deep"] != []
    for depth in (101, 1_000, 2_000, 50_000):
        path.write_bytes(deep(depth))
        assert "nested too deeply (more than 100 in each other)" in _refusal(path)


@pytest.mark.usefixtures("recursion_limit")
@pytest.mark.parametrize("depth", [200_000, 5_000_000])
def test_deep_text_never_ends_the_process(tmp_path: Path, depth: int) -> None:
    assert "nested too deeply" in _refusal_of(tmp_path, b"[" * depth)
    assert "nested too deeply" in _refusal_of(tmp_path, b'{"a": ' * (depth // 10))


def test_checking_costs_no_more_than_a_few_parsings(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(as_json(large()))

    def took(job: Any) -> float:
        started = time.perf_counter()
        job()
        return time.perf_counter() - started

    # In turns, so that both see the same machine.
    turns = [
        (took(lambda: json.loads(path.read_bytes())), took(lambda: model_file.read(path)))
        for _ in range(25)
    ]
    parsing, reading = map(min, zip(*turns, strict=True))
    # Some 2.9 times on an EPYC of family 26; parsing itself is part of it.
    assert reading < 5 * parsing


def test_reading_imports_nothing_heavy() -> None:
    # NumPy first: what it needs itself costs nothing more.
    code = (
        "import sys, numpy; before = set(sys.modules); import lolat.model.file; "
        "heavy = {'scipy', 'keras', 'tensorflow', 'torch', 'rich', 'click', 'tempfile'}; "
        "print(*sorted(heavy & (set(sys.modules) - before)))"
    )
    root = Path(model_file.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
