"""Raw files into tables: words, GPUs, what is impossible or there twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.justus.importing import import_raw
from lolat.errors import InputError
from lolat.mlp.table import read_table
from tests.mlp.frames import write

DENSE = {
    "activation_fct": [0, 1, 2, 3], "batchsize": [1, 2, 3, 4], "dim_input": [10, 20, 30, 40],
    "dim_output": [5, 6, 7, 8], "gpu": [0, 0, 1, 1], "optimizer": [0, 5, 4, 6],
    "precision": [32, 32, 32, 32], "timeUsed_max": [2.0, 3.0, 4.0, 5.0],
    "timeUsed_median": [1.0, 2.0, 3.0, 4.0000001], "timeUsed_min": [0.5, 1.0, 2.0, 3.0],
    "timeUsed_std": [0.1, 0.2, 0.3, 0.4],
}  # fmt: skip
CONVOLUTION = {
    "activation_fct": [1], "batchsize": [2], "channels_in": [3], "channels_out": [4], "gpu": [0],
    "kernelsize": [5], "matsize": [6], "optimizer": [1], "padding": [1], "precision": [32],
    "strides": [2], "timeUsed_max": [3.0], "timeUsed_median": [2.0], "timeUsed_min": [1.0],
    "timeUsed_std": [0.5], "use_bias": [True],
}  # fmt: skip


def raw(tmp_path: Path, columns: dict[str, list[Any]], place: str) -> None:
    write(tmp_path, place, {name: np.array(values) for name, values in columns.items()})


def test_rows_are_those_of_the_frame_in_words(tmp_path: Path) -> None:
    raw(tmp_path, DENSE, "k80/3/benchmark_dense__20180924.pkl")
    raw(tmp_path, CONVOLUTION, "Quadro/0/benchmark_convolution__20181031.pkl")
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
    raw(tmp_path, DENSE, "K80/3/benchmark_dense__1.pkl")
    raw(tmp_path, DENSE, "K80/3/benchmark_dense__2.pkl")
    raw(tmp_path, DENSE, "K80/4/benchmark_dense__1.pkl")
    (dense,) = import_raw(tmp_path)
    assert dense.read == 12
    assert dense.dropped == {"the same layer once more in a run": 4}
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
        ({"precision": [16]}, "not of 32 bits"),
    ],
)
def test_impossible_rows_are_left_out_and_counted(
    tmp_path: Path, change: dict[str, list[Any]], reason: str
) -> None:
    raw(tmp_path, {**CONVOLUTION, **change}, "V100/0/benchmark_convolution__1.pkl")
    (found,) = import_raw(tmp_path)
    assert found.rows == []
    assert found.read == 1
    assert found.dropped == {reason: 1}


def test_a_kernel_larger_than_its_input_is_possible_with_padding(tmp_path: Path) -> None:
    raw(tmp_path, {**CONVOLUTION, "kernelsize": [7]}, "V100/0/benchmark_convolution__1.pkl")
    assert len(import_raw(tmp_path)[0].rows) == 1


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda p: None, "has no raw files; expected a folder with GPU/run/benchmark_convolution_"),
        (
            lambda p: raw(
                p, {k: v for k, v in DENSE.items() if k != "dim_input"}, "V/0/benchmark_dense_.pkl"
            ),
            "lacks the column dim_input; expected a raw file of dense layers, with batchsize, dim_input",
        ),
        (lambda p: raw(p, DENSE, "a,b/0/benchmark_dense_.pkl"), "'a,b' is no name of a GPU"),
    ],
)
def test_what_is_not_as_expected(
    tmp_path: Path, prepare: Callable[[Path], None], words: str
) -> None:
    prepare(tmp_path)
    with pytest.raises(InputError) as caught:
        import_raw(tmp_path)
    assert words in str(caught.value)
