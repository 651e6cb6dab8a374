"""The bottleneck page in a real browser: its numbers are the model's, and it can be used by anyone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lolat.api.model import Model
from lolat.device.prediction import Prediction, bound_by
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import GROUPS
from lolat.graph.weights import parameters
from lolat.report.bottlenecks.page import page as page_of
from lolat.report.explanation import rate
from lolat.report.rows import TERMS
from lolat.units import between, byte_size, milliseconds, quantity
from tests import synthetic
from tests.browser.chromium import Chromium, accessible, luminance, violations
from tests.report.test_bottlenecks import evil

DOCUMENT = synthetic.document()
DOCUMENT["predictors"]["extended"]["coefficients"] |= {"serial": 0.01, "unfolded": 2e-7}
MODEL = Model(DOCUMENT)
BENT = synthetic.document()
BENT["predictors"]["two-regime"] |= {"breakpoint_ms": 30.0, "slope": 0.5, "offset_ms": 15.0}
TWO = Model(BENT)
PLAIN = Model(synthetic.document())


def network() -> Graph:
    """Two towers of blocks whose names have modules, with 1x1 convolutions."""
    builder = GraphBuilder("towers")
    x = builder.input((1, 64, 64, 3))
    x = builder.add("conv", [x], (1, 64, 64, 32), "stem_conv", kernel=(3, 3), in_channels=3,
                    out_channels=32, groups=1, bias=True)  # fmt: skip
    for stage in (1, 2):
        for block in (1, 2, 3):
            y = x
            for part, kernel in (("a", 1), ("b", 3)):
                y = builder.add("conv", [y], (1, 64, 64, 32), f"stage{stage}_block{block}_{part}",
                                kernel=(kernel, kernel), in_channels=32, out_channels=32, groups=1,
                                bias=False)  # fmt: skip
            x = builder.add("add", [x, y], (1, 64, 64, 32), f"stage{stage}_block{block}_add")
    x = builder.add("global_average_pool", [x], (1, 32), "pool")
    x = builder.add("dense", [x], (1, 10), "classes", in_features=32, out_features=10, bias=True)
    return builder.build([x])


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Any:
    def show(prediction: Prediction) -> Chromium:
        path = tmp_path / "page.html"
        path.write_text(page_of(prediction), encoding="utf-8")
        browser.size(1280)
        browser.media()
        browser.open(path)
        return browser

    yield show
    assert browser.faults() == []


def choose(page: Chromium, control: str, value: object, event: str = "change") -> None:
    page.do(
        f"const c = document.getElementById({control!r}); c.value = {str(value)!r};"
        f"c.dispatchEvent(new Event({event!r}))"
    )


CELLS = "].map(r => [...r.cells].map(c => c.textContent))"
BODY = "#blocks > tbody"
ROWS = f"[...document.querySelectorAll('{BODY} > tr:not(.detail)')].filter(r => !r.hidden)"
OPEN = ".detail:not([hidden])"


def column(page: Chromium, selector: str) -> list[str]:
    return page.run(f"{ROWS}.map(r => r.querySelector({selector!r})?.textContent)")  # type: ignore[no-any-return]


def times(page: Chromium) -> list[float]:
    """The times as the page has them, not rounded."""
    return [float(v) for v in page.run(f"{ROWS}.map(r => r.dataset.time)")]


def ms(value: float) -> str:
    return milliseconds(value).removesuffix(" ms")


@pytest.mark.parametrize(
    ("model", "predictor"), [(MODEL, "extended"), (MODEL, "two-regime"), (TWO, "two-regime")]
)
def test_the_numbers_are_the_models(opened: Any, model: Model, predictor: str) -> None:
    wanted = model.predict(network(), 3, predictor)
    page = opened(wanted)
    blocks = [b for b in wanted.blocks if b.name != "call" or b.latency_ms]
    assert times(page) == [b.latency_ms for b in blocks]
    assert float(page.run("document.querySelector('.ms data').value")) == wanted.latency_ms
    shown = [float(ms(b.latency_ms)) for b in blocks]
    assert [float(text) for text in column(page, ".time")] == shown
    assert column(page, "td.share") == [f"{100 * b.share:.1f} %" for b in blocks]
    macs = [quantity(b.counts["flops"]) if b.counts["flops"] else "–" for b in blocks]
    assert column(page, ".macs") == macs
    answer = page.run("document.getElementById('answers').innerText")
    assert f"90 % sure of {between(*(wanted.interval_ms or (0, 0)), wanted.latency_ms)}" in answer
    counts, own = wanted.counts, parameters(wanted.query.graph)  # in the words of the terminal
    assert f"{quantity(counts['flops'], 'MACs')} · {quantity(own)} parameters" in answer
    assert f"{quantity(counts['acts'])} convolution activations" in answer
    assert wanted.memory is not None
    assert f"{byte_size(wanted.memory.total_bytes)} of memory: " in answer
    assert ("outside the measured range" in answer.lower()) == (wanted.in_domain is False)
    assert f"Batch size {wanted.batch_size}: " in answer
    told = page.run("[...document.querySelectorAll('#doubts li')].map(l => l.textContent)")
    assert told == [*wanted.warnings] or (
        not wanted.warnings and told[0].startswith("Points that the fit had not seen")
    )


def test_orders_and_their_names(opened: Any) -> None:
    """A head sorts by its column, the largest number first; pressed again, the other way."""
    graph = network()
    page = opened(PLAIN.predict(graph))
    blocks = PLAIN.predict(graph).blocks
    in_order = [b.name.split(" · ")[0] for b in blocks]
    assert column(page, "b") == in_order
    sorts = (
        "[...document.querySelectorAll('#blocks > thead th')].map(h => h.getAttribute('aria-sort'))"
    )
    assert page.run(sorts) == ["ascending"] + 6 * [None]

    def sort_by(number: int) -> None:
        page.do(f"document.querySelectorAll('thead button')[{number}].click()")

    sort_by(2)
    by_time = sorted(b.latency_ms for b in blocks)
    assert times(page) == pytest.approx(by_time[::-1])
    assert page.run(sorts)[3] == "descending"
    sort_by(2)
    assert times(page) == pytest.approx(by_time)
    assert page.run(sorts)[3] == "ascending"
    sort_by(1)
    assert column(page, "b") == [*sorted(in_order[:-1]), "call"]
    sort_by(3)
    by_macs = sorted((b.counts["flops"] for b in blocks), reverse=True)
    assert column(page, "td.macs") == [quantity(n) if n else "–" for n in by_macs]
    sort_by(0)
    assert column(page, "b") == in_order


def test_a_filter(opened: Any) -> None:
    page = opened(PLAIN.predict(network()))
    choose(page, "filter", "STAGE2", "input")
    assert column(page, "b") == ["stage2_block1", "stage2_block2", "stage2_block3"]
    status = page.text("#status")
    assert "3 of 9 rows" in status
    choose(page, "filter", "nothing like that", "input")
    assert column(page, "b") == []
    assert page.text("#status").startswith("No row has “nothing like that”")
    choose(page, "filter", "", "input")
    assert len(column(page, "b")) == 9


def lines(page: Chromium, table: int) -> list[list[str]]:
    """The rows of a table of an open row."""
    return page.run(
        f"[...document.querySelectorAll('.detail:not([hidden]) table')[{table}].tBodies[0].rows{CELLS}"
    )  # type: ignore[no-any-return]


def test_an_open_row_adds_up(opened: Any) -> None:
    """By term and operation by operation, in the numbers and units of `lolat explain`."""
    graph = network()
    page = opened(MODEL.predict(graph, 8))
    page.do("document.querySelectorAll('tbody button')[1].click()")
    found = MODEL.explain(graph, 8, block="stage1_block1")
    (block,) = found.blocks
    least = 0.0005 * block.latency_ms  # less is 0.0 %
    terms = sorted((t for t in block.terms if t.latency_ms > least), key=lambda t: -t.latency_ms)
    shown = lines(page, 0)
    assert [line[0] for line in shown] == [TERMS[t.name] for t in terms]
    assert [line[1] for line in shown] == [TERMS[GROUPS[t.name]] for t in terms]
    assert [tuple(line[2:4]) for line in shown] == [rate(t) for t in terms]
    assert [line[4] for line in shown] == [ms(t.latency_ms) for t in terms]
    assert ms(block.latency_ms) in page.text(".detail:not([hidden]) tfoot")
    operations = [o for o in found.operations if o.latency_ms > 0]
    told = lines(page, 1)
    assert [line[:2] for line in told] == [["a", "conv"], ["b", "conv"], ["add", "add"]]
    assert [line[2] for line in told] == [ms(o.latency_ms) for o in operations]
    most = [bound_by({t.name: t.latency_ms for t in o.terms}) for o in operations]
    assert [line[-1] for line in told] == [TERMS[name] for name in most]
    assert [line[0].removesuffix(" *") for line in lines(page, 2)] == [
        c.change for c in found.counterfactuals
    ]


def test_colors_and_words_are_explained(opened: Any) -> None:
    """A term has the color of the legend; every word of the legend stands among the words."""
    page = opened(MODEL.predict(network(), 8))
    page.do("document.querySelectorAll('tbody button')[1].click()")
    color = "getComputedStyle(i).backgroundColor"
    pair = f"[i.parentElement.textContent, {color}]"
    legend = dict(page.run(f"[...document.querySelectorAll('#legend i')].map(i => {pair})"))
    known = page.run("[...document.querySelectorAll('#words dt')].map(t => t.textContent)")
    assert set(legend) <= set(known)
    assert len(set(legend.values())) == len(legend)
    titles = page.run("[...document.querySelectorAll('#legend li[title]')].map(l => l.title)")
    assert len(titles) == len(legend)
    assert all(titles)
    terms = page.run(
        f"[...document.querySelector('.detail:not([hidden]) table').querySelectorAll('tbody i')].map(i => "
        f"[i.parentElement.textContent, {color}])"
    )
    name = {words: term for term, words in TERMS.items()}
    for words, shown in terms:
        assert legend[TERMS[GROUPS[name[words]]]] == shown


def test_by_keyboard_alone(opened: Any) -> None:
    page = opened(PLAIN.predict(network()))
    page.run("document.querySelectorAll('thead button')[2].focus()")
    page.press("Enter")
    assert times(page) == sorted(times(page), reverse=True)
    assert (
        page.run("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"
    )
    page.run("document.querySelector('tbody button').focus()")
    page.press(" ")
    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert page.run("document.querySelectorAll('.detail:not([hidden])').length") == 1
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.press("Enter")
    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "false"
    assert page.run("document.querySelectorAll('.detail:not([hidden])').length") == 0


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_stands_in_the_way_of_anyone(opened: Any, width: int, scheme: str) -> None:
    """axe-core's rules, of contrast too, with a row open."""
    page = opened(PLAIN.predict(network()))
    page.size(width)
    page.media(scheme)
    page.do("document.querySelectorAll('#blocks > tbody button')[1].click()")
    assert page.run("document.documentElement.scrollWidth") <= width
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.1) == (scheme == "dark")
    assert violations(page) == []


def test_a_narrow_window_is_still_a_table(opened: Any) -> None:
    page = opened(PLAIN.predict(network()))
    page.size(400)
    page.do("")
    roles = [role for role, _ in accessible(page)]
    changes = page.run("document.querySelectorAll('#changes tr').length")
    assert roles.count("table") == 2  # the blocks, and what changes would save
    assert roles.count("row") == 10 + changes
    assert roles.count("rowheader") == 9 + changes - 1
    top = page.run(f"{ROWS}.map(r => r.querySelector('.bar').getBoundingClientRect().top)")
    text = page.run(f"{ROWS}.map(r => r.querySelector('button').getBoundingClientRect().bottom)")
    assert all(bar >= words - 1 for bar, words in zip(top, text, strict=True))


@pytest.mark.parametrize(("width", "kind"), [(320, ""), (672, "print"), (740, ""), (1030, "")])
def test_there_is_room_for_names_and_bars(opened: Any, width: int, kind: str) -> None:
    """672 pixels are a sheet of A4 within its margins."""
    page = opened(PLAIN.predict(network()))
    page.size(width)
    page.media("light", kind)
    page.do("document.querySelector('tbody button').click()")
    edge = "getBoundingClientRect().right"
    ends = page.run(
        f"[...document.querySelectorAll('{BODY} > tr:not([hidden])')].map(r => r.{edge})"
    )
    assert max(ends) - min(ends) < 1
    if width > 1024 or kind:  # the last cell ends where the table does: no column is amiss
        cells = page.run(f"{ROWS}.map(r => r.lastElementChild.{edge})")
        assert min(cells) == pytest.approx(max(ends), abs=1)
    for selector in (".block button", ".bar"):
        found = page.run(
            f"{ROWS}.map(r => r.querySelector({selector!r}).getBoundingClientRect().width)"
        )
        assert min(found) >= 100
    assert page.run("document.documentElement.scrollWidth") <= width
    rows = page.run(f"{ROWS}.map(r => r.getBoundingClientRect().height)")
    assert max(rows) < 100


def test_it_prints(opened: Any) -> None:
    page = opened(PLAIN.predict(network(), 4))
    assert page.pdf().startswith(b"%PDF")
    page.media("dark", "print")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.getElementById('controls')).display") == "none"
    assert page.run("getComputedStyle(document.querySelector('.bar')).printColorAdjust") == "exact"


def test_names_are_never_markup(opened: Any) -> None:
    page = opened(evil())
    page.do(f"{ROWS}[0].querySelector('button').click()")
    assert column(page, "b")[:2] == ["</script><b>x", r"\u2028\u2029"]
    assert page.run("document.scripts.length") == 1
    assert page.run("document.images.length + document.querySelectorAll('tbody b b').length") == 0
    assert page.run("document.title").startswith("</script><script>alert(1)")


def test_a_script_of_another_does_not_run(browser: Chromium, tmp_path: Path) -> None:
    """Were a name ever to become markup, the policy would still not let it run or load anything."""
    path = tmp_path / "page.html"
    path.write_text(page_of(PLAIN.predict(synthetic.network())), encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    bad = "<script>window.ran = 1</script><img src='http://127.0.0.1:9/x' onerror='window.ran = 2'>"
    path.write_text(text.replace("<main>", f"<main>{bad}"), encoding="utf-8")
    browser.open(path)
    assert browser.run("window.ran ?? 0") == 0
    assert (
        browser.run("[...document.querySelectorAll('tbody > tr:not(.detail) > .number')].length")
        == 6
    )
    assert len(browser.faults()) >= 2


@pytest.mark.slow
def test_a_thousand_blocks(opened: Any) -> None:
    """The bound is ten times what an idle laptop core takes: it finds quadratic work, not slow machines."""
    builder = GraphBuilder("long")
    x = builder.input((1, 8, 8, 8))
    for i in range(2000):
        x = builder.add("conv", [x], (1, 8, 8, 8), f"block{i // 2}_{i % 2}", kernel=(3, 3), in_channels=8,
                        out_channels=8, groups=1, bias=False)  # fmt: skip
    page = opened(MODEL.predict(builder.build([x])))
    choose(page, "filter", "block7", "input")
    page.do("document.querySelectorAll('thead button')[2].click()")
    assert times(page) == sorted(times(page), reverse=True)
    assert page.run("performance.now()") < 30_000
