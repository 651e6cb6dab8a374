"""Tables of measured layers: what is read, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.io.tables import read_table
from lolat.mlp.table import LAYER_COLUMNS, LayerTable, layers_of
from tests.mlp.tables import CONVOLUTION, DENSE, csv_text, rows_of, write


def read(path: Path, **options: object) -> LayerTable:
    return layers_of(read_table(path), **options)  # type: ignore[arg-type]


def refused(path: Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        read(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(path), "FILE")


def test_the_columns_have_their_types_and_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of("convolution", {}, {"gpu": "k80", "padding": "valid"}))
    table = read(path)
    assert (table.layer, len(table), table["input_size"].dtype) == ("convolution", 2, np.int64)
    assert table["gpu"].tolist() == ["V100", "k80"]
    assert table["padding"].tolist() == ["same", "valid"]
    assert table["input_size"].tolist() == [56, 56]
    assert table["use_bias"].tolist() == [1, 1]
    assert table["time_ms_median"].tolist() == [1.5, 1.5]
    assert "run" not in table.columns


def test_what_other_programs_write_is_understood(tmp_path: Path) -> None:
    row = {**CONVOLUTION, "use_bias": "True", "kernel_size": "3.0", "padding": "SAME"}
    text = csv_text([row]).replace("\n", "\r\n").replace("gpu", " GPU ", 1)
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode() + b"\r\n")
    table = read(path)
    assert [table[c][0] for c in ("gpu", "use_bias", "kernel_size", "padding")] == [
        "V100", 1, 3, "same",
    ]  # fmt: skip


def test_only_what_describes_a_layer_is_needed(tmp_path: Path) -> None:
    row = {name: DENSE[name] for name in LAYER_COLUMNS["dense"]}
    path = write(tmp_path / "a.csv", [row])
    assert len(read(path, times=False)) == 1
    assert "lacks the column time_ms_median" in refused(path)


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"batch_size": "0"}, "batch_size"),
        ({"batch_size": "2.5"}, "batch_size"),
        ({"stride": ""}, "stride"),
        ({"use_bias": "2"}, "use_bias"),
        ({"padding": "full"}, "padding"),
        ({"gpu": " "}, "gpu"),
        ({"time_ms_median": "0"}, "time_ms_median"),
        ({"padding": "valid", "kernel_size": "7", "input_size": "5"}, "kernel_size"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(
    tmp_path: Path, change: dict[str, str], column: str
) -> None:
    text = csv_text(rows_of("convolution", {}, {}, change, {})).replace("\n", "\n\n", 1)
    path = tmp_path / "a.csv"
    path.write_text(text)  # with an empty line after the first, so row 3 is on line 5
    assert refused(path).startswith(f"FILE, line 5: {column} is ")


def test_a_header_alone_can_be_predicted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(LAYER_COLUMNS["dense"]) + "\n")
    table = read(path, times=False)
    assert (len(table), table["batch_size"].dtype) == (0, np.int64)
