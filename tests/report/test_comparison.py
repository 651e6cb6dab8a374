"""The tables of `compare` from predictions made up by hand, the page made of them, and its frame."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.comparison.candidates import CANDIDATES, FlopsOnly
from lolat.comparison.judging import Comparison, Judged, NetworkTime, Speed
from lolat.fitting.points import Point
from lolat.io.results import element, escape, table
from lolat.model import Model
from lolat.report.comparison import (
    FIELDS,
    best,
    cell,
    compare,
    document,
    duration,
    figure,
    order,
    page,
    print_comparison,
    remarks,
    summary,
    two_digits,
    verdict,
    write_csv,
    write_page,
)
from tests import synthetic
from tests.report.pages import Page

POINTS = [
    Point("a", 1, {"acts": 1, "inp": 1, "flops": 1}, 1.0),
    Point("a", 2, {"acts": 2, "inp": 2, "flops": 2}, 2.0),
    Point("<b>", 1, {"acts": 3, "inp": 3, "flops": 3}, 4.0),
]
NETWORKS = [NetworkTime("keras:A", 1, 10.0), NetworkTime("m:f & g", 8, 20.0, (96,), 0)]
CHOSEN = {c.name: c for c in CANDIDATES}


def judged(name: str, left_out: list[float], networks: list[float]) -> Judged:
    fitted = FlopsOnly(("flops",), (1.0,), 0.0)
    return Judged(CHOSEN[name], ("flops",), fitted, np.array(left_out), np.array(networks))


def result(networks: list[NetworkTime] | None = None, **changes: Any) -> dict[str, Any]:
    wanted = NETWORKS if networks is None else networks
    n = len(wanted)
    found = Comparison(
        (
            judged("flops", [1.5, 3.0, 4.4], [11.0, 23.0][:n]),
            judged("paleo", [1.0, 2.04, 4.0], [15.0, 10.0][:n]),
        ),
        {"extended": "not all points have traffic"},
        2,
        (1, 2),
    )
    speeds = {"flops": Speed(0.5, 0.9, 0.41, 10**6), "paleo": Speed(14000.0, 16e3, 4812.0, 20000)}
    model = Model(synthetic.document(), "desk.json")
    return {**compare(model, POINTS, found, wanted, speeds), **changes}


def test_figures_by_hand() -> None:
    measured = np.array([1.0, 1.0, 4.0, 4.0, 4.0])
    figures = summary(np.array([1.1, 0.7, 4.0, 4.8, 6.0]), measured)
    # errors 0.1, 0.3, 0, 0.2, 0.5
    wanted = {"median": 0.2, "mean": 0.22, "percentile_90": 0.3 + 0.6 * 0.2, "median_from_2_ms": 0.2,
              "median_below_2_ms": 0.2}  # fmt: skip
    assert {name: figures[name] for name in wanted} == pytest.approx(wanted)


def test_everything_is_in_the_result() -> None:
    whole = result()
    json.dumps(whole, allow_nan=False)
    wanted = {"points": 3, "blocks": 2, "folds": 2, "fitted_on": [1, 2], "noise_floor": 0.03,
              "not_compared": {"extended": "not all points have traffic"}}  # fmt: skip
    assert {name: whole[name] for name in wanted} == wanted
    assert whole["left_out"]["summary"]["flops"]["median"] == pytest.approx(0.5)
    assert whole["left_out"]["rows"][2] == {
        "name": "<b>", "batch_size": 1, "measured_ms": 4.0, "predicted_ms": {"flops": 4.4, "paleo": 4.0},
    }  # fmt: skip
    assert whole["networks"]["rows"][1] == {
        "network": "m:f & g", "batch_size": 8, "input_size": [96], "block": 0,
        "measured_ms": 20.0, "predicted_ms": {"flops": 23.0, "paleo": 10.0},
    }  # fmt: skip
    assert whole["predictors"]["paleo"]["million_rows_over_product"] == 4812.0
    assert whole["predictors"]["paleo"]["numbers"] == 2


def test_the_best_comes_first_and_is_named() -> None:
    found = result()
    assert order(found["left_out"]) == ["paleo", "flops"]
    assert order(found["networks"]) == ["flops", "paleo"]
    assert verdict(found, "networks") == (
        "Smallest median error on whole networks: FLOPs alone (12 %), then roofline (PALEO) (50 %)."
    )
    told = list(remarks(found))
    assert told[0].startswith("Smallest median error on blocks left out: roofline (PALEO) (0.0 %)")
    assert told[2].startswith("Noise floor: 3.0 %")
    assert told[3] == "Not compared: extended: not all points have traffic."


def test_the_best_of_a_column_is_the_largest_or_the_smallest() -> None:
    judged = result()["left_out"]
    assert best(judged, "median") == "0.0 %"
    assert best(judged, "within_10_percent") == "100 %"  # against 33 %
    assert best({"summary": {"a": {"r2": None}}}, "r2") is None
    marked = [a for a in Page(page(result())).named("td") if a.get("class") == "best"]
    # A best figure in each of 8 columns; in two of them both predictors have it; no network is below 2 ms.
    assert len(marked) == 8 + 7 + sum(
        cell(f, s["summary"]["flops"][f]) == cell(f, s["summary"]["paleo"][f]) != "-"
        for s in (result()["left_out"], result()["networks"])
        for f, _ in FIELDS
    )


def test_the_default_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    found = result(default="flops")
    text = page(found)
    assert text.count("FLOPs alone (default)") == 3
    assert len([a for a in Page(text).named("rect") if a.get("class") == "bar marked"]) == 2
    print_comparison(found)
    assert capsys.readouterr().out.count("FLOPs alone *") == 3


def test_without_networks_or_a_noise_floor() -> None:
    found = result([], noise_floor=None)
    assert found["networks"] is None
    assert len(list(remarks(found))) == 2
    assert "Whole networks" not in page(found)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.0005, "0.5 µs"), (0.0042, "4.2 µs"), (0.11, "110 µs"), (0.9996, "1000 µs"), (8.17, "8.2 ms"),
     (976.0, "980 ms"), (16000.0, "16 s"), (9960.0, "10 s")],
)  # fmt: skip
def test_times_to_answer(milliseconds: float, text: str) -> None:
    assert duration(milliseconds) == text
    ratios = {0.41: "0.4", 2.77: "2.8", 9.96: "10", 237.7: "240", 4812.0: "4800"}
    assert [two_digits(value) for value in ratios] == list(ratios.values())


@pytest.mark.parametrize("wide", [None, 80])
def test_the_terminal_shows_each_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wide: int | None
) -> None:
    if wide:
        monkeypatch.setattr("lolat.report.text.WIDE", wide)
    print_comparison(result())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].rstrip() == "desk: a desk, 2 threads"
    assert max(map(len, lines)) <= (wide or 1000)
    rows = [" ".join(line.split()) for line in lines]
    rows = [row for row in rows if row.startswith(("roofline", "FLOPs alone"))]
    figures = "0.0 % 0.7 % 1.6 % 100 % 1.0 % 0.0 % 1.000"  # no column is cut
    assert rows[0].endswith(figures) if wide else rows[0] == f"roofline (PALEO) {figures}"
    assert rows[1].startswith("FLOPs alone 50 %")
    assert rows[2].startswith("FLOPs alone 12 %")
    assert rows[4] == "FLOPs alone 1 2 0.5 µs 900 µs 0.4"
    assert rows[5].endswith("1 2 14 ms 16 s 4800")
    assert any(line.strip().startswith("Not compared: extended") for line in lines)


def test_the_csv_has_a_row_for_each_set_and_predictor(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    write_csv(str(path), result())
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(r["judged_on"], r["predictor"], r["fitted_on"]) for r in rows] == [
        ("left_out", "paleo", "1"),
        ("left_out", "flops", "1"),
        ("networks", "flops", "3"),
        ("networks", "paleo", "3"),
    ]
    assert float(rows[1]["median"]) == pytest.approx(0.5)
    assert float(rows[3]["million_rows_over_product"]) == 4812.0
    assert rows[2]["median_below_2_ms"] == ""


def test_the_page_has_the_tables_and_a_chart_for_each(tmp_path: Path) -> None:
    path = tmp_path / "c.html"
    write_page(str(path), result())
    text = path.read_text(encoding="utf-8")
    found = Page(text)
    assert len(found.named("caption")) == 3
    assert len(found.named("svg")) == 2 * (1 + 2)
    assert len(found.named("circle")) == 2 * 3 + 2 * 2
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(set(ids)) == len(ids) == 2 * len(found.named("svg"))
    named = " ".join(str(a["aria-labelledby"]) for a in found.named("svg")).split()
    assert sorted(named) == sorted(map(str, ids))
    assert found.named("script") == []
    assert found.named("b") == [{}] * 6  # the names of the figures, and no block called <b>
    assert "<b>, batch 1: measured 4 ms, predicted 4.4 ms" in found.text
    assert "m:f & g 96 block 0, batch 8: measured 20 ms" in found.text
    assert "4800" in found.text
    heads = [tag for tag, _ in found.tags if tag in ("h1", "h2")]
    assert heads == ["h1"] + ["h2"] * 4


EVIL = "<script>alert('\"&')</script>"


@given(st.text())
def test_text_stays_text(text: str) -> None:
    parsed = ElementTree.fromstring(element("p", text, title=text))
    shown = text if text.isprintable() else None
    if shown is not None:
        assert (parsed.text or "") == shown
        assert parsed.get("title") == shown
    assert len(parsed) == 0


def test_what_a_terminal_would_act_on_is_shown() -> None:
    assert escape("a\x1b[1m\n") == "a\\x1b[1m\\n"


def test_numbers_and_names_of_attributes() -> None:
    assert element("rect", x=1.0, y=2.25, class_="a", stroke_width=3) == (
        '<rect x="1" y="2.2" class="a" stroke-width="3"></rect>'
    )
    assert element("b", "<i>", raw=True) == "<b><i></b>"


def test_a_page_is_whole_and_loads_nothing() -> None:
    page = document(f"t {EVIL}", [element("h1", EVIL)])
    found = Page(page)
    assert page.startswith("<!doctype html>")
    assert found.named("script") == []
    assert found.named("html") == [{"lang": "en"}]
    assert EVIL in found.text
    policy = [a["content"] for a in found.named("meta") if "http-equiv" in a]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not any({"src", "href", "onload"} & set(attributes) for _, attributes in found.tags)
    for word in ("http:", "https:", "url(", "@import"):
        assert word not in page
    assert "prefers-color-scheme: dark" in page


def test_a_table_has_a_caption_heads_and_marks() -> None:
    found = Page(table("c <b>", ["name", "a", "b"], [["x&", "1", "2"]], [[False, True, False]]))
    assert found.named("th") == [{"scope": "col"}] * 3 + [{"scope": "row"}]
    assert found.named("td") == [{"class": "best"}, {}]
    assert found.named("b") == []
    assert found.text == "c <b>nameabx&12"
    (region,) = found.named("div")
    assert (region["role"], region["tabindex"], region["aria-label"]) == ("region", "0", "c <b>")


def test_a_figure_says_what_it_is() -> None:
    found = Page(figure("<svg></svg>", "a<", "words"))
    assert found.text == "a< words"
