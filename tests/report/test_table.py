"""The CSV of a report."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from lolat.errors import LolatError
from lolat.graph.counts import COLUMNS
from lolat.model import Model
from lolat.report.text import write_csv
from tests import synthetic

PREDICTION = Model(synthetic.document()).predict(synthetic.network(), 4)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_for_every_block(tmp_path: Path) -> None:
    path = tmp_path / "blocks.csv"
    write_csv(path, PREDICTION)
    rows = read(path)
    assert list(rows[0]) == ["name", "latency_ms", "share", "bound_by", *COLUMNS]
    assert [r["name"] for r in rows] == [b.name for b in PREDICTION.blocks]
    assert rows[-1]["name"] == "call"
    total = sum(float(r["latency_ms"]) for r in rows)
    assert total == pytest.approx(PREDICTION.latency_ms, rel=1e-4)
    assert sum(float(r["share"]) for r in rows) == pytest.approx(1, abs=1e-4)
    counts = synthetic.totals(synthetic.network(), 4)
    for column in COLUMNS:
        assert sum(int(r[column]) for r in rows) == counts[column]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ('=HYPERLINK("http://x")', '\'=HYPERLINK("http://x")'),
        ("+1", "'+1"), ("-1", "'-1"), ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", r"\t=1"), ("a\r\n=1", r"a\r\n=1"), ("a,b;\"c\"", 'a,b;"c"'),
        ("conv-1 = x", "conv-1 = x"), ("\x1b[2J", r"\x1b[2J"), ("\ud800", r"\ud800"), ("é日", "é日"),
    ],
)  # fmt: skip
def test_names_are_text_to_a_spreadsheet(tmp_path: Path, name: str, cell: str) -> None:
    path = tmp_path / "blocks.csv"
    names = (name, *PREDICTION.names[1:])
    write_csv(path, replace(PREDICTION, names=names))
    rows = read(path)
    assert len(rows) == len(PREDICTION.blocks)
    assert rows[0]["name"] == cell


@pytest.mark.parametrize(
    ("path", "words", "code"), [(".", "is a folder", 2), ("/dev/full", "the disk is full", 1)]
)
def test_where_no_table_can_be(path: str, words: str, code: int) -> None:
    with pytest.raises(LolatError, match=words) as caught:
        write_csv(path, PREDICTION)
    assert caught.value.exit_code == code
