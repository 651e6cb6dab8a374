"""The one reader of tables: against the csv module, and what it refuses."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given

from lolat.errors import InputError
from lolat.io.tables import read_table, to_csv
from tests.strategies import Written, tables


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path, ("a", "b"), rows="thing")
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "FILE is empty"),
        (b"\n\n", "FILE is empty"),
        (b"a;b\n1;2\n", "FILE: columns separated by semicolons; expected commas"),
        (b"a\tb\n", "FILE: columns separated by tabs; expected commas"),
        (b"a,a\n", "FILE has two columns 'a'; expected one of each"),
        (b"a\n1\n", "FILE lacks the column b; expected"),
        (b"\x80\x04\xff\x00", "FILE is not UTF-8 text (at byte 0)"),
        (b"a\0b", "FILE is not text (it has zero bytes)"),
        (b"\x1f\x8bxx", "FILE: damaged gzip"),
        (gzip.compress(b"a,b\n" * 99, mtime=0)[:-9], "FILE: damaged gzip"),
        (b'a,"b\n', "not a CSV table"),
        (b"a,b\n1\n2," + b"x" * 200_000, "FILE has a cell of more than 131,072 characters"),
        (b"a,b\n1,2\n3\n", "FILE, line 3: 1 cell; expected 2"),
        (b'a,b\n1,2\n"3"\n', "FILE, line 3: 1 cell; expected 2"),
        (b"a,b\n", "FILE has no rows; expected one per thing"),
    ],
)
def test_what_is_no_table(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert words in refused(path)


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.csv").startswith("FILE: no such file; expected a CSV table")
    assert refused(tmp_path).startswith("cannot read FILE: ")


def test_what_never_ends_or_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(Path("/dev/zero")).startswith("FILE is a device; expected a CSV table")
    monkeypatch.setattr("lolat.io.tables.LARGEST_BYTES", 2**20)
    path = tmp_path / "a.csv"
    for content in (b"a,b\n" * 300_000, gzip.compress(b"a,b\n" * 300_000)):
        path.write_bytes(content)
        assert "FILE is larger than 1 MiB; expected" in refused(path)


@pytest.mark.parametrize(
    "text", ["0", "-1", "1e-320", "1e13", "1e999", "nan", "1,5", "", "½", "١٢", "0x10", "1_0"]
)
def test_a_time_that_nothing_takes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'name,latency_ms\na,5\nb,"{text}"\n', encoding="utf-8")
    first, second = read_table(path)
    assert first.milliseconds() == 5.0
    with pytest.raises(
        InputError, match=r"line 3: latency_ms is .*; expected a time above 0, in milli"
    ):
        second.milliseconds()


def test_lines_of_rows_count_empty_ones_and_breaks_in_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n\n1,2\n"x\ny",3\n4,-1\n')
    rows = list(read_table(path))
    assert [row.line for row in rows] == [3, 5, 6]
    with pytest.raises(
        InputError, match=r"a.csv, line 6: b is '-1'; expected a whole number from 1"
    ):
        rows[2].whole("b")


@given(tables())
def test_cells_are_those_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, written: Written
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(written.content)
    table = read_table(path)
    assert [list(cells) for cells in zip(*table.columns, strict=True)] == written.rows
    path.write_bytes(table.with_column("z", ["1"] * len(table)).encode())
    again = read_table(path)
    assert again.names == ("x", "y", "z")
    assert [list(cells) for cells in zip(*again.columns, strict=True)] == [
        [*row, "1"] for row in written.rows
    ]
    path.write_bytes(to_csv(table.header, written.rows).encode())
    assert list(map(tuple, read_table(path).columns)) == list(map(tuple, table.columns))
