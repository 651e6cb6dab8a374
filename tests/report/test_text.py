"""What the terminal shows, and the table of a report as CSV."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lolat.graph.counts import COLUMNS
from lolat.model import Model, load
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


@pytest.mark.parametrize(
    ("date", "words"),
    [("2026-03-02T00:01:00+00:00", " · learned today, 2026-03-02 00:01 UTC"),
     ("2026-03-01T16:30:00-07:00", " · learned yesterday, 2026-03-01 23:30 UTC"),
     ("2026-02-28T23:00:00+00:00", " · learned 2 days ago, 2026-02-28 23:00 UTC"),  # 25 hours
     ("2026-03-05T00:00:00+00:00", " · learned today, 2026-03-05 00:00 UTC"),  # a clock was wrong
     *((wrong, "") for wrong in (None, 17, "17", "soon", "2026-01-01", "2026-01-01T00:00:00",
                                 "0001-01-01T00:00:00+14:00"))],
)  # fmt: skip
def test_the_age_of_a_model(date: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_now", lambda: datetime(2026, 3, 2, 0, 2, tzinfo=UTC))
    model = Model(synthetic.document(environment={"date": date}))
    assert text.headline(model) == f"desk: a desk, 2 threads{words} · noise 3.0 %"
    model = Model(synthetic.document(environment={"date": 17}, noise={"floor": "low"}))
    assert text.headline(model) == "desk: a desk, 2 threads"


def test_two_models_of_a_processor_are_told_apart() -> None:
    """By the file, and by what was set while each was measured."""
    document = synthetic.document()
    where = document["environment"]
    first = text.headline(Model(document, "models/desk.json"))
    assert first.startswith("desk: a desk, 2 threads · tensorflow")
    assert "desk (busy.json): a desk" in text.headline(Model(document, "models/busy.json"))
    for changes, words in (
        ({"compile": True, "half": False}, "compiled"),
        ({"flags": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}, "ONEDNN_MAX_CPU_ISA=AVX2"),
        ({"libraries": {"onednn": False}}, "without oneDNN"),
        ({"libraries": {"onednn": True, "cpu_capability": "AVX512"}}, "AVX512"),
        ({"load_at_start": 2.03}, "load 2.0 at the start"),
        ({"flags": None, "libraries": 3, "load_at_start": "low"}, ""),
    ):
        found = text.headline(Model({**document, "environment": {**where, **changes}}, "desk.json"))
        assert set(found.split(" · ")) - set(first.split(" · ")) == ({words} - {""})


def test_show() -> None:
    document = synthetic.document()
    document["predictors"]["two-regime"] |= {
        "coefficients": {"acts": 2e-6, "inp": 0.0, "flops": 1e-8, "call": 0.25},
        "breakpoint_ms": 5.0, "slope": 0.5, "offset_ms": 2.5,
    }  # fmt: skip
    document["warnings"] = ["a noisy \x1b[1m point"]
    lines = list(text.describe(Model(document)))
    assert lines[0] == "desk: a desk, 2 threads · tensorflow 2.21.0 · noise 3.0 %"
    assert "105 points; default predictor: extended" in lines[1]
    assert "1 MAC = 1 FLOP" in lines[1]
    assert "two-regime: t = 2e-06*ACTS + 1e-08*FLOPs + 0.25 ms" in lines
    assert "  below 5.00 ms: 0.500 * t + 2.500" in lines
    left_out = [line for line in lines if line.startswith("  each block left out: median error ")]
    assert len(left_out) == 2
    assert all(" % (noise floor 3.0 %), " in line for line in left_out)
    assert sum(line.startswith("  90 % intervals: -") for line in lines) == 2
    assert lines[-1] == r"note: a noisy \x1b[1m point"


def test_show_of_a_damaged_section_says_so_and_shows_the_others() -> None:
    spaces = {"fbnet": 3, "nasbench201": {"samples": [{}]}}
    found = list(text.section_lines({"training": [], "epochs": {"points": 3}, "spaces": spaces}))
    assert found[3].endswith("(`lolat nas search nasbench201 MODEL`): 1 measured network")
    assert [line.partition(":")[0] for line in found if ": damaged; " in line] == [
        "training", "epochs", "fbnet",
    ]  # fmt: skip


@pytest.mark.parametrize("damage", [1.0, "x", [3], {}, None])
def test_show_of_damaged_remarks_on_training(damage: Any) -> None:
    document = load("epyc-2t").document
    section = document["training"]
    whole, damaged = (
        [*text.section_lines({"training": section | {"warnings": warnings}})]
        for warnings in (["a \x1b[1m remark"], damage)
    )
    assert whole[1:] == [r"note on training: a \x1b[1m remark"]
    assert damaged == ["training: damaged; `lolat training predict` says where"]


@pytest.mark.parametrize(
    "coefficients",
    [
        # 2e-8 ms a MAC: 50 GMACs a second; 2e-6 ms an element: 100 MACs; 0.01 ms an operation: 10 µs.
        synthetic.TRUE | {"call": 0.15},
        # The median of what its kinds cost, as far as they cost anything.
        {"pointwise_macs": 1e-8, "spatial_macs": 2e-8, "dense_macs": 9e-8, "flat_macs": 0.0,
         "conv_reads": 1e-6, "conv_writes": 2e-6, "pair_elements": 3e-6, "conv_ops": 0.01,
         "move_ops": 0.0, "call": 0.15},
    ],
)  # fmt: skip
def test_what_a_device_is_bound_by(coefficients: dict[str, float]) -> None:
    document = synthetic.document()
    document["predictors"]["extended"]["coefficients"] = coefficients
    sentence = text.bound_sentence(Model(document))
    for words in ("50.0 GMACs a second", "100 in the time of moving one element",
                  "one operation costs 10 µs", "one call costs 0.150 ms"):  # fmt: skip
        assert words in sentence
    # The rates of `kernels` are each of another class: together no network has them.
    assert text.bound_sentence(load("rtx-4090-amp")) == ""


def test_the_latency_and_its_interval() -> None:
    prediction = replace(PREDICTION, latency_ms=20.0, interval_ms=(18.0, 22.0))
    line = "20.0 ms, 90 % sure of 18.0 .. 22.0"
    assert text.latency(prediction) == line
    assert next(iter(text.summary(prediction))) == f"hand made · batch 4 · 56x56x3: {line}"


@pytest.mark.parametrize(
    ("error", "noise", "lines"),
    [
        *((few, None, []) for few in ({}, {"fitted": {}}, {"fitted": {"median": 0.1}}, None)),
        ({"fitted": {"median": 0.1, "within_10_percent": 0.5}}, None,
         ["  on its points: median error 10 %, 50 % within 10 %"]),
        ({"fitted": {"median": 0.1, "within_10_percent": 0.5, "median_below_2_ms": 0.2}}, 0.016,
         ["  on its points: median error 10 % (noise floor 1.6 %), 20 % below, 50 % within 10 %"]),
        ({"networks_left_out": {"median": 0.06, "within_10_percent": 0.75}}, None,
         ["  whole networks among them: median error 6.0 %, 75 % within 10 %"]),
    ],
)  # fmt: skip
def test_errors_as_far_as_a_file_has_them(
    error: Any, noise: float | None, lines: list[str]
) -> None:
    assert list(text.error_lines({} if error is None else {"error": error}, noise)) == lines


SCORES = [0.1] * 90 + [0.2] * 10


@pytest.mark.parametrize(
    ("entry", "noise", "lines"),
    [
        ({}, 0.03, []),
        ({"residuals": [0.1] * 8}, 0.03, []),
        ({"residuals": SCORES}, None, ["-18 .. +22 %"]),
        # The 91st of 100 scores, 0.2, times (n / 12)**-0.5: 0.4 at 3 operations, 0.1 at 48.
        ({"interval": {"exponent": 0.5, "ops": [3, 48], "scores": SCORES}}, 0.03,
         ["-33 .. +49 % up to 3 operations, -10 .. +11 % from 48 on"]),
        # Noise as large as what is measured.
        ({"interval": {"exponent": 0.5, "ops": [3, 48], "scores": SCORES}}, 1.0, ["-50 .. +100 %"]),
        # t of 11 degrees, 1.796, times 0.05 * sqrt(13 / 12) is 0.0935.
        ({"residuals": [0.1] * 100, "networks": {"ops": 90, "spread": 0.05, "count": 12}}, None,
         ["-10 .. +11 %, -9 .. +10 % of whole networks"]),
    ],
)  # fmt: skip
def test_how_wide_intervals_are(
    entry: dict[str, Any], noise: float | None, lines: list[str]
) -> None:
    entry = {"residuals": SCORES, **entry} if entry else {}
    told = list(text.interval_line(entry, noise))
    assert told == [f"  90 % intervals: {line}" for line in lines]


def test_what_learning_says_at_its_end() -> None:
    document = synthetic.document()
    document["environment"]["seconds"] = 174.6
    lines = list(text.learned(document, "my models/a.json"))
    assert lines[0] == "105 points on a desk, 2 threads, measured in 175 s"
    assert any(line.startswith("extended (default): t = ") for line in lines)
    assert sum("(noise floor 3.0 %)" in line for line in lines) == 4
    assert sum(line.startswith("  90 % intervals: -") for line in lines) == 2
    assert "noise: repeated measurements of a block disagree by 3.0 % at the median" in lines
    assert lines[-2] == "written: my models/a.json"
    assert lines[-1].startswith("Next: lolat report 'my models/a.json' keras:ResNet50")


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
