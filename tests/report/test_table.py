"""The CSV of a report."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from lolat.errors import InputError, LolatError
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


def test_a_folder_is_no_place_for_a_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        write_csv(tmp_path, PREDICTION)


def test_a_full_disk_is_no_wrong_call() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(LolatError, match="/dev/full: not written, the disk is full") as caught:
        write_csv("/dev/full", PREDICTION)
    assert caught.value.exit_code == 1
