"""Tables of samples: read, merged, refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lolat.errors import InputError
from lolat.nas.fewshot.samples import read_archs, read_samples, rounding, space_terms
from tests.nas.few_devices import some_cells

SPACE = space_terms("nasbench201")
A, B, C = some_cells(3)


def table(folder: Path, *lines: str, header: str = "arch,latency_ms") -> Path:
    path = folder / "samples.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_samples(path, SPACE)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_other_columns_and_empty_lines_are_ignored(tmp_path: Path) -> None:
    path = table(tmp_path, f"x,1.25,{A}", "", f"y,2.5,{B}", header="\ufeffname, Latency_ms ,ARCH")
    found = read_samples(path, SPACE)
    assert found.archs == (A, B)
    assert found.times.tolist() == [1.25, 2.5]
    assert found.rows.tolist() == SPACE.parse_many([A, B]).tolist()
    assert found.remarks == ()


def test_a_compressed_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write(f"arch,latency_ms\n{A},1.25\n{B},2\n")
    assert read_samples(path, SPACE).times.tolist() == [1.25, 2.0]


def test_rows_that_are_alike_count_once_and_are_told(tmp_path: Path) -> None:
    found = read_samples(table(tmp_path, f"{A},1.25", f"{B},2.5", f"{A},1.25"), SPACE)
    assert found.times.tolist() == [1.25, 2.5]
    assert "1 of 3 rows repeat another one" in found.remarks[0]


def test_several_readings_of_a_network_all_count_and_are_told(tmp_path: Path) -> None:
    found = read_samples(table(tmp_path, f"{A},1.25", f"{B},2.5", f"{A},1.35"), SPACE)
    assert found.times.tolist() == [1.25, 2.5, 1.35]
    assert "3 readings of 2 networks" in found.remarks[0]


def test_whole_milliseconds_are_told(tmp_path: Path) -> None:
    found = read_samples(table(tmp_path, f"{A},12", f"{B},15.0"), SPACE)
    assert found.step == 1.0
    assert "whole milliseconds" in found.remarks[0]


@pytest.mark.parametrize(
    ("texts", "step"),
    [
        (["12", "15.0"], 1.0),
        (["12.1", "15"], 0.1),
        (["12.13", "1"], 0.01),
        (["12.131", "1"], 0.0),
        (["1e3"], 1.0),
        (["1e-9", "1"], 0.0),
    ],
)
def test_rounding_is_seen_from_the_digits(texts: list[str], step: float) -> None:
    assert rounding(texts) == pytest.approx(step)


@pytest.mark.parametrize("time", ["0", "-3", "nan", "inf", "fast", "", "1e-300", "1e13"])
def test_a_time_that_is_none_is_refused_with_its_line(tmp_path: Path, time: str) -> None:
    message = refused(table(tmp_path, f"{A},1.25", "", f"{B},{time}"))
    assert "line 4: latency_ms" in message
    assert "expected a time above 0" in message


def test_a_row_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    assert "line 3: latency_ms is empty" in refused(table(tmp_path, f"{A},1.25", B))


def test_an_unknown_operation_is_named_with_its_row(tmp_path: Path) -> None:
    wrong = B.replace(B.split("~")[0][1:], "conv_9x9", 1)
    message = refused(table(tmp_path, f"{A},1.25", f"{wrong},2.5"))
    assert "line 3 (row 2): unknown operation 'conv_9x9'" in message
    assert "expected one of none, skip_connect" in message


def test_all_readings_of_one_network_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = table(tmp_path, f"{A},1.25", f"{A},1.35", f"{A},1.35")
    message = refused(path)
    assert "all 3 rows are of one network" in message
    assert "lolat nas suggest --space nasbench201" in message
    assert len(read_samples(path, SPACE, one_network=True).times) == 2


def test_one_sample_alone_is_taken(tmp_path: Path) -> None:
    assert read_samples(table(tmp_path, f"{A},1.25"), SPACE).times.tolist() == [1.25]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("arch,time", "lacks the column latency_ms"),
        ("network,time", "lacks the columns arch, latency_ms"),
        ("", "lacks the columns arch, latency_ms"),
    ],
)
def test_missing_columns_are_named(tmp_path: Path, header: str, words: str) -> None:
    message = refused(table(tmp_path, f"{A},1.25", header=header))
    assert words in message
    assert "expected a first line with arch,latency_ms" in message


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    assert "has no rows" in refused(table(tmp_path))


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent.csv")
    assert "Is a directory" in refused(tmp_path)
    broken = tmp_path / "samples.csv"
    broken.write_bytes(b"arch,latency_ms\n\xff\xfe,1\n")
    assert "not a CSV table in UTF-8" in refused(broken)
    packed = tmp_path / "samples.csv.gz"
    packed.write_bytes(b"arch,latency_ms\n")
    assert "not a CSV table in UTF-8" in refused(packed)
    packed.write_bytes(gzip.compress(f"arch,latency_ms\n{A},1\n".encode() * 50)[:-20])
    assert "not a CSV table in UTF-8" in refused(packed)


def test_networks_alone_keep_their_text_and_order(tmp_path: Path) -> None:
    texts, rows = read_archs(table(tmp_path, B, A, B, header="arch"), SPACE)
    assert texts == [B, A, B]
    assert rows.tolist() == SPACE.parse_many(texts).tolist()
