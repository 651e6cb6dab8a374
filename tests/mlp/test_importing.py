"""The measurements of 2018: pickles of data frames in which nothing runs, into tables, by the script."""

from __future__ import annotations

import builtins
import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.justus import importing
from benchmarks.justus.importing import import_raw, read_frame
from lolat.cli.common import run
from lolat.errors import InputError
from lolat.mlp.table import read_table
from tests.cli.commands import Command, Result


class Global:
    """Pickled as the name `module.name`, whether or not there is such a thing here."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> None:
        """Pickle asks for something that can be called."""


class Call:
    """Pickled as a call of `of`, with a state where there is one."""

    def __init__(self, of: Any, arguments: tuple[Any, ...], state: Any = None) -> None:
        self.parts = (of, arguments) if state is None else (of, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


class Pickler(pickle._Pickler):
    """Knows Global."""

    def save_name(self, item: Global) -> None:
        """Write the opcode GLOBAL."""
        self.write(f"c{item.module}\n{item.name}\n".encode())

    dispatch: ClassVar[dict[Any, Any]] = {**pickle._Pickler.dispatch, Global: save_name}


def dumps(value: Any) -> bytes:
    """Protocol 2, as Python 2 wrote it."""
    file = io.BytesIO()
    Pickler(file, protocol=2).dump(value)
    return file.getvalue()


FRAME = Global("pandas.core.frame", "DataFrame")
MANAGER = Global("pandas.core.internals", "BlockManager")
NEW_INDEX = Global("pandas.core.indexes.base", "_new_Index")
INDEX = Global("pandas.core.indexes.base", "Index")
RANGE = Global("pandas.core.indexes.range", "RangeIndex")


def frame_pickle(columns: Mapping[str, np.ndarray], state: Any = None) -> bytes:
    """A data frame with one block per kind of number; `state` instead of the right one."""
    names = list(columns)
    rows = len(next(iter(columns.values())))
    index = {"data": array(np.array(names, dtype=object)), "name": None}
    counted = {"start": 0, "stop": rows, "step": 1, "name": None}
    axes = [Call(NEW_INDEX, (INDEX, index)), Call(NEW_INDEX, (RANGE, counted))]
    blocks = []
    for dtype in dict.fromkeys(c.dtype for c in columns.values()):
        places = [i for i, n in enumerate(names) if columns[n].dtype == dtype]
        where = Call(Global("__builtin__", "slice"), (places[0], places[0] + 1, 1))
        values = array(np.array([columns[names[i]] for i in places]))
        blocks.append(
            {"mgr_locs": array(np.array(places)) if len(places) > 1 else where, "values": values}
        )
    manager = Call(MANAGER, (), (axes, [], [], {"0.14.1": {"axes": axes, "blocks": blocks}}))
    return dumps(Call(FRAME, (), state or {"_typ": "dataframe", "_data": manager}))


def array(values: np.ndarray) -> Call:
    """An array as NumPy under Python 2 pickled it: its content a string of bytes, or a list of objects."""
    text = values.dtype.kind == "O"
    content = values.tolist() if text else values.tobytes().decode("latin1")
    code = "O8" if text else values.dtype.str[1:]
    order = "|" if text or values.dtype.itemsize == 1 else "<"
    dtype = Call(Global("numpy", "dtype"), (code, 0, 1), (3, order, None, None, None, -1, -1, 0))
    arguments = (Global("numpy", "ndarray"), (0,), "b")
    state = (1, values.shape, dtype, False, content)
    return Call(Global("numpy.core.multiarray", "_reconstruct"), arguments, state)


def write(folder: Path, name: str, columns: Mapping[str, Any]) -> Path:
    """folder/name with a frame of the columns, parents made."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame_pickle({name: np.array(values) for name, values in columns.items()}))
    return path


# ---- Pickles: what is read is right, and nothing in them runs.

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


@pytest.mark.parametrize(
    ("call", "arguments", "named"),
    [
        (os.system, ("echo > ran",), f"{os.name}.system"),
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
    arguments: Any,
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


DENSE = {
    "activation_fct": [0, 1, 2, 3], "batchsize": [1, 2, 3, 4], "dim_input": [10, 20, 30, 40],
    "dim_output": [5, 6, 7, 8], "gpu": [0, 0, 1, 1], "optimizer": [0, 5, 4, 6],
    "precision": [32, 32, 32, 32], "timeUsed_max": [2.0, 3.0, 4.0, 5.0],
    "timeUsed_median": [1.0, 2.0, 3.0, 4.0000001], "timeUsed_min": [0.5, 1.0, 2.0, 3.0],
    "timeUsed_std": [0.1, 0.2, 0.3, 0.4],
}  # fmt: skip
WITHOUT = {name: values for name, values in DENSE.items() if name != "dim_input"}
CONVOLUTION = {
    "activation_fct": [1], "batchsize": [2], "channels_in": [3], "channels_out": [4], "gpu": [0],
    "kernelsize": [5], "matsize": [6], "optimizer": [1], "padding": [1], "precision": [32],
    "strides": [2], "timeUsed_max": [3.0], "timeUsed_median": [2.0], "timeUsed_min": [1.0],
    "timeUsed_std": [0.5], "use_bias": [True],
}  # fmt: skip


# ---- Rows: words, GPUs, what is impossible or there twice.


def test_rows_are_those_of_the_frame_in_words(tmp_path: Path) -> None:
    write(tmp_path, "k80/3/benchmark_dense__20180924.pkl", DENSE)
    write(tmp_path, "Quadro/0/benchmark_convolution__20181031.pkl", CONVOLUTION)
    steps: list[int] = []
    convolution, dense = import_raw(tmp_path, lambda: steps.append(1))
    assert len(steps) == 2
    assert (dense.files, dense.read, dense.dropped) == (1, 4, {})
    assert dense.to_csv().splitlines() == [
        "gpu,run,batch_size,in_features,out_features,activation,optimizer,time_ms_median,time_ms_min,"
        "time_ms_max,time_ms_std",
        "K80,3,1,10,5,none,none,1,0.5,2,0.1",
        "K80,3,2,20,6,relu,adam,2,1,3,0.2",
        "K80,3,3,30,7,tanh,momentum,3,2,4,0.3",
        "K80,3,4,40,8,sigmoid,rmsprop,4,3,5,0.4",
    ]
    assert convolution.to_csv().splitlines()[1] == (
        "Quadro,0,2,6,5,3,4,2,same,1,relu,sgd,2,1,3,0.5"
    )
    path = tmp_path / "c.csv"
    path.write_text(convolution.to_csv())
    assert len(read_table(path, "convolution")) == 1


def test_the_same_layer_twice_in_a_run_is_kept_once(tmp_path: Path) -> None:
    for place in ("3/benchmark_dense__1", "3/benchmark_dense__2", "4/benchmark_dense__1"):
        write(tmp_path, f"K80/{place}.pkl", DENSE)
    (dense,) = import_raw(tmp_path)
    assert (dense.read, dense.dropped) == (12, {"the same layer once more in a run": 4})
    assert [row[1] for row in dense.rows] == ["3"] * 4 + ["4"] * 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timeUsed_median": [np.nan]}, "a time that is no number"),
        ({"timeUsed_max": [np.inf]}, "a time that is no number"),
        ({"timeUsed_median": [0.0], "timeUsed_min": [0.0]}, "a time of 0 or below"),
        ({"timeUsed_std": [-0.5]}, "a time of 0 or below"),
        ({"timeUsed_min": [2.5]}, "a median that is not between least and greatest time"),
        ({"batchsize": [0]}, "batch_size below 1"),
        ({"batchsize": [1.5]}, "batch_size that is no whole number"),
        ({"optimizer": [7]}, "optimizer of an unknown kind"),
        ({"padding": [0], "kernelsize": [7]}, "a kernel larger than its input without padding"),
        ({"padding": [1], "kernelsize": [7]}, ""),
        ({"precision": [16]}, "not of 32 bits"),
    ],
)
def test_impossible_rows_are_left_out_and_counted(
    tmp_path: Path, change: dict[str, list[Any]], reason: str
) -> None:
    write(tmp_path, "V100/0/benchmark_convolution__1.pkl", CONVOLUTION | change)
    (found,) = import_raw(tmp_path)
    assert (len(found.rows), found.read) == (0 if reason else 1, 1)
    assert found.dropped == ({reason: 1} if reason else {})


@pytest.mark.parametrize(
    ("place", "columns", "words"),
    [
        ("", {}, "has no raw files; expected a folder with GPU/run/benchmark_convolution_"),
        ("V/0/benchmark_dense_.pkl", WITHOUT, "lacks the column dim_input; expected a raw file"),
        ("a,b/0/benchmark_dense_.pkl", DENSE, "'a,b' is no name of a GPU"),
    ],
)
def test_what_is_not_as_expected(
    tmp_path: Path, place: str, columns: dict[str, list[Any]], words: str
) -> None:
    if place:
        write(tmp_path, place, columns)
    with pytest.raises(InputError, match=words):
        import_raw(tmp_path)


# ---- The script: files written, counts said, nothing written when a file is refused.


class Script(Command):
    """The script in this process."""

    def __call__(self, *arguments: object) -> Result:
        self.capsys.readouterr()
        code = run(importing.main, [str(a) for a in arguments], "importing.py")
        return Result(code, *self.capsys.readouterr())


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> Script:
    return Script(capsys)


def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    write(folder, "k80/0/benchmark_dense__1.pkl", DENSE)
    write(folder, "k80/0/benchmark_dense__2.pkl", DENSE)
    write(folder, "V100/2/benchmark_convolution__1.pkl", CONVOLUTION)
    return folder


def test_tables_are_written_and_counted(script: Script, tmp_path: Path) -> None:
    output = tmp_path / "new" / "tables"
    found = script(raw(tmp_path), output)
    assert found.code == 0
    assert found.out.splitlines() == [
        f"{output}/convolution.csv: 1 of 1 rows, from 1 files",
        f"{output}/dense.csv: 4 of 8 rows, from 2 files",
    ]
    assert "dense: 4 rows left out: the same layer once more in a run" in found.err
    _, first, *_ = (output / "dense.csv").read_text().splitlines()
    assert first == "K80,0,1,10,5,none,none,1,0.5,2,0.1"
    assert (output / "convolution.csv").read_text().startswith("gpu,run,batch_size,input_size,")


def test_a_file_that_is_refused_stops_it_all(script: Script, tmp_path: Path) -> None:
    folder = raw(tmp_path)
    bad = folder / "V100/2/benchmark_dense__9.pkl"
    bad.write_bytes(pickle.dumps(eval))  # not print: Ray puts another one in its place
    found = script(folder, tmp_path / "out")
    assert found.code == 2
    assert found.out == ""
    assert f"{bad} asks for builtins.eval" in found.err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_the_output_is_a_file(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("mine")
    assert "is a file; expected a folder" in script.refused(raw(tmp_path), path)
    assert path.read_text() == "mine"
