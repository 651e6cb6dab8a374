"""The table of a report: as CSV, and in the terminal with bars and columns, cut where there is no room."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lolat.graph.counts import COLUMNS
from lolat.model import Model
from lolat.report.rows import View
from lolat.report.text import bar, block_table, write_csv
from tests import synthetic

PREDICTION = Model(synthetic.document()).predict(synthetic.network(), 4)


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_for_every_block(tmp_path: Path) -> None:
    path = tmp_path / "blocks.csv"
    write_csv(path, PREDICTION)
    rows = csv_rows(path)
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
    rows = csv_rows(path)
    assert len(rows) == len(PREDICTION.blocks)
    assert rows[0]["name"] == cell


def printed(width: int = 112, prediction: Any = PREDICTION, **chosen: Any) -> list[str]:
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as found:
        console.print(block_table(prediction, View(**chosen)))
    return [line.rstrip() for line in found.get().splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("share", "shown"),
    [(1.0, "█" * 12), (0.5, "█" * 6), (0.0, ""), (1 / 96, "▏"), (0.001, ""), (13 / 96, "█▋")],
)
def test_a_bar_is_as_long_as_its_share(share: float, shown: str) -> None:
    assert bar(share, 1.0) == shown
    assert bar(share / 4, 0.25) == shown
    assert bar(0.0, 0.0) == ""


def test_chosen_columns_in_their_order() -> None:
    head, _, first, *_ = printed(columns=("weights", "ms", "macs", "patches"))
    assert head.split() == ["block", "weights", "ms", "MACs", "patches"]
    # The stem: a 3x3 convolution of 3 to 32 channels on 56 x 56 positions, 4 images.
    macs = 4 * 56 * 56 * 32 * 27
    *_, weights, _, shown, unit, patches = first.split()
    assert (weights, shown, unit, patches) == ("864", f"{macs / 1e6:.1f}", "M", "-")


@pytest.mark.parametrize("width", [80, 100])
def test_a_number_is_never_cut(width: int) -> None:
    names = ("a_rather_long_label · many convolutions, one after the other, and so on and on",)
    prediction = replace(PREDICTION, names=(*names, *PREDICTION.names[1:]))
    whole = printed(200, prediction, columns=("ms", "share", "macs"))
    cut = printed(width, prediction, columns=("ms", "share", "macs"))
    assert "…" in cut[2]
    assert "a_rather_long_label" in cut[2]
    assert all(len(line) <= 80 for line in printed(80, prediction))
    for a, b in zip(whole, cut, strict=True):
        assert len(b) <= width
        if "%" in a:
            assert a.split()[-4:] == b.split()[-4:], b
