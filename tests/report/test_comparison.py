"""The page of several predictions: the table and its notes, a chart drawn to scale, nothing loaded."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import lolat
from lolat.api.predicting import Predictions
from lolat.cli.main import lolat as commands
from lolat.device.prediction import Prediction
from lolat.report.comparison import page
from lolat.report.ranked import device_words
from tests.report.pages import Page

HINTS = [
    " (one host for all: --host-us)", " (yours: --prices FILE)",
    " (yours: --host-us)", " (--launch graph)", "; yours: --host-us",
    " (`lolat fit OPERATIONS.csv --facts FILE --name NAME`)",
]  # fmt: skip
"""The hints at options in the answer below."""
ON, SIZES = ["rtx-4090-amp", "l4", "h100"], [1, 64]
FOUND = lolat.predict(["timm:resnet50", "timm:resnet18"], on=ON, batch_size=SIZES, precision="amp")


def test_the_page_has_the_lines_of_the_command(tmp_path: Path) -> None:
    """Each cell and each line, without hints at options; the footer has the command, with the file that was
    asked for.
    """
    made = tmp_path / "mine.html"
    asked = ["predict", "timm:resnet50", "timm:resnet18", "--on", ",".join(ON), "--batch-size", "1,64",
             "--precision", "amp", "--max-ms", "1000", "--html", str(made)]  # fmt: skip
    ran = CliRunner().invoke(commands, asked)
    assert ran.exit_code == 0
    text = made.read_text(encoding="utf-8")
    shown = "".join(Page(text).text.split())
    table, notes = ran.stdout.splitlines()[:14], ran.stdout.splitlines()[14:]
    # A card is in brackets behind its device, on the page in a line below it.
    cells = [cell for line in table for cell in re.split(r"  +| \(|\)", line.strip())]
    assert len(cells) > 100
    assert all("".join(cell.split()) in shown for cell in cells)
    told = [line for line in notes if "least sure" not in line and "more notes" not in line]
    assert len(told) > 2
    said = "\n".join(line.removeprefix("note: ") for line in told)
    said = re.sub(r" \(--launch graph: .*?\)", "", said)
    for hint in HINTS:
        said = said.replace(hint, "")
    assert [line for line in said.splitlines() if "".join(line.split()) not in shown] == []
    assert f"lolat {' '.join(asked)}</footer>" in html.unescape(text)
    assert "more notes" not in text


def test_the_page_is_one_file_without_a_script() -> None:
    read = Page(page(FOUND))
    (policy,) = [m["content"] for m in read.named("meta") if m.get("http-equiv")]
    assert policy == (
        "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'"
    )
    assert not read.named("script") + read.named("link") + read.named("img")
    assert read.texts["h1"] == "timm:resnet50, timm:resnet18"
    assert "Host-bound on" in page(FOUND)
    assert not re.findall(
        r" --[a-z]", page(FOUND).partition("<body>")[2]
    )  # a reader may lack LoLat


def test_the_dots_lie_on_a_logarithmic_scale() -> None:
    """Equal ratios of times are equal distances, for dots, ends of intervals and ticks."""
    text = page(FOUND)
    left = [float(x) for x in re.findall(r'<u class="[\w ]*" style="left:([\d.]+)%', text)]
    bars = re.findall(r'<b style="left:([\d.]+)%;width:([\d.]+)%', text)
    assert len(left) == len(bars) == len(FOUND) == 12
    ticks = [
        (float(ms), float(x)) for x, ms in re.findall(r"left:([\d.]+)%\">([\d.]+)</span>", text)
    ]
    assert len(ticks) > 2
    points = ticks + [(p.latency_ms, x) for p, x in zip(FOUND, left, strict=True)]
    for p, (start, width) in zip(FOUND, bars, strict=True):
        low, high = p.interval_ms or (0.0, 0.0)
        points += [(low, float(start)), (high, float(start) + float(width))]
    (ms, x), (most, end) = min(points), max(points)
    slope = (end - x) / math.log(most / ms)
    for time, place in points:
        assert place == pytest.approx(x + slope * math.log(time / ms), abs=0.03)
        assert 0.0 < place < 100.0
    marks = [row.split() for row in re.findall(r'<u class="([\w ]*)"', text)]
    assert ["waits" in each for each in marks] == [bool(p.host_bound) for p in FOUND]
    assert ["far" in each for each in marks] == [p.in_domain is False for p in FOUND]
    assert "hollow: host-bound; light: outside the measured range" in text


@pytest.mark.parametrize("on", [["v100", "l4", "h100"], ["a10", "v100"]])
def test_the_page_begins_with_the_fastest_and_the_cheapest(on: list[str]) -> None:
    """By the times and prices; a rival whose time is nearly in the interval is named."""
    found = lolat.predict("timm:resnet50", on=on, batch_size=64, precision="amp")
    names = {p.device: name for p, name in zip(found, on, strict=True)}
    fast, *others = sorted(found, key=lambda p: p.latency_ms)
    cheap = min(found, key=lambda p: p.dollars_per_million or math.inf)
    text = html.unescape(page(found))
    best = re.findall("<p>(.*?)</p>", text.partition('id="best"')[2].partition("</section>")[0])
    name, ms = re.match(r"Fastest: ([\w-]+), ([\d.]+) ms", best[0]).groups()  # type: ignore[union-attr]
    assert name == names[fast.device]
    assert float(ms) == pytest.approx(fast.latency_ms, rel=0.005)
    best = [words for words in best if " with " not in words.partition(":")[0]]
    assert best[1].startswith(f"Cheapest: {names[cheap.device]}, ")

    def half(p: Prediction) -> float:
        low, high = p.interval_ms or (0.0, 0.0)
        return math.log(high / low) / 2

    near = [
        p for p in others
        if math.log(p.latency_ms / fast.latency_ms) <= math.hypot(half(p), half(fast))
    ]  # fmt: skip
    assert (" % sure)" in best[0]) == bool(near)
    assert all(names[p.device] in best[0].partition("; ")[2] for p in near)
    assert "Cheapest" not in text.partition('id="notes"')[2]
    assert f"<title>timm:resnet50: time on {len(on)} devices</title>" in text
    assert "timm:resnet50 on " not in text.partition('id="notes"')[2]
    table = text.partition('id="table"')[2].partition("</section>")[0]
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)
    assert {"network", "batch"}.isdisjoint(heads)
    assert "network: timm:resnet50" in table.partition("</caption>")[0]
    assert "batch: 64" in table.partition("</caption>")[0]


def test_the_page_begins_with_what_forbids_a_comparison_and_explains_its_words() -> None:
    """Devices in precisions that differ have no fastest one; where they are alike nothing is said."""
    each = (lolat.load(name).predict("timm:resnet50", 64) for name in ("rtx-4090", "l4"))
    text = html.unescape(page(Predictions(tuple(each))))
    first = text.partition('id="best"')[2].partition("</section>")[0]
    assert "Precisions differ, so these times do not compare the GPUs: amp on rtx-4090" in first
    assert text.count("Precisions differ") == 1
    assert "Precisions differ" not in page(FOUND)
    words = re.findall("<dt>(.*?)</dt>", page(FOUND))
    assert {"90 % interval", "measured range", "host-bound", "vs. first", "amp"} <= {*words}
    assert {"vs. first", "host-bound"}.isdisjoint(re.findall("<dt>(.*?)</dt>", text))  # not there
    assert re.search(r"Prices: the built-in table of \d{4}-\d\d-\d\d", text)


def test_a_heading_for_each_network_and_batch() -> None:
    """Each once, over a row a device; none over a single device's rows."""
    chart = page(FOUND).partition('id="times"')[2].partition("</table>")[0]
    headings = re.findall(r'<th colspan="3" scope="rowgroup">(.*?)</th>', chart)
    wanted = [f"timm:{n} · batch {size}" for n in ("resnet50", "resnet18") for size in SIZES]
    assert headings == wanted
    bodies = chart.split("<tbody>")[1:]
    assert [body.count('scope="row"') for body in bodies] == 4 * [3]
    alone = page(FOUND.filter(lambda p: p.device == FOUND[0].device))
    assert 'scope="rowgroup"' not in alone
    assert f"time on {ON[0]}</title>" in alone


def test_what_does_not_fit_is_counted_and_one_answer_has_the_page_of_its_blocks(
    tmp_path: Path,
) -> None:
    model = lolat.load("rtx-4090")
    most = model.predict("timm:resnet18", "auto").batch_size
    text = page(model.predict("timm:resnet18", [1, 2 * most]))
    assert text.count('class="spot"') == 1
    assert "1 without room in memory" in text
    asked = ["predict", "rtx-4090", "timm:resnet18", "--html", str(tmp_path / "one.html")]
    assert CliRunner().invoke(commands, asked).exit_code == 0
    assert 'id="blocks"' in (tmp_path / "one.html").read_text(encoding="utf-8")


def test_a_name_does_not_become_markup(tmp_path: Path) -> None:
    from msgspec.structs import replace

    graph = replace(lolat.read("timm:resnet18"), name="<script>alert(1)</script>")
    lolat.load("rtx-4090").predict(graph, SIZES).write_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_the_page_says_which_card_a_device_is_and_who_rents_it() -> None:
    """Of four devices, whose prices a terminal has without their instances."""
    found = lolat.predict("timm:resnet50", ["a100", "h100", "t4", "rtx-4090"], 64)
    notes = html.unescape(page(found)).partition('id="notes"')[2]
    assert "<p>a100: A100 PCIe 40 GB, profile fitted to " in notes
    assert all(f"{device_words(p)}: {p.instance}, $" in notes for p in found)
