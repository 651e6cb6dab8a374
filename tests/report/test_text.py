"""What the terminal shows, and the table of a report as CSV."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lolat.graph.counts import COLUMNS
from lolat.model import Model
from lolat.report import text
from lolat.report.rows import View
from lolat.report.text import bar, block_table, write_csv
from lolat.units import byte_size, milliseconds
from tests import synthetic

MODEL = Model(synthetic.document())
PREDICTION = MODEL.predict(synthetic.network(), 4)


def report(capsys: pytest.CaptureFixture[str], prediction: Any = PREDICTION, model: Model = MODEL,
           name: str = "models/cpu.json", network: str = "keras:X") -> str:  # fmt: skip
    text.print_report(model, prediction, name, network)
    return capsys.readouterr().out


def with_names(*names: str) -> Any:
    return replace(PREDICTION, names=(*names, *PREDICTION.names[len(names) :]))


def test_summary() -> None:
    first, second, *rest = text.summary(PREDICTION)
    low, high = PREDICTION.interval_ms or (0, 0)
    assert first == (
        f"hand made · batch 4 · 56x56x3: {milliseconds(PREDICTION.latency_ms)}, 90 % sure of "
        f"{milliseconds(low)[:-3]} .. {milliseconds(high)[:-3]}"
    )
    macs = synthetic.totals(synthetic.network(), 4)["flops"]
    assert f"{macs / 1e6:.0f} MMACs" in second or f"{macs / 1e9:.2f} GMACs" in second
    memory = PREDICTION.memory
    assert memory is not None
    assert rest[0].startswith(f"{byte_size(memory.total_bytes)} of memory: ")
    assert memory.at in rest[0]
    assert [f"note: {w}" for w in PREDICTION.warnings] == rest[1:]


def test_summary_of_what_is_not_known() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("interval_ms", "coverage", "in_domain", "memory"))
    unknown = replace(PREDICTION, warnings=("careful",), **nothing)
    first, second, third = text.summary(unknown)
    assert "sure" not in first
    assert "does not say what was measured" in second
    assert third == "note: careful"
    for coverage, shown in ((0.9, "90"), (0.55, "55"), (0.975, "97.5")):
        assert f", {shown} % sure of " in text.latency(replace(PREDICTION, coverage=coverage))


def test_the_report_has_every_block(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(capsys)
    assert "hand made · batch 4 · 56x56x3" in shown
    assert "desk: a desk, 2 threads · tensorflow 2.21.0" in shown
    for block in PREDICTION.blocks:
        line = next(
            x for x in shown.splitlines() if x.strip().startswith(block.name.split(" ·")[0])
        )
        assert f"{100 * block.share:.1f} %" in line
    assert "Bottleneck" in shown
    assert (
        "Next: lolat explain models/cpu.json keras:X --batch-size 4 · "
        "lolat report models/cpu.json keras:X --batch-size 4 --html report.html\n"
    ) in shown
    assert "\x1b" not in shown  # no colors where nobody sees them
    assert all(len(line) <= text.WIDE for line in shown.splitlines() if "Next" not in line)


def test_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    prediction = with_names("[red]x[/]", "[/] · :smile:", "\x1b[2J\x07", "a\nb: c")
    shown = report(capsys, replace(prediction, network="[b]net[/b]: \x1b]0;x", warnings=("[i]w",)))
    for name in ("[red]x[/]", ":smile:", r"\x1b[2J\x07", r"a\nb: c", "[b]net[/b]: \\x1b]0;x",
                 "note: [i]w"):  # fmt: skip
        assert name in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", shown)
    for line in text.summary(prediction):
        assert line.isprintable()


def test_a_path_with_spaces_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    assert "lolat explain 'my models/a b.json'" in " ".join(
        report(capsys, name="my models/a b.json").split()
    )


def test_the_latency_and_its_interval() -> None:
    prediction = replace(PREDICTION, latency_ms=20.0, interval_ms=(18.0, 22.0))
    line = "20.0 ms, 90 % sure of 18.0 .. 22.0"
    assert text.latency(prediction) == line
    assert next(iter(text.summary(prediction))) == f"hand made · batch 4 · 56x56x3: {line}"


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
