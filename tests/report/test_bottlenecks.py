"""What the bottleneck page is told: counts that give the model's own times, names that stay text."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from msgspec import structs

import lolat
from lolat.api.model import Model
from lolat.device.prediction import Prediction
from lolat.device.summary import IN_TF32
from lolat.graph.blocks import BlockName, cut
from lolat.graph.counts import COLUMNS, GROUPS
from lolat.graph.network import RESULTS
from lolat.report.bottlenecks.page import page
from lolat.report.prediction import report_lines
from lolat.report.rows import COLORS, color_of
from lolat.report.tables import lines_of
from tests import synthetic
from tests.processes import ROOT
from tests.report.pages import Page

MODEL = Model(synthetic.document())


@pytest.mark.parametrize("depth", [None, 0, 1])
@pytest.mark.parametrize("model", [MODEL, lolat.load("rtx-4090-amp")])
def test_the_rows_and_their_bars_add_up(model: Model, depth: int | None) -> None:
    """Folded or not, the rows are the prediction of the model, and each bar is as long as its time."""
    wanted = model.predict(synthetic.network(), 300)
    text = page(wanted, depth)
    found = Page(text)
    rows = [row for row in found.named("tr") if "data-time" in row]
    times = [float(row["data-time"] or "nan") for row in rows]
    assert sum(times) == pytest.approx(wanted.latency_ms, rel=1e-9)
    assert sum(int(row["data-macs"] or "") for row in rows) == wanted.counts["flops"]
    bars = [
        sum(map(float, re.findall(r' width="([\d.]+)"', bar)))
        for bar in text.split('class="bar"')[1:]
    ]
    assert bars == pytest.approx([100 * ms / max(times) for ms in times], abs=0.05)


def test_every_count_has_the_color_of_its_group() -> None:
    assert len(set(COLORS.values())) == len(COLORS)
    assert {term: color_of(term) for term in COLUMNS} == {n: COLORS[GROUPS[n]] for n in COLUMNS}


def test_the_doubts_of_a_noisy_device_are_told() -> None:
    noisy = "times on this machine repeat within 52 %"
    for warnings in ([noisy], []):
        model = Model(synthetic.document(warnings=warnings))
        doubts = page(model.predict(synthetic.network())).partition('id="doubts"')[2]
        assert (f"<li>{noisy}</li>" in doubts.partition("</section>")[0]) == bool(warnings)


def test_the_page_has_the_held_out_error_the_day_and_its_command() -> None:
    answer = lolat.load("rtx-4090-amp").predict("timm:resnet50", 64)
    text = html.unescape(page(answer))
    doubts = text.partition('id="doubts"')[2].partition("</section>")[0]
    document = json.loads((ROOT / "models" / "rtx-4090-amp.json").read_text())
    error = document["predictors"]["kernels"]["error"]["left_out"]["median"]
    told = (
        f"Networks that the fit had not seen: half within {100 * error:.1f} %, nine of ten within "
    )
    assert told in doubts
    assert ", profile fitted to 1,419 rows of 1,409 networks," in text.partition("</header>")[0]
    (words,) = re.findall("<footer[^>]*>(.*)</footer>", text)
    assert words == (
        f"Made on {date.today():%Y-%m-%d} by LoLat {lolat.__version__}: lolat report rtx-4090-amp "
        "timm:resnet50 --batch-size 64 --html report.html"
    )


def test_the_page_names_the_function_with_its_file_and_the_file_asked_for(tmp_path: Path) -> None:
    """Two reports of functions named net differ; a name of a package's network stays as it is."""
    found = MODEL.predict(structs.replace(synthetic.network(), name="net"))
    for given, shown in (
        ("own:net", "own:net"),
        ("a/b/own.py:net", "own.py:net"),
        ("timm:net", "net"),
    ):
        named = found.named(given, ())
        assert named.title.startswith(f"{shown} · batch 1 · ")
        named.write_html(tmp_path / "my page.html")
        text = html.unescape((tmp_path / "my page.html").read_text(encoding="utf-8"))
        assert f"<h1>{shown} on " in text
        assert '<p class="place">batch 1 · ' in text
        assert text.partition("</footer>")[0].endswith(f"{given} --html 'my page.html'")
    assert "accuracy is not predicted" in text


def test_a_cause_of_a_gpu_has_no_cost_of_a_unit_and_no_share_of_nothing() -> None:
    """Its formula takes the longer of computing and moving: time / MACs would beat the card's peak."""
    answer = lolat.load("rtx-4090-amp").predict("timm:resnet50", 64)
    tables = page(answer).split("Where the time of ")[1:]
    assert len(tables) == 2 * (len(answer.blocks) - 1)  # the caption, and the label of its region
    for table in tables[1::2]:
        table = table.partition("</table>")[0]
        assert ">each<" not in table
        assert ">0.0 %<" not in table
    assert ">each<" in page(MODEL.predict(synthetic.network()))


EVIL = "</script><script>alert(1)</script><!-- \u2028 & \" ' ]]> <img src=x onerror=alert(2)>"


def evil() -> Prediction:
    """Of a network, a device and blocks with names that would be markup."""
    graph = synthetic.network(name=EVIL)
    names = ("</script><b>x", "\u2028\u2029", "\x00\x1b[2J", "\ud800", EVIL)
    blocks = [
        replace(block, name=BlockName(name, name))
        for block, name in zip(cut(graph), names, strict=True)
    ]
    vars(graph)[RESULTS][cut.__module__, cut.__qualname__, ()] = tuple(blocks)
    return Model(synthetic.document(device=EVIL)).predict(graph, 2)


def test_names_stay_text() -> None:
    text = page(evil())
    found = Page(text)
    scripts = [attributes for tag, attributes in found.tags if tag == "script"]
    assert scripts == [{}]
    assert "img" not in {tag for tag, _ in found.tags}
    assert found.texts["h1"].startswith("</script><script>alert(1)</script><!-- \\u2028 & \" ' ]]>")
    text.encode("utf-8")


def test_the_page_loads_nothing() -> None:
    text = page(MODEL.predict(synthetic.network()))
    found = Page(text)
    (policy,) = [a["content"] for tag, a in found.tags if "http-equiv" in a]
    assert policy is not None
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", parts["script-src"])
    for _, attributes in found.tags:
        assert not {"src", "srcset", "action", "onload", "onerror", "style"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    for word in ("http:", "https:", "url(", "@import", "fetch(", "XMLHttp", "innerHTML", "eval("):
        assert word not in text


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_the_header_is_that_of_the_terminal(precision: str) -> None:
    """Of a device that was measured in half precision, asked in others; it says what the networks are."""
    answer = lolat.load("rtx-4090-amp").run_as(precision).predict(synthetic.network(), 16)
    header = re.sub(
        r"<[^>]+>", " ", page(answer).partition("<header>")[2].partition("</header>")[0]
    )
    question, device = answer.report().splitlines()[:2]
    layout, tf32 = ", channels first" * (precision == "fp16"), IN_TF32 * (precision == "fp32")
    question = question.partition(": ")[0]
    assert question == f"hand made · batch 16 · 56x56x3 · {precision}{tf32}, PyTorch, eager{layout}"
    assert device.startswith(
        "rtx-4090-amp: RTX 4090, by 1,419 rows of 1,409 networks, batch 4 to 1024, PyTorch "
    )
    assert question.removeprefix("hand made · ") in header
    assert device.replace(", by", ", profile fitted to") in header


@pytest.mark.slow
def test_a_network_too_large_is_told_first_in_red() -> None:
    """In the words of the terminal; the class is that of the page's other alarms."""
    for batch_size, fits in ((64, True), (8000, False)):
        answer = lolat.load("rtx-4090-amp").predict("timm:resnet50", batch_size)
        answers = page(answer).partition('<section id="answers" aria-label="Latency">')[2]
        told = answer.report().splitlines()[0]
        assert told.startswith("DOES NOT FIT: it needs 43.5 GiB ") != fits
        first = Page(answers.partition('<div class="answer">')[0])
        assert first.text == ("" if fits else told)
        assert first.tags == ([] if fits else [("p", {"class": "outside"})])
    assert ".outside { color: var(--mark);" in page(answer)


def test_the_mark_of_bottlenecks_is_explained_where_there_are_any() -> None:
    """ResNet-50 waits for its host at batch 1; at 64 the blocks of its first stage stand out."""
    gpu = lolat.load("rtx-4090-amp")
    for size in (1, 64):
        text = page(gpu.predict("timm:resnet50", size))
        assert (
            ("Bottlenecks are red, with a dot." in text) == ('class="marked"' in text) == (size > 1)
        )


def test_a_folded_page_has_the_sentence_and_the_marks_of_the_folded_report() -> None:
    """Its command makes it again, and only rows of single blocks open."""
    found = lolat.load("rtx-4090-amp").predict("timm:resnet50", 64)
    text = html.unescape(page(found, 1))
    lines = [*lines_of(report_lines(found, 1))]
    (sentence,) = [line for line in lines if line.startswith("Bottleneck")]
    assert f"<p>{sentence}</p>" in text
    named = sentence.partition(": ")[2].partition(" take")[0].replace(" and ", ", ").split(", ")
    marked = re.findall(r'<tr role="row" class="marked".*?<b>(.*?)</b>', text)
    assert sorted(marked) == sorted(named)
    assert "--batch-size 64 --depth 1 --html report.html</footer>" in text
    opens = re.findall(r"<button type=\"button\" aria-expanded=\"false\"><b>(.*?)</b>", text)
    assert opens == ["stem", "head"]
    assert "Click a name" not in page(found, 0)


@pytest.mark.parametrize(("size", "waits"), [(1, True), (256, False)])
def test_the_head_says_predicted_and_a_host_that_is_the_limit_is_told(
    size: int, waits: bool
) -> None:
    """At batch size 1 the host takes all the time, at 256 less. Nobody timed this network itself."""
    found = lolat.load("rtx-4090-amp").predict("timm:resnet50", size)
    assert ((found.host_ms or 0.0) > 0.98 * found.latency_ms) == waits
    text = html.unescape(page(found))
    head, _, rest = text.partition("</header>")
    assert "Predicted from its layers; the network was not run." in head
    assert "RTX 4090, profile fitted to 1,419 rows of 1,409 networks, batch 4 to 1024" in head
    told = "a change saves the time in which the host starts"
    assert (told in rest.partition('id="changes"')[2].partition("</section>")[0]) == waits
