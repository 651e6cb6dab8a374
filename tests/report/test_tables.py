"""The one printer of tables: what a screen shows, and the CSV file that `csv` reads again."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from lolat.report import tables
from lolat.report.tables import Column, ReportTable, time_columns, write_csv


def table_of(*heads: str, texts: str = "") -> list[Column]:
    """Columns of rows that are tuples; `texts`: the places of those of words."""
    return [
        Column(head, lambda row, i=i: row[i], is_text=str(i) in texts)  # type: ignore[misc]
        for i, head in enumerate(heads)
    ]


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    rows = [("ResNet50", None, "29.1", "the first"), ("a", "", 2910, None)]
    assert ReportTable(table_of("network", "", "ms", "note", texts="03"), rows).lines() == [
        "network     ms  note",
        "ResNet50  29.1  the first",
        "a         2910",
    ]
    assert ReportTable(table_of("", "", texts="0"), [("a", 1), ("bb", 10)]).lines() == [
        "a    1",
        "bb  10",
    ]


def test_where_a_line_is_too_long_words_are_cut_and_numbers_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "screen_width", lambda: 30)
    rows = [("w" * 60, 123456789), ("x", 1)]
    head, first, second = ReportTable(table_of("what", "ms", texts="0"), rows).lines()
    assert first == "w" * 18 + "…  123456789"
    assert len(head) == len(first) == len(second)
    (number,) = ReportTable(table_of("", "", texts="0"), [("w" * 60, "9" * 40)]).lines()
    assert "9" * 40 in number


def test_a_narrow_screen_drops_the_words_that_all_rows_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole words, and never a row's last one; a wide screen shows all, afterwards too."""
    rows = [("bf16, PyTorch, eager", 1), ("bf16, PyTorch, graph", 2), ("bf16, PyTorch", 3)]
    for its, narrow in ((rows[:2], ["…eager  1", "…graph  2"]), (rows, None)):
        table = ReportTable(table_of("runs", "n", texts="0"), its)
        monkeypatch.setattr(tables, "screen_width", lambda: 12)
        _, *lines = table.lines()
        assert lines == narrow if narrow else all(line.startswith("…PyTorch") for line in lines)
        monkeypatch.setattr(tables, "screen_width", lambda: 99)
        assert table.lines()[1].split("  ")[0] == rows[0][0]


def test_intervals_are_in_brackets_behind_values_and_hidden_columns_are_not_shown() -> None:
    columns = [
        Column("long head", lambda row: row[0], short="ms"),
        Column("between", lambda row: row[1], page="below", screen="brackets"),
        Column("page alone", lambda row: row[2], screen="hidden"),
    ]
    table = ReportTable(columns, [("5", "4 .. 6", "x"), ("10", None, "x")])
    assert table.lines() == ["        ms", "5 (4 .. 6)", "        10"]
    assert "<td" in table.html("caption")
    assert "4 .. 6" in table.html("caption")
    assert "long head" in table.html("caption")


@pytest.mark.parametrize(
    ("times", "shown"),
    {
        (240.0, 1790.0): ["240 ms (120 .. 480)", "1790 ms (895 .. 3580)"],
        (240.0, 8000.0): ["240 ms (120 .. 480)", "8000 ms (4000 .. 16,000)"],
        (240.0, 12_000.0): ["0.240 s (0.120 .. 0.480)", "12.0 s (6.00 .. 24.0)"],
        (2.4, 12_000.0): ["2.40 ms (1.20 .. 4.80)", "12.0 s (6.00 .. 24.0)"],
    }.items(),
)
def test_the_times_of_a_column_and_their_intervals_have_one_unit(
    times: tuple[float, ...], shown: list[str]
) -> None:
    """That of the longest time, unless the shortest would lose digits."""

    def ends(time: float) -> tuple[float, float]:
        return time / 2, 2 * time

    columns = time_columns("first token", lambda t: t, times, "ends", ends, screen="brackets")
    _, *lines = ReportTable([*columns], times).lines()
    assert [line.strip() for line in lines] == shown


def test_what_is_the_same_in_all_rows_is_told_before_the_table() -> None:
    columns = [replace(c, page="varied") for c in table_of("network", "batch", texts="0")]
    columns += table_of("ms")
    columns = [replace(c, value=lambda row, i=i: row[i]) for i, c in enumerate(columns)]
    rows = [("ResNet50", 64, 29.1), ("ResNet50", 32, 15.0)]
    assert ReportTable(columns, rows).lines() == [
        "network: ResNet50",
        "batch    ms",
        "   64  29.1",
        "   32  15.0",
    ]
    assert ReportTable(columns, rows[:1]).lines() == [
        "network   batch    ms",
        "ResNet50     64  29.1",
    ]


def test_a_csv_file_has_the_rows(tmp_path: Path) -> None:
    rows = [
        {"name": "a", "ms": 1 / 3, "inside": True, "high": None},
        {"name": "b, c", "ms": 2.0, "inside": False, "high": 7},
    ]
    write_csv(tmp_path / "t.csv", rows)
    with open(tmp_path / "t.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [r["name"] for r in found] == ["a", "b, c"]
    assert [r["high"] for r in found] == ["", "7"]
    assert float(found[0]["ms"]) == pytest.approx(1 / 3, rel=1e-5)
