"""Data frames out of pickles: what is read is right, and nothing in a pickle runs."""

from __future__ import annotations

import builtins
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.justus.importing import read_frame
from lolat.errors import InputError
from tests.mlp.frames import Call, array, frame_pickle, write

COLUMNS = {
    "a": np.array([1.5, 2.25, -1]),
    "b": np.array([1, 2, 3], np.int32),
    "c": np.array([0.5, 0, 7e300]),
    "d": np.array([True, False, True]),
}


def refused(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "x.pkl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_frame(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def test_columns_are_those_that_were_pickled(tmp_path: Path) -> None:
    found = read_frame(write(tmp_path, "x.pkl", COLUMNS))
    assert list(found) == list(COLUMNS)
    for name, values in COLUMNS.items():
        assert found[name].dtype == values.dtype
        assert found[name].tolist() == values.tolist()


MARK = "should not run"


@pytest.mark.parametrize(
    ("call", "arguments", "named"),
    [
        (os.system, (f"echo {MARK} > ran",), f"{os.name}.system"),
        (builtins.eval, ("open('ran', 'w')",), "__builtin__.eval"),
        (builtins.getattr, (Path, "cwd"), "__builtin__.getattr"),
        (builtins.exec, ("open('ran', 'w')",), "__builtin__.exec"),
        (np.load, ("ran",), "numpy.load"),
        (Path, ("ran",), "pathlib"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_call_of_anything_else_is_refused_before_it_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Any,
    arguments: tuple[Any, ...],
    named: str,
    protocol: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = refused(tmp_path, pickle.dumps(Call(call, arguments), protocol=protocol))
    assert found.startswith("FILE asks for ")
    assert "refused before it ran" in found
    if protocol == 2:
        assert named in found
    assert not (tmp_path / "ran").exists()


def test_a_call_within_a_frame_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evil = Call(os.system, ("echo > ran",))
    objects = array(np.array([evil], dtype=object))
    for hidden in ({"_data": evil}, {"_data": objects}, {"_metadata": [evil]}):
        found = refused(tmp_path, frame_pickle(COLUMNS, state=hidden))
        assert f"FILE asks for {os.name}.system, which no data frame" in found
    assert not (tmp_path / "ran").exists()


def test_a_pickle_cannot_change_our_classes(tmp_path: Path) -> None:
    # GLOBAL numpy.dtype, then BUILD with (None, {"given": 1}): setattr on what is on the stack.
    content = b"\x80\x02cnumpy\ndtype\nN}X\x05\x00\x00\x00givenK\x01s\x86b."
    assert "FILE is damaged or no pickle" in refused(tmp_path, content)
    assert list(read_frame(write(tmp_path, "y.pkl", COLUMNS))) == list(COLUMNS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "FILE is empty; expected a pickled pandas data frame of numbers"),
        (b"gpu,run\n", "FILE is damaged or no pickle ("),
        (pickle.dumps([1, 2]), "FILE is no data frame of numbers: a list; expected"),
        (frame_pickle(COLUMNS)[:-200], "FILE is damaged or no pickle ("),
        (frame_pickle(COLUMNS, state={"_data": 3}), "no data frame of numbers: its data are a int"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "no data frame of numbers: a memo larger than the file"),
    ],
)
def test_what_is_no_frame_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refused(tmp_path, content)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*: No such file or directory; expected a"):
        read_frame(tmp_path / "x.pkl")


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
def test_damage_anywhere_is_an_error_or_a_frame(
    tmp_path_factory: pytest.TempPathFactory, place: int, damage: bytes
) -> None:
    content = frame_pickle(COLUMNS)
    place %= len(content)
    path = tmp_path_factory.mktemp("damage") / "x.pkl"
    path.write_bytes(content[:place] + damage + content[place + len(damage) :])
    try:
        found = read_frame(path)
    except InputError:
        return
    assert all(isinstance(values, np.ndarray) for values in found.values())
