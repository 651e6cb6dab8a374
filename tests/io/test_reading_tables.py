"""The one reader of tables: against the csv module, and what it refuses."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.io.tables import ABOVE_ZERO, is_table, parse_table, read_table, to_csv
from tests.strategies import Written, tables


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path, ("a", "b"), rows="thing")
    assert str(caught.value).isprintable()
    assert str(path) in str(caught.value)
    return str(caught.value)


REFUSED = {
    "nothing": b"",
    "empty lines": b"\n\n",
    "a comment alone": b"# a,b\n",
    "tabs": b"a\tb\n",
    "a column twice": b"a,b,B \n1,2,3\n",
    "a column less": b"a\n1\n",
    "no text": b"\x80\x04\xff\x00",
    "zero bytes": b"a\0b",
    "a damaged header of gzip": b"\x1f\x8bxx",
    "half of a gzipped file": gzip.compress(b"a,b\n" * 99, mtime=0)[:-9],
    "an open quote": b'a,"b\n',
    "an open quote further down": b'a,b\n1,2\n"3,4\n5,6\n7,8\n',
    "text behind a quote": b'a,b\n"1"x,2\n',
    "a giant cell": b"a,b\n1\n2," + b"x" * 200_000,
    "a row that is too short": b"a,b\n1,2\n3\n",
    "a row that is too long": b"a,b\n1,2,\n3\n",
    "no rows": b"a,b\n",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_table(tmp_path: Path, what: str) -> None:
    (tmp_path / "a.csv").write_bytes(REFUSED[what])
    refused(tmp_path / "a.csv")


def test_the_line_of_a_row_of_another_width() -> None:
    for content, line in (("a,b\n1,2\n3\n", 3), ("a,b\r1,2\r\r3\r", 4), ('a,"b"\n1,2,3\n', 2)):
        with pytest.raises(InputError, match=f"^FILE, line {line}: "):
            parse_table(content, "FILE")


def test_a_packed_file_and_a_mark_of_its_encoding(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfaa\n1\n"x\ny"\n\n2\n'
    for written in (content, gzip.compress(content)):
        (tmp_path / "a.csv").write_bytes(written)
        table = read_table(tmp_path / "a.csv", ("aa",), rows="thing")
        assert [(row["aa"], row.line) for row in table] == [("1", 2), ("x\ny", 4), ("2", 6)]


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


@pytest.mark.parametrize(
    ("ask", "text", "found"),
    [
        *(("number", t, float(t)) for t in ("0", "-2.5", "+1.5", ".5", "5.", "1e2", "1E-2", "007")),
        *(("number", t, None) for t in ("", "x", "1 2", "1e", ".", "--1", "inf", "1e999", "½", "1.2.3")),
        *(("within", t, float(t)) for t in ("-1", "0.5", "2")),
        *(("within", t, None) for t in ("-1.001", "2.001")),
        *(("above 0", t, float(t)) for t in ("1e-30", "1e30")),
        *(("above 0", t, None) for t in ("9e-31", "1e31")),
        ("above 0", "0", None),
        *(("whole", t, n) for t, n in (("1", 1), ("1e6", 10**6), ("3.0", 3), (str(2**53), 2**53))),
        *(("whole", t, None) for t in ("0", "-1", "1.5", str(2**53 + 2), "")),
        *(("from 3 to 5", t, int(t)) for t in ("3", "5")),
        *(("from 3 to 5", t, None) for t in ("2", "6")),
        *(("milliseconds", t, float(t)) for t in ("1e-6", "1e12")),
        *(("milliseconds", t, None) for t in ("9.99e-7", "1.001e12")),
        *(("or 7", t, n) for t, n in (("", 7), ("2", 2), ("0", None), ("1.5", None))),
        *(("or 0.5", t, n) for t, n in (("", 0.5), ("2", 2.0), ("x", None))),
    ],
)  # fmt: skip
def test_what_a_cell_must_hold(ask: str, text: str, found: float | None) -> None:
    """The ends of a range belong to it; an empty cell is a default where there is one."""
    (row,) = parse_table(f"latency_ms,other\n{text},z\n", "FILE")
    asked: dict[str, tuple[Any, str]] = {
        "number": (row.number, "a number"),
        "within": (lambda c: row.number(c, -1.0, 2.0, "-1 to 2"), "-1 to 2"),
        "above 0": (lambda c: row.number(c, ABOVE_ZERO), "a number"),
        "whole": (row.whole, "a whole number from 1"),
        "from 3 to 5": (lambda c: row.whole(c, 3, 5), "a whole number from 3"),
        "milliseconds": (row.milliseconds, "a time above 0, in milliseconds (1e-06 to 1e+12)"),
        "or 7": (lambda c: row.whole(c, expected="seven", default=7), "seven"),
        "or 0.5": (lambda c: row.number(c, default=0.5), "a number"),
    }
    call, expected = asked[ask]
    if found is None:
        with pytest.raises(InputError) as caught:
            call("latency_ms")
        given = f"is {text!r}" if text else "is empty"
        assert str(caught.value) == f"FILE, line 2: latency_ms {given}; expected {expected}"
    else:
        assert call("latency_ms") == found
        assert type(call("latency_ms")) is type(found)


def test_a_choice_is_a_word_in_any_case() -> None:
    first, second, empty = parse_table("x,b\n1, SAME \n2,full\n3,\n", "FILE")
    assert first.choice("b", ("valid", "same")) == "same"
    for row, cell in ((second, "'full'"), (empty, "empty")):
        with pytest.raises(InputError) as caught:
            row.choice("b", ("valid", "same"))
        assert (
            str(caught.value) == f"FILE, line {row.line}: b is {cell}; expected one of valid, same"
        )


def test_a_row_is_a_mapping_by_the_names_of_the_columns() -> None:
    table = parse_table(" A ,b\n 1 ,x y\n\n2,\n", "FILE", expected="what")
    first, second = table
    assert (table.header, table.names, len(table)) == ((" A ", "b"), ("a", "b"), 2)
    assert (table.source, table.expected) == ("FILE", "what")
    assert dict(first) == {"a": "1", "b": "x y"}
    assert (len(second), list(second), second.get("c")) == (2, ["a", "b"], None)
    assert (first.line, second.where) == (2, "FILE, line 4")
    assert second.number("none", default=3.0) == 3.0
    assert second.whole("none", default=3) == 3
    with pytest.raises(InputError, match=r"^FILE, line 4: none is no column of the table; exp"):
        second.number("none")
    assert len(parse_table("a\n", "FILE")) == len(parse_table('"a"\n', "FILE")) == 0


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_column_is_added_or_replaced(end: str, quote: str) -> None:
    """The rest stays as it is, but that lines end in a line feed."""
    text = f"a , b{end}{quote}1{quote},2{end}{end}3,4"
    table = parse_table(text, "FILE")
    assert table.with_column("c", ["x", "y"]) == "a , b,c\n1,2,x\n3,4,y\n"
    assert table.with_column("a", iter("xy")) == " b,a\n2,x\n4,y\n"


@given(st.lists(st.lists(st.text("ab,\" '\n\r;ä", max_size=4), min_size=2, max_size=2), max_size=5))
def test_what_is_written_is_what_the_csv_module_reads(rows: list[list[str]]) -> None:
    text = to_csv(("x", 1), rows)
    read = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert read == [["x", "1"], *rows]
    plain = [",".join(row) for row in rows if not set("".join(row)) & set("\",' \n\r;")]
    assert {f"{line}\n" for line in plain} <= set(io.StringIO(text, newline="\n"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_comments_above_the_names(end: str) -> None:
    text = end.join(["# a phone, in its case;", "", "#", "a,b", "1,2", "#3,4", "5"])
    with pytest.raises(InputError, match=r"^FILE, line 7: 1 cells; expected 2"):
        parse_table(text, "FILE")
    table = parse_table(text.removesuffix("5"), "FILE")
    assert [(row["a"], row.line) for row in table] == [("1", 5), ("#3", 6)]


def test_tabs_between_names_are_between_cells() -> None:
    """As with commas; beside a comma a tab is a part of a cell."""
    tabs, commas = (parse_table(text, "t") for text in ("a\tb c\n1\t2,5\n", "a,b c\n1,2\t5\n"))
    assert [table.names for table in (tabs, commas)] == [("a", "b_c")] * 2
    assert [table.cells("b_c") for table in (tabs, commas)] == [["2,5"], ["2\t5"]]


def test_semicolons_are_named() -> None:
    with pytest.raises(
        InputError, match=r"^FILE, line 2: semicolons between cells; expected commas"
    ):
        parse_table("# of a spreadsheet\na;b\n1,5;2\n", "FILE")


def test_what_a_message_on_a_table_says(tmp_path: Path) -> None:
    """The expected columns, or the words of the caller; why it is no file."""
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n")
    assert "lacks the column b; expected a CSV table with the columns a,b" in refused(path)
    assert "no such file; expected a CSV table with" in refused(tmp_path / "none.csv")
    assert "directory; expected" in refused(tmp_path)
    path.write_text("a,b\n1,2\n")
    assert read_table(path).expected == "expected a CSV table"
    table = read_table(path, expected="what")
    assert (table.expected, table.content) == ("what", "a,b\n1,2\n")
    (row,) = table
    error = row.refused("too late")
    assert str(error) == f"{path}, line 2: too late"
    assert error.data == {"where": f"{path}, line 2", "why": "too late", "column": ""}
    (row,) = parse_table("a\n1e31\n", "FILE")
    with pytest.raises(InputError, match=r"a is '1e31'; expected a number, of a size from 1e-30 "):
        row.number("a", -1e40, 1e40)


def test_a_table_by_its_name() -> None:
    assert all(map(is_table, ("a.csv", Path("A.CSV"), "b/a.csv.gz", "a.tsv")))
    assert not any(map(is_table, ("a.json", "csv", "")))
