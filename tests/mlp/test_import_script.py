"""`benchmarks/justus/importing.py`: files written, counts said, nothing written when a file is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from benchmarks.justus import importing
from lolat.cli.common import run
from tests.cli.commands import Command, Result
from tests.mlp.frames import write
from tests.mlp.test_importing import CONVOLUTION, DENSE


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
    dense = {name: np.array(values) for name, values in DENSE.items()}
    write(folder, "k80/0/benchmark_dense__1.pkl", dense)
    write(folder, "k80/0/benchmark_dense__2.pkl", dense)
    convolution = {name: np.array(values) for name, values in CONVOLUTION.items()}
    write(folder, "V100/2/benchmark_convolution__1.pkl", convolution)
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
    assert (output / "dense.csv").read_text().splitlines()[
        1
    ] == "K80,0,1,10,5,none,none,1,0.5,2,0.1"
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
